"""What a follower hands out besides the stream: its status, and computations for another thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PlanStatus:
    """What `nopfs status` shows of the plan of the data set that is read."""

    state: str
    sampler: str | None = None
    seed: int | None = None
    epoch: int = 0
    position: int = 0  # accesses of this epoch before the first that is still to come, all local ranks
    length: int = 0  # accesses of this epoch, all local ranks
    dataset: str | None = None
    k: int = 0  # window of one rank
    world: int = 1
    ranks: tuple[int, ...] = (0,)


class Job:
    """A computation to run outside of the follower's thread: `run` there, then `Follower.finish`."""

    def __init__(self, compute: Callable[[], Any], deliver: Callable[[Any], None]) -> None:
        self._compute = compute
        self._deliver = deliver
        self._result: Any = None
        self._ran = False

    def run(self) -> None:
        """Computes. Touches nothing of the follower; may take seconds for millions of files."""
        self._result = self._compute()
        self._ran = True

    def deliver(self) -> None:
        """Hands the result over; called by `Follower.finish`."""
        if self._ran:
            self._deliver(self._result)
