"""Computed values that may be asked for again: the last of them that were asked for, in so many bytes.

What nobody has asked for in some epochs of followed orders goes, too: it would fill the room in the end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

EPOCHS = 8


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=_Sized)


class RecentlyUsed(Generic[K, V]):
    """Values by key. `most`: bytes of them that are kept; `epochs`: in so many one must have been asked for."""

    def __init__(self, most: int, epochs: int = EPOCHS) -> None:
        self._most, self._epochs = most, epochs
        # With the epoch in which each was asked for last; last is what was asked for last.
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._epoch = 0
        self.nbytes = 0

    def __contains__(self, key: K) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def has_room(self) -> bool:
        """True: half of the room is free."""
        return 2 * self.nbytes < self._most

    def peek(self, key: K) -> V | None:
        """Return what is kept of a key, without asking for it."""
        return self._kept[key][0] if key in self._kept else None

    def get(self, key: K) -> V | None:
        """Return what is kept of a key; it was asked for now."""
        found = self.peek(key)
        if found is not None:
            self._kept.move_to_end(key)
            self._kept[key] = found, self._epoch
        return found

    def put(self, key: K, value: V) -> None:
        """Keep a value, and as many of the others as there is room for."""
        if key in self._kept:
            self._drop(key)
        self._kept[key] = value, self._epoch
        self.nbytes += value.nbytes
        while self.nbytes > self._most:
            self._drop(next(iter(self._kept)))

    def epoch_began(self) -> None:
        """Note that an epoch of a followed order has begun, and forget what was last asked for long ago."""
        self._epoch += 1
        while self._kept and next(iter(self._kept.values()))[1] <= self._epoch - self._epochs:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
        self.nbytes = 0

    def _drop(self, key: K) -> None:
        gone, _ = self._kept.pop(key)
        self.nbytes -= gone.nbytes
