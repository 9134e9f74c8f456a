"""What the source is expected to give follows from what its requests have brought."""

from __future__ import annotations

import math

import pytest

from nopfsfs.protocol.columns import METRICS, Metric
from nopfsfs.supervisor.observing.source_expectation import SourceExpectation


class Seen:
    """A stager whose requests bring `size` bytes after `seconds` each."""

    def __init__(self) -> None:
        self.metrics = [0] * METRICS
        self.expected = SourceExpectation(self.metrics)

    def read(self, under_way: float, size: int, seconds: float, waited: float = 0.0, rows: int = 10) -> float:
        """Some rows of a second each, with so many requests under way; returns the share that a slot was waited for."""
        for _ in range(rows):
            self.metrics[Metric.UNDER_WAY_NS] += int(1e9 * under_way)
            self.metrics[Metric.SOURCE_READ_BYTES] += int(size * under_way / seconds)
            self.metrics[Metric.SLOTS_WAITED_NS] += int(1e9 * waited)
            share = self.expected.observe(1.0)
        return share


def test_with_all_requests_under_way_what_is_read_is_what_is_expected() -> None:
    seen = Seen()
    assert seen.read(16, 100_000, 0.04, waited=0.9) == 0.9
    assert seen.expected.at(16) == pytest.approx(16 * 100_000 / 0.04)


def test_with_fewer_under_way_more_is_expected_than_is_read() -> None:
    seen = Seen()
    assert seen.read(4, 100_000, 0.04) == 0.0
    assert seen.expected.at(16) == pytest.approx(4 * (4 * 100_000 / 0.04))


def test_a_source_that_becomes_slower_is_noticed_and_one_that_rests_is_remembered() -> None:
    seen = Seen()
    seen.read(16, 100_000, 0.04)
    seen.read(16, 100_000, 0.4, rows=20)
    assert seen.expected.at(16) == pytest.approx(16 * 100_000 / 0.4, rel=0.2)
    before = seen.expected.at(16)
    seen.read(0, 100_000, 0.4, rows=10_000)
    assert seen.expected.at(16) == before


def test_before_the_first_read_and_without_a_limit_nothing_is_known() -> None:
    seen = Seen()
    assert math.isnan(seen.expected.at(16))
    seen.read(1, 1000, 0.1)
    assert math.isnan(seen.expected.at(None))


def test_a_stager_that_begins_anew_and_a_late_count_leave_figures_that_can_be() -> None:
    seen = Seen()
    seen.read(4, 1000, 0.1)
    seen.metrics[Metric.UNDER_WAY_NS] = seen.metrics[Metric.SLOTS_WAITED_NS] = 0
    assert seen.expected.observe(1.0) == 0.0
    seen.metrics[Metric.SLOTS_WAITED_NS] = 30_000_000_000
    assert seen.expected.observe(1.0) == 1.0
