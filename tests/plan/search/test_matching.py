"""When a search looks at the likeliest seeds again, and when it stops for what it has found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from nopfsfs.plan.epoch_order import DataSet, FileOrder
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.search import matching as module
from nopfsfs.plan.search.by_seed import BySeed
from nopfsfs.plan.search.candidates import FileList, OrderHeads, Seeds
from nopfsfs.plan.search.matching import Search
from nopfsfs.plan.search.suspects import FIRSTS, LOCK, OpensView

N, READERS = 3000, 16


@dataclass
class Likely:
    """Stands for the seeds that are likeliest; notes with how many first opens they were looked at."""

    target: FileList
    looked_with: list[int] = field(default_factory=list)
    joint: bool = False

    def begin(self, view: OpensView, samples_of: Any) -> None:
        self.looked_with.append(sum(map(len, view.firsts)))


def view(each: int) -> OpensView:
    """Files in no order; of each reader so many first opens are known."""
    rows = np.random.default_rng(1).permutation(N)[: READERS * each]
    readers = np.arange(len(rows)) % READERS + 1
    firsts = tuple(rows[readers == reader + 1] for reader in range(READERS))
    return OpensView(rows[-256:], readers[-256:], N, firsts)


def test_the_likeliest_seeds_are_looked_at_again_when_first_opens_have_doubled_and_when_there_will_be_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = [DataSet(0, "", (FileOrder(("image_folder",), np.arange(N)),))]
    found: list[Likely] = []

    def likely(targets: Any, seeds: Any, spacing: int) -> list[Likely]:
        found.append(Likely(targets[0]))
        return list(found)

    monkeypatch.setattr(module, "likely", likely)
    search = Search(data, [0], Seeds(), "auto", [(1, (0,))], OrderHeads())
    for each in (3, 4, 5, 6, 9, 11, 13, 15, FIRSTS, FIRSTS, FIRSTS):
        assert search.run(view(each)) == []
    assert found[0].looked_with == [READERS * each for each in (3, 6, 13, FIRSTS)]


def test_nothing_else_is_tried_once_an_order_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    data = [DataSet(0, "", (FileOrder(("image_folder",), np.arange(N)),))]
    tried = []
    monkeypatch.setattr(module, "_EARLY", 1.0)
    monkeypatch.setattr(Search, "_try", lambda *_: tried.append(1) or ([], 1))
    search = Search(data, [0], Seeds(42), "auto", [(1, (0,))], OrderHeads())
    rows = registry.order(Spec("distributed", 42), N, 37)[:64]
    readers = np.ones(len(rows), np.int64)
    (found,) = search.run(OpensView(rows, readers, len(rows), (rows,)))
    assert (found.candidate.spec, found.candidate.epoch) == (Spec("distributed", 42), 37)
    assert found.worth >= LOCK
    assert tried == [], "readers wait for what was found"
    assert not search.done


def in_mid_epoch(large: int, opens: int) -> OpensView:
    """Four ranks in the middle of an epoch of an order whose seed nobody would try before others."""
    rows = registry.order(Spec("distributed", 5000), large, 0)[large // 2 :][:opens]
    readers = np.arange(len(rows)) % 4 + 1
    return OpensView(rows, readers, large, tuple(rows[readers == reader][:FIRSTS] for reader in (1, 2, 3, 4)))


@pytest.mark.long
@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("first", [200, 40])
def test_an_order_that_all_readers_follow_is_found_before_all_seeds_of_single_readers_are_tried(
    seed: int | None, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where readers had opened too few files when it was the turn of that search."""
    large, began = 40_000, []
    begin = BySeed.begin

    def noted(way: BySeed, *told: Any) -> Any:
        found = begin(way, *told)
        began.append((way.joint, way.in_middle, found is not None))
        return found

    monkeypatch.setattr(BySeed, "begin", noted)
    data = [DataSet(0, "", (FileOrder(("image_folder",), np.arange(large)),))]
    search = Search(data, [0], Seeds(seed), "auto", [(1, (0,))], OrderHeads())
    while not search.done and not any(joint for joint, _, _ in began):
        assert search.run(in_mid_epoch(large, first)) == []
    found = []
    while not search.done and not found:
        found = search.run(in_mid_epoch(large, 200))
    assert (found[0].candidate.spec, found[0].candidate.epoch) == (Spec("distributed", 5000), 0)
    assert [good for joint, _, good in began if joint] == ([True] if first == 200 else [False, True])
    assert sum(in_middle and not joint for joint, in_middle, _ in began) <= 2, "of likely seeds alone"
