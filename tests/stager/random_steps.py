"""Random steps of a stager's state, for tests."""

from __future__ import annotations

import errno
import os

from hypothesis import strategies as st

from nopfsfs.stager.published_copies import PinnedCopy
from tests.stager.rig import PAGE, Rig, content

SIZES = [1, PAGE, 2 * PAGE + 100, 5 * PAGE, 3 * PAGE, 12 * PAGE, 30 * PAGE + 1]
BUDGET = 24 * PAGE
files = st.integers(0, len(SIZES) - 1)
Step = tuple[str, int, int]


def steps_of(*kinds: str) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.tuples(st.sampled_from(kinds), files, st.integers(0, 40)), min_size=1, max_size=60)


class Player:
    """Does one step after the other; `pins` are held until the end or the next pin of the row."""

    def __init__(self, r: Rig) -> None:
        self.r = r
        self.pins: dict[int, tuple[PinnedCopy, bytes]] = {}

    def play(self, step: Step) -> None:
        what, at, value = step
        getattr(self, what)(self.r.files[at], value)

    def demand(self, row: int, value: int) -> None:
        self.r.demand(row, value * PAGE // 2, PAGE + value)

    def fetch(self, row: int, value: int) -> None:
        self.r.state.fetch([row, self.r.files[value % len(SIZES)]])

    def evict(self, row: int, value: int) -> None:
        self.r.state.evict([row])

    def cancel(self, row: int, value: int) -> None:
        self.r.state.cancel()

    def budget(self, row: int, value: int) -> None:
        pages = BUDGET // PAGE * value // 40
        ranges = pages // 4 * PAGE
        self.r.state.set_budget(pages * PAGE, pages // 2 * PAGE, ranges, ranges * (value % 3) // 2, 42 * PAGE)

    def work(self, row: int, value: int) -> None:
        self.r.workers.run_one()

    def take(self, row: int, value: int) -> None:
        self.r.take(most=value % 4 + 1)

    def pin(self, row: int, value: int) -> None:
        if row in self.pins:
            self.unpin(row)
        elif (data := self.r.state.pin(row)) is not None:
            self.pins[row] = (data, bytes(data.data))

    def unpin(self, row: int) -> None:
        data, before = self.pins.pop(row)
        assert bytes(data.data) == before, "changed while pinned"
        data.data.release()
        self.r.state.unpin(data.slot)

    def overwrite(self, row: int, value: int) -> None:
        if self.r.path(row).exists():
            with open(self.r.path(row), "r+b") as file:
                file.write(content(value + 100, SIZES[self.r.files.index(row)]))

    def shrink(self, row: int, value: int) -> None:
        if self.r.path(row).exists():
            os.truncate(self.r.path(row), value)

    def vanish(self, row: int, value: int) -> None:
        self.r.path(row).unlink(missing_ok=True)

    def refresh(self, row: int, value: int) -> None:
        for changed in {*self.r.changed, row}:
            self.r.refresh(changed)
        self.r.changed.clear()

    def fail(self, row: int, value: int) -> None:
        if self.r.source.errors.pop(row, None) is None:
            self.r.source.errors[row] = errno.EIO

    def end(self) -> None:
        """Everything that was begun comes to its end."""
        for row in list(self.pins):
            self.unpin(row)
        self.r.source.errors.clear()
        self.r.run()
