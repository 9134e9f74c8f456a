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
from nopfsfs.plan.search.candidates import FileList, OrderHeads, Seeds
from nopfsfs.plan.search.matching import Search
from nopfsfs.plan.search.suspects import FIRSTS, LOCK, OpensView

N, READERS = 3000, 16


@dataclass
class Likely:
    """Stands for the seeds that are likeliest; notes with how many first opens they were looked at."""

    target: FileList
    looked_with: list[int] = field(default_factory=list)

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
