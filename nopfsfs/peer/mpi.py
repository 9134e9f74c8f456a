"""Start of MPI, communication that never waits inside MPI, and MPI's end. Of the modules that are loaded before the
mount answers, only this one imports mpi4py. It is imported only where MPI started the process.

MPI's own calls hold Python's lock while they wait. So this module calls none that waits, except MPI's start and end,
which an alarm limits.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import mpi4py
import numpy as np
import numpy.typing as npt
import xxhash

mpi4py.rc.initialize = False  # wrong options are reported before, and without, MPI
mpi4py.rc.finalize = False  # a process that fails must not wait for the others at its exit

from mpi4py import MPI  # noqa: E402

from nopfsfs.errors import Exit, NopfsError  # noqa: E402
from nopfsfs.system.mpi_start import Launched  # noqa: E402

__all__ = ["MPI", "Ranks", "begin", "copy", "end", "finalize", "wait"]

START_LIMIT_S = 120  # MPI's start, which is collective: the launcher starts the processes of all nodes meanwhile
END_LIMIT_S = 10  # MPI's end, once all ranks have come to it; without a launcher it may never return
SILENT_LIMIT_S = 60.0  # a rank that gave no sign of life for so long hangs
BEAT_S = 5.0  # between two signs of life of a rank that is at work
ALL_RANKS_BYTES = 1 << 28  # bytes of all ranks moved at a time: keeps MPI's counts well below 2**31
PAUSE_S = (50e-6, 1e-2)  # between two checks: the first pause, and the longest
BULK_PAUSE_S = (50e-6, 1e-3)  # while bytes move: MPI moves them only when it is called

_ARRIVED, _ALIVE = 1, 2  # MPI tags


class Ranks:
    """All ranks of the job, over a communicator that no other code uses. No method waits longer than SILENT_LIMIT_S for
    a rank that gives no sign of life. The method then raises NopfsError with Exit.START."""

    def __init__(self, comm: MPI.Intracomm, may_end: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._comm = comm
        self.may_end = may_end  # of `RankGroup`
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._others = [r for r in range(self.size) if r != self.rank]
        self._beaten = 0.0

    def gather(self, data: bytes, awaited: str) -> list[memoryview]:
        """Return the bytes of each rank, by rank; the caller may change them. Collective. `awaited` names the step that
        the other ranks are to reach, for error messages."""
        with _returned():
            heads = self._arrive(np.array([len(data), xxhash.xxh3_64_intdigest(data)], np.uint64), awaited)
            parts = self._exchange(data, heads[:, 0].astype(np.int64), awaited)
        for rank, part in enumerate(parts):
            # Seen with MPICH where a process may not read another's memory.
            if xxhash.xxh3_64_intdigest(part) != heads[rank, 1]:
                raise NopfsError(Exit.START, f"MPI delivered wrong bytes from rank {rank}; {awaited}")
        return parts

    def beat(self) -> None:
        """Send the other ranks a sign of life, at most every BEAT_S seconds. Calls in between cost nothing."""
        now = time.monotonic()
        if now - self._beaten < BEAT_S:
            return
        self._beaten = now
        with _returned():
            for other in self._others:
                self._comm.Isend([None, 0, MPI.BYTE], other, _ALIVE).Free()

    def _arrive(self, mine: npt.NDArray[np.uint64], awaited: str) -> npt.NDArray[np.uint64]:
        """Send all other ranks `mine`, the length and digest of this rank's bytes, and wait for theirs. Returns
        u64[size, 2]."""
        heads = np.tile(mine, (self.size, 1))
        coming = {r: self._comm.Irecv(heads[r], r, _ARRIVED) for r in self._others}
        going = [self._comm.Isend(mine, r, _ARRIVED) for r in self._others]
        heard = dict.fromkeys(self._others, time.monotonic())
        pauses = _Pauses(PAUSE_S)
        while coming:
            arrived = [r for r, request in coming.items() if request.Test()]
            for r in arrived:
                del coming[r]
            now = time.monotonic()
            for r in self._signs_of_life():
                heard[r] = now
            if not arrived and coming:
                late = min(coming, key=heard.__getitem__)
                if now - heard[late] > SILENT_LIMIT_S:
                    raise silent(late, awaited)
                pauses.pause()
        wait(MPI.Request.Testall, going, awaited)
        return heads

    def _signs_of_life(self) -> Iterator[int]:
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, _ALIVE, status):
            source = status.Get_source()
            self._comm.Recv([None, 0, MPI.BYTE], source, _ALIVE)  # it has arrived: no wait
            yield source

    def _exchange(self, data: bytes, lengths: npt.NDArray[np.int64], awaited: str) -> list[memoryview]:
        """Return the bytes of all ranks, sent piece by piece. All ranks have sent their lengths before."""
        parts = [bytearray(int(n)) for n in lengths]
        step = max(1, ALL_RANKS_BYTES // self.size)
        for start in range(0, int(lengths.max(initial=0)), step):
            counts = np.clip(lengths - start, 0, step)
            places = np.cumsum(counts) - counts
            piece = np.empty(int(counts.sum()), np.uint8)
            mine = np.frombuffer(data, np.uint8)[start : start + step]
            request = self._comm.Iallgatherv(mine, [piece, counts.tolist(), places.tolist(), MPI.BYTE])
            wait(request.Test, None, awaited, BULK_PAUSE_S)
            for part, count, place in zip(parts, counts.tolist(), places.tolist(), strict=True):
                part[start : start + count] = piece[place : place + count].data
        return [memoryview(part) for part in parts]


class _Pauses:
    """Sleeps that become longer, up to a bound."""

    def __init__(self, bounds: tuple[float, float]) -> None:
        self._next, self._longest = bounds

    def pause(self) -> None:
        time.sleep(self._next)
        self._next = min(2 * self._next, self._longest)


def wait(
    test: Callable[..., Any],
    argument: Any,
    awaited: str,
    bounds: tuple[float, float] = PAUSE_S,
    limit_s: float = SILENT_LIMIT_S,
) -> None:
    """Wait until `test(argument)`, or `test()` where `argument` is None, is true. Raises NopfsError with Exit.START
    after `limit_s`."""
    pauses = _Pauses(bounds)
    deadline = time.monotonic() + limit_s
    while not (test() if argument is None else test(argument)):
        if time.monotonic() > deadline:
            raise NopfsError(Exit.START, f"the other ranks did not end within {limit_s:.0f} s: {awaited}")
        pauses.pause()


def silent(rank: int, awaited: str) -> NopfsError:
    """Make the error for a rank that gives no sign of life."""
    return NopfsError(
        Exit.START, f"rank {rank} gave no sign of life for {SILENT_LIMIT_S:.0f} s; waited for: {awaited}; see its node"
    )


@contextmanager
def _returned() -> Iterator[None]:
    """Turn MPI's errors inside the `with` block into NopfsError with Exit.START."""
    try:
        yield
    except MPI.Exception as error:
        raise NopfsError(Exit.START, f"MPI failed: {error.Get_error_string()}") from error


def begin(launched: Launched) -> MPI.Intracomm:
    """Start MPI; return the communicator of all ranks. Collective. Raises NopfsError."""
    with _alarm(START_LIMIT_S):
        MPI.Init_thread(MPI.THREAD_FUNNELED)
    world = MPI.COMM_WORLD
    world.Set_errhandler(MPI.ERRORS_RETURN)  # communicators made from it inherit this
    if (world.Get_rank(), world.Get_size()) != (launched.rank, launched.size):
        name = MPI.Get_library_version().split("\n")[0].split(",")[0]
        raise NopfsError(
            Exit.START,
            f"{launched.size} processes were started, but MPI ({name}) knows of {world.Get_size()}: it is not that of "
            "the mpirun or srun that started them; use its own, or set MPI4PY_LIBMPI to the libmpi.so of that one",
        )
    return world


def copy(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Make a communicator of the same ranks, whose messages mix with those of no other communicator. Collective."""
    with _returned():
        made, request = comm.Idup()
        wait(request.Test, None, "starting MPI")
    return made


def end(comm: MPI.Intracomm) -> None:
    """End MPI. Where a rank does not come within END_LIMIT_S, this process must end without MPI's end. Collective."""
    try:
        with _returned():
            wait(comm.Ibarrier().Test, None, "ending MPI", limit_s=END_LIMIT_S)
    except NopfsError:
        return
    finalize()


def finalize() -> None:
    """End MPI, where all ranks are known to do the same."""
    with _alarm(END_LIMIT_S):
        MPI.Finalize()


@contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    """End this process when the `with` block takes longer than `seconds`. MPI holds Python's lock meanwhile, so only
    the kernel can do that."""
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
