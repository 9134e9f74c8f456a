"""Hugging Face datasets, WebDataset, DALI and plain scripts over real mounts."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tests.conftest import place_for_all, slow
from tests.frameworks.training import EPOCHS, TRAIN, Training, has_counted, needs

pytestmark = needs("torch")
SHARDS, IN_SHARD = 500, 4


# -- datasets --


@pytest.mark.parametrize(("seed", "workers"), [slow(1, 0), slow(42, 2), (7, 2)])
def test_datasets_shuffle(training: Training, seed: int, workers: int) -> None:
    pytest.importorskip("datasets")
    record = training.foreseen(
        "datasets_job", "--seed", str(seed), "--sampler", "hf_datasets", kind="shuffle", seed=seed, workers=workers
    )

    assert has_counted(record, EPOCHS * TRAIN)
    assert record["plan"]["sampler"] == "hf_datasets"


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "workers"), [(1, 0), (42, 2), (7, 2)])
def test_datasets_in_a_shuffling_loader(training: Training, seed: int, workers: int) -> None:
    pytest.importorskip("datasets")
    plan = f"""
        [[plan]]
        sampler = "global"
        root = "train"
        files = "hf_imagefolder"
        seed = {seed}
    """
    training.foreseen("datasets_job", plan=plan, kind="loader", seed=seed, workers=workers)


# -- WebDataset --


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 tar files."""
    root = place_for_all(tmp_path_factory, "shards")
    for number in range(SHARDS):
        with tarfile.open(root / f"train-{number:06}.tar", "w") as tar:
            for at in range(IN_SHARD):
                data = f"sample {number} {at}".encode()
                info = tarfile.TarInfo(f"{number:06}{at:02}.txt")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return root


@pytest.mark.parametrize(
    ("seed", "workers", "method"),
    [slow(1, 0, "shuffle"), (42, 2, "shuffle"), (7, 2, "detshuffle"), slow(3, 0, "detshuffle")],
)
def test_webdataset(training: Training, shards: Path, seed: int, workers: int, method: str) -> None:
    pytest.importorskip("webdataset")
    flags = ["--sampler", "webdataset", "--sampler-option", f"workers={workers}"]
    flags += ["--sampler-option", f"method={method}"]
    options = {"shardshuffle": 100, "detshuffle": method == "detshuffle"}
    record = training.foreseen(
        "webdataset_job", "--seed", str(seed), *flags, source=shards, seed=seed, workers=workers, options=options
    )

    assert has_counted(record, EPOCHS * SHARDS)


# -- DALI --


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("", {"random_shuffle": True}),
        ("sequential = true", {}),
        ("shuffle_after_epoch = true", {"shuffle_after_epoch": True}),
    ],
    ids=["random_shuffle", "in order", "shuffle_after_epoch"],
)
def test_dali(training: Training, said: str, options: dict[str, bool]) -> None:
    pytest.importorskip("nvidia.dali")
    plan = f"""
        [[plan]]
        sampler = "dali"
        root = "train"
        options = {{ {said} }}
    """
    training.foreseen("dali_job", plan=plan, options=options)


# -- scripts --


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("permutation", "--sampler numpy"),
        slow("shuffled", "--sampler numpy --sampler-option carry=shuffle"),
        slow("legacy", "--sampler numpy_legacy"),
        ("python", "--sampler python"),
        slow("python_by_epoch", "--sampler python --sampler-option carry=seed+epoch --sampler-option method=sample"),
    ],
    ids=lambda value: value if " " not in value else "said",
)
@pytest.mark.parametrize("seed", [slow(1), 42, slow(7)])
def test_script(training: Training, kind: str, said: str, seed: int) -> None:
    record = training.foreseen("script_job", "--seed", str(seed), *said.split(), kind=kind, seed=seed)

    assert has_counted(record, EPOCHS * TRAIN)


@pytest.mark.parametrize(("kind", "seed"), [("permutation", 1), slow("legacy", 42), ("python", 7)])
def test_script_found(training: Training, kind: str, seed: int) -> None:
    training.found("script_job", "--seed", str(seed), kind=kind, seed=seed)
