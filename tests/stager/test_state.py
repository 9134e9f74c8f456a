"""Demands, prefetches, evictions, changes; each case by itself. Random ones are in test_state_random.py."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import xxhash

from nopfsfs.protocol.columns import Metric, Tier
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.server_stager import Answer, AskGrace, Demand, Origin
from nopfsfs.protocol.source_metrics import read_ended
from nopfsfs.stager import state as module
from nopfsfs.stager.workers import Worker
from tests.conftest import no_more_threads
from tests.stager.rig import PAGE, Result, Rig, content, open_files_below, rig, write_files
from tests.waiting import wait_until

Make = Callable[..., Rig]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes a rig over files of the sizes given."""
    made: list[Rig] = []

    def build(*sizes: int, budget: int = 64 * PAGE, **options: object) -> Rig:
        write_files(tmp_path, list(sizes))
        made.append(Rig(tmp_path, budget=budget, **options))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for one in made:
        one.close()


def test_a_prefetched_file_is_whole_in_the_arena_with_its_checksum(make: Make) -> None:
    r = make(3 * PAGE + 5, 1, 0)
    big, small, _ = r.files
    r.state.fetch([big, small])
    r.run()
    assert set(r.told()) == {(Event.STAGED, small), (Event.STAGED, big)}
    for row in (big, small):
        assert r.staged(row) == r.path(row).read_bytes()
        assert int(r.columns.check[row]) == xxhash.xxh3_64_intdigest(r.path(row).read_bytes())
    assert r.source.opens == {big: 1, small: 1}
    assert open_files_below(r.root) == []
    r.check_at_rest()


@pytest.mark.parametrize("offset", [0, PAGE, 2 * PAGE + 7, 3 * PAGE])
def test_a_demand_is_answered_by_its_own_blocks_and_the_file_is_staged_after(make: Make, offset: int) -> None:
    """Wherever in the file the first READ is: no block is left behind, with it the load, and its memory."""
    r = make(4 * PAGE)
    (row,) = r.files
    number = r.demand(row, offset, 8)
    r.workers.run_one()
    r.take()
    assert r.results[number] == Result(0, r.path(row).read_bytes()[offset : offset + 8], Origin.SOURCE)
    r.run()
    assert r.staged(row) == r.path(row).read_bytes()
    assert r.source.opens == {row: 1}
    assert open_files_below(r.root) == []
    assert r.told() == [(Event.STAGED, row)]


def test_demands_and_a_prefetch_of_one_file_share_one_open(make: Make) -> None:
    r = make(4 * PAGE)
    (row,) = r.files
    r.state.fetch([row])
    r.workers.run_one()  # the first block is there
    assert r.metric(Metric.SOURCE_OPENS) == 1, "counted before anybody is answered"
    numbers = [r.demand(row, at, PAGE) for at in range(0, 4 * PAGE, PAGE // 2)]
    r.state.fetch([row])
    r.run()
    assert all(not r.results[number].errno for number in numbers)
    assert r.source.opens == {row: 1}
    assert r.metric(Metric.SOURCE_OPENS) == 1
    assert r.metric(Metric.SOURCE_READ_BYTES) == 4 * PAGE


def test_a_demand_overtakes_prefetches_and_their_further_blocks(make: Make) -> None:
    r = make(*[4 * PAGE] * 6)
    r.state.fetch(r.files[:5])
    r.workers.run_one()
    number = r.demand(r.files[5], 0, PAGE)
    r.workers.run_one()
    r.take()
    assert number in r.results


@pytest.mark.parametrize(
    ("offset", "length", "expected"), [(0, 10, 10), (95, 10, 5), (100, 10, 0), (1000, 1, 0), (0, 0, 0)]
)
def test_what_lies_beyond_the_end_is_not_read(make: Make, offset: int, length: int, expected: int) -> None:
    r = make(100)
    assert len(r.read(r.files[0], offset, length).data) == expected
    assert r.results[1].errno == 0


@pytest.mark.parametrize("row", [0, 10**6, 2**40 - 1])
def test_what_is_no_file_is_refused(make: Make, row: int) -> None:
    r = make(100)
    r.state.demand(Demand(1, row, 0, 10))
    assert r.messages.popleft() == Answer(1, errno.EIO, 0, 0)


# ---- every fetch is reported --------------------------------------------------------------------------------


def test_every_fetch_ends_with_an_event(make: Make) -> None:
    """The policy counts what is outstanding: a fetch that never ends would be counted for ever."""
    r = make(*[PAGE] * 6, 40 * PAGE, budget=16 * PAGE, whole_limit=8 * PAGE)
    staged, loading, stale, fails, missing, normal, large = r.files
    r.state.fetch([staged])
    r.run()
    r.told()
    r.columns.stale[stale] = 1
    r.source.errors[fails] = errno.EACCES
    r.path(missing).unlink()
    r.demand(loading)
    r.state.fetch([staged, loading, stale, fails, missing, normal, large])
    r.run()
    assert set(r.told()) == {
        (Event.STAGED, staged), (Event.STAGED, loading), (Event.FAILED, stale), (Event.FAILED, fails),
        (Event.FAILED, missing), (Event.STAGED, normal), (Event.FAILED, large),
    }  # fmt: skip
    assert r.metric(Metric.FETCHES_DONE) == 8


def test_cancelled_fetches_are_reported_and_others_go_on(make: Make) -> None:
    r = make(*[2 * PAGE] * 4)
    r.state.fetch(r.files)
    r.workers.run_one()
    r.state.cancel()
    r.run()
    assert r.told() == [*((Event.FAILED, row) for row in r.files[1:]), (Event.STAGED, r.files[0])]


def test_an_eviction_is_reported_also_of_what_is_not_there(make: Make) -> None:
    """The stager before had withdrawn it, and died before it could say so."""
    r = make(PAGE, PAGE)
    a, b = r.files
    r.state.fetch([a])
    r.run()
    r.told()
    r.state.evict([a, b])
    assert r.told() == [(Event.EVICTED, a), (Event.EVICTED, b)]


# ---- room ---------------------------------------------------------------------------------------------------


def test_without_room_the_server_reads_the_source_and_later_finds_room(make: Make) -> None:
    r = make(4 * PAGE, 4 * PAGE, budget=4 * PAGE)
    a, b = r.files
    r.state.fetch([a])
    r.run()
    assert r.read(b).errno == errno.ENOSPC
    r.state.evict([a])
    r.run()
    assert r.read(b).errno == 0
    assert r.arena.used <= r.arena.budget


def test_an_evicted_extent_is_reused_only_after_the_server_took_what_named_it(make: Make) -> None:
    r = make(4 * PAGE, 4 * PAGE, budget=4 * PAGE)
    a, b = r.files
    r.state.fetch([a])
    r.run()
    number = r.demand(a)  # answered: names the extent; the server is slow to take it
    r.state.evict([a])
    r.state.fetch([b])
    while r.workers.run_one():
        pass
    assert r.arena.taken == 4 * PAGE, "given back before the server let go of it"
    r.take()
    assert r.results[number].data == content(1, 4 * PAGE)
    assert r.arena.taken == 0


def test_an_answer_is_sent_before_the_grace_request_for_what_it_names(make: Make) -> None:
    """Two threads: one is about to send an answer while the other evicts the very file."""
    r = make(PAGE)
    (row,) = r.files
    r.state.fetch([row])
    r.run()
    sending, go_on, sent = threading.Event(), threading.Event(), []

    def answer(message: Answer) -> None:
        sending.set()
        assert go_on.wait(10)
        sent.append(message)

    r.state._demands._answer = answer  # the socket, slow
    grace = r.state._pool.grace
    ask = grace._ask
    grace._ask = lambda number: (sent.append(AskGrace(number)), ask(number))[1]
    answering = threading.Thread(target=r.state.demand, args=(Demand(1, row, 0, PAGE),))
    evicting = threading.Thread(target=r.state.evict, args=([row],))
    answering.start()
    assert sending.wait(10)
    evicting.start()
    evicting.join(0.05)
    go_on.set()
    answering.join(10)
    evicting.join(10)
    assert [type(message) for message in sent] == [Answer, AskGrace]


def test_a_smaller_budget_is_kept_to(make: Make) -> None:
    r = make(*[2 * PAGE] * 8, 32 * PAGE, budget=32 * PAGE, whole_limit=4 * PAGE, range_budget=16 * PAGE)
    large = r.files[-1]
    r.read(large, 0, PAGE)
    r.state.fetch(r.files[:8])
    r.run()
    assert r.arena.used > 16 * PAGE
    r.state.set_budget(8 * PAGE, PAGE, 2 * PAGE)
    r.state.evict(r.files[4:8])
    r.run()
    assert r.arena.used <= 10 * PAGE, "four files of two pages, and two blocks"
    assert r.read(r.files[7]).errno == errno.ENOSPC
    r.state.evict(r.files[:4])
    r.run()
    assert r.read(r.files[7], 0, PAGE).errno == 0
    assert r.metric(Metric.ARENA_USED) == r.arena.used <= 8 * PAGE


# ---- files read by ranges -----------------------------------------------------------------------------------


def test_a_large_file_is_read_ahead_by_blocks_within_its_share(make: Make) -> None:
    r = make(64 * PAGE, budget=32 * PAGE, whole_limit=4 * PAGE, range_budget=8 * PAGE)
    (row,) = r.files
    data = r.path(row).read_bytes()
    got = b""
    while len(got) < len(data):
        answer = r.read(row, len(got), PAGE // 2)
        assert answer.errno == 0
        got += answer.data
        assert r.arena.taken <= 8 * PAGE
    assert got == data
    assert r.source.opens == {row: 1}
    assert r.metric(Metric.SOURCE_READ_BYTES) == len(data), "each block is read once"


@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
def test_however_small_the_share_a_sequential_reader_reads_each_block_once(make: Make, blocks: int) -> None:
    r = make(32 * PAGE, budget=64 * PAGE, whole_limit=PAGE, range_budget=blocks * PAGE)
    (row,) = r.files
    for at in range(0, 32 * PAGE, PAGE // 4):
        assert r.read(row, at, PAGE // 4).data == content(1, 32 * PAGE)[at : at + PAGE // 4]
    assert r.metric(Metric.SOURCE_READ_BYTES) == 32 * PAGE


def test_reading_ahead_never_gives_up_the_block_that_an_answer_names(make: Make) -> None:
    """The answer is on its way to a slow server when the blocks after it are begun."""
    r = make(16 * PAGE, budget=64 * PAGE, whole_limit=PAGE, range_budget=2 * PAGE)
    (row,) = r.files
    for at in range(0, 16 * PAGE, PAGE):
        first = r.demand(row, at, PAGE)
        while r.workers.run_one():
            pass
        again = r.demand(row, at, PAGE)  # there already
        while r.workers.run_one():
            pass
        r.take()
        assert r.results[first].data == r.results[again].data == content(1, 16 * PAGE)[at : at + PAGE]


def test_readers_that_jump_about_get_their_bytes(make: Make) -> None:
    r = make(16 * PAGE, 16 * PAGE, budget=64 * PAGE, whole_limit=PAGE, range_budget=3 * PAGE)
    for step in range(40):
        row = r.files[step % 2]
        assert r.read(row, (step * 7 % 16) * PAGE + 13, PAGE).data != b""
    r.check_at_rest()


def test_files_that_nobody_reads_by_ranges_are_closed_after_a_while(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.05)
    r = make(4 * PAGE, budget=64 * PAGE, whole_limit=PAGE, range_budget=48 * PAGE)
    with no_more_threads(monkeypatch) as refused:  # needs none
        assert r.read(r.files[0], 0, PAGE).errno == 0
    assert refused == []

    def closed() -> bool:
        r.workers.look()
        r.run()  # a worker closes
        return open_files_below(r.root) == []

    assert wait_until(closed)
    assert r.read(r.files[0], 3 * PAGE, PAGE).errno == 0


def test_files_read_by_ranges_are_closed_by_a_worker(make: Make) -> None:
    """Closing may wait for the source; whoever takes demands must not."""
    r = make(*[2 * PAGE] * 20, budget=64 * PAGE, whole_limit=PAGE, range_budget=48 * PAGE)
    for row in r.files[:16]:
        r.read(row)
    assert len(open_files_below(r.root)) == 16
    number = r.demand(r.files[16])
    assert len(open_files_below(r.root)) == 16, "closed by who demands"
    r.run()
    assert r.results[number].errno == 0
    assert len(open_files_below(r.root)) == 16


# ---- sources that fail --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOENT, errno.ETIMEDOUT])
def test_the_source_s_error_reaches_all_who_wait_and_the_next_reader_tries_anew(make: Make, code: int) -> None:
    r = make(4 * PAGE)
    (row,) = r.files
    r.source.errors[row] = code
    numbers = [r.demand(row, at, PAGE) for at in (0, PAGE, 3 * PAGE)]
    r.run()
    assert {r.results[number].errno for number in numbers} == {code}
    r.source.errors.clear()
    assert r.read(row).errno == 0
    r.check_at_rest()


def shrink(path: Path) -> None:
    os.truncate(path, 100)


def grow(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more" * 5000)


def overwrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"new!" * 3000)


def replace(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(b"replaced" * 2048)
    os.replace(other, path)


CHANGES = [shrink, grow, overwrite, replace]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("whole", [True, False])
def test_a_file_that_changed_is_refused_once_and_read_anew_after_its_refresh(
    make: Make, change: Callable[[Path], None], whole: bool
) -> None:
    r = make(4 * PAGE, whole_limit=None if whole else PAGE, range_budget=16 * PAGE)
    (row,) = r.files
    change(r.path(row))
    assert r.read(row).errno == errno.ESTALE
    assert set(r.changed) == {row}
    r.refresh(row)
    data = b""
    while len(data) < r.source.size(row):
        data += r.read(row, len(data)).data
    assert data == r.path(row).read_bytes()
    r.check_at_rest()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("whole", [True, False])
def test_a_file_that_changes_while_it_is_read_is_never_mixed(
    make: Make, change: Callable[[Path], None], whole: bool
) -> None:
    r = make(8 * PAGE, whole_limit=None if whole else PAGE, range_budget=16 * PAGE)
    (row,) = r.files
    numbers = [r.demand(row, at, PAGE) for at in range(0, 8 * PAGE, PAGE)]
    r.workers.run_one()
    r.workers.run_one()
    change(r.path(row))
    r.run()
    outcomes = [r.results[number] for number in numbers]
    assert outcomes[-1].errno == errno.ESTALE
    for number, outcome in enumerate(outcomes):
        assert outcome.errno or outcome.data == content(1, 8 * PAGE)[number * PAGE : (number + 1) * PAGE]
    assert r.columns.tier[row] == Tier.NONE, "a mixture was staged"


def test_a_staged_copy_that_somebody_pins_is_out_of_use_at_once_when_its_file_changed(make: Make) -> None:
    """The pusher or the disk writer may hold it for long; a reader of the new version must not get it."""
    r = make(2 * PAGE, budget=8 * PAGE)
    (row,) = r.files
    r.state.fetch([row])
    r.run()
    pinned = r.state.pin(row)
    assert pinned is not None
    overwrite(r.path(row))
    r.refresh(row)
    assert r.columns.tier[row] == Tier.NONE
    assert r.read(row).data == r.path(row).read_bytes()
    assert bytes(pinned.data) == content(1, 2 * PAGE), "reused while pinned"
    again = r.state.pin(row)  # the new version, elsewhere
    assert again is not None
    assert bytes(again.data) == r.path(row).read_bytes()
    r.state.unpin(pinned.slot)
    r.state.unpin(again.slot)
    r.run()
    assert r.arena.taken == -(-r.source.size(row) // PAGE) * PAGE


def test_a_file_refreshed_while_it_is_opened_is_not_published_as_the_old_one(make: Make) -> None:
    r = make(4 * PAGE)
    (row,) = r.files

    def change(opened: int) -> None:
        r.source.while_opening = lambda row: None
        overwrite(r.path(opened))
        r.refresh(opened)

    r.source.while_opening = change
    r.state.fetch([row])
    r.run()
    assert r.staged(row) in (None, r.path(row).read_bytes())
    assert r.read(row).errno in (0, errno.ESTALE, errno.ENOSPC)
    r.run()
    assert r.read(row).data == r.path(row).read_bytes()


def test_a_stale_file_is_refused(make: Make) -> None:
    r = make(PAGE)
    r.columns.stale[r.files[0]] = 1
    assert r.read(r.files[0]).errno == errno.ESTALE


# ---- copies on disk -----------------------------------------------------------------------------------------


class Copies:
    """A disk tier of one copy."""

    def __init__(self, data: bytes | None) -> None:
        self.data = data
        self.reads = 0

    def read(self, disk: int, row: int, into: memoryview) -> None:
        self.reads += 1
        if self.data is None:
            raise OSError(errno.EIO, "disk failed")
        into[:] = self.data


def _on_disk(r: Rig, row: int) -> None:
    r.columns.check[row] = xxhash.xxh3_64_intdigest(r.path(row).read_bytes())
    assert r.state.publish_disk(row, 1, 0)


def test_a_copy_on_disk_spares_the_source(make: Make) -> None:
    copies = Copies(content(1, 4 * PAGE))
    r = make(4 * PAGE, disks=copies)
    (row,) = r.files
    _on_disk(r, row)
    assert r.read(row, PAGE, PAGE) == Result(0, content(1, 4 * PAGE)[PAGE : 2 * PAGE], Origin.DISK)
    assert (r.source.opens, copies.reads) == ({}, 1)


@pytest.mark.parametrize("data", [None, b"\0" * 4 * PAGE, content(2, 4 * PAGE)])
def test_a_copy_that_is_corrupt_or_cannot_be_read_is_replaced_by_the_source(make: Make, data: bytes | None) -> None:
    copies = Copies(data)
    r = make(4 * PAGE, disks=copies)
    (row,) = r.files
    _on_disk(r, row)
    assert r.read(row) == Result(0, content(1, 4 * PAGE), Origin.SOURCE)
    assert r.columns.disk[row] == 0, "withdrawn"
    assert r.metric(Metric.CORRUPT_COPIES) == (data is not None)
    assert r.metric(Metric.DISK_ERRORS) == (data is None)
    assert r.staged(row) == content(1, 4 * PAGE)


def test_a_copy_of_a_version_that_is_no_more_is_not_published(make: Make) -> None:
    r = make(PAGE)
    (row,) = r.files
    overwrite(r.path(row))
    r.refresh(row)
    assert not r.state.publish_disk(row, 1, 0)
    assert r.state.publish_disk(row, 1, 1)
    assert r.state.withdraw_disk(row) == 1
    assert r.state.withdraw_disk(row) == 0


def test_forgetting_a_row_names_the_disk_that_has_its_copy(make: Make) -> None:
    r = make(PAGE)
    (row,) = r.files
    _on_disk(r, row)
    assert r.state.forget(row) == 1
    assert r.columns.disk[row] == 0


# ---- threads ------------------------------------------------------------------------------------------------


def test_a_stopped_stager_ends_its_threads_and_forgets_what_is_queued(tmp_path: Path) -> None:
    write_files(tmp_path, [PAGE] * 4)
    with rig(tmp_path, budget=64 * PAGE) as r:
        before = set(threading.enumerate())
        r.workers.start(2, 1)
        threads = set(threading.enumerate()) - before
        assert len(threads) == 3
        r.state.stop()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        r.state.fetch(r.files)
        assert not r.workers.run_one()


# ---- metrics of requests at the source ---------------------------------------------------------------------------


def ended(r: Rig) -> tuple[int, int]:
    """Requests that ended well, and the young ones of them."""
    found = read_ended(r.metrics)
    assert found is not None
    return sum(found.ended), sum(found.young_ended)


def test_what_began_before_a_mark_is_not_young(make: Make) -> None:
    r = make(PAGE, PAGE, PAGE)
    r.state.fetch(r.files)
    worker = Worker(urgent=False)
    step = r.state.next_step(worker, wait=False)
    assert step is not None
    r.now += 1
    r.state.set_limit(4, 4, mark=True)
    r.workers.do(worker, step)
    assert ended(r) == (1, 0)
    assert r.state.next_step(worker, wait=False) is not None, "a request that begins now"
    assert r.metric(Metric.UNDER_WAY) == 1


def test_what_fails_is_read_from_disk_or_is_another_version_is_no_request_that_ended_well(make: Make) -> None:
    r = make(PAGE, PAGE, disks=OneDisk())
    failing, on_disk = r.files
    r.source.errors[failing] = errno.EIO
    r.columns.disk[on_disk], r.columns.check[on_disk] = 1, xxhash.xxh3_64_intdigest(r.path(on_disk).read_bytes())
    OneDisk.path = r.path(on_disk)
    r.state.fetch(r.files)
    r.run()
    assert r.staged(on_disk) is not None
    assert ended(r) == (0, 0)
    assert r.metric(Metric.SOURCE_ERRORS) == 1
    assert r.metric(Metric.UNDER_WAY) == 0


class OneDisk:
    """A disk with one file."""

    path: Path

    def read(self, disk: int, row: int, into: memoryview) -> None:
        into[:] = self.path.read_bytes()


def test_a_higher_limit_starts_the_threads_that_it_needs_and_demands_that_find_nobody_more(make: Make) -> None:
    r = make(*[PAGE] * 8)
    r.workers.start(1, 1, 4)
    assert wait_until(lambda: r.state._workers._idle == [1, 1])
    assert not any(r.state.lacking())
    r.state.set_limit(3, 3)
    assert r.state.lacking() == (2, 0)
    r.workers.fill()
    assert wait_until(lambda: r.state._workers._idle == [3, 1])
    gate = threading.Event()
    r.source.while_opening = lambda row: gate.wait(20) and None
    for row in r.files:
        r.demand(row)
        r.workers.fill()
    assert r.state._workers.threads == [3, 4], "no more than there may be"
    gate.set()
    assert wait_until(lambda: not r.state._queue._demands)
