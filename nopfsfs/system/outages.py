"""Parts of a process that are switched off after a failure: since when, why, and when each is tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypedDict

FIRST_S, MOST_S = 0.25, 60.0
# Errors where there is no process, descriptor, thread or memory to be had at this moment. Python raises RuntimeError
# where the system gives no thread (pids.max, RLIMIT_NPROC).
SHORTAGE = (OSError, RuntimeError, MemoryError)


def reason(error: BaseException) -> str:
    """Describe in one line why something failed; of a group of errors, the first."""
    while nested := getattr(error, "exceptions", None):
        error = nested[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class Backoff:
    """Pauses before the next try of what has failed: none after the first `free` failures, then each twice the one
    before, up to MOST_S. The tries never end."""

    def __init__(self, first_s: float = FIRST_S, free: int = 0) -> None:
        self._first_s, self._free = first_s, free
        self.failures = 0

    def failed(self) -> float:
        """Count a failure; return the seconds to wait before the next try."""
        self.failures += 1
        doubled = self.failures - self._free - 1
        return min(MOST_S, self._first_s * 2.0 ** min(doubled, 30)) if doubled >= 0 else 0.0

    def succeeded(self) -> None:
        """Make the next failure count as the first again."""
        self.failures = 0


class Outage(TypedDict):
    """A part that is off. `since`: seconds since 1970."""

    what: str
    since: float
    why: str


class Outages:
    """The parts of a process that are off. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._off: dict[str, Outage] = {}

    def began(self, what: str, why: str) -> None:
        """Note that `what` is off, or still is, now for the reason `why`."""
        with self._lock:
            before = self._off.get(what)
            since = before["since"] if before is not None else round(self._clock(), 3)
            self._off[what] = Outage(what=what, since=since, why=why)

    def ended(self, what: str) -> None:
        """Note that `what` works again, or never was off."""
        with self._lock:
            self._off.pop(what, None)

    def all(self) -> list[Outage]:
        """The parts that are off, longest first."""
        with self._lock:
            return list(self._off.values())
