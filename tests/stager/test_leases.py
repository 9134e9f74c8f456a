"""Rows that other nodes ask for: each case by itself. Random ones are in test_remote_fetches_random.py."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from nopfsfs.protocol import stager_peer
from nopfsfs.protocol.columns import HOME_HERE, Metric, Tier
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.stager_peer import LeaseStatus, RecordKind
from nopfsfs.stager import leases
from nopfsfs.stager.state import ROOM_CHECK_S
from nopfsfs.stager.workers import Worker
from tests.stager.peer import FakePeer, Make, homes, rigs
from tests.stager.rig import PAGE, Rig, write_files

OK, COMING, NO = LeaseStatus.OK, LeaseStatus.COMING, LeaseStatus.NO


class FakeDisk:
    """A disk tier that holds what the test says."""

    def __init__(self) -> None:
        self.copies: dict[int, bytes] = {}

    def read(self, disk: int, row: int, into: memoryview) -> None:
        if row not in self.copies:
            raise OSError(errno.EIO, "told to fail")
        into[:] = self.copies[row]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """As `rigs`; all homes are here."""
    with rigs(tmp_path, "here") as build:
        yield build


def stage(r: Rig, *rows: int) -> None:
    r.state.fetch(list(rows))
    r.run()
    r.told()


# ---- what is staged -----------------------------------------------------------------------------------------


def test_what_is_staged_is_lent_and_kept_until_it_is_given_back(make: Make) -> None:
    r, peer = make(3 * PAGE + 5, 0)
    stage(r, *r.files)
    numbers = peer.lend(*r.files)
    assert [peer.answers(number) for number in numbers] == [[OK], [OK]]
    assert peer.messages == [(RecordKind.LENT, 2)]
    r.state.evict(r.files)
    r.run()
    assert r.arena.taken == 5 * PAGE
    assert [peer.bytes_of(number) for number in numbers] == [r.contents[row, 0] for row in r.files]
    peer.back(*numbers)
    r.take()
    assert r.arena.taken == 0
    assert (r.metric(Metric.LENT_FILES), r.metric(Metric.LENT_BYTES)) == (2, 3 * PAGE + 5)
    r.take()
    r.check_at_rest()


def test_one_row_is_lent_to_several_and_free_after_the_last(make: Make) -> None:
    r, peer = make(PAGE)
    stage(r, *r.files)
    numbers = [*peer.lend(*r.files), *peer.lend(*r.files), *peer.lend(*r.files)]
    r.state.evict(r.files)
    for number in numbers:
        assert r.arena.taken == PAGE
        peer.back(number)
        r.take()
    assert r.arena.taken == 0


def test_what_is_lent_and_evicted_and_staged_again_is_two_extents(make: Make) -> None:
    r, peer = make(2 * PAGE)
    (row,) = r.files
    stage(r, row)
    (old,) = peer.lend(row)
    r.state.evict([row])
    stage(r, row)
    (new,) = peer.lend(row)
    assert peer.bytes_of(old) == peer.bytes_of(new) == r.contents[row, 0]
    assert r.arena.taken == 4 * PAGE
    pinned = r.state.pin(row)
    assert pinned is not None, "the pusher pins the one that is staged"
    r.state.unpin(pinned.slot)
    peer.back(new)
    r.take()
    assert r.arena.taken == 4 * PAGE, "staged, and the old one lent"
    peer.back(old)
    r.take()
    assert r.arena.taken == 2 * PAGE
    r.take()
    r.check_at_rest()


def test_a_changed_file_is_out_of_use_at_once_but_lies_where_it_was_lent(make: Make) -> None:
    r, peer = make(2 * PAGE)
    (row,) = r.files
    stage(r, row)
    (old,) = peer.lend(row)
    before = r.source.identity(row)
    r.path(row).write_bytes(b"new")
    r.refresh(row)
    assert peer.bytes_of(old) == r.contents[row, 0]
    (wrong,) = peer.lend(row, length=before.size, mtime_ns=before.mtime_ns)
    (new,) = peer.lend(row)
    r.run()
    assert (peer.answers(wrong), peer.answers(new)) == ([NO], [NO]), "others do not know this version"
    peer.back(old)
    r.take()
    r.check_at_rest()


# ---- what is not --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("urgent", [0, 1])
def test_the_home_fetches_what_it_does_not_have_and_lends_it_before_it_can_be_evicted(make: Make, urgent: int) -> None:
    r, peer = make(3 * PAGE)
    (row,) = r.files
    (number,) = peer.lend(row, urgent=urgent)
    assert peer.answers(number) == [COMING]
    r.run()
    r.state.evict([row])
    r.run()
    assert peer.answers(number) == [COMING, OK]
    assert peer.bytes_of(number) == r.contents[row, 0]
    assert r.told() == [(Event.STAGED, row), (Event.EVICTED, row)]
    assert r.source.opens == {row: 1}
    peer.back(number)
    r.take()
    r.check_at_rest()
    assert r.metric(Metric.FETCHES_DONE) == 0, "nobody ordered it here"


def test_a_copy_on_disk_is_lent_wherever_the_row_s_home_is(make: Make) -> None:
    disk = FakeDisk()
    r, peer = make(2 * PAGE, disks=disk)
    (row,) = r.files
    r.columns.holder[row], r.columns.disk[row] = 0, 1
    disk.copies[row] = r.contents[row, 0]
    r.columns.check[row] = xxhash.xxh3_64_intdigest(disk.copies[row])
    (number,) = peer.lend(row)
    r.run()
    assert peer.answers(number) == [COMING, OK]
    assert peer.bytes_of(number) == r.contents[row, 0]
    assert r.source.opens == {}
    peer.back(number)
    r.take()
    r.check_at_rest()


def test_a_row_whose_home_is_elsewhere_is_not_fetched_for_others_nor_asked_for_at_a_third(make: Make) -> None:
    r, peer = make(*[PAGE] * 3)
    none, other, asked = r.files
    homes(r, node2=[other, asked])
    r.columns.holder[none] = 0
    r.state.fetch([asked])
    ask = peer.ask_of(asked)
    numbers = peer.lend(*r.files)
    assert [peer.answers(number) for number in numbers] == [[NO]] * 3
    peer.bring(ask)
    (staged,) = peer.lend(asked)
    assert peer.answers(staged) == [OK], "it has it, for once"
    assert r.source.opens == {}


def test_lends_join_a_load_under_way_and_each_other(make: Make) -> None:
    r, peer = make(4 * PAGE)
    (row,) = r.files
    r.demand(row, 0, PAGE)
    r.workers.run_one()
    numbers = [*peer.lend(row), *peer.lend(row, urgent=1)]
    r.columns.holder[row] = 0  # it is under way all the same
    numbers += peer.lend(row)
    r.run()
    assert [peer.answers(number) for number in numbers] == [[COMING, OK]] * 3
    assert r.source.opens == {row: 1}
    peer.back(*numbers)
    r.take()
    r.check_at_rest()


def test_what_cannot_be_read_is_not_lent(make: Make) -> None:
    r, peer = make(*[PAGE] * 3, 8 * PAGE, whole_limit=4 * PAGE)
    fails, vanished, changes, _ = r.files
    numbers = peer.lend(*r.files)
    assert peer.answers(numbers[3]) == [NO]
    r.source.errors[fails] = errno.EIO
    r.path(vanished).unlink()
    r.path(changes).write_bytes(b"other")
    r.run()
    assert [peer.answers(number) for number in numbers[:3]] == [[COMING, NO]] * 3
    (again,) = peer.lend(fails)
    del r.source.errors[fails]
    r.run()
    assert peer.answers(again) == [COMING, OK]
    peer.back(again)
    r.take()
    r.check_at_rest()


def test_what_has_no_room_is_lent_when_it_has(make: Make) -> None:
    r, peer = make(3 * PAGE, 3 * PAGE, PAGE, budget=4 * PAGE)
    first, second, third = r.files
    (number,) = peer.lend(first)
    r.run()
    waits, small = [*peer.lend(second), *peer.lend(third)]
    r.run()
    assert [peer.answers(one) for one in (number, waits, small)] == [[COMING, OK], [COMING], [COMING, OK]]
    assert r.arena.used <= r.arena.budget
    assert r.exchange.wants()[2] == ROOM_CHECK_S
    peer.hurry(waits, second)
    peer.back(number)
    r.state.evict([first])
    r.take()
    r.state.check_limits()
    r.run()
    assert peer.answers(waits) == [COMING, OK]
    assert peer.bytes_of(waits) == r.contents[second, 0]
    assert r.exchange.wants()[2] is None
    peer.back(waits, small)
    r.take()
    r.check_at_rest()


def test_what_is_staged_meanwhile_needs_no_room(make: Make) -> None:
    r, peer = make(3 * PAGE, 3 * PAGE, budget=4 * PAGE)
    stage(r, r.files[0])
    (number,) = peer.lend(r.files[1])
    r.state.evict(r.files[:1])
    r.take()
    stage(r, r.files[1])
    r.state.check_limits()
    assert peer.answers(number) == [COMING, OK]
    assert r.metric(Metric.SOURCE_OPENS) == 2
    peer.back(number)


def test_room_is_not_waited_for_for_ever_nor_again_and_again(make: Make) -> None:
    r, peer = make(3 * PAGE, 3 * PAGE, budget=4 * PAGE)
    stage(r, r.files[0])
    (number,) = peer.lend(r.files[1])
    r.now += leases.ROOM_S - 0.1
    r.state.check_limits()
    assert peer.answers(number) == [COMING]
    r.now += 0.1
    r.state.check_limits()
    assert peer.answers(number) == [COMING, NO]
    (at_once,) = peer.lend(r.files[1])
    assert peer.answers(at_once) == [NO]
    r.now += leases.FULL_S
    (again,) = peer.lend(r.files[1])
    assert peer.answers(again) == [COMING]
    peer.back(again)
    assert r.exchange.wants()[2] is None
    assert r.state._leases._leases == {}


def test_what_is_never_staged_whole_does_not_wait_for_room(make: Make) -> None:
    r, peer = make(3 * PAGE, whole_limit=2 * PAGE)
    (number,) = peer.lend(*r.files)
    assert peer.answers(number) == [NO]


def test_what_is_asked_for_wrongly_is_refused(make: Make) -> None:
    r, peer = make(PAGE)
    (row,) = r.files
    size, mtime_ns, *_ = r.source.identity(row)
    wrong = [
        (0, 4096, 0), (-1, size, mtime_ns), (1 << 60, size, mtime_ns), (r.index.n, size, mtime_ns),
        (row, size + 1, mtime_ns), (row, -1, mtime_ns), (row, size, mtime_ns + 1),
    ]  # fmt: skip
    peer.say(RecordKind.LEND, *((number + 1, *record, 1) for number, record in enumerate(wrong)))
    assert [peer.answers(number + 1) for number in range(len(wrong))] == [[NO]] * len(wrong)
    r.columns.stale[row] = 1
    (stale,) = peer.lend(row, id=50)
    assert peer.answers(stale) == [NO]
    r.columns.stale[row] = 0
    assert r.source.opens == {}
    peer.lend(row, id=60)
    peer.lend(row, id=60)
    peer.lend(0, id=60, urgent=1)
    assert peer.answers(60) == [COMING]
    assert r.state._leases.invalid == 1
    r.run()
    assert peer.answers(60) == [COMING, OK]
    peer.back(60, 60, 61)
    r.take()
    r.check_at_rest()


def test_a_link_is_not_lent(tmp_path: Path) -> None:
    write_files(tmp_path, [PAGE])
    (tmp_path / "link").symlink_to("f00")
    r = Rig(tmp_path, budget=8 * PAGE)
    peer = FakePeer(r)
    (link,) = (row for row in range(r.index.n_dirs, r.index.n) if row not in r.files)
    homes(r, here=[link])
    (number,) = peer.lend(link)
    assert peer.answers(number) == [NO]
    peer.close()
    r.close()


# ---- order --------------------------------------------------------------------------------------------------


def test_readers_here_come_first_then_those_of_others_then_what_nobody_waits_for(make: Make) -> None:
    r, peer = make(*[PAGE] * 5)
    prefetched, lent, waited_for, demanded, _ = r.files
    r.state.fetch([prefetched])
    peer.lend(lent)
    peer.lend(waited_for, urgent=1)
    r.demand(demanded)
    r.run()
    assert list(r.source.opens) == [demanded, waited_for, lent, prefetched]


def test_one_that_a_reader_has_come_to_wait_for_goes_before_others(make: Make) -> None:
    r, peer = make(*[3 * PAGE] * 3)
    first, second, third = peer.lend(*r.files)
    peer.hurry(third, r.files[2])
    peer.hurry(third, r.files[2])
    r.run()
    assert list(r.source.opens) == [r.files[2], r.files[0], r.files[1]]
    assert peer.answers(third) == [COMING, OK]
    peer.hurry(third, r.files[2])  # it is lent
    assert peer.answers(third) == [COMING, OK]
    peer.back(first, second, third)
    r.take()
    r.check_at_rest()


def test_lends_that_nobody_waits_for_take_the_slots_of_prefetches(make: Make) -> None:
    r, peer = make(*[PAGE] * 10)
    r.state.fetch(r.files[6:])
    numbers = peer.lend(*r.files[:6])
    workers, waiting = [Worker(urgent=False) for _ in range(5)], Worker(urgent=True)
    jobs = [r.state.next_step(worker, wait=False) for worker in workers]
    assert [job is None for job in jobs] == [False] * 4 + [True]
    assert r.state.next_step(waiting, wait=False) is None
    peer.hurry(numbers[5], r.files[5])
    urgent = r.state.next_step(waiting, wait=False)
    assert urgent is not None, "it needs none, and the threads that are kept free take it"
    for worker, job in zip((*workers[:4], waiting), (*jobs[:4], urgent), strict=True):
        assert job is not None
        r.workers.do(worker, job)
        with r.state._lock:
            r.state._queue.end(worker)  # as when it takes something else
    r.run()
    assert len(r.told()) == 10
    peer.back(*numbers)
    r.take()
    r.check_at_rest()


# ---- bounds -------------------------------------------------------------------------------------------------


def test_nothing_waits_for_what_a_node_that_hangs_was_lent(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "UNDER_WAY_BYTES", 2 * PAGE)
    r, peer = make(*[2 * PAGE] * 4)
    stage(r, *r.files)
    (stuck,) = peer.lend(r.files[0])
    r.now += 1.0
    (waits,) = peer.lend(r.files[1])
    assert peer.answers(waits) == [COMING]
    r.now += leases.STUCK_S
    (late,) = peer.lend(r.files[2])
    assert (peer.answers(waits), peer.answers(late)) == ([COMING, NO], [NO])
    peer.back(stuck)
    (then,) = peer.lend(r.files[3])
    assert peer.answers(then) == [OK]
    peer.back(then)
    r.take()
    r.check_at_rest()


def test_so_many_bytes_are_lent_and_others_wait_in_their_order(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "UNDER_WAY_BYTES", 4 * PAGE)
    r, peer = make(*[2 * PAGE] * 4, PAGE, 20 * PAGE)
    stage(r, *r.files)
    a, b, c, d, small, large = peer.lend(*r.files)
    (urgent,) = peer.lend(r.files[0], urgent=1)
    lent = [a, b]
    assert [peer.answers(number) for number in (a, b, c)] == [[OK], [OK], [COMING]]
    peer.back(a)
    assert peer.answers(urgent) == [COMING, OK], "somebody waits for it"
    peer.back(b)
    assert peer.answers(c) == [COMING, OK]
    peer.hurry(small, r.files[4])
    peer.back(urgent)
    assert peer.answers(small) == [COMING, OK]
    assert peer.answers(d) == [COMING]
    peer.back(c)
    assert peer.answers(d) == [COMING, OK]
    peer.back(small)
    assert peer.answers(large) == [COMING]
    peer.back(d)
    assert peer.answers(large) == [COMING, OK], "alone"
    lent.append(large)
    peer.back(large)
    assert r.metric(Metric.LENT_FILES) == 7
    r.take()
    r.check_at_rest()


def test_what_waits_is_cancelled_or_changes_or_is_too_much(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "UNDER_WAY_BYTES", 2 * PAGE)
    monkeypatch.setattr(leases, "WAITING_MOST", 3)
    r, peer = make(*[2 * PAGE] * 5)
    stage(r, *r.files)
    held, cancelled, changed, waits, many = peer.lend(*r.files)
    assert peer.answers(many) == [NO]
    peer.back(cancelled)
    r.path(r.files[2]).write_bytes(b"new")
    r.refresh(r.files[2])
    peer.back(held)
    assert peer.answers(cancelled) == [COMING]
    assert peer.answers(changed) == [COMING, NO]
    assert peer.answers(waits) == [COMING, OK]
    peer.back(waits)
    assert r.metric(Metric.LENT_FILES) == 2
    r.take()
    r.check_at_rest()


def test_a_lend_given_back_before_its_load_ended_is_not_lent(make: Make) -> None:
    r, peer = make(PAGE, PAGE)
    a, b = peer.lend(*r.files)
    (again,) = peer.lend(r.files[0])
    peer.back(a, b)
    r.run()
    assert [peer.answers(number) for number in (a, b, again)] == [[COMING], [COMING], [COMING, OK]]
    assert r.metric(Metric.LENT_FILES) == 0
    peer.back(again)
    r.take()
    r.check_at_rest()


def test_a_hurry_that_crosses_a_refusal_is_a_request_like_any_other(make: Make) -> None:
    """Who sent it had forgotten the number when it is lent after all, and gives it back at once."""
    r, peer = make(PAGE)
    (row,) = r.files
    r.columns.holder[row] = 0
    (number,) = peer.lend(row)
    assert peer.answers(number) == [NO]
    stage(r, row)
    peer.hurry(number, row)
    assert peer.answers(number) == [NO, OK]
    peer.back(number)
    peer.back(number)
    r.check_at_rest()


# ---- the peer process ends ----------------------------------------------------------------------------------


def test_when_it_ends_nothing_stays_pinned_and_nothing_is_waited_for(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "UNDER_WAY_BYTES", 4 * PAGE)
    r, peer = make(*[2 * PAGE] * 4)
    stage(r, r.files[0])
    peer.lend(*r.files)
    peer.end()
    r.state.evict(r.files[:1])
    r.run()
    assert r.told() == [(Event.EVICTED, r.files[0]), (Event.STAGED, r.files[1])]
    assert len(r.state._pool._pins) == 0
    assert r.metric(Metric.LENT_FILES) == 0
    r.take()
    r.check_at_rest()


def test_numbers_begin_anew_with_another_peer_process(make: Make) -> None:
    r, peer = make(PAGE, PAGE)
    stage(r, *r.files)
    (number,) = peer.lend(r.files[0])
    other = FakePeer(r)
    assert other.lend(r.files[1]) == [number]
    assert other.bytes_of(number) == r.contents[r.files[1], 0]
    assert len(r.state._pool._pins) == 1
    other.back(number)
    assert len(r.state._pool._pins) == 0
    other.close()


def test_many_come_in_one_message(make: Make) -> None:
    r, peer = make(*[1] * 40, budget=64 * PAGE)
    stage(r, *r.files)
    numbers = [number for _ in range(10) for number in peer.lend(*r.files)]
    assert all(peer.answers(number) == [OK] for number in numbers)
    assert {count for _, count in peer.messages} == {40}
    peer.back(*numbers)
    assert len(numbers) > stager_peer.RECORDS_MOST
    assert r.metric(Metric.LENT_FILES) == 400
    assert r.columns.tier[r.files[0]] == Tier.RAM
    assert r.columns.holder[r.files[0]] == HOME_HERE
    r.take()
    r.check_at_rest()
