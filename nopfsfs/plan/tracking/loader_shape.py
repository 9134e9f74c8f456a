"""The shape of a loader, seen from who opens what: the number of workers and the size of a batch.

torch's DataLoader (2.13, utils/data/dataloader.py, _try_put_index) gives batch k to worker k mod W. So one worker opens
the places [k B, (k + 1) B) in a row and goes on at (k + W) B. The end of one run and the beginning of the next give B
and W.
"""

from __future__ import annotations

PREFETCH = 2  # batches requested ahead for each worker; DataLoader's default, which cannot be seen from opens
_AGREEING = 2  # runs in a row that must say the same
_READERS_MOST = 1024  # workers come and go with the epochs; what is remembered of them is bounded


class LoaderShape:
    """Takes (reader, place) pairs of one rank's stream until it knows `inflight`; O(1) each."""

    __slots__ = ("_last", "_said", "_start", "_times", "_turns", "inflight")

    def __init__(self) -> None:
        self.inflight: int | None = None  # workers x prefetch x batch + batch
        self._turns = False  # a reader has passed places over: there are workers that take turns
        self._last: dict[int, int] = {}
        self._start: dict[int, int] = {}
        self._said, self._times = (0, 0), 0  # workers and batch, and runs in a row that have said so

    @property
    def in_order(self) -> bool:
        """True: each reader has opened one place after the other, so that there is nothing more to be learned."""
        return bool(self._last) and not self._turns

    def see(self, reader: int, place: int) -> bool:
        """An open of `place` by `reader` (a process or thread id). True: `inflight` has just become known."""
        last = self._last.get(reader)
        if last == place or last is None:
            if last is None:
                self._begin(reader, place)
            return False
        if place == last + 1:
            self._last[reader] = place
            return False
        self._turns |= place > last  # else it is another epoch
        start, length = self._start[reader], last + 1 - self._start[reader]
        self._begin(reader, place)
        workers, rest = divmod(place - start, length)
        # A process that reads two orders at once, in two threads, goes from place to place by chance, and two of its
        # thousands of runs may say the same. But one reader is not two workers, and several such readers make other
        # runs between two that agree.
        if rest or not 2 <= workers <= len(self._last) or start % length or length < 2:
            if place > last:
                self._times = 0
            return False  # not two whole batches of one worker
        self._times = self._times + 1 if self._said == (workers, length) else 1
        self._said = workers, length
        if self._times < _AGREEING:
            return False
        self.inflight = workers * PREFETCH * length + length
        return True

    def _begin(self, reader: int, place: int) -> None:
        if reader not in self._last and len(self._last) >= _READERS_MOST:
            self._last.clear()
            self._start.clear()
        self._start[reader] = self._last[reader] = place
