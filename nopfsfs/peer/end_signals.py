"""Signals that ask the peer process to end. `EndSignals` finds out who sent one: a person who wants the mounts
unmounted, or MPI, which ends all of its processes when one has died. An end by MPI ends no mount.

Open MPI sends SIGTERM in both cases, and SIGKILL a second later. So a rank that gets such a signal asks all other ranks
for a sign of life. A rank that does not answer has died, and the signal came from MPI.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from nopfsfs.peer.mpi import MPI
from nopfsfs.system.process_setup import handling, signals_to_end

ANSWER_S = 0.5  # for all other ranks to answer
LOOK_S = 0.05  # between two checks for messages: each costs some tens of microseconds
AGAIN_S = 2.0  # MPI would have killed this process by then: a later signal is a person's
_ASK, _ANSWER = 1, 2  # MPI tags


class EndSignals:
    """Handler of a person's signals, which it passes on to the mount once. The peer process calls the object in each
    turn of its loop. No other code uses `comm`."""

    def __init__(self, comm: MPI.Intracomm, say: Callable[[str], None]) -> None:
        self._comm, self._say = comm, say
        self._end: Callable[[], None] = lambda: None
        self._others = frozenset(range(comm.Get_size())) - {comm.Get_rank()}
        self._signals: list[float] = []  # when each signal came: monotonic clock, seconds
        self._asked: float | None = None
        self._answered: set[int] = set()
        self._status = MPI.Status()
        self._look_at = 0.0
        self._given_up = self._done = False
        self.insists = False  # a person has asked again while other ranks gave no sign of life

    def ends(self, end: Callable[[], None]) -> None:
        """Set the function that a person's signal calls. Called before the object is first called."""
        self._end = end

    def listening(self) -> AbstractContextManager[None]:
        """Record signals inside the `with` block; the next call of the object handles them."""

        def take(number: int, frame: object) -> None:
            self._signals.append(time.monotonic())

        return handling(signals_to_end(), take)

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._look_at and not self._signals:
            return
        self._look_at = now + LOOK_S
        while self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, self._status):
            source, tag = self._status.Get_source(), self._status.Get_tag()
            self._comm.Recv([None, 0, MPI.BYTE], source, tag)  # the message has arrived: this does not wait
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
            self.insists = not self._others <= self._answered
            self._end()
        elif now - self._asked > ANSWER_S and not self._given_up:
            self._given_up = True
            mine = self._comm.Get_rank()
            if mine == min(self._answered | {mine}):  # one rank reports for all
                missing = ", ".join(map(str, sorted(self._others - self._answered)))
                self._say(f"told to end, but rank {missing} is dead or hangs: the mounts go on; nopfs-umount ends them")

    def _send(self, rank: int, tag: int) -> None:
        self._comm.Isend([None, 0, MPI.BYTE], rank, tag).Free()
