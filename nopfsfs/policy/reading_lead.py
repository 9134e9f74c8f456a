"""The lead: seconds of reading that are staged ahead of the reader. Pure."""

from __future__ import annotations

import math

SMOOTH_S = 4.0  # time constant of the pace: a reader reads in bursts, and is seen in steps
KNOWN_S = 2.0  # of reading, before a pace is known


class ReadingLead:
    """Follows the reader's pace. A reader that pauses has a lead that grows; one that is starved has none."""

    def __init__(self) -> None:
        self._generation = -1
        self._began = self._seen = 0.0
        self._position = 0
        self._pace = 0.0  # positions a second

    def observe(self, now: float, generation: int, position: int, ahead: int) -> float | None:
        """Return the lead at `now` seconds, of a reader at a stream position with `ahead` positions staged after it.
        None as long as no pace is known. Another generation is another stream."""
        if generation != self._generation or position < self._position:
            self._generation, self._pace = generation, 0.0
            self._began = self._seen = now
            self._position = position
            return None
        passed = now - self._seen
        if passed > 0:
            if not self._pace and position == self._position:
                self._began = self._seen = now  # the reader has not begun
                return None
            weight = 1.0 - math.exp(-passed / min(SMOOTH_S, max(passed, now - self._began)))
            self._pace += weight * ((position - self._position) / passed - self._pace)
            self._seen, self._position = now, position
        if now - self._began < KNOWN_S or self._pace <= 0:
            return None
        return max(0, ahead) / self._pace
