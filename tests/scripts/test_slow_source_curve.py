"""The slow source with a throughput curve: as many reads as the curve says, changes on time, and true counters."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

import pytest
import slow_source
import trio
from hypothesis import given
from hypothesis import strategies as st
from slow_source import SlowSource
from slow_source_clock import Timer
from slow_source_load import BIN_S, Change, Curve, Limits, Load, UnderWay, parse_change
from slow_source_sharing import throughput_curve

from tests.asynchronous import in_trio

# A knee at 8 under way, half of the throughput at 40.
CURVE = Curve(0.02, 400.0, 4.0, falls_from=12.0, halves_after=28.0, noise=0.0)
CLOSE = 0.1  # what counts as the same throughput
FILES = 80
LONG_S = 0.5  # enough ends for that, with few under way
TRIES = 8  # to be as fast as that: other tests run beside


def expected(under_way: float, curve: Curve = CURVE) -> float:
    """Reads a second that the curve gives with so many under way."""
    return float(throughput_curve(curve).at(under_way))


# ---- without a file system ----------------------------------------------------------------------------------


@asynccontextmanager
async def loaded(curve: Curve | None = CURVE) -> AsyncIterator[Load]:
    load = Load(Limits(curve=curve), Timer())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(load.run)
        yield load
        nursery.cancel_scope.cancel()


async def keep_reading(load: Load, pause: float) -> None:
    await trio.sleep(pause)
    while True:
        try:
            await load.read(4096)
        except OSError:
            await trio.sleep(0.01)


@asynccontextmanager
async def reading(load: Load, readers: int) -> AsyncIterator[None]:
    """So many readers, each of which reads again as soon as it has read. They begin one after another: their reads are
    equal, so that they would all end together."""
    cycle = readers / expected(readers)
    async with trio.open_nursery() as nursery:
        for number in range(readers):
            nursery.start_soon(keep_reading, load, number / readers * cycle)
        await trio.sleep(cycle)
        yield
        nursery.cancel_scope.cancel()


async def watch(load: Load, seconds: float = LONG_S) -> tuple[float, float]:
    """Reads a second that end well from now on, and the mean of those under way."""
    load.under_way.reset()
    began = time.monotonic()
    await trio.sleep(seconds + BIN_S)
    record, passed = load.record(series=True), time.monotonic() - began
    ended = sum(reads for _, reads in record["series"])
    return ended / (len(record["series"]) * BIN_S), record["under_way_seconds"] / passed


async def rate_near(load: Load, wanted: float) -> float:
    """Reads a second; as soon as they are those that are wanted. A machine with other work needs some tries."""
    for _ in range(TRIES):
        rate, _ = await watch(load)
        if rate == pytest.approx(wanted, rel=CLOSE):
            break
    return rate


@pytest.mark.slow
@pytest.mark.parametrize("readers", [1, 8, 40])
@in_trio
async def test_so_many_readers_get_what_the_curve_says(readers: int) -> None:
    async with loaded() as load, reading(load, readers):
        rate = await rate_near(load, expected(readers))
        assert load.record(series=False)["peak"] == readers
    assert rate == pytest.approx(expected(readers), rel=CLOSE)


@pytest.mark.slow
@in_trio
async def test_others_take_their_part() -> None:
    async with loaded() as load, reading(load, 4):
        load.schedule([Change(background=4)])
        rate = await rate_near(load, expected(8) / 2)
        assert load.under_way.peak == 4, "the reads of others are not counted"
    assert rate == pytest.approx(expected(8) / 2, rel=CLOSE)


@pytest.mark.slow  # compares rates, which other tests beside disturb
@pytest.mark.parametrize(
    ("change", "part"), [(Change(bandwidth=1 / 3), 1 / 3), (Change(slower=3.0), 1 / 3), (Change(stalled=True), 0.0)]
)
@in_trio
async def test_a_change_comes_and_goes(change: Change, part: float) -> None:
    async with loaded() as load, reading(load, 8):
        load.schedule([change])
        during = await rate_near(load, part * expected(8))
        load.schedule([Change()])
        after = await rate_near(load, expected(8))
    assert during == pytest.approx(part * expected(8), rel=CLOSE)
    assert after == pytest.approx(expected(8), rel=CLOSE)


@in_trio
async def test_reads_fail_for_a_time_and_take_as_long_as_others() -> None:
    async with loaded() as load:
        load.schedule([Change(errno=errno.EIO)])
        began = time.monotonic()
        with pytest.raises(OSError) as caught:
            await load.read(4096)
        assert caught.value.errno == errno.EIO
        assert time.monotonic() - began >= CURVE.seconds
        load.schedule([Change(errno=errno.EIO), Change(at=0.2)])
        await trio.sleep(0.2)
        await load.read(4096)


@in_trio
async def test_a_schedule_takes_the_place_of_the_one_before() -> None:
    async with loaded() as load:
        load.schedule([Change(at=0.1, stalled=True)])
        load.schedule([Change(at=0.1)])
        await trio.sleep(0.2)
        await load.read(4096)  # else it would never end


@in_trio
async def test_stalled_reads_end_after_the_stall() -> None:
    async with loaded() as load:
        began = time.monotonic()
        load.schedule([Change(stalled=True), Change(at=0.3)])
        await load.read(4096)
        assert time.monotonic() - began >= 0.3
        # By the source's own time: this task may hear of the end late.
        assert load.record(series=False)["under_way_seconds"] < 0.3 + 2 * CURVE.seconds


@in_trio
async def test_reads_under_way_go_on_when_the_curve_becomes_another() -> None:
    endless = Curve(1e6, 400.0, noise=0.0)
    async with loaded(endless) as load, trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(load.read, 4096)
        await trio.sleep(0.05)
        load.set_limits(Limits(curve=CURVE))
    assert load.under_way.count == 0


@in_trio
async def test_a_source_gets_a_curve_and_loses_it() -> None:
    async with loaded(None) as load:
        began = time.monotonic()
        load.set_limits(Limits(curve=CURVE))
        await load.read(4096)
        assert time.monotonic() - began >= CURVE.seconds
        load.set_limits(Limits())
        with pytest.raises(ValueError, match="schedule"):
            load.schedule([Change()])
        await load.read(4096)


@in_trio
async def test_a_reader_that_goes_away_takes_its_read_along() -> None:
    async with loaded() as load, reading(load, 4):
        with trio.move_on_after(CURVE.seconds / 4):
            await load.read(4096)
        assert load.record(series=False)["in_flight"] <= 4
        for _ in range(TRIES):
            rate, under_way = await watch(load)
            if rate == pytest.approx(expected(under_way), rel=CLOSE):
                break
    assert rate == pytest.approx(expected(under_way), rel=CLOSE), "of those that a busy machine keeps under way"
    assert 0 < under_way <= 4


@given(
    steps=st.lists(st.tuples(st.floats(0, 0.35), st.sampled_from(["begin", "end", "read"])), max_size=40),
)
def test_the_series_has_the_mean_of_each_bin_and_the_reads_that_ended_in_it(steps: list[tuple[float, str]]) -> None:
    now = 100.0
    under_way = UnderWay(lambda: now)
    held: list[tuple[float, float, int]] = []  # from, to, under way
    reads: list[float] = []
    count = peak = 0
    for pause, step in steps:
        held.append((now, now + pause, count))
        now += pause
        if step == "begin":
            under_way.begin()
            count += 1
        elif step == "end" and count:
            under_way.end()
            count -= 1
        elif step == "read" and count:
            under_way.end(read=True)
            count -= 1
            reads.append(now)
        peak = max(peak, count)
    record = under_way.record(series=True)
    bins = record["series"]
    assert (record["in_flight"], record["peak"]) == (count, peak)
    assert record["under_way_seconds"] == pytest.approx(sum((to - at) * n for at, to, n in held), abs=1e-9)
    assert len(bins) == pytest.approx((now - 100.0) / BIN_S, abs=1.001)
    for number, (mean, ended) in enumerate(bins):
        begin, end = 100.0 + number * BIN_S, 100.0 + (number + 1) * BIN_S
        inside = sum(max(0.0, min(to, end) - max(at, begin)) * n for at, to, n in held)
        assert mean == pytest.approx(inside / BIN_S, abs=1e-6)
        assert abs(ended - sum(begin <= at < end for at in reads)) <= sum(
            math.isclose(at, edge, abs_tol=1e-9) for at in reads for edge in (begin, end)
        )


# ---- what people write --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("40s:", Change(at=40.0)),
        ("10s: bandwidth=0.5 background=20", Change(at=10.0, bandwidth=0.5, background=20)),
        ("500ms: stalled", Change(at=0.5, stalled=True)),
        ("1: errno=EIO slower=3", Change(at=1.0, errno=errno.EIO, slower=3.0)),
        ("1: errno=5", Change(at=1.0, errno=5)),
    ],
)
def test_changes_are_read(text: str, change: Change) -> None:
    assert parse_change(text) == change


@pytest.mark.parametrize(
    "text", ["40s", "x: stalled", "1s: stalled=1", "1s: bandwidth", "1s: faster=2", "1s: bandwidth=0", "1s: errno=EHM"]
)
def test_what_is_no_change_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_change(text)


@pytest.mark.parametrize(
    "fields", [{"seconds": 0.0}, {"most": -1.0}, {"falls_from": 9.0}, {"halves_after": 9.0}, {"noise": -1.0}]
)
def test_an_impossible_curve_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Curve(**{"seconds": 0.01, "most": 100.0, **fields})


# ---- as a file system ---------------------------------------------------------------------------------------


@pytest.fixture
def backing(tmp_path: Path) -> Path:
    root = tmp_path / "backing"
    root.mkdir()
    for number in range(FILES):
        (root / f"{number}.bin").write_bytes(bytes([number]) * 4096)
    return root


@pytest.fixture
def source(backing: Path) -> Iterator[SlowSource]:
    with SlowSource(backing, curve=CURVE, attr_timeout=60) as running:
        yield running


def read_for(source: SlowSource, readers: int, seconds: float) -> None:
    """Read by so many threads at once, each files of its own: who reads the same file waits for the same read."""
    end = time.monotonic() + seconds

    def read(first: int) -> None:
        for number in cycle(range(first, FILES, readers)):
            if time.monotonic() > end:
                return
            (source.path / f"{number}.bin").read_bytes()

    threads = [threading.Thread(target=read, args=(first,)) for first in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.slow
@pytest.mark.mount
def test_threads_get_what_the_curve_says_of_what_is_under_way(source: SlowSource) -> None:
    for readers in (1, 8, 40):
        for _ in range(TRIES):
            rate, under_way = measured(source, readers)
            if rate == pytest.approx(expected(under_way), rel=CLOSE) and under_way > readers / 3:
                break
        assert rate == pytest.approx(expected(under_way), rel=CLOSE)
        assert readers / 3 < under_way <= readers


def measured(source: SlowSource, readers: int) -> tuple[float, float]:
    """Reads a second by so many threads, and the mean of those under way, with counters that agree with each other."""
    source.reset()
    began = time.monotonic()
    read_for(source, readers, 1.0)
    counters, passed = source.counters(series=True), time.monotonic() - began
    assert counters.peak <= readers
    assert counters.bytes == 4096 * counters.reads
    last_bin = counters.reads - sum(ended for _, ended in counters.series)
    assert 0 <= last_bin <= 2 * BIN_S * CURVE.most + readers
    mean = sum(mean for mean, _ in counters.series) * BIN_S
    assert mean == pytest.approx(counters.under_way_seconds, abs=2 * BIN_S * readers)
    return counters.reads / passed, counters.under_way_seconds / passed


@pytest.mark.mount
def test_schedule_and_curve_change_by_the_control_socket(source: SlowSource) -> None:
    source.schedule(Change(errno=errno.EIO))
    fd = os.open(source.path / "0.bin", os.O_RDONLY | os.O_DIRECT)
    try:
        with pytest.raises(OSError) as caught:
            os.read(fd, 4096)
        assert caught.value.errno == errno.EIO
        source.schedule(Change(errno=errno.EIO), Change(at=0.3))
        time.sleep(0.3)
        assert os.read(fd, 4096) == bytes(4096)
    finally:
        os.close(fd)
    source.set_limits(Limits(curve=Curve(0.2, 100.0, noise=0.0)))
    source.reset()
    began = time.monotonic()
    (source.path / "1.bin").read_bytes()
    assert time.monotonic() - began >= 0.2
    # By the source's own time: this process may hear of the end late.
    assert source.counters().under_way_seconds == pytest.approx(0.2, abs=0.1)
    with pytest.raises(ValueError, match="bandwidth"):
        source._ask(do="schedule", changes=[{"bandwidth": -1}])


@pytest.mark.mount
def test_as_a_command_with_a_schedule(backing: Path, tmp_path: Path) -> None:
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    command = [sys.executable, slow_source.__file__, backing, mountpoint, "--request-time", "1ms", "--most", "500"]
    began = time.monotonic()
    subprocess.run([*command, "--change", "0: stalled", "--change", "1s:"], check=True, timeout=20)
    try:
        (mountpoint / "2.bin").read_bytes()
        assert time.monotonic() - began >= 1.0
    finally:
        subprocess.run(["fusermount3", "-u", mountpoint], check=True)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--most", "500"], "--request-time"),
        (["--change", "1s: stalled"], "curve"),
        (["--change", "soon"], "soon"),
        (["--request-time", "1ms", "--most", "500", "--falls-from", "9"], "halves_after"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(
    backing: Path, tmp_path: Path, words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        slow_source.parse_arguments([str(backing), str(tmp_path), *words])
    assert error in capsys.readouterr().err
