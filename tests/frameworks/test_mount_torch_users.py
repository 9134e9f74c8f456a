"""Lightning, Accelerate, transformers' Trainer and timm over real mounts."""

from __future__ import annotations

import pytest

from tests.conftest import slow
from tests.frameworks.training import EPOCHS, FOUND_EPOCHS, TRAIN, UNSAID, VAL, Training, has_counted, needs

pytestmark = needs("torch", "torchvision", "lightning", "accelerate", "transformers", "timm")

RUNS = [slow(1, 0, False), slow(42, 2, False), (7, 2, True)]  # seed, workers, validation


@pytest.mark.parametrize(("seed", "workers", "validation"), RUNS)
def test_lightning(training: Training, seed: int, workers: int, validation: bool) -> None:
    training.found(
        "torch_users_job", "--seed", str(seed), bar=UNSAID, kind="lightning", batch=8,
        seed=seed, workers=workers, validation=validation,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "workers", "seedable"), [slow(1, 0, False), (42, 2, False), (7, 2, True), slow(3, 0, True)]
)
def test_accelerate(training: Training, seed: int, workers: int, seedable: bool) -> None:
    record = training.found(
        "torch_users_job",
        "--seed",
        str(seed),
        bar=UNSAID,
        kind="accelerate",
        seed=seed,
        workers=workers,
        seedable=seedable,
    )

    assert has_counted(record, FOUND_EPOCHS * TRAIN)


@pytest.mark.parametrize(("seed", "workers", "validation"), RUNS)
def test_trainer(training: Training, seed: int, workers: int, validation: bool) -> None:
    record = training.foreseen(
        "torch_users_job", "--seed", str(seed), "--sampler", "hf_trainer", kind="trainer", output=str(training.work),
        seed=seed, workers=workers, validation=validation,
    )  # fmt: skip

    assert has_counted(record, EPOCHS * (TRAIN + VAL * validation))


@pytest.mark.parametrize(("seed", "workers", "validation"), RUNS)
def test_timm(training: Training, seed: int, workers: int, validation: bool) -> None:
    record = training.found(
        "torch_users_job", "--seed", str(seed), bar=UNSAID, kind="timm",
        seed=seed, workers=workers, validation=validation,
    )  # fmt: skip

    assert has_counted(record, FOUND_EPOCHS * (TRAIN + VAL * validation))
