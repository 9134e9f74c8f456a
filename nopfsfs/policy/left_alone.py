"""Rows that are not prefetched, and disk tiers that are not read, for a while after they hung. Pure.

Each time the pause is twice as long, up to a limit; a row or tier that works again is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

ROWS_MOST = 1 << 16
ROW_FIRST_S, ROW_MOST_S = 10.0, 640.0
TIER_FIRST_S, TIER_MOST_S = 2.0, 60.0
TIER_STUCK_MOST = 96  # reads that are stuck at a tier: it is not tried again until one of them returns


class LeftAlone:
    """Pauses by number, of `first_s` to `most_s` seconds; of `size` numbers at most, the oldest are forgotten."""

    def __init__(self, clock: Callable[[], float], first_s: float, most_s: float, size: int) -> None:
        self._clock, self._first_s, self._most_s, self._size = clock, first_s, most_s, size
        self._until: dict[int, tuple[float, float]] = {}  # until when, and how long that is

    def __len__(self) -> int:
        """The number of rows or tiers that are left alone now."""
        now = self._clock()
        return sum(until > now for until, _ in self._until.values())

    def __contains__(self, number: int) -> bool:
        found = self._until.get(number)
        return found is not None and found[0] > self._clock()

    @property
    def any(self) -> bool:
        """True while any pause is remembered."""
        return bool(self._until)

    def hung(self, number: int) -> None:
        """Leave a row or tier alone, unless it is left alone already."""
        if number in self:
            return
        _, before = self._until.pop(number, (0.0, 0.0))
        pause = min(2 * before or self._first_s, self._most_s)
        self._until[number] = (self._clock() + pause, pause)
        if len(self._until) > self._size:
            del self._until[next(iter(self._until))]

    def worked(self, number: int) -> None:
        self._until.pop(number, None)


def rows(clock: Callable[[], float]) -> LeftAlone:
    """Make the pauses of rows."""
    return LeftAlone(clock, ROW_FIRST_S, ROW_MOST_S, ROWS_MOST)


class Tiers:
    """Disk tiers, and the reads that are stuck at each. While there are any, one read at a time tries again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._pauses = LeftAlone(clock, TIER_FIRST_S, TIER_MOST_S, 1 << 8)
        self._stuck: dict[int, int] = {}

    def __len__(self) -> int:
        """The number of tiers that are bypassed now."""
        return len(self._pauses)

    def __contains__(self, tier: int) -> bool:
        """True while the tier is bypassed."""
        return tier in self._pauses

    @property
    def stuck(self) -> int:
        """The number of stuck reads of all tiers."""
        return sum(self._stuck.values())

    def may_read(self, tier: int) -> bool:
        """True when a copy may be read there now."""
        if tier in self._pauses:
            return False
        stuck = self._stuck.get(tier, 0)
        if stuck:
            if stuck >= TIER_STUCK_MOST:
                return False
            self._pauses.hung(tier)  # for all others, until this one has ended
        return True

    def hung(self, tier: int, *, reading: bool = True) -> None:
        """Bypass a tier for a while: a read of it, or something else, does not end."""
        if reading:
            self._stuck[tier] = self._stuck.get(tier, 0) + 1
        self._pauses.hung(tier)

    def returned(self, tier: int) -> None:
        """Note that a read which had hung has ended."""
        self._stuck[tier] -= 1
        if not self._stuck[tier]:
            del self._stuck[tier]

    def worked(self, tier: int) -> None:
        """Use a tier again: a read of it has ended in time."""
        self._pauses.worked(tier)
