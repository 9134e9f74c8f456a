"""TensorFlow's and Keras' input pipelines over real mounts."""

from __future__ import annotations

import pytest

from tests.conftest import slow
from tests.frameworks.training import EPOCHS, TRAIN, UNSAID, VAL, Training, has_counted, needs

pytestmark = needs("tensorflow", "keras")


@pytest.mark.parametrize(("seed", "parallel", "twice"), [slow(1, 1, False), (42, 8, False), (2024, 8, True)])
def test_list_files(training: Training, seed: int, parallel: int, twice: bool) -> None:
    flags = ["--sampler", "tf_list_files"]
    flags += ["--sampler-option", "twice=true", "--sampler-option", "buffer=1000"] if twice else []
    record = training.foreseen(
        "tensorflow_job", "--seed", str(seed), *flags, kind="list_files", seed=seed, parallel=parallel, twice=twice
    )

    assert record["plan"]["sampler"] == "tf_list_files"
    assert has_counted(record, EPOCHS * TRAIN)


@pytest.mark.parametrize(("seed", "buffer"), [slow(1, 0), (42, 1000), slow(2024, 0)])
def test_shuffle(training: Training, seed: int, buffer: int) -> None:
    plan = f"""
        [[plan]]
        sampler = "tf_shuffle"
        root = "train"
        files = "sorted_files"
        seed = {seed}
        options = {{ buffer = {buffer} }}
    """
    training.foreseen("tensorflow_job", plan=plan, kind="shuffle", seed=seed, buffer=buffer)


@pytest.mark.parametrize(("seed", "parallel"), [slow(1, 0), (42, 8), slow(2024, 8)])
def test_shuffle_found(training: Training, seed: int, parallel: int) -> None:
    training.found(
        "tensorflow_job", "--seed", str(seed), kind="shuffle", bar=UNSAID, batch=8, seed=seed, parallel=parallel
    )


@pytest.mark.parametrize("seed", [slow(1), 42])
def test_shuffle_by_the_global_seed(training: Training, seed: int) -> None:
    training.foreseen(
        "tensorflow_job", "--seed", str(seed), "--sampler", "tf_shuffle", "--sampler-option", "seeded=global",
        kind="shuffle", set_seed=True, seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize(("seed", "validation"), [slow(1, False), slow(42, True), (2024, True)])
def test_fit(training: Training, seed: int, validation: bool) -> None:
    plan = f"""
        [[plan]]
        sampler = "tf_shuffle"
        root = "train"
        files = "sorted_files"
        seed = {seed}
        options = {{ step = 2 }}

        [[plan]]
        sampler = "sequential"
        root = "val"
        files = "sorted_files"
    """
    record = training.foreseen("tensorflow_job", plan=plan, kind="fit", seed=seed, validation=validation)

    assert has_counted(record, EPOCHS * (TRAIN + VAL * validation))


@pytest.mark.parametrize(
    ("seed", "batch", "fit"), [slow(1, 32, False), (42, 32, True), slow(2024, 16, False), slow(7, 16, True)]
)
def test_directory(training: Training, seed: int, batch: int, fit: bool) -> None:
    flags = ["--sampler", "keras_directory"]
    flags += ["--sampler-option", f"batch={batch}"] if batch != 32 else []
    training.found("tensorflow_job", "--seed", str(seed), *flags, kind="directory", batch=batch, fit=fit, seed=seed)


@pytest.mark.parametrize(("seed", "fit"), [slow(1, False), slow(42, True), (2024, True)])
def test_directory_with_validation_split(training: Training, seed: int, fit: bool) -> None:
    plan = f"""
        [[plan]]
        sampler = "keras_directory"
        root = "train"
        seed = {seed}
        options = {{ validation_split = 0.2, batch = 16{", step = 2" if fit else ""} }}

        [[plan]]
        sampler = "keras_directory"
        root = "train"
        seed = {seed}
        options = {{ validation_split = 0.2, subset = "validation", fixed = true, batch = 16 }}
    """
    record = training.foreseen("tensorflow_job", plan=plan, kind="directory", split=0.2, fit=fit, seed=seed)

    assert has_counted(record, EPOCHS * TRAIN)
