"""Rows that are asked for at other nodes: each case by itself. Random ones are in test_remote_fetches_random.py."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from nopfsfs.policy.choice import TRY_MOST_S
from nopfsfs.protocol import stager_peer
from nopfsfs.protocol.columns import HOME_HERE, Metric, Tier
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.server_stager import Origin
from nopfsfs.protocol.stager_peer import (
    COMING_S,
    MARGIN_S,
    PREFETCH_S,
    PREFETCHES_A_PAIR,
    SILENT_S,
    LeaseStatus,
    RecordKind,
)
from nopfsfs.stager import remote_fetches
from nopfsfs.stager.load_lanes import LoadLanes
from nopfsfs.stager.workers import Worker
from tests.stager.peer import Ask, FakePeer, Make, homes, pack_one, rigs
from tests.stager.rig import PAGE, Rig, write_files

SILENT = SILENT_S + MARGIN_S + 0.001


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """As `rigs`; all homes are node 1."""
    with rigs(tmp_path, "node1") as build:
        yield build


def asked(peer: FakePeer) -> list[int]:
    """Rows that were asked for and not answered, in that order."""
    peer.take()
    return [ask.row for ask in peer.writes.values()]


# ---- what is asked, and of whom -----------------------------------------------------------------------------


def test_a_prefetch_comes_from_the_node_that_has_it_and_is_published(make: Make) -> None:
    r, peer = make(3 * PAGE + 5, 1)
    r.state.fetch(r.files)
    peer.take()
    for ask, row in zip(peer.asks.values(), r.files, strict=True):
        identity = r.source.identity(row)
        assert ask[1:] == (row, ask.extent, identity.size, identity.mtime_ns, 1, 0)
    assert peer.messages == [(RecordKind.ASK, 2)], "in one message"
    r.now += 0.5
    peer.bring(*peer.asks.values())
    assert r.told() == [(Event.STAGED, row) for row in r.files]
    for row in r.files:
        assert r.staged(row) == r.contents[row, 0]
        assert int(r.columns.check[row]) == xxhash.xxh3_64_intdigest(r.contents[row, 0])
    assert r.source.opens == {}
    assert [r.metric(g) for g in (Metric.PEER_FETCHES, Metric.PEER_FETCHED_BYTES, Metric.PEER_FETCH_NS)] == [
        2, 3 * PAGE + 6, 1_000_000_000,
    ]  # fmt: skip
    assert (r.metric(Metric.SOURCE_READ_BYTES), r.metric(Metric.FETCHES_DONE)) == (0, 2)
    r.check_at_rest()


def test_a_demand_is_answered_when_the_whole_file_has_come(make: Make) -> None:
    r, peer = make(4 * PAGE)
    (row,) = r.files
    first, second = r.demand(row, PAGE, 10), r.demand(row, 3 * PAGE, PAGE)
    ask = peer.ask_of(row)
    assert ask.urgent
    assert (peer.hurried, r.workers.run_one()) == ([], False)
    peer.bring(ask)
    r.take()
    assert r.results[first].data == r.contents[row, 0][PAGE : PAGE + 10]
    assert r.results[second].origin == Origin.PEER
    assert r.read(row).origin == Origin.RAM
    assert r.told() == [(Event.STAGED, row)]
    r.check_at_rest()


def test_a_demand_for_what_is_prefetched_hurries_it_once(make: Make) -> None:
    r, peer = make(PAGE)
    (row,) = r.files
    r.state.fetch([row])
    numbers = [r.demand(row), r.demand(row)]
    ask = peer.ask_of(row)
    assert peer.hurried == [ask.id]
    r.state.fetch([row])  # joins
    peer.bring(ask)
    r.take()
    assert all(r.results[number].errno == 0 for number in numbers)
    assert r.metric(Metric.FETCHES_DONE) == 2
    r.check_at_rest()


def test_rows_with_a_home_here_or_none_or_a_copy_on_disk_are_read_here(make: Make) -> None:
    r, peer = make(*[PAGE] * 3)
    here, nowhere, on_disk = r.files
    r.columns.holder[here], r.columns.holder[nowhere], r.columns.disk[on_disk] = HOME_HERE, 0, 1
    r.state.fetch(r.files)
    r.run()
    assert asked(peer) == []
    assert len(r.told()) == 3


def test_an_empty_file_is_not_asked_for(make: Make) -> None:
    r, peer = make(0)
    r.state.fetch(r.files)
    r.run()
    assert r.told() == [(Event.STAGED, r.files[0])]
    assert peer.messages == []


def test_large_files_are_read_by_ranges_here(make: Make) -> None:
    r, peer = make(8 * PAGE, whole_limit=4 * PAGE, range_budget=8 * PAGE)
    (row,) = r.files
    assert r.read(row, 0, PAGE).origin == Origin.SOURCE
    assert asked(peer) == []


def test_a_node_is_asked_for_so_many_prefetches_and_others_do_not_wait_for_it(make: Make) -> None:
    r, peer = make(*[PAGE] * (PREFETCHES_A_PAIR + 6))
    first, second = r.files[: PREFETCHES_A_PAIR + 3], r.files[PREFETCHES_A_PAIR + 3 :]
    homes(r, node1=first, node2=second)
    r.state.fetch(r.files)
    assert asked(peer) == [*first[:PREFETCHES_A_PAIR], *second]
    demanded = r.demand(first[-1])
    assert asked(peer)[-1] == first[-1], "a demand waits for nothing"
    peer.bring(*[peer.ask_of(row) for row in first[:2]])
    assert asked(peer)[-2:] == first[-3:-1], "in their order"
    assert peer.messages[-1] == (RecordKind.ASK, 2)
    while asks := [*peer.writes.values()]:
        peer.bring(*asks)
        peer.take()
    r.take()
    assert r.results[demanded].errno == 0
    assert set(r.told()) == {(Event.STAGED, row) for row in r.files}
    assert r.metric(Metric.FETCHES_DONE) == len(r.files)
    r.check_at_rest()


def test_so_many_bytes_are_under_way_and_a_larger_file_alone(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_fetches, "UNDER_WAY_BYTES", 8 * PAGE)
    r, peer = make(4 * PAGE, 5 * PAGE, PAGE, 20 * PAGE, PAGE)
    a, b, c, large, last = r.files
    r.state.fetch(r.files)
    assert asked(peer) == [a], "and the small one does not overtake"
    number = r.demand(last)
    peer.bring(peer.ask_of(a))
    assert asked(peer) == [last, b, c]
    peer.bring(peer.ask_of(b))
    assert asked(peer) == [last, c]
    peer.bring(peer.ask_of(c))
    assert asked(peer) == [last, large]
    peer.bring(peer.ask_of(last))
    peer.bring(peer.ask_of(large))
    r.take()
    assert number in r.results
    r.check_at_rest()


def test_rows_of_the_source_and_of_peers_do_not_wait_for_each_other(make: Make) -> None:
    count = PREFETCHES_A_PAIR + 4
    r, peer = make(*[PAGE] * 2 * count)
    source = r.files[count:]
    r.columns.holder[source] = 0
    r.state.fetch([row for pair in zip(r.files[:count], source, strict=True) for row in pair])
    r.run()
    assert {row for _, row in r.told()} == set(source), "all, while no peer answers"
    assert len(asked(peer)) == PREFETCHES_A_PAIR


def test_what_has_got_a_home_since_it_was_ordered_is_asked_for_there(make: Make) -> None:
    r, peer = make(*[PAGE] * 3)
    r.columns.holder[:] = 0
    r.state.fetch(r.files)
    homes(r, node3=r.files[1:])
    r.run()
    peer.take()
    assert [(ask.row, ask.node) for ask in peer.asks.values()] == [(row, 3) for row in r.files[1:]]
    assert list(r.source.opens) == r.files[:1]


def test_what_waits_to_be_asked_for_is_asked_where_its_home_is_then(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_fetches, "PREFETCHES_A_PAIR", 1)
    r, peer = make(*[PAGE] * 4)
    first, moved, here, staged = r.files
    r.state.fetch(r.files)
    homes(r, node2=[moved], here=[here])
    r.columns.disk[staged] = 1
    peer.bring(peer.ask_of(first))
    r.run()
    assert peer.ask_of(moved).node == 2
    assert set(r.source.opens) == {here, staged}


def test_cancelled_fetches_are_reported_and_those_asked_for_go_on(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_fetches, "PREFETCHES_A_PAIR", 1)
    r, peer = make(*[PAGE] * 3)
    r.state.fetch(r.files)
    r.state.cancel()
    peer.bring(peer.ask_of(r.files[0]))
    assert r.told() == [*((Event.FAILED, row) for row in r.files[1:]), (Event.STAGED, r.files[0])]
    assert r.metric(Metric.FETCHES_DONE) == 3
    assert asked(peer) == []


def test_without_room_nothing_is_asked_for(make: Make) -> None:
    r, peer = make(4 * PAGE, 4 * PAGE, budget=6 * PAGE)
    r.state.fetch(r.files)
    assert asked(peer) == r.files[:1]
    assert r.told() == [(Event.FAILED, r.files[1])]
    assert r.read(r.files[1]).errno == errno.ENOSPC


# ---- how it ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [0, 1])
@pytest.mark.parametrize(
    ("status", "metric"),
    [(LeaseStatus.NO, Metric.PEER_REFUSED), (LeaseStatus.LATE, Metric.PEER_LATE),
     (LeaseStatus.CORRUPT, Metric.PEER_CORRUPT), (LeaseStatus.LOST, Metric.PEER_REFUSED)],
)  # fmt: skip
def test_what_does_not_come_is_read_from_the_source(make: Make, status: LeaseStatus, metric: Metric, held: int) -> None:
    r, peer = make(3 * PAGE, 3 * PAGE)
    prefetched, demanded = r.files
    r.state.fetch([prefetched])
    number = r.demand(demanded, PAGE, PAGE)
    asks = [peer.ask_of(row) for row in r.files]
    for ask in asks:
        peer.write(ask, b"\xff" * ask.length)
        peer.refuse(ask, status, held=held)
    peer.check()
    r.workers.run_one()
    r.take()
    assert r.results[number].origin == Origin.SOURCE, "the demand first, and its own block of it"
    r.run()
    assert [r.staged(row) for row in r.files] == [r.contents[row, 0] for row in r.files]
    assert ([int(r.columns.slot[row]) for row in r.files] == [ask.extent for ask in asks]) == (not held)
    assert r.metric(metric) == 2
    assert r.metric(Metric.FETCHES_DONE) == 1
    assert r.source.opens == dict.fromkeys(r.files, 1)
    assert r.arena.taken == (12 if held else 6) * PAGE
    if held:
        for ask in asks:  # to the last
            peer.write(ask, b"\xee" * ask.length)
        peer.free(*asks)
    r.check_at_rest()


def test_bytes_that_are_there_and_may_yet_be_written_to_are_not_used(make: Make) -> None:
    r, peer = make(PAGE)
    (row,) = r.files
    number = r.demand(row)
    ask = peer.ask_of(row)
    peer.say(RecordKind.GOT, (ask.id, 0, LeaseStatus.OK, 1))
    r.run()
    assert r.results[number].origin == Origin.SOURCE
    assert r.metric(Metric.PEER_CORRUPT) == 1
    peer.check()
    peer.free(ask)
    r.check_at_rest()


def test_prefetches_from_the_source_after_all_count_among_those_of_the_source(make: Make) -> None:
    r, peer = make(*[PAGE] * 12)
    r.state.fetch(r.files)
    peer.take()
    for ask in list(peer.asks.values()):
        peer.refuse(ask, LeaseStatus.NO)
    workers = [Worker(urgent=False) for _ in range(5)]
    jobs = [r.state.next_step(worker, wait=False) for worker in workers]
    assert [job is not None for job in jobs] == [True] * 4 + [False]
    for worker, job in zip(workers[:4], jobs[:4], strict=True):
        assert job is not None
        r.workers.do(worker, job)
        with r.state._lock:
            r.state._queue.end(worker)  # as when it takes something else
    r.run()
    r.check_at_rest()


def test_without_room_for_another_extent_the_server_reads_the_source(make: Make) -> None:
    r, peer = make(4 * PAGE, 4 * PAGE, budget=10 * PAGE)
    r.state.fetch(r.files[1:])
    number = r.demand(r.files[0])
    for row in r.files:
        peer.refuse(peer.ask_of(row), LeaseStatus.LATE, held=1)
    r.run()
    assert r.results[number].errno == errno.ENOSPC
    assert r.told() == [(Event.FAILED, row) for row in r.files]
    assert r.metric(Metric.NO_ROOM) == 2
    assert r.metric(Metric.SOURCE_ERRORS) == 0
    assert r.metric(Metric.FETCHES_DONE) == 1
    assert r.arena.taken == 8 * PAGE
    peer.free(*list(peer.writes.values()))
    assert r.arena.taken == 0
    r.check_at_rest()


def test_a_file_too_long_for_some_mpis_is_not_asked_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_fetches, "LENGTH_MOST", 2 * PAGE)
    r, peer = make(2 * PAGE, 2 * PAGE + 1)
    r.state.fetch(r.files)
    r.run()
    assert asked(peer) == r.files[:1]
    assert r.metric(Metric.SOURCE_OPENS) == 1
    peer.bring(*list(peer.writes.values()))
    r.take()


def test_a_file_that_changed_meanwhile_is_not_published_whatever_comes(make: Make) -> None:
    r, peer = make(*[2 * PAGE] * 3)
    comes, refused, again = r.files
    r.state.fetch(r.files)
    asks = {row: peer.ask_of(row) for row in r.files}
    for row in r.files:
        r.path(row).write_bytes(b"new")
        r.refresh(row)
    number = r.demand(again)
    peer.bring(asks[comes], asks[again])
    peer.refuse(asks[refused], LeaseStatus.NO)
    r.run()
    assert {event for event, _ in r.told()} == {Event.FAILED}
    assert r.results[number].errno == errno.ENOSPC
    assert r.arena.taken == 0
    for row in r.files:
        number = r.demand(row)
        r.run()
        assert not asked(peer), "other nodes may know it otherwise"
        assert r.results[number].data == b"new"
    r.check_at_rest()


# ---- limits -------------------------------------------------------------------------------------------------


def test_one_who_says_nothing_is_given_up_and_keeps_the_extent(make: Make) -> None:
    r, peer = make(2 * PAGE, 2 * PAGE)
    r.state.fetch(r.files)
    asks = [peer.ask_of(row) for row in r.files]
    r.now += SILENT_S
    r.state.check_limits()
    peer.take()
    assert peer.given_up == []
    r.now += MARGIN_S + 0.001
    r.state.check_limits()
    peer.take()
    assert peer.given_up == [ask.id for ask in asks]
    r.run()
    assert [r.staged(row) for row in r.files] == [r.contents[row, 0] for row in r.files]
    assert r.metric(Metric.PEER_LATE) == 2
    for ask in asks:
        peer.write(ask, b"\xdd" * ask.length)
    peer.check()
    assert r.arena.taken == 8 * PAGE
    peer.bring(asks[0])  # too late
    peer.free(asks[1])
    assert r.arena.taken == 4 * PAGE
    assert r.exchange.wants()[2] is None, "no limit is left to be looked at"
    r.check_at_rest()


@pytest.mark.parametrize(("urgent", "limit"), [(True, COMING_S), (False, PREFETCH_S)])
def test_one_that_is_coming_is_given_longer_but_not_for_ever(
    make: Make, monkeypatch: pytest.MonkeyPatch, urgent: bool, limit: float
) -> None:
    monkeypatch.setattr(LoadLanes, "hedges", lambda *_, **__: False)  # too many have gone on from the source
    r, peer = make(PAGE)
    (row,) = r.files
    if urgent:
        r.demand(row)
    else:
        r.state.fetch([row])
    ask = peer.ask_of(row)
    began = r.now
    while r.now < began + limit + MARGIN_S - 1:
        peer.refuse(ask, LeaseStatus.COMING)
        r.now += 1
        r.state.check_limits()
    assert peer.given_up == []
    r.now += 2
    r.state.check_limits()
    peer.take()
    assert peer.given_up == [ask.id]
    peer.refuse(ask, LeaseStatus.COMING)
    assert r.metric(Metric.PEER_LATE) == 1
    peer.refuse(ask, LeaseStatus.NO)
    r.run()
    r.check_at_rest()


def test_a_reader_of_what_is_coming_waits_as_for_what_it_asked_for_itself(make: Make) -> None:
    r, peer = make(PAGE)
    (row,) = r.files
    r.state.fetch([row])
    ask = peer.ask_of(row)
    peer.refuse(ask, LeaseStatus.COMING)
    r.now += 20
    r.demand(row)
    r.now += COMING_S + MARGIN_S + 1
    r.state.check_limits()
    peer.take()
    assert peer.given_up == [ask.id]
    r.run()


def test_a_peer_process_that_says_nothing_at_all_is_asked_no_more_until_it_does(make: Make) -> None:
    r, peer = make(*[PAGE] * (PREFETCHES_A_PAIR + 5))
    last = r.files[-1]
    r.state.fetch(r.files[:-1])
    r.now += SILENT
    r.state.check_limits()
    r.run()
    assert len(r.told()) == len(r.files) - 1, "what had not been asked for, too"
    assert r.read(last).origin == Origin.SOURCE
    assert r.metric(Metric.PEER_LATE) == PREFETCHES_A_PAIR
    r.state.evict([last])
    r.take()
    peer.refuse(peer.ask_of(r.files[0]), LeaseStatus.LATE)
    assert r.read(last).origin == Origin.SOURCE, "its node did not answer, either"
    r.state.evict([last])
    r.now += TRY_MOST_S  # then it is tried again
    number = r.demand(last)
    peer.bring(peer.ask_of(last))
    r.take()
    assert r.results[number].origin == Origin.PEER
    peer.free(*list(peer.writes.values()))
    r.check_at_rest()


def test_one_that_answers_others_meanwhile_is_not_taken_for_hung(make: Make) -> None:
    r, peer = make(*[PAGE] * 6)
    for number, row in enumerate(r.files[:5]):
        homes(r, **{f"node{number}": [row]})
        r.state.fetch([row])
        ask = peer.ask_of(row)
        r.now += SILENT
        r.state.check_limits()
        peer.free(ask)
    r.state.fetch(r.files[5:])
    assert asked(peer) == r.files[5:]


def test_one_that_keeps_too_many_extents_is_asked_no_more_until_they_are_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_fetches, "UNDER_WAY_BYTES", 3 * PAGE)
    r, peer = make(*[2 * PAGE] * 4)
    kept = []
    for row in r.files[:2]:
        r.demand(row)
        kept.append(peer.ask_of(row))
        peer.refuse(kept[-1], LeaseStatus.LATE, held=1)
    r.state.fetch(r.files[2:3])
    r.run()
    assert r.staged(r.files[2])
    peer.free(kept[0])
    r.state.fetch(r.files[3:])
    assert peer.ask_of(r.files[3])


# ---- the peer process ends ----------------------------------------------------------------------------------


def test_when_it_ends_all_that_it_was_to_bring_is_read_from_the_source(make: Make) -> None:
    r, peer = make(*[2 * PAGE] * (PREFETCHES_A_PAIR + 4))
    held, coming, demanded, *rest = r.files
    r.demand(held)
    peer.refuse(peer.ask_of(held), LeaseStatus.LATE, held=1)
    r.run()
    numbers = [r.demand(coming), r.demand(demanded)]
    peer.refuse(peer.ask_of(coming), LeaseStatus.COMING)
    r.state.fetch(rest)
    extents = {row: peer.ask_of(row).extent for row in (coming, demanded, rest[0])}
    peer.write(peer.ask_of(rest[0]), b"\xcc" * 2 * PAGE)
    peer.end()
    r.run()
    assert all(r.results[number].origin == Origin.SOURCE for number in numbers)
    assert {row: int(r.columns.slot[row]) for row in extents} == extents, "a dead process writes nothing"
    assert {event for event, _ in r.told()} == {Event.STAGED}
    assert sorted(r.strays) == sorted(r.files), "read here, and at home elsewhere"
    assert r.arena.taken == 2 * PAGE * len(r.files)
    assert r.read(r.files[0]).origin == Origin.RAM
    assert r.exchange.wants() == (None, 1, None)
    r.check_at_rest()


def test_another_takes_its_place(make: Make) -> None:
    r, peer = make(*[PAGE] * 3)
    r.state.fetch(r.files[:1])
    old = peer.ask_of(r.files[0])
    other = FakePeer(r)
    assert peer.socket.recv(1) == b"", "it is told"
    r.state.fetch(r.files[1:])
    asks = [other.ask_of(row) for row in r.files[1:]]
    peer.hear()  # its last messages are no longer taken
    other.say(RecordKind.GOT, (old.id, 0, LeaseStatus.OK, 0))
    assert r.staged(r.files[0]) is None
    r.run()
    assert list(r.source.opens) == r.files[:1]
    other.bring(*asks)
    assert other.writes == {}
    r.check_at_rest()
    other.close()


def test_no_peer_process_no_peers(tmp_path: Path) -> None:
    write_files(tmp_path, [PAGE])
    r = Rig(tmp_path, budget=4 * PAGE)
    homes(r, node1=r.files)
    assert r.read(r.files[0]).origin == Origin.SOURCE
    r.state.check_limits()
    r.close()


# ---- garbage ------------------------------------------------------------------------------------------------


def test_garbage_is_counted_and_changes_nothing(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    r, peer = make(PAGE, PAGE)
    row = r.files[0]
    r.demand(row)
    ask = peer.ask_of(row)
    for message in (
        b"x", b"\xff" * 8, b"\0" * 8, pack_one(RecordKind.GOT, ask.id, 0, 0, 0)[:-1],
        pack_one(RecordKind.ASK, 1, row, 0, 1, 1, 1, 1), b"\1" * (stager_peer.MESSAGE_MAX + 100),
    ):  # fmt: skip
        peer.send(message)
    assert r.exchange.invalid == 6
    peer.say(RecordKind.GOT, (999, 0, LeaseStatus.OK, 0), (ask.id, 0, 77, 0), (0, 0, LeaseStatus.OK, 1))
    peer.say(RecordKind.FREED, (998,), (ask.id,))
    assert r.state._remote.invalid == 4
    assert len(caplog.records) == 2
    peer.bring(ask)
    peer.say(RecordKind.GOT, (ask.id, 0, LeaseStatus.CORRUPT, 1))
    assert r.staged(row) == r.contents[row, 0]
    r.take()
    r.check_at_rest()


def test_one_that_takes_no_messages_holds_nobody_up_and_gets_them_in_order(make: Make) -> None:
    r, peer = make(*[PAGE] * 3, budget=64 << 20)
    (row, second, third) = r.files
    r.state.fetch([row])
    peer.bring(peer.ask_of(row))
    number = 0
    while not r.exchange.wants()[1] & 2:
        number += 1
        peer.socket.send(pack_one(RecordKind.LEND, number, row, 1, 0, 0))
        peer.hear()
    r.demand(second)
    r.demand(third)
    assert r.exchange.wants()[2] is not None
    asks: list[Ask] = []
    while len(asks) < 2:
        peer.take()
        asks = list(peer.writes.values())
        peer.hear()
    assert [ask.row for ask in asks] == [second, third]
    assert [lent.id for lent in peer.lent] == list(range(1, number + 1))
    assert not r.exchange.wants()[1] & 2
    peer.bring(*asks)
    r.take()
    r.check_at_rest()


def test_one_that_asks_on_and_takes_no_answers_loses_some(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nopfsfs.stager.peer_link.BEHIND_MOST", 8)
    r, peer = make(PAGE)
    for number in range(1, 4000):
        peer.send(pack_one(RecordKind.LEND, number, r.files[0], 1, 0, 0))
        if peer.link.box.dropped > 10:
            break
    assert peer.link.box.dropped > 10
    assert len(peer.link.box) == 8


def test_a_prefetch_that_became_a_demand_still_counts_until_it_ends(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_fetches, "PREFETCHES_A_PAIR", 1)
    r, peer = make(PAGE, PAGE)
    a, b = r.files
    r.state.fetch([a, b])
    r.demand(a)
    assert asked(peer) == [a]
    peer.bring(peer.ask_of(a))
    assert asked(peer) == [b]
    r.take()


def test_an_evicted_row_is_asked_for_again(make: Make) -> None:
    r, peer = make(PAGE)
    (row,) = r.files
    for _ in range(3):
        r.state.fetch([row])
        peer.bring(peer.ask_of(row))
        r.state.evict([row])
        assert r.columns.tier[row] == Tier.NONE
    r.take()
    assert r.source.opens == {}
    r.check_at_rest()
