"""Opening disk tiers: a tier that cannot be opened is tried again, less and less often."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from nopfsfs.system.outages import Backoff, Outages

log = logging.getLogger(__name__)
LOST_S = 30.0  # before a directory that somebody removed is made anew


class DiskOpenings:
    """Opens the disk tiers `numbers` by `open_one(number)`, which raises OSError. Used by one thread at a time; `paths`
    names the tiers, in the same order."""

    def __init__(
        self, numbers: Iterable[int], paths: Iterable[str], open_one: Callable[[int], None], outages: Outages,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        named = zip(numbers, paths, strict=True)
        self._closed = {number: (f"disk tier {path}", Backoff(1.0)) for number, path in named}
        self._due = dict.fromkeys(self._closed, 0.0)
        self._open_one, self._outages, self._clock = open_one, outages, clock

    def pause(self) -> float | None:
        """Seconds until a tier is to be tried; None when all are open."""
        return max(0.0, min(self._due.values()) - self._clock()) if self._due else None

    def lost(self, number: int, why: str) -> None:
        """Note that a tier which was open has lost its directory."""
        what, _ = self._closed[number]
        self._outages.began(what, why)
        self._due[number] = self._clock() + LOST_S

    def look(self, asked: int = 0) -> None:
        """Try the tiers whose time has come, and the one that is `asked` for."""
        for number in [number for number, due in self._due.items() if due <= self._clock() or number == asked]:
            what, backoff = self._closed[number]
            try:
                self._open_one(number)
            except OSError as e:
                if not backoff.failures:
                    log.error("%s cannot be used: %s; it is tried again", what, e)
                self._outages.began(what, f"cannot be opened: {e.strerror or e}")
                self._due[number] = self._clock() + backoff.failed()
                continue
            if backoff.failures:
                log.info("%s can be used now", what)
            self._outages.ended(what)
            backoff.succeeded()
            del self._due[number]
