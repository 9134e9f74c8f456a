"""The event loop of the supervisor: rings in, orders out; with a stager, without one, and with one that hangs."""

from __future__ import annotations

import errno
import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
import trio
import trio.testing

from nopfsfs.plan.epoch_order import DataSet, FileOrder
from nopfsfs.plan.following.follower import Follower
from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.policy.page_cache_audit import ROWS_LEAST
from nopfsfs.protocol import ring as rings
from nopfsfs.protocol import supervisor_stager
from nopfsfs.protocol.columns import SUPERVISOR, Metric, MetricBlock, Tier
from nopfsfs.protocol.ring import CAPACITY, Event, Ring
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.protocol.tripwires import Tripwires
from nopfsfs.supervisor import event_loop as module
from nopfsfs.supervisor import stager_socket
from nopfsfs.supervisor.event_loop import EventLoop
from nopfsfs.supervisor.processes.supervised import sequenced_pair
from nopfsfs.supervisor.progress_signal import ProgressSignal
from nopfsfs.supervisor.server_rings import ServerRings
from nopfsfs.supervisor.stager_socket import StagerSocket
from nopfsfs.system.outages import Outages
from tests.asynchronous import in_trio

N = 40
EVERYTHING = MemorySplit(
    arena=1000, homes=1000, stream=0, ranges=0, pages=1000, page_homes=1000, whole_limit=1000
)  # fmt: skip


@dataclass
class Bench:
    """A loop, the other ends of its rings (`other`: a second server's), and of its orders."""

    loop: EventLoop
    commands: StagerSocket
    server: Ring
    other: Ring
    stager: Ring
    tier: np.ndarray
    orders: socket.socket
    ours: socket.socket

    def attach(self) -> None:
        """A new stager."""
        self.ours, self.orders = sequenced_pair()
        self.orders.settimeout(10)
        self.loop.attach_stager(self.ours)

    def fill(self) -> None:
        """Send the stager, which takes nothing, as much as its socket holds."""
        self.ours.setblocking(False)
        try:
            while True:
                self.ours.send(b"x" * 1000)
        except BlockingIOError:
            pass

    def empty(self) -> None:
        """Take all that `fill` sent, and nothing else."""
        self.orders.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                assert self.orders.recv(supervisor_stager.MESSAGE_MAX) == b"x" * 1000

    def received(self) -> list[tuple[StagerCommand, list[int]]]:
        """Orders that a stager would find now."""
        self.orders.setblocking(False)
        found = []
        while True:
            try:
                message = self.orders.recv(supervisor_stager.MESSAGE_MAX)
            except BlockingIOError:
                return found
            order, rows, _ = supervisor_stager.unpack_command(message)
            found.append((order, rows.tolist()))

    @property
    def predicted(self) -> int:
        """Opens that were foreseen, as the record says."""
        return int(self.loop._metrics[Metric.PREDICTED])

    async def turn(self) -> None:
        self.loop.step()
        await self.loop._send()

    async def until_quiet(self) -> list[tuple[StagerCommand, list[int]]]:
        """Do what is ordered, as a stager that never fails; all that was ordered."""
        found = []
        for _ in range(50):
            await self.turn()
            new = self.received()
            for order, rows in new:
                for row in rows:
                    if order == StagerCommand.FETCH:
                        self.tier[row] = Tier.RAM
                        self.stager.put(Event.STAGED, row, 10)
                    elif order == StagerCommand.PUSH:
                        self.stager.put(Event.PUSHED, row, 10)
            found += new
            if not new and not self.loop._stager_ring.pending():
                return found
        raise AssertionError("it goes on for ever")


@pytest.fixture
def bench() -> Iterator[Bench]:
    fds = [Ring.create("stager"), MetricBlock.create(), *(Ring.create("server") for _ in range(2))]
    tier = np.zeros(N, np.uint8)
    policy = NodePolicy(np.full(N, 10), np.zeros(N, np.uint8), EVERYTHING, [])
    commands, metrics = StagerSocket(), MetricBlock(fds[1], SUPERVISOR, writable=True).block
    loop = EventLoop(
        ServerRings([Ring(fd, writable=False) for fd in fds[2:]]), Ring(fds[0], writable=False), policy, tier, metrics,
        commands, Outages(), ProgressSignal("open", Tripwires(0, N), np.full(N, 10), metrics),
    )  # fmt: skip
    stager, server, other = (Ring(fd, writable=True) for fd in (fds[0], *fds[2:]))
    made = Bench(loop, commands, server, other, stager, tier, *sequenced_pair())
    made.orders.close()
    made.ours.close()
    yield made
    made.orders.close()
    made.ours.close()
    for fd in fds:
        os.close(fd)


def follower(first: int = 0) -> Follower:
    """Of a job that reads the files from `first` on, in order."""
    rows = np.arange(first, N, dtype=np.int64)
    made = Follower([DataSet(key=0, name=".", orders=(FileOrder(("sorted_files",), rows),))], 1, "sequential")
    made.settle()
    return made


def ordered(found: list[tuple[StagerCommand, list[int]]], order: StagerCommand) -> list[int]:
    return [row for kind, rows in found if kind == order for row in rows]


@in_trio
async def test_a_plan_becomes_fetches_and_pushes_in_its_order(bench: Bench) -> None:
    bench.attach()
    bench.loop.follow(follower())
    found = await bench.until_quiet()
    assert ordered(found, StagerCommand.FETCH)[:N] == list(range(N))
    assert ordered(found, StagerCommand.PUSH)[:N] == list(range(N))


@in_trio
async def test_another_follower_is_followed_from_the_beginning_of_its_stream(bench: Bench) -> None:
    """The plan failed, and was made anew: both followers are in their first generation."""
    bench.attach()
    one, other = follower(N // 2), follower()
    assert one.generation == other.generation
    bench.loop.follow(one)
    assert ordered(await bench.until_quiet(), StagerCommand.FETCH) == list(range(N // 2, N))
    bench.loop.follow(None)
    await bench.until_quiet()
    bench.loop.follow(other)
    assert ordered(await bench.until_quiet(), StagerCommand.FETCH) == list(range(N // 2))


@in_trio
async def test_nothing_is_fetched_ahead_while_it_is_not_known_where_files_live(bench: Bench) -> None:
    bench.attach()
    bench.loop.holds_back = True
    bench.loop.follow(follower())
    assert ordered(await bench.until_quiet(), StagerCommand.FETCH) == []
    bench.loop.fetch_ahead()
    assert ordered(await bench.until_quiet(), StagerCommand.FETCH)[:N] == list(range(N))


@in_trio
async def test_opens_are_counted_as_predicted(bench: Bench) -> None:
    bench.attach()
    bench.loop.follow(follower())
    for row in range(N):
        bench.server.put(Event.OPEN, row, 1)
        bench.server.put(Event.READ, row, 10)
        bench.server.put(Event.RELEASE, row)
    bench.loop.drain()
    assert bench.predicted >= N - 2
    assert bench.loop.policy.pages_used == 10 * N


def test_searches_begin_with_the_opens_that_they_need(bench: Bench) -> None:
    """Who asks the follower for work is woken by the first look at these opens, however long ago the last time was."""
    seeking = Follower(follower().datasets, None)
    times: list[float] = []

    async def main() -> None:
        bench.loop.follow(seeking)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.loop.run)
            await bench.loop.looked.park()
            for row in (7, 3, 11, 5, 2, 9):
                bench.server.put(Event.OPEN, row, 1)
            began = trio.current_time()
            while not seeking.opens:  # noqa: ASYNC110
                await trio.sleep(0.001)
            times.append(trio.current_time() - began)
            await bench.loop.looked.park()
            times.append(trio.current_time() - began)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.005))
    seen, woken = times
    assert woken - seen <= module.STAGING_PAUSE_S


def test_while_nothing_happens_it_looks_five_times_a_second_and_sees_what_begins(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    step = bench.loop.step
    monkeypatch.setattr(bench.loop, "step", lambda: (looks.append(trio.current_time()), step())[1])
    seen: list[float] = []

    async def main() -> None:
        bench.loop.follow(follower())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.loop.run)
            await trio.sleep(10)
            looks.clear()
            await trio.sleep(60.05)
            assert len(looks) <= 60 / module.QUIET_PAUSE_S + 1
            for row in (0, 1):
                began = trio.current_time()
                bench.server.put(Event.OPEN, row, 1)
                while bench.loop.observed == row:  # noqa: ASYNC110
                    await trio.sleep(0.001)
                seen.append(trio.current_time() - began)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.005))
    assert module.IDLE_PAUSE_S < seen[0] <= module.QUIET_PAUSE_S + 0.001
    assert seen[1] <= module.READING_PAUSE_S + 0.001


def test_what_two_servers_saw_is_followed_in_the_order_of_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "monotonic_ns", itertools.count(1).__next__)
    seen: list[tuple[str, int]] = []
    policy = bench.loop.policy
    monkeypatch.setattr(policy, "opened", lambda row: seen.append(("opened", row)))
    monkeypatch.setattr(policy, "read", lambda row, end: seen.append(("read", row)))
    monkeypatch.setattr(policy, "released", lambda row: seen.append(("released", row)))
    bench.loop.follow(follower())
    for row in range(N):
        one, other = (bench.server, bench.other) if row % 3 else (bench.other, bench.server)
        one.put(Event.OPEN, row, 1)
        other.put(Event.READ, row, 10)
        one.put(Event.RELEASE, row)
    assert bench.loop.pending == 3 * N
    bench.loop.drain()
    assert bench.loop.pending == 0
    assert seen == [(what, row) for row in range(N) for what in ("opened", "read", "released")]
    assert bench.predicted >= N - 2
    assert bench.loop.observed == N


def test_the_counts_of_a_supervisor_before_go_on(bench: Bench) -> None:
    bench.loop._metrics[Metric.OBSERVED], bench.loop._metrics[Metric.PREDICTED] = 100, 50
    bench.loop._signal = ProgressSignal("open", Tripwires(0, N), np.full(N, 10), bench.loop._metrics)
    bench.loop.follow(follower())
    for row in range(N):
        bench.server.put(Event.OPEN, row, 1)
    bench.loop.drain()
    assert bench.loop.observed == 100 + N
    assert 50 + N - 2 <= bench.predicted <= 50 + N


def test_of_what_was_opened_before_servers_ended_no_close_is_awaited(bench: Bench) -> None:
    for row in (1, 2):
        bench.server.put(Event.OPEN, row)
    bench.other.put(Event.OPEN, 3)
    bench.loop.closes_were_lost()
    bench.server.put(Event.RELEASE, 1)
    bench.loop.step()
    assert len(bench.loop.policy.open) == 0
    bench.server.put(Event.OPEN, 4)
    bench.loop.step()
    assert 4 in bench.loop.policy.open


def test_events_wait_for_a_plan_that_is_being_made(bench: Bench) -> None:
    bench.loop.await_plan()
    for row in range(N):
        (bench.server, bench.other)[row % 2].put(Event.OPEN, row, 1)
    bench.loop.step()
    assert (bench.loop.pending, bench.loop.observed) == (N, 0)
    bench.loop.follow(follower())
    bench.loop.drain()
    assert (bench.loop.pending, bench.loop.observed) == (0, N)


@in_trio
async def test_a_further_server_is_introduced_to_the_stager(bench: Bench) -> None:
    ours, theirs = sequenced_pair()
    with ours, theirs:
        assert not await bench.commands.introduce(theirs), "there is none"
        bench.attach()
        assert await bench.commands.introduce(theirs)
        message, fds, _, _ = socket.recv_fds(bench.orders, supervisor_stager.MESSAGE_MAX, 4)
        order, rows, _ = supervisor_stager.unpack_command(message)
        assert (order, rows.tolist(), len(fds)) == (StagerCommand.SERVER, [], 1)
        with socket.socket(fileno=fds[0]) as arrived:
            arrived.send(b"hello")
        assert ours.recv(10) == b"hello"
        bench.orders.close()
        assert not await bench.commands.introduce(theirs), "it is gone"


@in_trio
async def test_a_stager_that_hangs_gets_to_know_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stager_socket, "COMMAND_LIMIT_S", 0.0)
    bench.attach()
    bench.fill()
    ours, theirs = sequenced_pair()
    with ours, theirs:
        assert not await bench.commands.introduce(theirs)


@in_trio
async def test_without_a_stager_nothing_is_ordered_and_with_the_next_everything(bench: Bench) -> None:
    bench.loop.follow(follower())
    await bench.turn()
    bench.attach()
    assert ordered(await bench.until_quiet(), StagerCommand.FETCH)[:N] == list(range(N))


@in_trio
async def test_what_a_dead_stager_had_begun_the_next_one_does(bench: Bench) -> None:
    bench.attach()
    bench.loop.follow(follower())
    await bench.turn()
    begun = ordered(bench.received(), StagerCommand.FETCH)
    for row in begun[:5]:
        bench.tier[row] = Tier.RAM
        bench.stager.put(Event.STAGED, row, 10)  # published, and seen only after its death
    bench.orders.close()
    bench.loop.detach_stager()
    await bench.turn()
    bench.attach()
    assert ordered(await bench.until_quiet(), StagerCommand.FETCH)[: N - 5] == begun[5:]


@in_trio
async def test_two_tasks_may_wait_for_a_stager_that_is_slow(bench: Bench) -> None:
    """Its socket is full; the loop and an order of the supervisor's own wait, and both go on."""
    bench.attach()
    bench.loop.follow(follower())
    filler = supervisor_stager.pack_commands(StagerCommand.CANCEL, np.zeros(0, np.int64))[0]
    bench.ours.setblocking(False)
    try:
        while True:
            bench.ours.send(filler)
    except BlockingIOError:
        pass
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.turn)
        nursery.start_soon(bench.commands.command, StagerCommand.QUIESCE)
        nursery.start_soon(bench.commands.command, StagerCommand.QUIESCE)
        await trio.testing.wait_all_tasks_blocked()
        found = bench.received()
        await trio.testing.wait_all_tasks_blocked()
        found += bench.received()
    kinds = [order for order, _ in found + bench.received()]
    assert kinds.count(StagerCommand.QUIESCE) == 2
    assert StagerCommand.FETCH in kinds


@in_trio
async def test_a_command_to_a_stager_that_hangs_is_given_up(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the mount must not wait for it."""
    monkeypatch.setattr(stager_socket, "COMMAND_LIMIT_S", 0.01)
    bench.attach()
    bench.fill()
    with trio.fail_after(10):
        await bench.commands.command(StagerCommand.STOP)
    assert "the stager takes no commands; STOP was given up" in caplog.text
    bench.empty()
    await bench.commands.command(StagerCommand.QUIESCE)
    assert bench.received() == [(StagerCommand.QUIESCE, [])], "what was given up does not come later"


@in_trio
async def test_a_stager_that_goes_while_its_socket_is_waited_for(bench: Bench) -> None:
    bench.attach()
    bench.loop.follow(follower())
    bench.fill()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.turn)
        await trio.testing.wait_all_tasks_blocked()
        bench.loop.detach_stager()
    bench.orders.close()
    bench.attach()
    await bench.turn()
    assert ordered(bench.received(), StagerCommand.FETCH) == list(range(N)), "the next one is ordered all of it"


@in_trio
async def test_lost_events_of_the_stager_are_made_up_from_the_columns(bench: Bench) -> None:
    bench.attach()
    bench.loop.follow(follower())
    await bench.turn()
    for row in ordered(bench.received(), StagerCommand.FETCH):
        bench.tier[row] = Tier.RAM  # and its event is lost
    for _ in range(CAPACITY + 10):
        bench.stager.put(Event.CHANGED, 0)
    found = []
    while bench.loop._stager_ring.pending():
        await bench.turn()
        found += bench.received()
    found += await bench.until_quiet()
    assert bench.loop.policy.fetches.outstanding == 0
    assert set(ordered(found, StagerCommand.PUSH)) == set(range(N))


@in_trio
async def test_a_failure_of_the_policy_ends_planning_for_a_while_and_not_the_mount(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FAILED_PAUSE_S", 0.05)
    monkeypatch.setattr(module, "SOUND_S", 0.2)
    bench.attach()
    bench.loop.follow(follower())
    bench.tier[3] = Tier.RAM  # it was staged, and that was not heard of
    lost = bench.loop.follower_lost
    bench.server.put(Event.OPEN, N + 1000, 1)
    bench.server.put(Event.READ, N + 1000, 1)  # no such row
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.loop.run)
        await lost.wait()
        assert "going on without prefetching for a while" in caplog.text
        (off,) = bench.loop.outages.all()
        assert (off["what"], bench.loop.follower) == ("plan and policy", None)
        assert "IndexError" in off["why"]
        while bench.loop.outages.all():  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert not bench.loop.failed
        assert bench.loop.policy.residency.is_staged(3)
        bench.loop.follow(follower())
        bench.orders.setblocking(True)
        message = await trio.to_thread.run_sync(bench.orders.recv, supervisor_stager.MESSAGE_MAX)
        command = supervisor_stager.unpack_command(message)[0]
        assert command in (StagerCommand.CANCEL, StagerCommand.FETCH), "it fetches ahead again"
        nursery.cancel_scope.cancel()


@in_trio
async def test_a_failure_that_comes_again_and_again_is_tried_less_and_less_often(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FAILED_PAUSE_S", 0.02)
    tried: list[float] = []

    def step() -> tuple[bool, bool]:
        tried.append(trio.current_time())
        raise MemoryError

    monkeypatch.setattr(bench.loop, "step", step)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.loop.run)
        while len(tried) < 6:  # noqa: ASYNC110
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    gaps = [later - before for before, later in itertools.pairwise(tried)]
    assert all(gap >= 0.02 * 2**at for at, gap in enumerate(gaps))
    assert "MemoryError" in bench.loop.outages.all()[0]["why"]


def test_what_can_be_spared_first_is_what_is_needed_last(bench: Bench) -> None:
    bench.loop.follow(follower())
    for row in (3, 1, 2):
        bench.loop.policy.staged(row)
    assert bench.loop.furthest_use_first(N).tolist() == list(range(N))[::-1]


def test_without_a_plan_what_is_held_can_be_spared(bench: Bench) -> None:
    for row in (3, 1):
        bench.loop.policy.staged(row)
    assert bench.loop.furthest_use_first(N).tolist() == [1, 3]


# ---- what the kernel has kept -------------------------------------------------------------------------------


@pytest.fixture
def always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AUDIT_PAUSE_S", 0.0)


@in_trio
async def test_what_the_kernel_took_is_pushed_again(bench: Bench, always_look: None) -> None:
    bench.attach()
    bench.loop.follow(follower())
    await bench.until_quiet()
    assert bench.loop.policy.pages_used == 10 * N
    bench.loop._audit_at = 0
    await bench.loop._audit_pages()
    ((order, rows),) = bench.received()
    assert order == StagerCommand.LOOK
    assert len(set(rows)) == ROWS_LEAST
    for row in rows[2:]:
        bench.stager.put(Event.PRESENT, row, 10)
    bench.stager.put(Event.LACKING, rows[0], 0)
    bench.stager.put(Event.LACKING, rows[1], 5)
    bench.loop._take_stager()
    assert bench.loop.policy.pages_used == 10 * (N - 1)
    found = await bench.until_quiet()
    assert sorted(ordered(found, StagerCommand.PUSH)) == sorted(rows[:2])
    assert bench.loop.policy.pages_used == 10 * N
    assert bench.loop.audit.status() == {
        "measured": True, "resident_share": round(1 - 15 / (10 * ROWS_LEAST), 4), "looked_at": ROWS_LEAST, "evicted": 2
    }  # fmt: skip


@in_trio
async def test_a_read_of_what_was_there_is_counted_too(bench: Bench, always_look: None) -> None:
    bench.attach()
    bench.loop.follow(follower())
    await bench.until_quiet()
    for _ in range(3):
        bench.loop._audit_at = 0
        await bench.loop._audit_pages()
    for what in (Event.OPEN, Event.READ, Event.READ, Event.RELEASE):
        bench.server.put(what, 0, 10)
    bench.loop._take_server()
    await bench.loop._audit_pages()
    assert bench.loop.audit.evicted == 1


@in_trio
async def test_a_system_that_does_not_tell_is_not_asked_again(
    bench: Bench, always_look: None, caplog: pytest.LogCaptureFixture
) -> None:
    bench.attach()
    bench.loop.follow(follower())
    await bench.until_quiet()
    bench.stager.put(Event.UNMEASURED, 0, errno.ENOSYS)
    bench.loop._take_stager()
    await bench.loop._audit_pages()
    assert bench.received() == []
    assert bench.loop.audit.status()["measured"] is False


@in_trio
async def test_nothing_is_looked_at_too_often_or_without_a_stager(bench: Bench) -> None:
    bench.loop._audit_at = 0
    await bench.loop._audit_pages()
    bench.attach()
    bench.loop.follow(follower())
    await bench.until_quiet()
    await bench.loop._audit_pages()
    await bench.loop._audit_pages()
    assert [order for order, _ in bench.received()] == [StagerCommand.LOOK]
