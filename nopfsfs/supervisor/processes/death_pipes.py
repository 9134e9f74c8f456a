"""Pipes by which the servers of a mount learn of each other's end when there is no supervisor: one for each server.
Then that server alone holds the writing end, and the others hold the reading ends."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack


class DeathPipes:
    """Owns the pipes of the servers with these numbers. Raises OSError."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._ends: dict[int, tuple[int, int]] = {}
        with ExitStack() as made:
            for number in numbers:
                self._ends[number] = os.pipe2(os.O_CLOEXEC)
                for fd in self._ends[number]:
                    made.callback(os.close, fd)
            self._made = made.pop_all()

    def of(self, number: int) -> dict[str, int]:
        """The descriptors for a server: `life`, to be held, and `life-N` of each other one, which end with it."""
        others = {f"life-{other}": ends[0] for other, ends in self._ends.items() if other != number}
        return {"life": self._ends[number][1], **others}

    def close(self) -> None:
        self._made.close()
