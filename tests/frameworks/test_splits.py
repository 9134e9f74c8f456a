"""Shuffles and splits of Hugging Face datasets and scikit-learn against the models."""

from __future__ import annotations

import os

import pytest

from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]

SIZES = (2, 3, 17, 1000)
TEST_SIZES = (0.1, 0.2, 0.25, 0.3, 0.15, 0.33, 1, 2)


def _datasets():
    os.environ["HF_DATASETS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"
    return pytest.importorskip("datasets")


@pytest.mark.parametrize("n", [1, *SIZES])
def test_dataset_shuffle(n: int) -> None:
    data = _datasets().Dataset.from_dict({"i": list(range(n))})
    for seed in (0, 42):
        assert registry.order(Spec("hf_datasets", seed), n, 3).tolist() == list(data.shuffle(seed=seed)["i"])


def _compare(name: str, n: int, size: float, train: list[int], test: list[int]) -> None:
    rule = registry.subset(name)
    for part, real in (("train", train), ("test", test)):
        spec = registry.make_spec(rule, 42, {"test_size": size, "part": part})
        assert rule.samples(spec, n).tolist() == list(real)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("size", TEST_SIZES)
def test_dataset_split(n: int, size: float) -> None:
    if size == n:
        pytest.skip("no split")
    data = _datasets().Dataset.from_dict({"i": list(range(n))})
    split = data.train_test_split(test_size=size, seed=42)
    _compare("hf_split", n, size, split["train"]["i"], split["test"]["i"])


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("size", TEST_SIZES)
def test_sklearn_split(n: int, size: float) -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    if size == n:
        pytest.skip("no split")
    train, test = selection.train_test_split(list(range(n)), test_size=size, random_state=42)
    _compare("sklearn_split", n, size, train, test)
