"""What the disk thread does for disks that keep their copies, over disks that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from nopfsfs.protocol.columns import METRICS, Metric, Tier
from nopfsfs.tiers import kept_copies as module
from nopfsfs.tiers.kept_copies import KeptCopies
from nopfsfs.tiers.kept_disk import KeptDisk

N = 40


class MadeUpDisk(KeptDisk):
    """Has copies of the rows `kept`, and room for `room` bytes; each copy takes one. `looks`: at its file system."""

    def __init__(self, kept: list[int], room: int) -> None:
        self.path, self.kept, self.room, self.opened, self.looks = "/d", kept, room, False, 0

    @property
    def is_open(self) -> bool:
        return self.opened

    def found(self) -> Iterator[tuple[list[int], list[int]]]:
        yield self.kept, [0] * len(self.kept)

    def unconfirmed(self, rows: list[int]) -> None:
        pass

    def count(self) -> Iterator[None]:
        yield

    def wants_room(self) -> bool:
        return False

    def spare_room(self) -> int:
        self.looks += 1
        return self.room

    def takes(self, row: int, room: int) -> bool:
        return room >= 1


class Bench:
    """The copies of these disks. All rows are staged."""

    def __init__(self, *disks: MadeUpDisk) -> None:
        self.columns = SimpleNamespace(
            tier=np.full(N, Tier.RAM, np.uint8), disk=np.zeros(N, np.uint8), stale=np.zeros(N, np.uint8)
        )
        self.metrics = memoryview(bytearray(8 * METRICS)).cast("q")
        numbered = dict(enumerate(disks, 1))
        self.copies = KeptCopies(
            numbered, self.columns, self.metrics, adopt=lambda rows, number, sums: [],  # type: ignore[arg-type]
            report=lambda rows, number: None, lose=lambda number: None,
        )  # fmt: skip

    def settle(self) -> None:
        while self.copies.step() is not None:
            pass


def test_copies_on_a_disk_that_opens_late_count() -> None:
    first, late = MadeUpDisk([1, 2, 3], 0), MadeUpDisk([4, 5], 0)
    bench = Bench(first, late)
    first.opened = True
    bench.copies.opened(1)
    bench.settle()
    assert bench.copies.ready.is_set(), "a disk that is not there is not waited for"
    assert bench.metrics[Metric.KEPT_FILES] == 1 + 3
    for _ in range(2):  # lost and opened again: then it has copies of this mount, too
        late.opened = True
        bench.copies.opened(2)
        bench.settle()
        assert bench.metrics[Metric.KEPT_FILES] == 1 + 5


def test_what_a_stager_before_has_counted_stays() -> None:
    disk = MadeUpDisk([1, 2, 3], 0)
    bench = Bench(disk)
    bench.metrics[Metric.KEPT_FILES] = 1 + 2
    disk.opened = True
    bench.copies.opened(1)
    bench.settle()
    assert bench.metrics[Metric.KEPT_FILES] == 1 + 2


def test_a_disk_is_looked_at_once_for_each_spare_copy() -> None:
    disk = MadeUpDisk([], 1)
    bench = Bench(disk)
    found = []
    while spare := bench.copies.next_spare(N):
        found.append(spare)
    assert found == [(row, 1) for row in range(N)]
    assert disk.looks == N


@pytest.mark.parametrize(("room", "calls"), [(-1, 1), (0, N // 10)])
def test_where_no_copy_fits_few_rows_are_looked_at_in_a_call(
    room: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orders that wait for the thread come in between. -1: the source does not fit as a whole."""
    monkeypatch.setattr(module, "SPARE_AT_ONCE", 10)
    disk = MadeUpDisk([], room)
    bench = Bench(disk)
    for _ in range(calls):
        assert bench.copies.next_spare(N) is None
    assert bench.copies.spare_pause == module.SPARE_PAUSE_S
    assert disk.looks == calls
