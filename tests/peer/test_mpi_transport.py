"""The transport over real MPIs: two ranks, each of which runs this file. What MPI promises less of than it seems to:
lengths, cancels, and that nothing waits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nopfsfs.system.proc import is_stopped

if __name__ != "__main__":
    import pytest
    from mpirun import IMPLEMENTATIONS, mpirun

if TYPE_CHECKING:
    from nopfsfs.peer.mpi_transport import MpiTransport

LIMIT_S = 20.0
SIZES = (1, 3_000, 120_000, 5_000_000)
BEYOND = 4096


# ---- what the ranks do ------------------------------------------------------------------------------------


class Rank:
    """A transport, and what is needed to go on together with the other rank."""

    def __init__(self, transport: MpiTransport) -> None:
        self.transport = transport
        self.other = 1 - transport.rank
        self.messages: list[bytes | None] = []
        self.ended: dict[int, int] = {}

    def look(self) -> None:
        self.messages += [body for _, body in self.transport.receive()]
        self.ended |= dict(self.transport.done())

    def until(self, what: Callable[[], bool]) -> None:
        by = time.monotonic() + LIMIT_S
        while not what():
            assert time.monotonic() < by, "it does not come"
            self.look()

    def say(self, message: bytes = b"go on") -> None:
        assert self.transport.send(self.other, message)

    def hear(self) -> bytes | None:
        self.until(lambda: bool(self.messages))
        return self.messages.pop(0)

    def length(self, key: int) -> int:
        self.until(lambda: key in self.ended)
        return self.ended.pop(key)

    def sends(self, data: bytes, tag: int = 5) -> None:
        assert self.length(self.transport.start_send(self.other, tag, memoryview(data))) >= 0

    def receives(self, view: memoryview, tag: int = 5) -> int:
        return self.length(self.transport.start_receive(self.other, tag, view))


def bytes_arrive(rank: Rank) -> None:
    for size in SIZES:
        data = bytes(i % 251 for i in range(size))
        if rank.transport.rank == 0:
            rank.sends(data)
        else:
            into = bytearray(size)
            assert rank.receives(memoryview(into)) == size
            assert into == data


def more_bytes_than_asked_for_harm_nobody(rank: Rank) -> None:
    for size in SIZES:
        if rank.transport.rank == 0:
            rank.sends(b"x" * (size + BEYOND))
        else:
            around = bytearray(size + 2 * BEYOND)
            assert rank.receives(memoryview(around)[:size]) > size
            assert not any(around[size:])


def fewer_bytes_are_counted(rank: Rank) -> None:
    for size in SIZES:
        if rank.transport.rank == 0:
            rank.sends(b"x" * size)
        else:
            assert rank.receives(memoryview(bytearray(size + BEYOND))) == size


def what_is_cancelled_before_it_came_is_received_anew(rank: Rank) -> None:
    from nopfsfs.peer.transport import CANCELLED

    for size in SIZES:
        if rank.transport.rank == 0:
            rank.hear()
            rank.sends(b"x" * size)
        else:
            first = bytearray(size)
            key = rank.transport.start_receive(0, 5, memoryview(first))
            rank.look()
            rank.transport.cancel(key)
            assert rank.length(key) == CANCELLED
            rank.say()
            assert rank.receives(memoryview(bytearray(size))) == size
            assert not any(first)


def what_is_cancelled_when_it_was_announced_goes_elsewhere(rank: Rank) -> None:
    from nopfsfs.peer.transport import CANCELLED

    for size in SIZES:
        if rank.transport.rank == 0:
            key = rank.transport.start_send(1, 5, memoryview(b"x" * size))
            rank.say()
            rank.length(key)
        else:
            rank.hear()  # the bytes were announced before
            first, second = bytearray(size), bytearray(size)
            key = rank.transport.start_receive(0, 5, memoryview(first))
            rank.transport.cancel(key)
            assert rank.length(key) == CANCELLED
            assert rank.receives(memoryview(second)) == size
            assert (any(first), set(second)) == (False, set(b"x"))


def bytes_are_told_apart_by_their_tags(rank: Rank) -> None:
    if rank.transport.rank == 0:
        keys = [rank.transport.start_send(1, tag, memoryview(bytes([tag]) * 9000)) for tag in (1, 2, 3)]
        for key in keys:
            rank.length(key)
    else:
        for tag in (3, 1, 2):
            into = bytearray(9000)
            rank.receives(memoryview(into), tag)
            assert set(into) == {tag}


def messages_keep_their_order(rank: Rank) -> None:
    from nopfsfs.protocol.between_peers import MESSAGE_MAX

    lengths = [1, MESSAGE_MAX, 2, 50_000, 3, 4]
    for number in range(200):
        if rank.transport.rank == 0:
            rank.say(bytes([number]) * lengths[number % 6])
        else:
            assert rank.hear() == bytes([number]) * lengths[number % 6]


def a_message_that_is_too_long_is_said_to_be(rank: Rank) -> None:
    from nopfsfs.protocol.between_peers import MESSAGE_MAX

    if rank.transport.rank == 0:
        rank.say(bytes(MESSAGE_MAX + 1))
        rank.say(b"after it")
    else:
        assert rank.hear() is None
        assert rank.hear() == b"after it"


def await_stop(pid: int) -> None:
    """Wait until the process is stopped."""
    by = time.monotonic() + LIMIT_S
    while not is_stopped(pid):
        assert time.monotonic() < by


def a_rank_that_stops_is_waited_for_by_nobody(rank: Rank) -> None:
    if rank.transport.rank == 0:
        rank.say(str(os.getpid()).encode())
        rank.hear()
        key = rank.transport.start_send(1, 6, memoryview(bytes(5_000_000)))
        rank.say(bytes(60_000))
        os.kill(os.getpid(), signal.SIGSTOP)
        rank.length(key)
        rank.hear()
    else:
        pid = int(rank.hear() or b"")
        key = rank.transport.start_receive(0, 6, memoryview(bytearray(5_000_000)))
        rank.say()
        await_stop(pid)
        try:
            for _ in range(1000):
                began = time.monotonic()
                rank.look()
                assert time.monotonic() - began < LIMIT_S / 2
        finally:
            os.kill(pid, signal.SIGCONT)
        rank.hear()
        assert rank.length(key) == 5_000_000
        rank.say()


def who_takes_no_messages_is_given_up(rank: Rank) -> None:
    if rank.transport.rank == 0:
        pid, sent = int(rank.hear() or b""), 0
        rank.say()
        await_stop(pid)  # who takes messages meanwhile, however late, is not given up
        try:
            while rank.transport.send(1, bytes(50_000)):
                sent += 1
                assert sent < 10_000
                rank.look()
        finally:
            os.kill(pid, signal.SIGCONT)
        rank.until(lambda: not any(rank.transport._behind))
        rank.say(str(sent).encode())
    else:
        rank.say(str(os.getpid()).encode())
        rank.hear()
        os.kill(os.getpid(), signal.SIGSTOP)
        found = 0
        while (message := rank.hear()) is not None and len(message) == 50_000:
            found += 1
        assert message == str(found).encode()


CHECKS = (
    bytes_arrive, more_bytes_than_asked_for_harm_nobody, fewer_bytes_are_counted,
    what_is_cancelled_before_it_came_is_received_anew, what_is_cancelled_when_it_was_announced_goes_elsewhere,
    bytes_are_told_apart_by_their_tags, messages_keep_their_order,
    a_message_that_is_too_long_is_said_to_be, a_rank_that_stops_is_waited_for_by_nobody,
    who_takes_no_messages_is_given_up,
)  # fmt: skip


def main() -> None:
    from mpi4py import MPI

    from nopfsfs.peer.mpi_transport import MpiTransport

    rank = Rank(MpiTransport(MPI.COMM_WORLD.Dup()))
    for check in CHECKS:
        try:
            check(rank)
            rank.until(lambda: not rank.transport.busy)
        except BaseException as e:
            print(f"rank {rank.transport.rank}: {check.__name__}: {type(e).__name__} {e}", file=sys.stderr, flush=True)
            MPI.COMM_WORLD.Abort(1)
        MPI.COMM_WORLD.Barrier()
        if rank.transport.rank == 0:
            print(check.__name__, flush=True)


# ---- the tests --------------------------------------------------------------------------------------------

if __name__ == "__main__":
    main()
else:

    @pytest.fixture(scope="module", params=IMPLEMENTATIONS)
    def output(request: pytest.FixtureRequest) -> tuple[list[str], str]:
        """What the ranks did, and what else they said."""
        argv = [sys.executable, "-P", __file__]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        with mpirun(request.param, 2, argv, {"PYTHONPATH": os.pathsep.join(sys.path)}, **pipes) as process:
            try:
                out, errors = process.communicate(timeout=4 * LIMIT_S)
            finally:
                process.kill()
        return out.splitlines(), errors

    @pytest.mark.mpi
    @pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
    def test_two_ranks(output: tuple[list[str], str], name: str) -> None:
        done, errors = output
        assert name in done, errors
