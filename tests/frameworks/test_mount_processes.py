"""Jobs of several processes over real mounts, started as users start them; some of them read on another node."""

from __future__ import annotations

import pytest

from tests.conftest import slow
from tests.frameworks.training import SAID, TRAIN, UNSAID, Training, has_counted, needs

pytestmark = needs("torch", "torchvision", "accelerate", "transformers", "lightning")

SEED = 42
READS = 6000  # files of a process, at half a millisecond each: past any bar, on a machine of many cores


@pytest.mark.parametrize(
    ("world", "ranks", "said"),
    [
        slow(2, [1], "nothing"),
        slow(4, [2, 3], "nothing"),
        slow(8, [4, 5, 6, 7], "wrong"),
        (16, [8, 9, 10, 11], "nothing"),
        slow(16, [8, 9, 10, 11], "world"),
    ],
)
def test_some_ranks_of_a_larger_world(training: Training, world: int, ranks: list[int], said: str) -> None:
    flags = {"nothing": [], "wrong": ["--seed", "7"], "world": ["--seed", str(SEED)]}[said]
    training.found(
        "torch_job", *flags, environment={"WORLD_SIZE": str(world)} if said == "world" else {},
        bar=SAID if said == "world" else UNSAID, lanes=len(ranks), kind="distributed", world=world, ranks=ranks,
        seed=SEED, batch=8, epochs=READS * world // TRAIN,
    )  # fmt: skip


@pytest.mark.parametrize(("workers", "seed", "said"), [slow(0, 123456, True), (2, 4321, False)])
def test_torchrun(training: Training, workers: int, seed: int, said: bool) -> None:
    epochs = READS * 2 * max(workers, 1) // TRAIN
    record = training.found(
        "torch_job", *(["--seed", str(seed)] if said else []), bar=SAID if said else UNSAID, lanes=2, processes=2,
        kind="torchrun", workers=workers, seed=seed, epochs=epochs,
    )  # fmt: skip

    assert has_counted(record, epochs * TRAIN)
    assert record["plan"]["sampler"] == "distributed"


@pytest.mark.parametrize(
    ("kind", "workers", "said"), [slow("accelerate", 2, False), slow("trainer", 0, True), ("lightning", 2, False)]
)
def test_all_processes_here(training: Training, kind: str, workers: int, said: bool) -> None:
    training.found(
        "torch_users_job", *(["--seed", str(SEED)] if said else []), bar=SAID if said else UNSAID, lanes=2, processes=2,
        kind=kind, workers=workers, seed=SEED, seedable=True, output=str(training.work),
        epochs=READS * 2 * max(workers, 1) // TRAIN,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("job", "kind", "batch"),
    [("torch_job", "torchrun", 16), slow("torch_users_job", "accelerate", 12), slow("torch_users_job", "trainer", 8)],
)
def test_the_second_of_two_nodes(training: Training, job: str, kind: str, batch: int) -> None:
    training.found(
        job, bar=UNSAID, lanes=2, processes=4, here=[2, 3], kind=kind, batch=batch, seed=SEED, seedable=True,
        output=str(training.work), epochs=READS * 4 // TRAIN,
    )  # fmt: skip
