"""PyTorch's own loaders over real mounts: nearly all opens are predicted, whatever has been said of them."""

from __future__ import annotations

import pytest

from tests.conftest import slow
from tests.frameworks.training import EPOCHS, FOUND_EPOCHS, SAID, TRAIN, UNSAID, VAL, Training, has_counted, needs

pytestmark = needs("torch", "torchvision")

ALL = [slow(0, 0), slow(0, 2), slow(42, 0), (42, 2), slow(123456, 0), slow(123456, 2)]
FEW = [(1, 0), slow(42, 2), slow(2024, 2)]
TWO = [slow(1, 0), (42, 2)]


@pytest.mark.parametrize(("seed", "workers"), ALL)
def test_distributed_alone(training: Training, seed: int, workers: int) -> None:
    record = training.found(
        "torch_job", "--seed", str(seed), kind="distributed", world=1, ranks=[0], seed=seed, workers=workers
    )

    assert has_counted(record, FOUND_EPOCHS * TRAIN)
    assert record["plan"]["sampler"] == "distributed"
    assert record["plan"]["seed"] == seed


@pytest.mark.parametrize(
    ("world", "ranks", "seed", "workers", "said"),
    [
        (2, "0-1", 1, 2, "flags"),
        slow(5, "0-4", 42, 0, "plan"),
        slow(8, "0-7", 7, 0, "flags"),
        slow(8, "0-7", 123, 2, "plan"),
        slow(2, "1", 3, 0, "plan"),
        (5, "3", 42, 2, "flags"),
        slow(5, "0", 7, 2, "plan"),
        (8, "6", 7, 2, "plan"),
    ],
)
def test_distributed(training: Training, world: int, ranks: str, seed: int, workers: int, said: str) -> None:
    epochs = EPOCHS if "-" in ranks else 2 * world  # the plan is found by a few files, of as many
    first, _, last = ranks.partition("-")
    local = list(range(int(first), int(last or first) + 1))
    flags = ["--seed", str(seed), "--world-size", str(world), "--ranks", ranks] if said == "flags" else []
    plan = f"""
        [[plan]]
        sampler = "distributed"
        root = "train"
        seed = {seed}
        world_size = {world}
        ranks = "{ranks}"
        loader = {{ workers = {workers}, batch = 8 }}
    """
    record = training.foreseen(
        "torch_job", *flags, plan="" if flags else plan, epochs=epochs,
        kind="distributed", world=world, ranks=local, seed=seed, workers=workers, batch=8,
    )  # fmt: skip

    assert has_counted(record, epochs * len(local) * -(-TRAIN // world))
    assert record["plan"]["world"] == world, record["plan"]
    assert record["plan"]["ranks"] == local


@pytest.mark.parametrize(
    "options", [slow({"shuffle": False}), {"drop_last": True}], ids=lambda options: next(iter(options))
)
def test_distributed_otherwise(training: Training, options: dict[str, bool]) -> None:
    said = "sequential=true" if "shuffle" in options else "drop_last=true"
    training.foreseen(
        "torch_job", "--seed", "5", "--sampler", "distributed", "--sampler-option", said, "--world-size", "3",
        kind="distributed", world=3, ranks=[0, 1, 2], seed=5, workers=2, options=options, batch=8,
    )  # fmt: skip


@pytest.mark.parametrize(("seed", "workers"), ALL)
def test_on_the_global_generator(training: Training, seed: int, workers: int) -> None:
    record = training.found("torch_job", "--seed", str(seed), kind="global", seed=seed, workers=workers)

    assert record["plan"]["sampler"] == "global"
    assert record["plan"]["seed"] == seed


@pytest.mark.parametrize(("seed", "workers"), TWO)
def test_on_the_global_generator_after_a_model(training: Training, seed: int, workers: int) -> None:
    training.found("torch_job", "--seed", str(seed), kind="global", bar=UNSAID, model=True, seed=seed, workers=workers)


@pytest.mark.parametrize(("seed", "workers"), FEW)
def test_training_and_validation_by_turns(training: Training, seed: int, workers: int) -> None:
    record = training.found(
        "torch_job",
        "--seed",
        str(seed),
        bar=UNSAID,
        kind="global",
        validation=True,
        model=True,
        seed=seed,
        workers=workers,
    )

    assert has_counted(record, FOUND_EPOCHS * (TRAIN + VAL))


def test_persistent_workers(training: Training) -> None:
    training.found("torch_job", "--seed", "9", kind="global", seed=9, workers=2, persistent=True)


@pytest.mark.parametrize(
    ("seed", "workers", "sampler"),
    [slow(1, 0, False), (42, 2, False), slow(2024, 2, False), (1, 2, True), slow(42, 0, True)],
)
def test_a_generator_of_its_own(training: Training, seed: int, workers: int, sampler: bool) -> None:
    flags = ["--seed", str(seed)]
    if sampler:
        flags += ["--sampler", "random", "--sampler-option", "base_seed=never"]
    record = training.found("torch_job", *flags, kind="generator", sampler=sampler, seed=seed, workers=workers)

    assert record["plan"]["sampler"] == "random"


@pytest.mark.parametrize(("flags", "workers"), [slow("", 0), ("--seed 3", 2), slow("--sampler sequential", 2)])
def test_in_order(training: Training, flags: str, workers: int) -> None:
    bar = SAID if flags else UNSAID
    record = training.found("torch_job", *flags.split(), bar=bar, kind="sequential", workers=workers)

    assert record["plan"]["sampler"] == "sequential"


@pytest.mark.parametrize(("seed", "workers"), FEW)
def test_subset_random_registered(training: Training, seed: int, workers: int) -> None:
    record = training.foreseen("torch_job", kind="subset_random", seed=seed, workers=workers)

    assert has_counted(record, EPOCHS * TRAIN // 2)


@pytest.mark.parametrize(("seed", "workers"), TWO)
def test_a_split_registered(training: Training, seed: int, workers: int) -> None:
    training.foreseen("torch_job", kind="split", register=True, seed=seed, workers=workers)


@pytest.mark.parametrize(("seed", "workers"), TWO)
def test_a_split_in_a_plan_file(training: Training, seed: int, workers: int) -> None:
    part = f'name = "random_split", seed = {seed}, options'
    plan = f"""
        [[plan]]
        sampler = "global"
        root = "train"
        seed = {seed}
        options = {{ step = 6 }}
        subset = {{ {part} = {{ lengths = "0.9,0.1", part = 0 }} }}

        [[plan]]
        sampler = "sequential"
        root = "train"
        subset = {{ {part} = {{ lengths = "0.9,0.1", part = 1 }} }}
    """
    record = training.foreseen("torch_job", plan=plan, kind="split", validation=True, seed=seed, workers=workers)

    assert has_counted(record, EPOCHS * TRAIN)
