"""Signals that ask the peer process to end: whether a person sent them, who wants the mounts unmounted, or MPI, which
ends all of its processes when one has died. An end of MPI ends no mount.

Open MPI sends SIGTERM for both, and SIGKILL a second later. So, being told to end, a rank asks all others for a sign of
life: if one does not answer, it has died, and MPI's end is what follows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from nopfsfs.peer.mpi import MPI
from nopfsfs.system.process_setup import END_SIGNALS, handling

ANSWER_S = 0.5  # for all others to answer
LOOK_S = 0.05  # between two looks for messages: each costs some tens of microseconds
AGAIN_S = 2.0  # MPI would have killed us by then: a signal that comes later is a person's
_ASK, _ANSWER = 1, 2  # tags


def ending_at_signals() -> AbstractContextManager[None]:
    """Within, these signals end this process as an error does: what was begun is cleared away."""

    def raise_exit(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    return handling(END_SIGNALS, raise_exit)


class EndSignals:
    """Passes signals on, where they are of a person; once. Called in each turn of the peer process. `comm`: nobody
    else uses it."""

    def __init__(self, comm: MPI.Intracomm, say: Callable[[str], None]) -> None:
        self._comm, self._say = comm, say
        self._end: Callable[[], None] = lambda: None
        self._others = frozenset(range(comm.Get_size())) - {comm.Get_rank()}
        self._signals: list[float] = []  # when they came
        self._asked: float | None = None
        self._answered: set[int] = set()
        self._status = MPI.Status()
        self._look_at = 0.0
        self._given_up = self._done = False

    def ends(self, end: Callable[[], None]) -> None:
        """What a person's signal does; before the first call."""
        self._end = end

    def listening(self) -> AbstractContextManager[None]:
        """Within, signals are taken, and dealt with when this is called."""

        def take(number: int, frame: object) -> None:
            self._signals.append(time.monotonic())

        return handling(END_SIGNALS, take)

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._look_at and not self._signals:
            return
        self._look_at = now + LOOK_S
        while self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, self._status):
            source, tag = self._status.Get_source(), self._status.Get_tag()
            self._comm.Recv([None, 0, MPI.BYTE], source, tag)  # it is there
            if tag == _ASK:
                self._send(source, _ANSWER)
            else:
                self._answered.add(source)
        if self._signals and not self._done:
            self._decide(now)

    def _decide(self, now: float) -> None:
        if self._asked is None:
            self._asked = now
            for other in self._others:
                self._send(other, _ASK)
        if self._others <= self._answered or self._signals[-1] - self._signals[0] > AGAIN_S:
            self._done = True
            self._end()
        elif now - self._asked > ANSWER_S and not self._given_up:
            self._given_up = True
            mine = self._comm.Get_rank()
            if mine == min(self._answered | {mine}):  # one says it for all
                missing = ", ".join(map(str, sorted(self._others - self._answered)))
                self._say(f"told to end, but rank {missing} is dead or hangs: the mounts go on; nopfs-umount ends them")

    def _send(self, rank: int, tag: int) -> None:
        self._comm.Isend([None, 0, MPI.BYTE], rank, tag).Free()
