"""The policy and its reference, from before `Residency`, are given the same random events: the same commands come, but
for evictions that come earlier. After every event no copy is staged, not being evicted and without a hold."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import numpy as np
import pytest

from nopfsfs.placement.methods import UNCOVERED
from nopfsfs.policy import fetch_scheduler, stream_scan
from nopfsfs.policy.copy_flags import NEW
from nopfsfs.policy.node_policy import NodePolicy
from tests.policy.reference import node_policy as reference
from tests.policy.reference.twin import EVENTS, Twin
from tests.policy.simulated import World
from tests.policy.splits import split

# More seeds, for a change of the policy: NOPFSFS_SEEDS=20000 pytest tests/policy/test_same_commands.py
SEEDS = int(os.environ.get("NOPFSFS_SEEDS", "80"))
BLOCK = 20
ACTIONS = 150

Action = Callable[[World, random.Random], object]


def row(w: World, chance: random.Random) -> int:
    return chance.randrange(len(w.sizes))


def any_split(chance: random.Random) -> object:
    page_homes = chance.choice([0, 0, chance.randint(0, 200)])
    return split(
        homes=chance.randint(0, 300), stream=chance.randint(0, 120), pages=page_homes + chance.randint(0, 200),
        page_homes=page_homes, whole_limit=chance.randint(20, 60),
    )  # fmt: skip


def lose_events(w: World, _: random.Random) -> None:
    """Of the server; which files are open is not known any more."""
    w.server.clear()
    w.open.clear()
    w.policy.events_lost()


def resync(w: World, _: random.Random) -> None:
    """After lost events of the stager."""
    while w.work():
        pass
    w.events.clear()
    w.policy.resync(np.isin(np.arange(len(w.sizes)), list(w.staged)))
    w.on_disk.clear()
    w.policy.restart(w.position)


def read_within(w: World, chance: random.Random) -> None:
    """Some READ of some file, whoever has it open."""
    at = row(w, chance)
    if w.sizes[at]:
        w.policy.read(at, chance.randint(1, int(w.sizes[at])))


def place(w: World, chance: random.Random) -> None:
    w.place([chance.randint(UNCOVERED, 2) for _ in w.sizes])


def withdraw(w: World, chance: random.Random) -> None:
    w.policy.withdraw_placement(np.array([chance.random() < 0.3 for _ in w.sizes]))


def resize(w: World, chance: random.Random) -> None:
    w.policy.resize(any_split(chance), w.policy.held()[::-1])


def refuse_passing(w: World, chance: random.Random) -> None:
    """But not of a copy that has just come: the reference evicts it then, before an open of the same moment counts."""
    at = row(w, chance)
    if not w.policy.residency.holds[at] & NEW:
        w.policy.kernel_reads(at, False)


FREQUENT: list[Action] = [
    lambda w, _: w.read_next(), lambda w, _: w.read_next(), lambda w, _: w.read_next(hold=True),
    lambda w, _: w.close_one(), lambda w, _: w.work(), lambda w, _: w.work(), lambda w, _: w.work(),
    lambda w, _: w.supervise(), lambda w, _: w.supervise(), lambda w, _: w._see(), lambda w, _: w.settle(),
]  # fmt: skip
SELDOM: list[Action] = [
    lambda w, _: w.skip(3), lambda w, _: w.policy.restart(w.position), lambda w, _: w.restart_stager(),
    lambda w, _: w.evict(3), lambda w, _: w.look(), place, withdraw, resize, resync, lose_events, read_within,
    lambda w, chance: w.pass_on(row(w, chance)), lambda w, _: w.passed(),
    lambda w, chance: w.policy.pull(row(w, chance)), lambda w, chance: w.policy.cancel_pull(row(w, chance)),
    lambda w, chance: w.change(row(w, chance), chance.randint(0, 60)),
    lambda w, chance: w.policy.use_belady(chance.random() < 0.5),
    lambda w, chance: w.policy.use_disk(chance.random() < 0.7),
    lambda w, chance: w.policy.fetch_stuck(row(w, chance)),
    lambda w, chance: w.policy.on_disk(row(w, chance), 1) if w.disk else None,
    refuse_passing,
    lambda w, chance: w.policy.released(row(w, chance)),
    lambda w, chance: w.replace_supervisor(any_split(chance)),  # type: ignore[arg-type]
    lambda w, chance: w.hide() if w.shows and chance.random() < 0.1 else None,
]  # fmt: skip


@contextmanager
def narrow_scans() -> Iterator[None]:
    """A look at the stream ends after a few positions or fetches, as it does in a large data set."""
    with (
        patch.multiple(stream_scan, SCAN=2, SCAN_STEPS=2),
        patch.object(fetch_scheduler, "FETCHES_OUTSTANDING", 3),
        patch.object(reference, "FETCHES_OUTSTANDING", 3),
    ):
        yield


def play(seed: int) -> None:
    chance = random.Random(seed)
    n = chance.randint(1, 40)
    sizes = [chance.randint(0, 50) for _ in range(n)]
    stream = [at for _ in range(4) for at in chance.sample(range(n), n if seed % 3 else (n + 2) // 3)]
    w = World(
        sizes, stream, any_split(chance), disk=[chance.randint(0, 200) for _ in range(chance.randint(0, 2))],  # type: ignore[arg-type]
        seed=seed, fail=chance.choice([0.0, 0.2]), foretold=chance.random() < 0.7,
        passes=tuple(at for at in range(n) if sizes[at] >= chance.choice([0, 20, 51])), make=Twin,
    )  # fmt: skip
    if seed % 3 == 0:
        w.policy.use_belady(True)
    strange = chance.choice([0.02, 0.1, 0.4])
    for _ in range(ACTIONS):
        chance.choice(SELDOM if chance.random() < strange else FREQUENT)(w, chance)
    w.passed()
    w.settle()


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_the_same_commands_come_from_the_same_events(first: int) -> None:
    for seed in range(first, first + BLOCK):
        try:
            with narrow_scans() if seed % 4 == 1 else nullcontext():
                play(seed)
        except AssertionError as e:
            raise AssertionError(f"seed {seed}: {e}") from e


def test_every_event_is_compared() -> None:
    queries = {"held", "serve_requests", "copying"}  # the reference knows no requests, and copies no large files
    methods = {name for name, value in vars(NodePolicy).items() if callable(value) and not name.startswith("_")}
    assert methods - queries == set(EVENTS)
