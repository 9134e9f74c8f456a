"""Each process counts in a block of its own, and whoever takes its place counts on."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.protocol.columns import (
    BLOCKS,
    FIRST_SERVER,
    METRICS,
    SIZE_CLASSES,
    STAGER,
    SUPERVISOR,
    Metric,
    MetricBlock,
    ServerMetrics,
)
from nopfsfs.protocol.source_metrics import begin_counting, count_ended, read_ended, size_class


@pytest.fixture
def fd() -> Iterator[int]:
    made = MetricBlock.create()
    yield made
    os.close(made)


def test_blocks_do_not_overlap_and_the_last_lies_within(fd: int) -> None:
    blocks = [MetricBlock(fd, block, writable=True).block for block in range(BLOCKS)]
    for number, block in enumerate(blocks):
        block[0], block[len(block) - 1] = number, -number
    assert [(block[0], block[len(block) - 1]) for block in blocks] == [(number, -number) for number in range(BLOCKS)]


def test_the_total_is_that_of_the_servers(fd: int) -> None:
    for block in (STAGER, SUPERVISOR):
        MetricBlock(fd, block, writable=True).block[Metric.OPENS] = 1000
    for block in (FIRST_SERVER, FIRST_SERVER + 1, BLOCKS - 1):
        MetricBlock(fd, block, writable=True).block[Metric.OPENS] += 7
    assert ServerMetrics(fd).total()[Metric.OPENS] == 21


def test_what_a_server_has_done_counts_on_in_its_successor(fd: int) -> None:
    counted = ServerMetrics(fd)
    for _ in range(2):
        block = MetricBlock(fd, FIRST_SERVER + 3, writable=True).block
        block[Metric.OPENS] += 2
        block[Metric.RAM_FILES] += 3
        block[Metric.SOURCE_FILES] += 100
    assert [counted.done(number) for number in (2, 3, 4)] == [0, 10, 0]


def test_requests_are_counted_by_size_with_the_logarithm_of_their_durations() -> None:
    metrics = memoryview(bytearray(8 * METRICS)).cast("q")
    begin_counting(metrics)
    count_ended(metrics, 4096, 1 << 20, young=False)
    count_ended(metrics, 4097, 1 << 22, young=True)
    count_ended(metrics, 4097, 3 << 20, young=False)
    sums = read_ended(metrics)
    assert sums is not None
    assert sums.ended == (1, 2, 0, 0, 0, 0, 0)
    assert sums.young_ended == (0, 1, 0, 0, 0, 0, 0)
    assert sums.log2_ns == pytest.approx((20, 42 + math.log2(3), 0, 0, 0, 0, 0), abs=1e-4)
    assert sums.young_log2_ns == (0, 22, 0, 0, 0, 0, 0)


@given(st.integers(0, 1 << 45))
def test_a_size_class_has_sizes_up_to_4_kib_times_a_power_of_4(size: int) -> None:
    at = size_class(size)
    assert at == SIZE_CLASSES - 1 or size <= 4096 * 4**at
    assert at == 0 or size > 4096 * 4 ** (at - 1)


def test_sums_that_are_being_changed_are_not_read_and_a_stager_that_died_then_leaves_them_readable() -> None:
    metrics = memoryview(bytearray(8 * METRICS)).cast("q")
    metrics[Metric.ENDED_STEP] = 7
    assert read_ended(metrics) is None
    begin_counting(metrics)
    assert read_ended(metrics) is not None


def test_no_two_metrics_share_a_place() -> None:
    assert len({*Metric}) == len(Metric), "two metrics in one place"
    assert max(Metric) < METRICS
