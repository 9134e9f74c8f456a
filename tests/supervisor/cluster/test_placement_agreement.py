"""Where files live, as several nodes agree upon it: joined by a bus in memory, some leave, are late, or mad."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from msgspec.structs import replace

from nopfsfs.config import World
from nopfsfs.dataset.index import Index
from nopfsfs.placement.methods import NOWHERE, UNCOVERED
from nopfsfs.plan.epoch_order import Hypothesis
from nopfsfs.plan.following.follower_output import PlanStatus
from nopfsfs.plan.samplers.sampler import GivenOrders, Spec
from nopfsfs.policy.homes import Home
from nopfsfs.protocol.between_supervisors import (
    CopiesOffered,
    FoundOfSource,
    NamedFiles,
    NamedOrder,
    NamedSpec,
    NodeRoom,
    PlacementBegins,
    PlacementComputed,
    ProposedPlacement,
    SourceSeen,
    from_cluster,
)
from nopfsfs.protocol.codec import Message, encode
from nopfsfs.protocol.columns import HOME_HERE
from nopfsfs.supervisor.cluster import placement_agreement as module
from nopfsfs.supervisor.cluster.placement_proposal import PlacementProposal, ReadSet
from tests.asynchronous import in_virtual_time
from tests.supervisor.cluster.agreeing import (
    CHARGE,
    TRAIN,
    VAL,
    check,
    placed,
    rows_of,
    running,
    until,
)
from tests.supervisor.cluster.nodes import Bus


def cluster(index: Index, count: int, files: int, plans: bool = True, **config: Any) -> Bus:
    """Nodes with room for so many files each."""
    bus = Bus(count)
    for _ in range(count):
        node = bus.add(index, files * CHARGE, **config)
        if plans:
            node.plan()
    return bus


# ---- agreement ----------------------------------------------------------------------------------------------


@in_virtual_time
async def test_what_the_leader_reads_has_one_home_each(index: Index) -> None:
    bus = cluster(index, 4, 60)
    nodes = list(bus.all.values())
    assert all(node.loop.holds_back for node in nodes), "nothing is fetched ahead before that"
    async with running(*nodes):
        await placed(1, *nodes)
        assert not any(node.loop.holds_back for node in nodes)
    check(bus)
    ((speaker, body),) = bus.places()
    assert body.what is not None
    assert body.what.order is not None
    assert (speaker, body.what.order.sampler.name, body.what.order.world) == (0, "distributed", 4)
    assert body.epochs == 16
    for node in nodes:
        status = node.agreement.status()
        assert status == {
            "node": node.number, "nodes": 4, "placement": "homes", "number": 1, "distinct_share": 1.0,
            "homes_here": np.count_nonzero(node.holder == HOME_HERE), "left": [],
        }  # fmt: skip
        assert 20 <= status["homes_here"] <= 60
    assert sum(node.agreement.status()["homes_here"] for node in nodes) == TRAIN
    assert not nodes[0].holder[rows_of(index, "val")].any(), "nobody reads that"
    said = nodes[0].loop.policy.residency.homes._said.astype(int) + UNCOVERED
    assert (said[rows_of(index, "val")] == UNCOVERED).all()
    assert np.isin(said[rows_of(index, "train")], (0, NOWHERE)).all()


@in_virtual_time
async def test_the_paper_s_placement(index: Index) -> None:
    bus = cluster(index, 3, 60, placement="nopfs", epochs=4)
    nodes = list(bus.all.values())
    async with running(*nodes):
        await placed(1, *nodes)
    for node in nodes:
        kept = node.loop.policy.residency.home == Home.RAM
        assert (kept | (node.holder != HOME_HERE)).all()
        assert np.count_nonzero(kept) == 60, "each for itself"
    assert nodes[0].agreement.status()["distinct_share"] < 1


@in_virtual_time
async def test_disks_and_nodes_that_differ(index: Index) -> None:
    bus = Bus(3)
    nodes = [bus.add(index, 30 * CHARGE, [40 * CHARGE]), bus.add(index, 20 * CHARGE),
             bus.add(index, 0, [30 * CHARGE, 60 * CHARGE])]  # fmt: skip
    for node in nodes:
        node.plan()
    async with running(*nodes):
        await placed(1, *nodes)
    check(bus)
    assert [node.agreement.status()["homes_here"] for node in nodes] == [70, 20, 70]
    kept = [np.bincount(node.loop.policy.residency.home, minlength=3)[1:3].tolist() for node in nodes]
    assert kept == [[30, 40], [20, 0], [0, 90]], "what room is left on disks is for second copies"


@in_virtual_time
async def test_a_data_set_that_is_read_later_has_the_room_that_is_left(index: Index) -> None:
    bus = cluster(index, 2, 90)
    nodes = list(bus.all.values())
    train, val = rows_of(index, "train"), rows_of(index, "val")
    async with running(*nodes):
        await placed(1, *nodes)
        before = nodes[0].holder.copy()
        nodes[0].register("val")
        await placed(2, *nodes)
    check(bus)
    assert (nodes[0].holder[train] == before[train]).all(), "nothing moves"
    assert np.count_nonzero(nodes[0].holder[val]) == 2 * 90 - TRAIN, "less than all"
    assert len(bus.places()) == 2


@in_virtual_time
async def test_an_order_that_nobody_knows_is_dealt_out_by_a_hash(index: Index) -> None:
    bus = cluster(index, 4, 60, seed=None)
    nodes = list(bus.all.values())
    follower = nodes[0].loop.follower
    assert follower is not None
    async with running(*nodes):
        await trio.sleep(0.3)
        assert bus.places() == []
        follower.status = lambda: PlanStatus("unknown")  # type: ignore[method-assign]
        await placed(1, *nodes)
    check(bus)
    assert bus.places()[0][1].what is None
    assert np.count_nonzero(nodes[0].holder) == TRAIN + VAL + 1
    assert {50, 51} >= {node.agreement.status()["homes_here"] for node in nodes}


@in_virtual_time
async def test_ranks_that_do_not_fit_the_nodes_are_dealt_out_by_a_hash(index: Index) -> None:
    bus = cluster(index, 4, 60, worlds=(World(6, (0,)),))
    nodes = list(bus.all.values())
    async with running(*nodes):
        await placed(1, *nodes)
    check(bus)
    assert [node.agreement.status()["homes_here"] for node in nodes] == [40] * 4


# ---- late, gone, mad ----------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_room_that_is_not_known_in_time_counts_when_it_is(index: Index) -> None:
    bus = cluster(index, 3, 80)
    first, second, third = bus.all.values()
    train, val = rows_of(index, "train"), rows_of(index, "val")
    async with running(first, second) as nursery:
        await placed(1, first, second)
        assert not (first.holder == 3).any()
        third_is_up = trio.current_time()
        nursery.start_soon(third.agreement.run)
        await until(lambda: 2 in first.agreement._rooms)
        await placed(1, third)  # it was told while it was not there yet
        assert trio.current_time() - third_is_up < 5
        first.register("val")
        await placed(2, first, second, third)
    check(bus)
    assert len(train) == np.count_nonzero((first.holder[train] == HOME_HERE) | (first.holder[train] == 2))
    assert (first.holder[val] == 3).sum() == VAL, "who has the room"


@in_virtual_time
async def test_a_plan_that_is_late_is_waited_for_and_then_done_without(index: Index) -> None:
    bus = cluster(index, 2, 100, plans=False)
    first, second = bus.all.values()
    async with running(first, second):
        await trio.sleep(0.1)
        assert bus.places() == []
        assert first.loop.holds_back
        await until(lambda: not first.loop.holds_back)
        first.plan()
        await placed(1, first, second)
    check(bus)
    assert second.loop.follower is None


@in_virtual_time
async def test_who_leaves_is_asked_no_more_and_the_next_one_leads(index: Index) -> None:
    bus = cluster(index, 4, 60)
    nodes = list(bus.all.values())
    async with running(*nodes):
        await placed(1, *nodes)
        here = np.flatnonzero(nodes[1].holder == 1)
        bus.leave(0)
        assert len(here)
        await until(lambda: not any(node.holder[here].any() for node in nodes[1:]))
        nodes[1].register("val")
        await placed(2, *nodes[1:])
        assert bus.places()[-1][0] == 1
    check(bus, gone=(0,))
    assert nodes[2].agreement.status()["left"] == [0]
    assert not nodes[1].holder[here].any(), "still"
    said = nodes[1].loop.policy.residency.homes._said.astype(int) + UNCOVERED
    assert (said[here] == UNCOVERED).all(), "they are staged here as where there are no other nodes"


@in_virtual_time
async def test_a_leader_that_is_known_to_lead_by_some_only_is_heard_in_the_end(index: Index) -> None:
    bus = cluster(index, 3, 80)
    nodes = list(bus.all.values())
    order = PlacementProposal(1, np.full((3, 1), 80 * CHARGE), 1 << 30, "homes", 2, ReadSet())
    bus.deaf = {0, 1, 2}
    nodes[2].loop.follower = None
    async with running(nodes[2]):
        nodes[2].receive(1, encode(order.to_message()))
        await trio.sleep(0.1)
        assert nodes[2].agreement.status()["number"] == 0
        nodes[2].left(0)
        await until(lambda: bool(nodes[2].agreement.status()["homes_here"]))
        assert set(np.unique(nodes[2].holder)) == {0, HOME_HERE}, "others do not know yet what lives with them"
        nodes[2].receive(1, encode(PlacementBegins(1)))
        await placed(1, nodes[2])
    assert nodes[2].agreement.status()["homes_here"] > 0
    assert set(np.unique(nodes[2].holder)) == {0, 2, HOME_HERE}


@in_virtual_time
async def test_what_was_said_before_leaving_holds(index: Index) -> None:
    bus = cluster(index, 2, 120)
    second = bus.all[1]
    order = PlacementProposal(1, np.full((2, 1), 120 * CHARGE), 1 << 30, "homes", 2, ReadSet())
    second.receive(0, encode(order.to_message()))
    second.left(0)
    async with running(second):
        await placed(1, second)
    assert (second.holder == 1).sum() == 0
    assert second.agreement.status()["homes_here"] == 100


@in_virtual_time
async def test_all_others_are_gone(index: Index) -> None:
    bus = cluster(index, 2, 120)
    nodes = list(bus.all.values())
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(node.agreement.run)
        await placed(1, *nodes)
        for node in nodes:
            node.lost()
        # they end by themselves
    for node in nodes:
        assert set(np.unique(node.holder)) == {0, HOME_HERE}


GOOD = PlacementProposal(1, np.full((3, 2), 80 * CHARGE), 1 << 30, "homes", 2, ReadSet()).to_message()
SPEC = NamedSpec("distributed", 1, {})
ORDER = NamedOrder(SPEC, 0, 4)
FILES = NamedFiles(1, "image_folder", ORDER)
PARTS = NamedSpec("random_split", 1, {"lengths": "5,7"})
BAD = replace(FILES, order=replace(ORDER, subset=PARTS))


def garbage() -> Iterator[bytes]:
    yield from (b"", b"?", b"{}", encode(GOOD)[:-1], encode(GOOD) + b"\0", b"\x90", b"\x92\x63\x01")
    changes: list[tuple[Message, dict[str, tuple[Any, ...]]]] = [
        (NodeRoom(1, (), 1), {
            "ram": (-1, True, 1.5, 1 << 62), "disks": (3, [1] * 99, ["a"], [-1]), "whole_limit": (None,),
        }),
        (PlacementComputed(1), {"number": (0, -1, None, "1", 1 << 60)}),
        (PlacementBegins(1), {"number": (0, -1, None, "1", 1 << 60)}),
        (CopiesOffered([1], 1), {"rows": ([10_000], [-1], 5), "number": (-1, None)}),
        (GOOD, {
            "number": (0, -1, None, "1", 1 << 60),
            "rooms": ([], [[1]], [[1]] * 4, [[1], [1, 2], [1]], [["x"]] * 3, 5, [[]] * 3, [[-1]] * 3, [[1] * 99] * 3),
            "limit": (-1, None), "method": ("best", None, ["homes"]), "epochs": (0, 5000, "x"), "what": ([], 3),
        }),
    ]  # fmt: skip
    for message, fields in changes:
        for name, values in fields.items():
            yield from (encode(replace(message, **{name: value})) for value in values)
    specs = [
        replace(SPEC, **change) for change in (
            {"name": "none"}, {"name": []}, {"seed": "x"}, {"options": []}, {"options": {"drop_last": "yes"}},
            {"options": {"x": 1}}, {"options": {str(n): 1 for n in range(99)}},
            {"name": "random", "options": {"state": "x" * 9999}},
        )
    ]  # fmt: skip
    orders = [replace(ORDER, **change) for change in ({"epoch": -1}, {"world": 0}, {"subset": 3}, {"subset": SPEC})]
    files = [replace(FILES, **change) for change in ({"root": 1 << 39}, {"root": -1}, {"files": "none"}, {"files": []})]
    orders += [replace(ORDER, sampler=spec) for spec in specs]
    for named in [*files, *(replace(FILES, order=order) for order in orders)]:
        yield encode(replace(GOOD, what=named))


@in_virtual_time
async def test_garbage_is_ignored_and_spoken_of_once(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bus = cluster(index, 3, 80)
    nodes = list(bus.all.values())
    nodes[2].loop.follower = None
    bus.deaf = {0, 1, 2}
    async with running(nodes[2]):
        for body in garbage():
            nodes[2].receive(0, body)
            nodes[2].receive(9, body)
            nodes[2].receive(-1, body)
            nodes[2].receive(2, body)
        await trio.testing.wait_all_tasks_blocked()
        await until(lambda: not nodes[2].agreement._received)
        assert nodes[2].agreement.status()["number"] == 0
        assert not nodes[2].holder.any()
        assert len(caplog.records) == 1
        nodes[2].receive(0, encode(GOOD))
        await placed(1, nodes[2])
    assert nodes[2].agreement.status()["distinct_share"] == 1


@in_virtual_time
async def test_what_cannot_be_computed_is_left_out_by_all(index: Index) -> None:
    """A split of other files than these."""
    bus = cluster(index, 2, 120)
    nodes = list(bus.all.values())
    order = replace(GOOD, rooms=[[CHARGE * 90]] * 2, what=BAD)
    async with running(nodes[1]):
        nodes[1].receive(0, encode(order))
        nodes[1].receive(0, encode(replace(order, number=2, what=None)))
        await placed(2, nodes[1])
    assert nodes[1].agreement.status()["distinct_share"] == pytest.approx(180 / (TRAIN + VAL + 1), abs=1e-3)


@in_virtual_time
async def test_what_the_leader_itself_cannot_list_is_left_out(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = cluster(index, 2, 120)
    nodes = list(bus.all.values())
    wanted = [(ReadSet.from_message(BAD, 10), 1), (ReadSet(), 1)]
    monkeypatch.setattr(nodes[0].agreement, "_wanted", lambda: wanted)
    async with running(*nodes):
        await placed(1, *nodes)
    check(bus)
    assert [body.what for _, body in bus.places()] == [None]


@in_virtual_time
async def test_more_than_anybody_would_say_is_not_kept(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECEIVED_MOST", 10)
    bus = cluster(index, 2, 100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bus.all[0].agreement._listen)
        for _ in range(50):
            bus.all[0].receive(1, encode(PlacementComputed(1)))
        await trio.testing.wait_all_tasks_blocked()
        assert len(bus.all[0].agreement._received) == 10
        nursery.cancel_scope.cancel()


@in_virtual_time
async def test_others_that_do_not_listen_are_not_waited_for(index: Index) -> None:
    bus = cluster(index, 2, 100)
    node = bus.all[0]

    async def never(to: int, message: Message) -> None:
        await trio.sleep_forever()

    node.agreement._send_to = never
    async with running(node):
        await placed(1, node)
    assert node.agreement.status()["homes_here"] == 100


@in_virtual_time
async def test_a_fault_costs_the_placements_alone(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    bus = cluster(index, 2, 100)
    node = bus.all[0]

    async def broken(to: int, message: Message) -> None:
        raise RuntimeError("it broke")

    node.agreement._send_to = broken
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.agreement.run)
        await until(lambda: not node.loop.holds_back)
        assert "cannot be agreed upon" in caplog.text
        node.holder[5] = 2
        node.left(1)
        await until(lambda: not node.holder[5])
        node.lost()


# ---- messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [
    ReadSet(), ReadSet(1, "image_folder"),
    ReadSet(1, "image_folder", Hypothesis(0, 0, Spec("distributed", 42, (("drop_last", 1),)), 3, 8)),
    ReadSet(1, "image_folder", Hypothesis(0, 0, Spec("numpy", 42, (("strided", 1),)), 3, 8)),
    ReadSet(
        0, "sorted_files", Hypothesis(0, 0, Spec("random", -5), 0, 1, (0,), Spec("random_split", 7, (("part", 1),)))
    ),
])  # fmt: skip
def test_what_is_said_is_what_is_heard(what: ReadSet) -> None:
    order = PlacementProposal(3, np.array([[5, 6], [7, 0]]), 9, "nopfs", 4, what)
    message = from_cluster.decode(encode(order.to_message()))
    assert isinstance(message, ProposedPlacement)
    heard = PlacementProposal.from_message(message, 2, 10)
    assert heard.what == what
    assert heard.to_message() == order.to_message()
    assert from_cluster.decode(encode(NodeRoom(1, (2, 3), 4))) == NodeRoom(1, (2, 3), 4)


def test_orders_that_no_message_holds_are_dealt_out_by_a_hash(index: Index) -> None:
    bus = cluster(index, 2, 100)
    follower = bus.all[0].loop.follower
    assert follower is not None
    spec = Spec("explicit", data=GivenOrders((np.arange(3),)))
    found = ReadSet.of(Hypothesis(0, 0, spec), follower.datasets)
    assert found.plan is None
    assert found.root == follower.datasets[0].key


@in_virtual_time
async def test_what_nodes_have_found_of_the_source_reaches_the_leader_until_they_leave(index: Index) -> None:
    bus = cluster(index, 3, 60)
    leader = bus.all[0]
    found = FoundOfSource((None,) * 3 + (25.0,) + (None,) * 3, (0.0,) * 3 + (40.0,) + (0.0,) * 3, ())
    async with running(*bus.all.values()):
        await bus.send_to(1, 0, SourceSeen(found))
        await bus.send_to(2, 0, SourceSeen(replace(found, evidence=(0.0,))))  # of another number of sizes
        await until(lambda: bool(leader.agreement.source._seen))
        assert {node: memory.log2_ns[3] for node, (_, memory) in leader.agreement.source._seen.items()} == {1: 25.0}
        leader.left(1)
        await until(lambda: not leader.agreement.source._seen)
