"""Records of epochs from made-up counts: each open belongs to one epoch, and sums are those of the counters."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nopfsfs.protocol.durations import bucket_of
from nopfsfs.supervisor.observing.counts import LENGTH, Count
from nopfsfs.supervisor.observing.epoch_records import RECORDS_MOST, EpochLabel, EpochRecords, Look

FILES = 100


@dataclass
class Job:
    """A job whose opens are counted, and looked at when it says so."""

    now: float = 1000.0
    counts: np.ndarray[Any, np.dtype[np.float64]] = field(default_factory=lambda: np.zeros(LENGTH))
    records: EpochRecords = field(default_factory=lambda: EpochRecords(np.zeros(LENGTH)))

    def read(self, files: int, **further: float) -> None:
        self.counts[Count.OPENS] += files
        self.counts[Count.BYTES] += 10 * files
        for name, count in further.items():
            self.counts[Count[name]] += count
        self.now += 1.0

    def look(self, label: EpochLabel, begun: float = 0.0, **further: Any) -> None:
        look = Look(self.counts.copy(), self.now, self.now - 1.0, self.now, 5000.0, begun, **further)
        self.records.look(look, label)

    def found(self) -> list[dict[str, Any]]:
        return self.records.describe(ended=True)


def epoch(number: int, key: int = 1, dataset: str = "train") -> EpochLabel:
    return EpochLabel((key, number), True, FILES, dataset, "distributed", 42, number)


UNKNOWN = EpochLabel((), False, FILES, "train")


def test_an_epoch_has_what_was_counted_in_it() -> None:
    job = Job()
    for number in range(2):
        job.read(60, RAM=10, SOURCE=20, WAIT_NS=2e9, WAITS=4, SOURCE_READS=20, SECOND_READS=number, PREDICTED=50)
        job.counts[Count.READ_ERRORS + 1 + bucket_of(1_000_000)] += 4
        job.look(epoch(number), begun=60)
    job.read(40)
    job.look(epoch(1))
    first, second = job.found()
    assert (first["epoch"], first["dataset"], first["sampler"], first["seed"]) == (0, "train", "distributed", 42)
    assert (first["files"], first["bytes"], second["files"]) == (60, 600, 100)
    assert first["served"] == {"page_cache": 0.5, "ram": 0.1667, "disk": 0.0, "peer": 0.0, "source": 0.3333}
    assert (first["stall_seconds"], first["waits"], first["source_reads"], first["predicted"]) == (2.0, 4, 20, 50)
    assert 0.0005 < first["wait_p50_seconds"] <= first["wait_p99_seconds"] <= first["wait_most_seconds"] < 0.0011
    assert (first["second_reads"], second["second_reads"]) == (0, 1)
    assert (first["limit"], first["slowdown"], first["counts"], first["ended"]) == (None, None, "exact", True)
    assert (first["begin"], first["seconds"]) == (6000.0, 1.0)


def test_opens_between_two_looks_are_divided_where_the_epoch_begins() -> None:
    job = Job()
    job.read(80)
    job.look(epoch(0))
    job.read(30, SOURCE=30)  # 20 of the epoch before, 10 of the next
    job.look(epoch(1), begun=10)
    assert [(one["epoch"], one["files"], one["source_reads"]) for one in job.found()] == [(0, 100, 0), (1, 10, 0)]
    assert [one["served"]["source"] for one in job.found()] == [0.2, 1.0]


def test_what_was_read_before_a_plan_was_found_belongs_to_the_epoch_that_it_tells() -> None:
    job = Job()
    job.read(64)
    job.look(UNKNOWN)
    job.read(36)
    job.look(epoch(7))
    assert [(one["epoch"], one["files"]) for one in job.found()] == [(7, 100)]


def test_without_a_plan_as_many_opens_as_there_are_files_make_a_record() -> None:
    job = Job()
    for _ in range(5):
        job.read(70)
        job.look(UNKNOWN)
    assert [(one["epoch"], one["files"]) for one in job.found()] == [(None, 100), (None, 100), (None, 100), (None, 50)]


def test_a_plan_that_is_lost_and_found_again_goes_on_with_its_record() -> None:
    job = Job()
    for locked in (True, False, True):
        job.read(20)
        job.look(EpochLabel((1, 0), locked, FILES, "train", "random", 1, 3))
    assert [(one["epoch"], one["files"]) for one in job.found()] == [(3, 60)]


def test_data_sets_that_are_read_by_turns_have_a_record_each() -> None:
    job = Job()
    for _ in range(3):
        job.read(30)
        job.look(epoch(0))
        job.read(5)
        job.look(epoch(0, key=2, dataset="val"), begun=5)
    assert [(one["dataset"], one["files"]) for one in job.found()] == [("train", 90), ("val", 15)]


def test_the_last_ones_are_kept() -> None:
    job = Job()
    for number in range(RECORDS_MOST + 10):
        job.read(1)
        job.look(epoch(number), begun=1)
    found = job.found()
    assert [one["epoch"] for one in found] == list(range(10, RECORDS_MOST + 10))


def test_an_epoch_of_which_a_part_was_estimated_says_so() -> None:
    job = Job()
    for estimated in (False, True, False):
        job.read(10)
        job.look(epoch(0), estimated=estimated)
    job.read(1)
    job.look(epoch(1), begun=1)
    assert [one["counts"] for one in job.found()] == ["estimated", "exact"]


def test_figures_of_the_tuner_are_summed_up_once_there_are_any() -> None:
    job = Job()
    for limit in range(1, 2001):
        job.read(1)
        job.look(epoch(0), limit=float(limit), slowdown=1.5)
    (found,) = job.found()
    assert found["limit"]["median"] == pytest.approx(1000, rel=0.01)
    assert found["limit"]["p95"] == pytest.approx(1900, rel=0.01)
    assert found["slowdown"] == {"median": 1.5, "p95": 1.5}


def test_an_epoch_that_is_over_keeps_its_figures_in_some_thousand_bytes() -> None:
    """A mount that reads for days has RECORDS_MOST of them."""
    job, epochs, looks = Job(), 60, 300

    def read(numbers: range) -> None:
        for number in numbers:
            for step in range(looks):
                job.read(1)
                job.look(epoch(number), begun=1, limit=float(number), slowdown=1.0 + step / looks)

    read(range(epochs // 2))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    read(range(epochs // 2, epochs))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken < 6000 * epochs // 2
    found = job.found()
    assert [one["limit"]["median"] for one in found] == list(range(epochs))
    assert [one["slowdown"]["p95"] for one in found] == pytest.approx([1.95] * epochs, abs=0.01)


def test_a_supervisor_that_takes_over_counts_from_there() -> None:
    before = np.zeros(LENGTH)
    before[Count.OPENS] = 500
    job = Job(counts=before.copy(), records=EpochRecords(before))
    job.read(3)
    job.look(epoch(0))
    assert [one["files"] for one in job.found()] == [3]


@example([(0, 1, True, 0), (0, 0, False, 1)])
@example(  # two records of one epoch, of which the later one is gone on with
    [(0, number, locked, 0) for number, locked in ((3, True), (0, False), (3, True), (1, True), (2, True), (0, False))]
    + [(files, 0, False, 0) for files in (146, 74, 83, 134, 64)] + [(0, 1, True, 0), (0, 3, False, 0)]
)  # fmt: skip
@given(st.lists(st.tuples(st.integers(0, 150), st.integers(0, 5), st.booleans(), st.integers(0, 40)), max_size=60))
def test_no_open_is_lost_or_counted_twice(steps: list[tuple[int, int, bool, int]]) -> None:
    job = Job()
    for files, number, locked, begun in steps:
        job.read(files, SOURCE=files // 2)
        job.counts[Count.READ_ERRORS + 1 + files % 16] += begun
        label = EpochLabel((1, number), locked, FILES, "train", "random", 1, number)
        job.look(label if number else UNKNOWN, begun=begun)
        now = sum(one.counts for one in (*job.records._before, job.records._now))
        assert (now == job.counts).all()
        assert all((one.counts >= 0).all() for one in job.records._before)
    for one in job.found():
        waited = [one[f"wait_{what}_seconds"] or 0.0 for what in ("p50", "p99", "most")]
        assert waited == sorted(waited)
