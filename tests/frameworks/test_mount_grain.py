"""Grain over real mounts. Its reader threads open hundreds of files ahead, which the plan is told."""

from __future__ import annotations

import pytest

from tests.conftest import slow
from tests.frameworks.training import EPOCHS, TRAIN, Training, has_counted, needs

pytestmark = needs("grain")

RUNS = [slow(1, 0), slow(42, 0), (7, 2), slow(2024, 2)]  # seed, workers
READ_AHEAD = 500  # grain.ReadOptions.prefetch_buffer_size


def plan_of(seed: int, ahead: int, options: str = "") -> str:
    return f"""
        [[plan]]
        sampler = "grain"
        root = "train"
        files = "sorted_files"
        seed = {seed}
        options = {{ {options} }}
        loader = {{ workers = 0, batch = {ahead} }}
    """


@pytest.mark.parametrize(("seed", "workers"), RUNS)
def test_data_loader(training: Training, seed: int, workers: int) -> None:
    ahead = (READ_AHEAD + 2 * 16) * max(workers, 1)
    record = training.foreseen(
        "grain_job", plan=plan_of(seed, ahead), kind="data_loader", seed=seed, workers=workers
    )  # fmt: skip

    assert has_counted(record, EPOCHS * TRAIN)


@pytest.mark.parametrize(("seed", "workers"), RUNS)
def test_data_loader_that_reads_little_ahead(training: Training, seed: int, workers: int) -> None:
    training.foreseen(
        "grain_job", "--seed", str(seed), "--sampler", "grain", kind="data_loader", seed=seed, workers=workers,
        read_options={"num_threads": 4, "prefetch_buffer_size": 16},
    )  # fmt: skip


@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize("seed", [slow(1), 42, slow(7)])
def test_map_dataset(training: Training, seed: int, derived: bool) -> None:
    options = "derived = 1" if derived else ""
    training.foreseen(
        "grain_job", plan=plan_of(seed, READ_AHEAD + 32, options), kind="map_dataset", derived=derived, seed=seed
    )
