"""Files that commands want forgotten: all copies go, but for what is open, and the books stay right."""

from __future__ import annotations

import random

import numpy as np
import pytest

from nopfsfs.policy import file_request
from nopfsfs.policy.copy_flags import PRESENT, Copy
from nopfsfs.policy.drop_queue import DropRequest
from nopfsfs.policy.homes import Home
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.policy.push_scheduler import Paged
from nopfsfs.protocol.supervisor_stager import StagerCommand
from tests.policy.splits import split

SIZE = 10
Commands = list[tuple[StagerCommand, list[int], int]]


class Node:
    """A policy, and a stager that does what it is ordered to."""

    def __init__(self, n: int, homes: int, stream: int = 100, disk: list[int] | None = None) -> None:
        self.n = n
        self.policy = NodePolicy(
            np.full(n, SIZE, np.int64), np.zeros(n, np.uint8), split(homes, stream, 1000, page_homes=500), disk or []
        )  # fmt: skip

    def drop(self, *rows: int) -> DropRequest:
        request = DropRequest(np.full(self.n, SIZE, np.int64))
        request.add(np.array(rows, np.int64))
        request.complete = True
        self.policy.drops.add(request)
        return request

    def look(self) -> Commands:
        self.policy.serve_requests(stream=False)
        return self.policy.take_commands()

    def carry_out(self, commands: Commands) -> None:
        c = self.policy
        for do, rows, value in commands:
            for row in rows:
                if do == StagerCommand.EVICT and not value:
                    c.evicted(row)
                elif do == StagerCommand.DROP:
                    c.dropped(row)
                elif do == StagerCommand.OFF_DISK:
                    c.off_disk(row)
                elif do == StagerCommand.TO_DISK:
                    c.on_disk(row, value)
                elif do == StagerCommand.FETCH:
                    c.staged(row)

    def settle(self) -> None:
        for _ in range(100):
            self.carry_out(self.look())

    def read(self, row: int) -> None:
        self.policy.opened(row)
        self.policy.read(row, SIZE)
        self.policy.released(row)

    def held(self) -> set[int]:
        r = self.policy.residency
        found = (r.state & (PRESENT | Copy.ON_DISK) != 0) | (self.policy.pushes.paged != Paged.NONE)
        return set(np.flatnonzero(found).tolist())


def counts(request: DropRequest) -> dict[str, int]:
    figures = request.figures()
    return {name: one["files"] for name, one in figures.items() if one["files"] and name != "asked"}


def test_all_copies_go() -> None:
    """Two rows are in memory, two on disk, one only in the page cache."""
    node = Node(6, homes=20, disk=[20])
    for row in range(5):
        node.policy.staged(row)
        node.settle()
        node.read(row)
    node.settle()
    assert node.held() == set(range(5))
    request = node.drop(*range(6))
    node.settle()
    assert request.done
    assert counts(request) == {"dropped": 5, "nothing": 1}
    assert node.held() == set()
    r = node.policy.residency
    assert (r.homes.used, r.stream_used, node.policy.pushes.used, node.policy.pushes.homes_used) == (0, 0, 0, 0)
    assert not (r.home[:4] == Home.STREAM).any(), "they get a home at the next use"
    for row in range(4):
        node.policy.staged(row)
    node.settle()
    assert node.held() == set(range(4))


def test_blocks_of_files_read_by_ranges_go_too() -> None:
    node = Node(4, homes=100)
    node.policy.residency.split = split(100, 0, 100, whole_limit=SIZE - 1)
    request = node.drop(1, 3)
    commands = node.look()
    assert commands == [(StagerCommand.EVICT, [1, 3], 1), (StagerCommand.DROP, [1, 3], 0)]
    node.carry_out(commands)
    assert request.done
    assert counts(request) == {"dropped": 2}


def test_what_is_open_is_left() -> None:
    node = Node(3, homes=100)
    for row in range(3):
        node.policy.staged(row)
    node.policy.opened(1)
    request = node.drop(*range(3))
    node.settle()
    assert counts(request) == {"dropped": 2, "open": 1}
    assert node.held() == {1}


def test_what_is_on_its_way_is_awaited() -> None:
    """A fetch, a write to disk, and a push."""
    node = Node(3, homes=10, disk=[100])
    node.policy.advance(0, 3, lambda start, count: np.arange(start, min(3, start + count)))
    fetch = node.look()
    request = node.drop(*range(3))
    first = node.look()
    assert first == [(StagerCommand.EVICT, [0, 1, 2], 1)]
    assert counts(request) == {}
    node.carry_out(fetch)
    node.policy.advance(0, 3, lambda start, count: np.arange(start, min(3, start + count)))
    commands = node.policy.take_commands()
    assert {do for do, _, _ in commands} == {StagerCommand.TO_DISK, StagerCommand.PUSH}
    node.policy.drops.serve()
    for do, rows, value in commands:
        for row in rows:
            if do == StagerCommand.PUSH:
                node.policy.pushed(row)
            elif do == StagerCommand.TO_DISK:
                node.policy.on_disk(row, value)
    node.settle()
    assert request.done
    assert counts(request) == {"dropped": 3}
    assert node.held() == set()


def test_a_placed_file_keeps_its_home() -> None:
    node = Node(2, homes=100)
    node.policy.apply_placement(np.zeros(2, np.int8), np.zeros(0, np.int64))
    node.policy.staged(0)
    request = node.drop(0)
    node.settle()
    assert counts(request) == {"dropped": 1}
    assert node.held() == set()
    assert node.policy.residency.home_of[0] == Home.RAM
    node.policy.staged(0)
    node.read(0)
    node.settle()
    assert node.policy.residency.is_staged(0), "it stays when it is read again"


def test_when_the_stager_dies_its_successor_is_told_again() -> None:
    node = Node(3, homes=100)
    for row in range(3):
        node.policy.staged(row)
        node.read(row)
    request = node.drop(*range(3))
    node.look()
    node.policy.evicted(0)
    node.policy.stager_restarted()
    node.settle()
    assert request.done
    assert counts(request) == {"dropped": 3}
    assert node.held() == set()


@pytest.mark.parametrize("seed", range(20))
def test_the_books_stay_right(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random reads and drops: every file is counted once, and what is charged is what is held."""
    monkeypatch.setattr(file_request, "COUNTED_AT_ONCE", 7)
    chance = random.Random(seed)
    node = Node(40, homes=chance.randrange(300), stream=100, disk=[chance.randrange(200)])
    node.policy.use_belady(chance.random() < 0.3)
    for _ in range(10):
        for _ in range(30):
            row = chance.randrange(40)
            if not node.policy.residency.is_staged(row) and chance.random() < 0.8:
                node.policy.staged(row)
            node.read(row)
            if chance.random() < 0.5:
                node.carry_out(node.look())
        request = node.drop(*chance.sample(range(40), chance.randrange(1, 40)))
        node.settle()
        assert request.done
        assert sum(counts(request).values()) == request.asked.files
        node.policy.drops.remove(request)
        assert node.policy.drops.requests == []
    everything = node.drop(*range(40))
    node.settle()
    assert everything.done
    assert node.held() == set()
    r = node.policy.residency
    assert (r.homes.used, r.stream_used, node.policy.pushes.used, node.policy.pushes.homes_used) == (0, 0, 0, 0)
