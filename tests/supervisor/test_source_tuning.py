"""The task that tunes the requests at the source, with a stager and a clock of the test's."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import trio
import trio.testing

from nopfsfs.config import MountConfig
from nopfsfs.policy.site_rules import SiteLimits
from nopfsfs.policy.source_base import SourceMemory
from nopfsfs.policy.tuner import SlowdownTuner
from nopfsfs.protocol.columns import METRICS, SIZE_CLASSES, Metric
from nopfsfs.protocol.source_metrics import FRACTION
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.supervisor import source_memory, source_tuning
from nopfsfs.supervisor.source_caps import AUTO
from nopfsfs.supervisor.source_tuning import Clocks, SourceTuning
from nopfsfs.system.outages import Outages

STEP_S = 0.05  # of the simulated stager
SIZE_CLASS = 3  # of all its requests
NOON = 43_200.0  # a full minute
KNOWN = SourceMemory(tuple(23.0 if at == SIZE_CLASS else None for at in range(SIZE_CLASSES)), (0, 0, 0, 100.0, 0, 0, 0))


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in virtual time."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        trio.run(functools.partial(test, *args, **kwargs), clock=trio.testing.MockClock(autojump_threshold=0))

    return run


class FakeStager:
    """A stager whose source answers each request after `seconds`, and that many at once."""

    def __init__(self, limit: int = 4) -> None:
        self.metrics = memoryview(bytearray(8 * METRICS)).cast("q")
        self.metrics[Metric.SOURCE_LIMIT] = limit
        self.attached = True
        self.seconds = 0.01
        self.at_once = 1000
        self.fetching = self.stalled = False
        self.orders: list[tuple[int, bool]] = []  # limits, marks
        self.looks = 0
        self._fetch = trio.Event()

    async def fetch_sent(self) -> None:
        self.looks += 1
        await self._fetch.wait()

    async def command(self, order: StagerCommand, rows: Any, value: int) -> None:
        assert order == StagerCommand.LIMITS
        self.orders.append((value, bool(rows[0])))
        self.metrics[Metric.SOURCE_LIMIT] = value

    def fetch(self) -> None:
        self.fetching = True
        self._fetch.set()
        self._fetch = trio.Event()

    async def run(self) -> None:
        left = 0.0
        metrics = self.metrics
        while True:
            if not self.fetching:
                metrics[Metric.UNDER_WAY] = 0
                await self._fetch.wait()
            await trio.sleep(STEP_S)
            limit = metrics[Metric.SOURCE_LIMIT]
            metrics[Metric.UNDER_WAY] = limit
            metrics[Metric.UNDER_WAY_NS] += int(1e9 * STEP_S * limit)
            metrics[Metric.SLOTS_WAITED_NS] += int(1e9 * STEP_S)
            if self.stalled:
                continue
            took = self.seconds * max(1.0, limit / self.at_once)
            left += limit * STEP_S / took
            ended, left = int(left), left % 1
            for count, log2 in ((Metric.ENDED, Metric.ENDED_LOG2), (Metric.YOUNG_ENDED, Metric.YOUNG_LOG2)):
                metrics[count + SIZE_CLASS] += ended
                metrics[log2 + SIZE_CLASS] += int(ended * math.log2(1e9 * took) * FRACTION)
            metrics[Metric.ENDED_STEP] += 2 * ended


class Tuned:
    """A tuning, with what it has said."""

    def __init__(self, tuning: SourceTuning, stager: FakeStager, followed: list[int], own: memoryview) -> None:
        self.tuning, self.stager, self.followed, self.own = tuning, stager, followed, own

    @property
    def limit(self) -> int:
        return self.stager.metrics[Metric.SOURCE_LIMIT]


@asynccontextmanager
async def tuned(
    stager: FakeStager, *, own: memoryview | None = None, disciplined: bool = True, fetching: bool = True,
    **config: Any,
) -> AsyncIterator[Tuned]:  # fmt: skip
    began, followed = trio.current_time(), []
    now, wall = lambda: 1e5 + trio.current_time(), lambda: NOON + 10 + trio.current_time() - began
    clocks = Clocks(now, wall, lambda: disciplined)
    asked = memoryview(bytearray(8 * METRICS)).cast("q") if own is None else own
    tuning = SourceTuning(
        MountConfig(source="/s", mountpoint="/m", **config), stager.metrics, asked, cast(Any, stager), Outages(),
        follow=followed.append, clocks=clocks,
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stager.run)
        nursery.start_soon(tuning.run)
        await trio.sleep(0.5)
        if fetching:
            stager.fetch()
        yield Tuned(tuning, stager, followed, asked)
        nursery.cancel_scope.cancel()


@virtual
async def test_the_limit_rises_where_the_source_answers_more_at_once() -> None:
    async with tuned(FakeStager()) as t:
        await trio.sleep(2)
        assert t.limit >= 64
        assert t.followed[-1] == t.limit
        assert [one["reason"] for one in t.tuning.report()["decisions"]][:3] == ["hold", "more", "more"]


@virtual
async def test_the_limit_stays_about_where_requests_begin_to_queue() -> None:
    stager = FakeStager()
    stager.at_once = 24
    async with tuned(stager) as t:
        await trio.sleep(20)
        assert 8 <= t.limit <= 64


@virtual
async def test_a_source_that_stalls_brings_the_limit_down_and_one_that_answers_again_up() -> None:
    async with tuned(FakeStager()) as t:
        await trio.sleep(2)
        t.stager.stalled = True
        await trio.sleep(10)
        assert t.limit <= 8
        assert t.tuning.status()["reason"] == "hang"
        t.stager.stalled = False
        await trio.sleep(30)
        assert t.limit >= 16


@virtual
async def test_a_drain_marks_and_the_limit_is_back_after_it() -> None:
    async with tuned(FakeStager()) as t:
        await trio.sleep(48)
        before = t.limit
        assert not any(mark for _, mark in t.stager.orders)
        await trio.sleep(5)
        drained = [limit for limit, mark in t.stager.orders if mark]
        assert drained == [max(2, before // 16)]
        assert t.tuning.report()["drains"] == t.tuning.drains
        assert len(t.tuning.drains) == 1
        assert t.limit >= before
        assert t.tuning.report()["evidence"][SIZE_CLASS] > 0


@virtual
async def test_without_a_disciplined_clock_nothing_is_drained() -> None:
    async with tuned(FakeStager(), disciplined=False) as t:
        await trio.sleep(60)
        assert not any(mark for _, mark in t.stager.orders)
        assert t.limit <= 64


@virtual
async def test_while_nothing_is_read_it_looks_once_a_second_and_nothing_else() -> None:
    async with tuned(FakeStager(), fetching=False) as t:
        await trio.sleep(100)
        assert t.stager.looks <= 102
        assert t.stager.orders == []


@virtual
async def test_ten_minutes_without_reads_changes_nothing() -> None:
    async with tuned(FakeStager()) as t:
        await trio.sleep(3)
        before = t.limit
        t.stager.fetching = False
        await trio.sleep(600)
        t.stager.fetch()
        await trio.sleep(0.3)
        assert t.limit >= 0.9 * before


@virtual
async def test_a_request_that_hangs_for_long_is_looked_at_once_a_second() -> None:
    async with tuned(FakeStager()) as t:
        await trio.sleep(1)
        t.stager.stalled = True
        await trio.sleep(15)
        steps = []
        t.tuning._tuner.step = lambda sample, step=t.tuning._tuner.step: (steps.append(sample), step(sample))[1]  # type: ignore[method-assign, union-attr, misc]
        await trio.sleep(20)
        assert len(steps) <= 22


@virtual
async def test_a_stated_number_is_kept_and_a_stager_that_missed_it_gets_it_again() -> None:
    async with tuned(FakeStager(limit=8), source_concurrency=8) as t:
        await trio.sleep(3)
        assert (t.limit, t.followed) == (8, [8])
        assert t.tuning.status()["mode"] == "fixed"
        t.stager.metrics[Metric.SOURCE_LIMIT] = 4
        await trio.sleep(2)
        assert t.limit == 8


@virtual
async def test_a_command_keeps_a_number_holds_or_lets_the_tuner_decide_until_the_unmount() -> None:
    own = memoryview(bytearray(8 * METRICS)).cast("q")
    async with tuned(FakeStager(), own=own) as t:
        await trio.sleep(2)
        assert (await t.tuning.answer({"concurrency": 7}))["limit"] == 7
        await trio.sleep(3)
        assert (t.limit, t.tuning.status()["mode"], t.tuning.status()["asked"]) == (7, "fixed", True)
        assert (await t.tuning.answer({}))["mode"] == "fixed", "says what is"
        await t.tuning.answer({"concurrency": "auto"})
        await trio.sleep(3)
        assert t.limit > 7
        before = (await t.tuning.answer({"hold": True}))["limit"]
        await trio.sleep(3)
        assert t.limit == before
    async with tuned(FakeStager(), own=own) as t:
        await trio.sleep(3)
        assert t.limit == before, "the next supervisor knows"


async def at_rest(t: Tuned) -> int:
    """The limit after two minutes; no drain and no half counts."""
    await trio.sleep(120)
    limits = []
    for _ in range(10):
        limits.append(t.limit)
        await trio.sleep(1)
    return sorted(limits)[5]


@virtual
async def test_a_weight_that_a_command_asks_for_moves_the_limit_and_lasts_until_the_unmount() -> None:
    own = memoryview(bytearray(8 * METRICS)).cast("q")
    stager = FakeStager()
    stager.at_once = 20  # beyond, requests take longer
    async with tuned(stager, own=own) as t:
        before = await at_rest(t)
        assert (await t.tuning.answer({"weight": 0.1}))["weight"] == 0.1
        polite = await at_rest(t)
        assert polite < 0.7 * before
        assert (await t.tuning.answer({"bandwidth": 1000}))["weight"] == 0.1, "as before"
    async with tuned(stager, own=own) as t:
        assert (await t.tuning.answer({}))["weight"] == 0.1, "the next supervisor knows"
        assert await at_rest(t) < 0.8 * before
        assert (await t.tuning.answer({"weight": "none"}))["weight"] == 1.0
        assert await at_rest(t) > 1.3 * polite


@virtual
async def test_each_mount_of_a_job_of_sixteen_nodes_takes_less_than_a_lone_one() -> None:
    found = []
    for nodes in (1, 16):
        stager = FakeStager()
        stager.at_once = 20  # beyond, requests take longer
        async with tuned(stager, job_nodes=nodes) as t:
            found.append(await at_rest(t))
    assert found[1] < 0.8 * found[0]


@pytest.mark.parametrize(("uid", "stated"), [(1000, 12), (0, 200)])
def test_a_site_s_limit_bounds_the_tuner_and_what_a_user_asks_for(
    uid: int, stated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_tuning.os, "geteuid", lambda: uid)

    @virtual
    async def bounded() -> None:
        async with tuned(FakeStager()) as t:
            await trio.sleep(2)
            assert t.limit >= 64
            t.tuning.follow_site(SiteLimits(concurrency=12))
            await trio.sleep(1)
            for _ in range(100):
                assert t.limit <= 12
                await trio.sleep(1)
            assert (await t.tuning.answer({"concurrency": 200}))["limit"] == stated
            await trio.sleep(1)
            assert t.limit == stated
            await t.tuning.answer({"concurrency": "auto"})
            t.tuning.follow_site(SiteLimits())
            await trio.sleep(30)
            assert t.limit >= 64, "the site allows more again"

    bounded()


@virtual
async def test_a_stated_number_gives_way_to_the_tuner_when_a_command_says_so() -> None:
    async with tuned(FakeStager(limit=8), source_concurrency=8) as t:
        await t.tuning.answer({"concurrency": "auto"})
        await trio.sleep(3)
        assert t.limit > 8


@pytest.mark.parametrize(
    "request_",
    [
        {"concurrency": 0}, {"concurrency": 1025}, {"concurrency": "many"}, {"concurrency": True}, {"concurrency": 4.0},
        {"hold": 1}, {"concurrency": "auto", "hold": True}, {"concurrency": [4]}, {"weight": 0}, {"weight": math.nan},
        {"weight": 100.5}, {"weight": True}, {"weight": "1"}, {"concurrency": 4, "weight": -1}, {"bandwidth": 0.5},
    ],
)  # fmt: skip
def test_what_is_no_limit_is_refused_and_changes_nothing(request_: dict[str, Any]) -> None:
    @virtual
    async def refused() -> None:
        async with tuned(FakeStager(), fetching=False) as t:
            with pytest.raises(ValueError, match=r"hold:|concurrency:|weight:|bandwidth:"):
                await t.tuning.answer(request_)
            assert t.tuning.status()["asked"] is False
            assert not any(t.own)

    refused()


@virtual
async def test_without_a_stager_nothing_is_sent_and_the_next_one_gets_the_limit() -> None:
    async with tuned(FakeStager()) as t:
        await trio.sleep(2)
        t.stager.attached = t.stager.fetching = False
        limit, count = t.limit, len(t.stager.orders)
        await trio.sleep(5)
        assert len(t.stager.orders) == count
        t.stager.metrics[Metric.SOURCE_LIMIT] = 4  # as one that knows nothing
        t.stager.attached = True
        t.stager.fetch()
        await trio.sleep(0.3)
        assert t.limit >= 0.9 * limit


@virtual
async def test_a_fault_leaves_the_limit_and_is_said_until_it_works_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with tuned(FakeStager()) as t:
        await trio.sleep(2)
        before = t.limit
        real = SlowdownTuner.step
        monkeypatch.setattr(SlowdownTuner, "step", lambda self, sample: 1 / 0)
        await trio.sleep(5)
        assert t.limit == before
        assert [one["what"] for one in t.tuning._outages.all()] == [source_tuning.WHAT]
        monkeypatch.setattr(SlowdownTuner, "step", real)
        await trio.sleep(20)
        assert not t.tuning._outages.all()


@virtual
async def test_sums_that_are_being_changed_delay_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    real, tries = source_tuning.read_ended, itertools.count()
    monkeypatch.setattr(source_tuning, "read_ended", lambda metrics: None if next(tries) % 2 else real(metrics))
    async with tuned(FakeStager()) as t:
        await trio.sleep(3)
        assert t.limit >= 16


def test_what_is_known_of_a_source_is_there_for_the_next_mount(tmp_path: Path) -> None:
    config = {"source": str(tmp_path), "index_dir": str(tmp_path / "index")}

    async def mount(memory: SourceMemory | None) -> SourceMemory | None:
        file = source_memory.SourceMemoryFile(MountConfig(mountpoint="/m", **config))
        found = await file.read()
        if memory is not None:
            await file.write(memory)
        return found

    assert trio.run(mount, KNOWN) is None
    assert trio.run(mount, None) == KNOWN
    (path,) = (tmp_path / "index").glob("source-*.json")
    path.write_bytes(path.read_bytes().replace(b"23.0", b"24.0"))
    assert trio.run(mount, SourceMemory((None,) * SIZE_CLASSES, (0.0,) * SIZE_CLASSES)) is None, "damaged"
    assert trio.run(mount, KNOWN) is None, "what no drain has shown is not kept"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{}", b'{"log2_ns": [], "evidence": [], "knees": []}', b'{"log2_ns": null}',
        b'{"log2_ns": [1,1,1,1,1,1,1], "evidence": [NaN,0,0,0,0,0,0], "knees": []}',
        b'{"log2_ns": [1,1,1,1,1,1,1], "evidence": [0,0,0,0,0,0,-1], "knees": []}',
        b'{"log2_ns": [1,1,1,1,1,1,true], "evidence": [0,0,0,0,0,0,0], "knees": []}',
        b'{"log2_ns": [1,1,1,1,1,1,1], "evidence": [0,0,0,0,0,0,0], "knees": [1,1,1,1,1,1,1,1,1,1]}',
    ],
)  # fmt: skip
def test_a_memory_that_makes_no_sense_is_refused(body: bytes) -> None:
    import xxhash

    head = b"nopfs-source %d %016x\n" % (source_memory.FILE.version, xxhash.xxh3_64_intdigest(body))
    with pytest.raises(ValueError, match=r"."):
        source_memory.decode(head + body)


def test_what_is_asked_for_fits_the_metric() -> None:
    assert np.iinfo(np.int64).min < AUTO < 0
