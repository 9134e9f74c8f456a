"""How many opens show which order it is, for each sampler that there is."""

from __future__ import annotations

from typing import Any

import pytest
from plan_cases import identified, reading
from plan_play import follower_for, play, tree

from nopfsfs.plan.following import search_budget
from nopfsfs.plan.samplers import registry
from tests.conftest import long, slow

FILES, SHARDS = 5000, 1000
# RepeatAugSampler, rank 3 of 8, begins as what ranks 1, 3 and 6 of 8 read of DistributedSampler with seed 0.
GIVEN = [family.name for family in identified() if family.name != "repeat_aug"]
SEEDED = [family.name for family in identified() if family.seeds is not None]


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opens are counted here, not what a slow machine can compute in the 10 s that searches may take at once."""
    monkeypatch.setattr(search_budget, "_BUDGET_S", 60.0)


def opens_needed(name: str, seed: int, workers: int, most: int, *, given: bool) -> int | None:
    job = reading(registry.sampler(name), seed)
    datasets = tree(SHARDS if job.data == "shards" else FILES, job.data)
    follower = follower_for(job, datasets, seed if given else None)
    return play(job, follower, datasets, workers, epochs=1, most=most).opens


def some(names: list[str]) -> list[Any]:
    """One of three; of the others one is long, one slow."""
    return [(name, long(name), slow(name))[at % 3] for at, name in enumerate(names)]


@pytest.mark.parametrize("workers", [slow(0), 2])
@pytest.mark.parametrize("name", some(GIVEN))
def test_with_the_seed_given_64_opens_do(name: str, workers: int) -> None:
    assert opens_needed(name, 42, workers, 64, given=True) is not None


@pytest.mark.parametrize("workers", [0, slow(2)])
@pytest.mark.parametrize("seed", [42, slow(1234)])
@pytest.mark.parametrize("name", some(SEEDED))
def test_with_a_common_seed_that_is_not_given_256_opens_do(name: str, seed: int, workers: int) -> None:
    assert opens_needed(name, seed, workers, 256, given=False) is not None


@pytest.mark.parametrize("name", ["distributed", "global", "tf_shuffle", "python"])
def test_a_plan_that_was_found_foresees_what_is_left(name: str) -> None:
    job = reading(registry.sampler(name), 42)
    datasets = tree(FILES)
    outcome = play(job, follower_for(job, datasets, 42), datasets, epochs=3)
    assert outcome.opens is not None
    assert outcome.opens <= 64
    assert outcome.shares[0] >= 1 - 64 / FILES
    assert min(outcome.shares[1:]) >= 0.99
