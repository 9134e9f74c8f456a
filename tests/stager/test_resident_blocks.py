"""Which blocks of large files stay in memory, for any order of reads; and what that saves at the source."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.protocol.columns import Metric
from nopfsfs.stager.large.resident_blocks import ResidentBlocks
from nopfsfs.stager.load import Load, SharedOpen
from tests.stager.rig import PAGE, Rig, content, rig, write_files

LENGTH = 10


def block(row: int, number: int, length: int = LENGTH) -> Load:
    return Load(row, number * LENGTH, length, 0, False, SharedOpen(None, row), 0)  # type: ignore[arg-type]


class Blocks:
    """Files of blocks that are read; what stays is compared with what was given up."""

    def __init__(self, budget: int, large: int) -> None:
        self.blocks, self.there = ResidentBlocks(), dict[tuple[int, int], Load]()
        self.resize(budget, large)

    def resize(self, budget: int, large: int) -> None:
        for gone in self.blocks.resize(budget, large):
            self.forget(gone)
        assert self.blocks.used <= budget
        self.check()

    def forget(self, gone: Load) -> None:
        (key,) = [key for key, load in self.there.items() if load is gone]
        del self.there[key]

    def read(self, row: int, number: int, length: int = LENGTH) -> bool:
        """Whether the block was there."""
        key = row, number
        found = self.blocks.use(key)
        assert found is self.there.get(key)
        if found is None:
            load = block(row, number, length)
            stays, gone = self.blocks.offer(key, load)
            if gone is not None:
                self.forget(gone)
            if stays:
                self.there[key] = load
        self.check()
        return found is not None

    def check(self) -> None:
        blocks, there = self.blocks, self.there
        assert blocks.used == sum(load.length for load in there.values()) <= blocks.budget
        assert blocks.rows == {row for row, _ in there}
        assert all(key in blocks for key in there)


@given(
    st.integers(0, 80), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, LENGTH)), max_size=60),
    st.integers(0, 80),
)  # fmt: skip
def test_no_more_stays_than_there_is_room_for(room: int, reads: list[tuple[int, int, int]], later: int) -> None:
    made = Blocks(room, 100)
    for row, number, length in reads:
        made.read(row, number, length)
    made.resize(later, 100)
    for row in set(made.blocks.rows):
        assert sorted(load.start for load in made.blocks.of_row(row)) == sorted(
            load.start for (other, _), load in made.there.items() if other == row
        )


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9, 1.0])
def test_each_epoch_finds_what_there_is_room_for(share: float) -> None:
    """In a new order each time, file by file."""
    files, each = 10, 20
    made, chance = Blocks(int(files * each * share) * LENGTH, files * each * LENGTH), random.Random(1)
    for epoch in range(5):
        order = chance.sample(range(files), files)
        found = [made.read(row, number) for row in order for number in range(each)]
        assert sum(found) == (int(files * each * share) if epoch else 0)


def test_what_a_job_before_has_read_makes_room_for_what_is_read_now() -> None:
    made, all_bytes = Blocks(100 * LENGTH, 200 * LENGTH), range(100)
    for number in all_bytes:
        made.read(0, number)
    found = [sum(made.read(1, number) for number in all_bytes) for _ in range(6)]
    assert found[:2] == [0, 0], "the first job may go on"
    assert found[-1] == 100
    assert made.blocks.rows == {1}


# ---- in the stager ------------------------------------------------------------------------------------------

SIZE = 40 * PAGE


@pytest.fixture
def r(tmp_path: Path) -> Iterator[Rig]:
    """With a large file, and room for all of it."""
    write_files(tmp_path, [SIZE])
    with rig(tmp_path, budget=64 * PAGE, whole_limit=4 * PAGE, range_budget=8 * PAGE) as made:
        made.state.set_budget(64 * PAGE, 4 * PAGE, 8 * PAGE, SIZE, SIZE)
        yield made


def read_all(r: Rig, number: int = 1, step: int = PAGE) -> int:
    """Read the file, which holds `content(number)`; return the bytes that came from the source."""
    before = r.metric(Metric.SOURCE_READ_BYTES)
    for at in range(0, SIZE, step):
        assert r.read(r.files[0], at, step).data == content(number, SIZE)[at : at + step]
    return r.metric(Metric.SOURCE_READ_BYTES) - before


def test_a_large_file_that_has_room_is_read_once(r: Rig) -> None:
    assert [read_all(r, step=PAGE // 2) for _ in range(3)] == [SIZE, 0, 0]
    r.state.evict(r.files, blocks=True)
    r.run()
    assert r.arena.taken == 0
    assert read_all(r) == SIZE


def test_a_large_file_that_changes_is_read_anew(r: Rig) -> None:
    read_all(r)
    r.path(r.files[0]).write_bytes(content(9, SIZE))
    r.refresh(r.files[0])
    assert [read_all(r, 9) for _ in range(2)] == [SIZE, 0]


def test_blocks_that_stay_leave_when_the_budget_shrinks(r: Rig) -> None:
    read_all(r)
    r.state.set_budget(24 * PAGE, 3 * PAGE, 4 * PAGE, 10 * PAGE, SIZE)
    r.run()
    assert r.arena.taken <= 14 * PAGE
    for _ in range(4):
        assert 0 < read_all(r) <= 30 * PAGE
    assert r.arena.taken <= 14 * PAGE
