"""What nodes have kept on disk from earlier mounts is where their placement begins."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import trio

from nopfsfs.dataset.index import Index
from nopfsfs.policy.homes import Home
from nopfsfs.protocol.between_supervisors import CopiesKept, NodeRoom, PlacementComputed
from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.columns import HOME_HERE, Metric
from nopfsfs.supervisor.cluster import kept_news as module
from nopfsfs.supervisor.cluster import placement_agreement
from tests.asynchronous import in_virtual_time
from tests.supervisor.cluster.agreeing import CHARGE, TRAIN, check, placed, rows_of, running, until
from tests.supervisor.cluster.nodes import Bus, Node


def cluster(index: Index, kept: Sequence[Mapping[int, Sequence[int]]], files: int = 60, room: int = 0) -> Bus:
    """Nodes with one disk for so many files each, and memory for `room` of them. `kept`: by node and tier."""
    bus = Bus(len(kept))
    for rows in kept:
        bus.add(index, room * CHARGE, [files * CHARGE], rows).plan()
    return bus


def homes(node: Node) -> np.ndarray:
    """The node with the home of each row, as that one has it, -1: none."""
    holder = node.holder.astype(np.int64)
    return np.where(holder == HOME_HERE, node.number, holder - 1)


def in_quarters(index: Index) -> list[list[int]]:
    """The rows that are read, in four parts as good as at random."""
    rows = np.random.default_rng(5).permutation(rows_of(index, "train"))
    return [part.tolist() for part in np.split(rows, 4)]


@in_virtual_time
async def test_each_file_lives_where_it_was_kept(index: Index) -> None:
    quarters = in_quarters(index)
    bus = cluster(index, [{1: rows} for rows in quarters])
    nodes = list(bus.all.values())
    async with running(*nodes):
        await placed(1, *nodes)
    check(bus)
    for node, rows in zip(nodes, quarters, strict=True):
        assert (homes(node)[rows] == node.number).all()
        assert (node.loop.policy.residency.home[rows] == Home.DISK).all()
        assert node.agreement.status()["homes_here"] == TRAIN / 4
    for speaker in range(4):
        said = [message for who, message in bus.said if who == speaker]
        first = next(at for at, message in enumerate(said) if isinstance(message, NodeRoom))
        assert isinstance(said[first - 1], CopiesKept), "what was kept is said before"


@in_virtual_time
async def test_of_several_that_kept_a_file_one_is_its_home(index: Index) -> None:
    rows = rows_of(index, "train").tolist()
    half = rows[: TRAIN // 2]
    bus = cluster(index, [{1: half}, {1: half}, {}, {}])
    nodes = list(bus.all.values())
    async with running(*nodes):
        await placed(1, *nodes)
    check(bus)
    found = homes(nodes[3])
    assert set(found[half].tolist()) == {0, 1}
    assert 25 <= np.count_nonzero(found[half] == 0) <= 55, "they share them"
    assert set(found[rows].tolist()) == {0, 1, 2, 3}


@in_virtual_time
async def test_what_finds_no_room_lives_elsewhere(index: Index) -> None:
    rows = rows_of(index, "train").tolist()
    bus = cluster(index, [{1: rows}, {}, {}, {}], files=41)
    nodes = list(bus.all.values())
    async with running(*nodes):
        await placed(1, *nodes)
    check(bus)
    found = homes(nodes[1])[rows]
    assert np.bincount(found, minlength=4).max() <= 41
    assert (found >= 0).all()
    assert np.count_nonzero(found == 0) == 41


@in_virtual_time
async def test_a_stager_that_looks_for_long_is_waited_for_a_while(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarters = in_quarters(index)
    bus = cluster(index, [{1: rows} for rows in quarters])
    nodes = list(bus.all.values())
    monkeypatch.setattr(module, "KNOWN_S", 0.15)
    for node in (nodes[0], nodes[2]):
        node.metrics[Metric.KEPT_FILES] = 0
    async with running(*nodes) as nursery:

        async def is_found() -> None:
            await trio.sleep(0.05)
            nodes[2].metrics[Metric.KEPT_FILES] = 1

        nursery.start_soon(is_found)
        await placed(1, *nodes)
    check(bus)
    for node in nodes[1:]:
        assert (homes(node)[quarters[node.number]] == node.number).all()


@in_virtual_time
async def test_nothing_is_said_before_all_ranks_have_mounted(index: Index) -> None:
    """Until then the peer process takes no messages, and its socket holds few."""
    bus = cluster(index, [{1: rows} for rows in in_quarters(index)])
    nodes = list(bus.all.values())
    for node in nodes:
        node.mounted = trio.Event()
    async with running(*nodes):
        await trio.sleep(0.1)
        assert not bus.said
        for node in nodes:
            node.mounted.set()
        await placed(1, *nodes)
    check(bus)


@in_virtual_time
async def test_what_comes_after_the_proposal_is_waited_for(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_agreement, "ROOMS_S", 5.0)
    quarters = in_quarters(index)
    bus = cluster(index, [{1: rows} for rows in quarters])
    bus.held_up[2, 1] = []
    nodes = list(bus.all.values())

    def computed() -> set[int]:
        return {who for who, message in bus.said if isinstance(message, PlacementComputed)}

    async with running(*nodes):
        await until(lambda: computed() >= {2, 3})
        await trio.sleep(0.1)
        assert 1 not in computed()
        bus.release(2, 1)
        await placed(1, *nodes)
    check(bus)
    assert (homes(nodes[1])[quarters[2]] == 2).all()


@in_virtual_time
async def test_rows_that_cannot_be_are_refused(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    bus = cluster(index, [{}, {}])
    nodes = list(bus.all.values())
    caplog.set_level(logging.WARNING)
    nodes[0].receive(1, encode(CopiesKept(1, index.n - 3, b"\x00\x01")))
    nodes[0].receive(1, encode(CopiesKept(1, index.n - 3, b"\x00")))
    async with running(*nodes):
        await placed(1, *nodes)
    check(bus)
    assert caplog.text.count("node 1 sends what cannot be") == 1


def test_many_rows_travel_in_several_messages() -> None:
    n = 300_000
    rng = np.random.default_rng(3)
    disk = rng.choice(np.array([0, 0, 1, 2], np.uint8), n)
    disk[70_000:140_000] = 0
    metrics = np.ones(256, np.int64)
    there, here = (
        module.KeptNews(node, column, metrics.data, trio.lowlevel.checkpoint)
        for node, column in ((3, disk), (0, np.zeros(n, np.uint8)))
    )
    said: list[CopiesKept] = []

    async def send(message: CopiesKept) -> None:
        said.append(message)

    trio.run(there.send_due, send)
    for message in said:
        assert len(encode(message)) < 10_000
        here.receive(3, message)
    assert (here.copies.tier == disk).all()
    assert ((here.copies.node == 3) == (disk > 0)).all()
    assert there.bytes_here(np.full(n, 2), 3) == [2 * int((disk == tier).sum()) for tier in (1, 2, 3)]
