"""The arena that the mount uses, and its replacement by another one."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from nopfsfs.protocol.columns import Metric, Tier
from nopfsfs.tiers.arena import punch


class Arenas:
    """Owns the descriptor `arena` of `fds`, the mount's shared memory. `metrics`, the supervisor's, says of which arena
    the column `slot` speaks: servers that are left alone while it changes may hold one or the other."""

    def __init__(self, fds: dict[str, int], metrics: memoryview, create: Callable[[], int]) -> None:
        if "arena" not in fds:
            fds["arena"] = create()
        self._fds, self._metrics, self._create = fds, metrics, create
        self._next = -1
        self.spoiled = False  # a process that never runs again may yet write to it

    def adopt(self, number: int, tier: NDArray[np.uint8]) -> None:
        """Go on with arena `number` of the supervisor before. Where that was about to change the arena, the column
        `slot` speaks of the other one: then nothing is staged by the column `tier`."""
        if self.number != number:
            tier[:] = Tier.NONE
            self._metrics[Metric.ARENA_NUMBER] = number

    @property
    def number(self) -> int:
        """The number of the arena that is used."""
        return int(self._metrics[Metric.ARENA_NUMBER])

    def spoil(self) -> None:
        """The next stager must have another arena."""
        self.spoiled = True

    def next(self) -> tuple[int, int]:
        """The descriptor and the number of the arena to come, the same until `took`. Raises OSError."""
        if self._next < 0:
            self._next = self._create()
        return self._next, self.number + 1

    def took(self) -> None:
        """Note that all use the next arena, in which nothing is staged. Give back the memory of the one before."""
        arena = self._fds["arena"]
        with suppress(OSError):
            punch(arena, 0, os.fstat(arena).st_size)
        os.dup2(self._next, arena, inheritable=False)  # the number stays: it stands in more than one place
        os.close(self._next)
        self._next = -1
        self._metrics[Metric.ARENA_NUMBER] = self.number + 1
        self.spoiled = False
