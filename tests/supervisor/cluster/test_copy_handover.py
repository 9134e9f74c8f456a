"""What was read where it does not live is handed over: nodes on a bus, with stagers made of sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from nopfsfs.dataset.index import Index
from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.homes import Home
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.protocol.between_supervisors import CopiesOffered, CopiesTaken, from_cluster
from nopfsfs.protocol.codec import Message, encode
from nopfsfs.protocol.columns import HOME_HERE
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.supervisor.cluster import copy_handover as module
from nopfsfs.supervisor.cluster.copy_handover import CopyHandover
from tests.asynchronous import in_trio, in_virtual_time
from tests.supervisor.cluster.agreeing import (  # noqa: F401
    CHARGE,
    TRAIN,
    _no_threads,
    _short,
    check,
    index,
    placed,
    rows_of,
    running,
    until,
)
from tests.supervisor.cluster.nodes import Bus, Node

ROWS = 12


class Stager:
    """Does what a node's policy orders; asks other nodes as the column says."""

    def __init__(self, node: Node, all_of: dict[int, Stager]) -> None:
        self.node, self.all = node, all_of
        self.staged: set[int] = set()
        self.of_source: list[int] = []
        self.of_peers: list[int] = []
        all_of[node.number] = self

    def read(self, row: int) -> None:
        """A reader here demands it, and nobody else is asked."""
        self.of_source.append(row)
        self._stage(row)

    def _stage(self, row: int) -> None:
        self.staged.add(row)
        self.node.loop.policy.staged(row)

    async def run(self) -> None:
        while True:
            for do, rows, _ in self.node.loop.policy.take_commands():
                for row in rows:
                    if do == StagerCommand.FETCH:
                        holder = int(self.node.holder[row])
                        there = 0 < holder < HOME_HERE and row in self.all[holder - 1].staged
                        (self.of_peers if there else self.of_source).append(row)
                        self._stage(row)
                    elif do == StagerCommand.EVICT:
                        self.staged.discard(row)
                        self.node.loop.policy.evicted(row)
            await trio.sleep(0.002)


@in_virtual_time
async def test_what_was_read_before_the_placement_was_known_reaches_its_home(index: Index) -> None:  # noqa: F811
    bus, stagers = Bus(3), dict[int, Stager]()
    for _ in range(3):
        Stager(bus.add(index, 60 * CHARGE), stagers)
    nodes = list(bus.all.values())
    train = rows_of(index, "train")
    for row in train[:20].tolist():
        stagers[1].read(row)
    for row in train[15:30].tolist():
        stagers[2].read(row)
    async with running(*nodes) as nursery:
        for stager in stagers.values():
            nursery.start_soon(stager.run)
        nodes[0].plan()
        await placed(1, *nodes)
        there = {row: int(np.where(nodes[0].holder[row] == HOME_HERE, 0, nodes[0].holder[row] - 1))
                 for row in train[:30].tolist()}  # fmt: skip

        def all_there() -> bool:
            return all(row in stagers[home].staged for row, home in there.items())

        await until(all_there)
        await until(lambda: not any(node.handover._given for node in nodes))

        def nothing_is_held() -> bool:
            homes = [nodes[number].loop.policy.residency.home[list(one.staged)] for number, one in stagers.items()]
            return all((home == Home.RAM).all() for home in homes)

        await until(nothing_is_held)
        for node in nodes:
            assert not node.handover._taking
            assert node.loop.policy.residency.offered_bytes == 0
        check(bus)
    assert stagers[0].of_source == [], "all of it came from the other nodes"
    assert stagers[0].of_peers
    assert stagers[1].of_source == train[:20].tolist()
    assert stagers[2].of_source == train[15:30].tolist()


@in_virtual_time
async def test_what_the_home_did_not_give_is_handed_to_it_later(index: Index) -> None:  # noqa: F811
    bus, stagers = Bus(2), dict[int, Stager]()
    for _ in range(2):
        Stager(bus.add(index, 80 * CHARGE), stagers)
    nodes = list(bus.all.values())
    async with running(*nodes) as nursery:
        for stager in stagers.values():
            nursery.start_soon(stager.run)
        nodes[0].plan()
        await placed(1, *nodes)
        row = int(np.flatnonzero(nodes[1].holder == 1)[0])
        stagers[1].read(row)
        nodes[1].handover.offer([row])
        await until(lambda: row in stagers[0].staged)
        await until(lambda: row not in stagers[1].staged)
        check(bus)
    assert stagers[0].of_peers == [row]


@in_virtual_time
async def test_nobody_who_takes_it(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(module, "HELD_S", 0.2)
    bus, stagers = Bus(2), dict[int, Stager]()
    for _ in range(2):
        Stager(bus.add(index, 80 * CHARGE), stagers)
    nodes = list(bus.all.values())
    async with running(*nodes) as nursery:
        nursery.start_soon(stagers[1].run)
        nodes[0].plan()
        await placed(1, *nodes)
        bus.deaf = {0}
        row = int(np.flatnonzero(nodes[1].holder == 1)[0])
        stagers[1].read(row)
        nodes[1].handover.offer([row])
        await trio.sleep(0.05)
        assert row in stagers[1].staged
        await until(lambda: row not in stagers[1].staged)
    assert nodes[1].loop.policy.residency.offered_bytes == 0


# ---- one side alone -----------------------------------------------------------------------------------------


class One:
    """Node 1 of three; rows 0..3 live here, 4..7 on node 0, 8..11 on node 2. `said`: to whom, and what."""

    def __init__(self) -> None:
        split = MemorySplit(arena=200, homes=40, stream=60, ranges=60, pages=0, page_homes=0, whole_limit=1000)
        self.policy = NodePolicy(np.full(ROWS, 10), np.zeros(ROWS, np.uint8), split, [])
        self.holder = np.repeat(np.array([HOME_HERE, 1, 3], np.uint16), 4)
        self.said: list[tuple[int, str, list[int]]] = []
        self.handover = CopyHandover(self.policy, self.holder, self._send)
        self.policy.apply_placement(np.repeat(np.array([0, -1, -1], np.int8), 4), self.policy.held())
        self.handover.written(1)

    async def _send(self, node: int, message: Message) -> None:
        assert isinstance(message, CopiesOffered | CopiesTaken)
        assert message.number == 1
        self.said.append((node, "took" if isinstance(message, CopiesTaken) else "have", message.rows))

    def receive(self, node: int, kind: str, rows: list[int]) -> None:
        self.handover.receive(node, (CopiesTaken if kind == "took" else CopiesOffered)(rows, 1))

    async def step(self) -> list[tuple[int, str, list[int]]]:
        await self.handover.step()
        said, self.said = self.said, []
        return said


@in_trio
async def test_as_many_are_offered_as_can_be_held() -> None:
    one = One()
    for row in range(4, ROWS):
        one.policy.staged(row)
    one.handover.offer(range(ROWS))
    assert await one.step() == [(0, "have", [4, 5, 6])]
    one.receive(2, "took", [4])
    one.receive(0, "took", [5, 6, 7])
    assert await one.step() == [(0, "have", [7]), (2, "have", [8])]
    one.handover.left(0)
    one.holder[one.holder == 1] = 0
    assert await one.step() == [(2, "have", [9, 10])]
    one.handover.lost()
    one.handover.offer([11])
    assert await one.step() == []
    assert one.policy.residency.offered_bytes == 0


@in_trio
async def test_a_file_that_is_too_large_to_be_held_does_not_stop_the_others() -> None:
    one = One()
    one.policy.residency.charges[5] = 31
    for row in (5, 6):
        one.policy.staged(row)
    one.handover.offer([5, 6])
    assert await one.step() == [(0, "have", [6])]


@in_trio
async def test_what_is_here_or_does_not_live_here_is_not_taken() -> None:
    one = One()
    one.policy.staged(0)
    one.receive(2, "have", [0, 1, 5, 1])
    assert one.holder[1] == 3
    assert await one.step() == [(2, "took", [0, 5])], "the third when it has come"
    assert one.policy.take_commands() == [(StagerCommand.FETCH, [1], 0)]
    one.receive(0, "have", [1])
    assert await one.step() == [(0, "took", [1])], "from one of them"
    one.handover.written(1)
    assert one.holder[1] == 3, "still"
    one.policy.staged(1)
    assert await one.step() == [(2, "took", [1])]
    assert one.holder[1] == HOME_HERE


@in_trio
async def test_what_was_cancelled_is_taken_all_the_same() -> None:
    one = One()
    one.receive(2, "have", [1])
    one.policy.take_commands()
    one.policy.fetch_failed(1, cancelled=True)
    assert await one.step() == []
    assert one.policy.take_commands() == [(StagerCommand.FETCH, [1], 0)]
    one.handover.left(2)
    assert one.holder[1] == HOME_HERE


@in_trio
async def test_what_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PULLING_S", 0)
    one = One()
    one.receive(2, "have", [1])
    assert await one.step() == [(2, "took", [1])]
    assert one.holder[1] == HOME_HERE


@in_trio
async def test_what_is_offered_by_a_placement_that_is_not_computed_here_yet_waits_for_it() -> None:
    one = One()
    one.handover.receive(2, CopiesOffered([1], 2))
    assert await one.step() == []
    one.handover.written(2)
    assert one.holder[1] == 3
    for _ in range(2 * module.EARLY_MOST):
        one.handover.receive(2, CopiesOffered([1], 9))
    assert len(one.handover._early) == module.EARLY_MOST


@in_trio
async def test_garbage_is_refused() -> None:
    one = One()
    before = one.holder.tolist()
    wrong: list[Any] = [(5, 1), ([-1], 1), ([True], 1), (["a"], 1), ([0] * 5000, 1), ([0], None), ([0], -1)]
    for kind in (CopiesOffered, CopiesTaken):
        for rows, number in wrong:
            with pytest.raises(ValueError):
                from_cluster.decode(encode(kind(rows, number)))
        with pytest.raises(ValueError):
            one.handover.receive(0, kind([0, ROWS], 1))
    assert await one.step() == []
    assert one.holder.tolist() == before
    assert (one.handover._early, one.handover._given, one.handover._taking) == ([], {}, {})
