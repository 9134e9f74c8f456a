"""The status record adds up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from nopfsfs.protocol.columns import FIRST_SERVER, Metric, MetricBlock, ServerMetrics
from nopfsfs.supervisor.status_record import record, served

SIZE = 1000
MODES = {
    "fast_path": True, "resend": True, "passthrough": False, "signal": "open", "signal_because": "", "privileged": True,
    "servers": 3,
}  # fmt: skip


@pytest.fixture
def metrics() -> Iterator[memoryview]:
    fd = MetricBlock.create()
    yield MetricBlock(fd, writable=True).block
    os.close(fd)


def test_opens_that_asked_for_nothing_were_served_by_the_page_cache(metrics: memoryview) -> None:
    metrics[Metric.OPENS], metrics[Metric.OPENED_BYTES] = 10, 10 * SIZE
    metrics[Metric.RAM_FILES], metrics[Metric.RAM_BYTES] = 3, 3 * SIZE
    metrics[Metric.SOURCE_FILES], metrics[Metric.SOURCE_BYTES] = 2, 2 * SIZE
    metrics[Metric.DISK_FILES], metrics[Metric.DISK_BYTES] = 1, SIZE
    by_tier = served(metrics)
    assert by_tier["page_cache"] == {"files": 4, "bytes": 4 * SIZE}
    assert sum(tier["files"] for tier in by_tier.values()) == 10
    assert sum(tier["bytes"] for tier in by_tier.values()) == 10 * SIZE


def test_files_read_twice_by_one_open_do_not_make_the_page_cache_negative(metrics: memoryview) -> None:
    metrics[Metric.OPENS], metrics[Metric.OPENED_BYTES] = 1, SIZE
    metrics[Metric.SOURCE_FILES], metrics[Metric.SOURCE_BYTES] = 5, 5 * SIZE
    assert served(metrics)["page_cache"] == {"files": 0, "bytes": 0}


def test_the_record_has_what_is_promised(metrics: memoryview) -> None:
    metrics[Metric.OPENS], metrics[Metric.WAIT_NS] = 7, 1_500_000_000
    made = record(
        state="running", source="/s", mountpoint="/m", plan={"state": "locked"}, predicted=6, k=64, server=metrics,
        stager=metrics, budget={"ram": 5}, used={"ram": 4}, processes=[{"role": "server", "pid": 1}], lost=2,
        page_cache={"measured": False}, modes=MODES, rates={}, recheck={}, tuning={}, seconds=1.23456,
    )  # fmt: skip
    assert made["opens"] == {"total": 7, "predicted": 6, "k": 64, "unobserved": 2, "estimated": False}
    assert made["wait_seconds"] == 1.5
    assert made["seconds"] == 1.235
    assert {"state", "plan", "served", "budget", "used", "page_cache", "processes", "stager"} <= made.keys()
    assert made["modes"] == {
        "fast_path": True, "resend": True, "passthrough": False, "signal": "open", "signal_because": "",
            "privileged": True, "servers": 3,
    }  # fmt: skip
    assert set(made["served"]) == {"page_cache", "ram", "disk", "peer", "source"}


def test_what_several_servers_counted_is_added_up_and_can_be_printed() -> None:
    fd = MetricBlock.create()
    try:
        for number in range(3):
            block = MetricBlock(fd, FIRST_SERVER + number, writable=True).block
            block[Metric.OPENS], block[Metric.RAM_FILES], block[Metric.WAIT_NS] = 10, number, 1_000_000_000
        made = record(
            state="running", source="/s", mountpoint="/m", plan={}, predicted=6, k=64,
            server=ServerMetrics(fd).total(), stager=MetricBlock(fd, writable=False).block, budget={}, used={},
            processes=[], lost=0, page_cache={}, modes=MODES, rates={}, recheck={}, tuning={}, seconds=1.0,
        )  # fmt: skip
        assert json.loads(json.dumps(made)) == made
        assert made["opens"]["total"] == 30
        assert made["served"]["ram"]["files"] == 3
        assert made["wait_seconds"] == 3.0
    finally:
        os.close(fd)
