"""Each process counts in a block of its own, and whoever takes its place counts on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from nopfsfs.protocol.columns import BLOCKS, FIRST_SERVER, STAGER, SUPERVISOR, Metric, MetricBlock, ServerGauges


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
    assert ServerGauges(fd).total()[Metric.OPENS] == 21


def test_what_a_server_has_done_counts_on_in_its_successor(fd: int) -> None:
    counted = ServerGauges(fd)
    for _ in range(2):
        block = MetricBlock(fd, FIRST_SERVER + 3, writable=True).block
        block[Metric.OPENS] += 2
        block[Metric.RAM_FILES] += 3
        block[Metric.SOURCE_FILES] += 100
    assert [counted.done(number) for number in (2, 3, 4)] == [0, 10, 0]
