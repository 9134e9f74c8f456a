"""The observer beside a real event loop: a made-up job puts its opens into the ring, and counts them by itself."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nopfsfs.plan.epoch_order import DataSet, FileOrder
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.protocol.columns import FIRST_SERVER, SUPERVISOR, Metric, MetricBlock, ServerMetrics
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.tripwires import Shown, Tripwires
from nopfsfs.supervisor.event_loop import EventLoop
from nopfsfs.supervisor.observing import observer as module
from nopfsfs.supervisor.observing.history import COLUMNS
from nopfsfs.supervisor.observing.observer import Observer
from nopfsfs.supervisor.progress_signal import ProgressSignal
from nopfsfs.supervisor.server_rings import ServerRings
from nopfsfs.supervisor.source_tuning import TuningFigures
from nopfsfs.supervisor.stager_socket import StagerSocket
from nopfsfs.system.outages import Outages
from tests.asynchronous import in_trio
from tests.conftest import long

FILES, SIZE, SEED = 2000, 1000, 42
SPLIT = MemorySplit(
    arena=10**9, homes=10**9, stream=0, ranges=0, pages=10**9, page_homes=10**9, whole_limit=10**9
)  # fmt: skip


class Job:
    """A job that reads in the order of DistributedSampler, and the supervisor's part of a mount that sees it."""

    def __init__(self, fds: list[int], signal: str) -> None:
        server = MetricBlock(fds[1], FIRST_SERVER, writable=True).block
        metrics = MetricBlock(fds[1], SUPERVISOR, writable=True).block
        self.counters, self.ring = server, Ring(fds[2], writable=True)
        self.tripwires = Tripwires(0, FILES)
        self.signal = ProgressSignal(signal, self.tripwires, np.full(FILES, SIZE), metrics)
        policy = NodePolicy(np.full(FILES, SIZE), np.zeros(FILES, np.uint8), SPLIT, [])
        self.loop = EventLoop(
            ServerRings([Ring(fds[2], writable=False)]), Ring(fds[0], writable=False), policy,
            np.zeros(FILES, np.uint8), metrics, StagerSocket(), Outages(), self.signal,
        )  # fmt: skip
        rows = np.arange(FILES, dtype=np.int64)
        self.follower = Follower([DataSet(0, "train", (FileOrder(("sorted_files",), rows),))], SEED, "distributed")
        self.loop.follow(self.follower)
        self.follower.settle()
        memory = SimpleNamespace(
            server_metrics=ServerMetrics(fds[1]), stager_metrics=MetricBlock(fds[1], writable=False).block,
            metrics=MetricBlock(fds[1], SUPERVISOR, writable=True).block,
        )
        budget = SimpleNamespace(used=lambda pages: {"page_cache": pages, "ram": 5, "disk": 0})
        self.observer = Observer(
            SimpleNamespace(memory=memory, loop=self.loop, signal=self.signal, budget=budget, processes=[],
                            tuning=SimpleNamespace(figures=TuningFigures(None, None, None)),
                            index=SimpleNamespace(n=FILES, n_dirs=0))  # type: ignore[arg-type]
        )  # fmt: skip

    def read(self, epochs: range, each: Callable[[], int]) -> None:
        """Open all files of some epochs; the supervisor looks after `each()` opens."""
        shown, thin = 0, self.signal.refusing
        for epoch in epochs:
            for row in registry.order(Spec("distributed", SEED), FILES, epoch).tolist():
                if not thin or row in self.tripwires:
                    self.counters[Metric.TRIPWIRES if thin else Metric.OPENS] += 1
                    self.counters[Metric.TRIPWIRE_BYTES if thin else Metric.OPENED_BYTES] += SIZE
                    self.ring.put(Event.TRIPWIRE if thin else Event.OPEN, row, 1)
                    shown += 1
                    if shown >= each():
                        shown = 0
                        self.look()
        self.look()
        self.observer.look(last=True)

    def look(self) -> None:
        self.loop.step()
        self.follower.settle()
        self.observer.look()

    def files(self) -> list[tuple[Any, int, str]]:
        return [(one["epoch"], one["files"], one["counts"]) for one in self.observer.epochs.describe()]


@pytest.fixture
def fds() -> Iterator[list[int]]:
    made = [Ring.create("stager"), MetricBlock.create(), Ring.create("server")]
    yield made
    for fd in made:
        os.close(fd)


@pytest.mark.parametrize("most", [1, long(37), 900])
def test_each_epoch_has_its_opens_wherever_the_looks_fall(fds: list[int], most: int) -> None:
    job, chance = Job(fds, "open"), np.random.default_rng(most)
    job.read(range(4), lambda: int(chance.integers(1, most + 1)))
    found = job.files()
    assert [epoch for epoch, _, _ in found] == [0, 1, 2, 3]
    assert sum(files for _, files, _ in found) == 4 * FILES
    assert all(abs(files - FILES) <= 2 for _, files, _ in found), found
    assert {counts for _, _, counts in found} == {"exact"}


@pytest.mark.parametrize("most", [1, 20, 100])
def test_an_estimate_is_at_most_a_twentieth_of_an_epoch_off(fds: list[int], most: int) -> None:
    job, chance = Job(fds, "tripwire"), np.random.default_rng(most)
    job.read(range(4), lambda: int(chance.integers(1, most + 1)))
    found = job.files()
    assert [epoch for epoch, _, _ in found] == [0, 1, 2, 3]
    assert all(abs(files - FILES) <= 0.05 * FILES for _, files, _ in found), found
    assert {counts for _, _, counts in found} == {"estimated"}


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("late", [0, 1, 400])
def test_opens_are_counted_once_however_late_servers_hear_of_a_change(fds: list[int], late: int, back: bool) -> None:
    """After a change of the signal half of `late` opens go by the old one: some servers have heard, others have not.
    `back`: all opens are shown again, and few again after that."""
    job, chance = Job(fds, "auto"), np.random.default_rng(late)
    told, was, goes_by, since = job.loop._metrics, Shown.OPENED, Shown.OPENED, 0
    for epoch in range(8):
        if back and epoch == 5:
            told[Metric.SHOWN] = Shown.ALL  # somebody else reads what no plan explains
        for number, row in enumerate(registry.order(Spec("distributed", SEED), FILES, epoch).tolist()):
            if (now := Shown(told[Metric.SHOWN])) is not goes_by:
                was, goes_by, since = goes_by, now, 0
            heard = goes_by if since >= late or chance.random() < 0.5 else was
            since += 1
            thin = heard is Shown.TRIPWIRES
            if not thin or row in Tripwires(0, FILES, apart=told[Metric.TRIPWIRES_APART]):
                job.counters[Metric.TRIPWIRES if thin else Metric.OPENS] += 1
                job.ring.put(Event.TRIPWIRE if thin else Event.OPEN, row, 1)
            if number % 7 == 0:
                job.look()
    job.look()
    assert goes_by is (Shown.ALL if back else Shown.TRIPWIRES)
    counted = int(job.signal.estimate(ServerMetrics(fds[1]).total())[Metric.OPENS])
    # Which files were opened in the epoch in which all are shown again is not known exactly.
    assert counted == pytest.approx(8 * FILES, abs=0.05 * FILES if back else 2)
    # Of what a server hid after all were to show, nothing says that it was foreseen.
    assert job.signal.predicted == pytest.approx(counted, abs=0.05 * FILES + late * back)


def test_opens_that_wait_since_before_open_was_refused_tell_of_themselves_alone(fds: list[int]) -> None:
    """Or an epoch that begins in that moment would take opens from the one before."""
    job = Job(fds, "tripwire")
    for kind, metric in [(Event.OPEN, Metric.OPENS)] * 20 + [(Event.TRIPWIRE, Metric.TRIPWIRES)] * 5:
        job.counters[metric] += 1
        job.ring.put(kind, 7, 1)
    assert job.observer._begun() == 20 + 5 * job.signal.apart


def test_a_row_of_the_history_has_the_rates_of_its_second(fds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [time.monotonic()]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    job = Job(fds, "open")
    for _ in range(3):
        now[0] += 1.0
        job.counters[Metric.SOURCE_FILES] += 10
        job.counters[Metric.WAIT_NS] += 250_000_000
        job.read(range(1), lambda: 100)
    _, rows = job.observer.history.rows(1, 0.0, 9)
    found = dict(zip(COLUMNS, rows[-1].tolist(), strict=True))
    assert found["opens"] == pytest.approx(FILES)
    assert found["source"] == pytest.approx(10)
    assert found["page_cache"] == pytest.approx(FILES - 10)
    assert found["wait_share"] == pytest.approx(0.25)
    assert found["ram_bytes"] == 5
    assert np.isnan(found["limit"])
    told = MetricBlock(fds[1], SUPERVISOR, writable=False).block[Metric.LEAD_MS]
    lead = job.observer.lead_s
    assert told == (-1 if lead is None else round(1e3 * lead))


def test_all_rows_together_have_what_was_counted_whenever_the_looks_come(
    fds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    job = Job(fds, "open")
    for after in (0.95, 1.0, 0.1, 3.9, 0.06, 1.0):  # a look that is late, and the next which is not
        now[0] += after
        job.counters[Metric.SOURCE_FILES] += 300
        job.observer.look()
    _, rows = job.observer.history.rows(1, 0.0, 99)
    assert rows[:, COLUMNS.index("source")].tolist() == [600, 300, 100, 100, 100, 300, 300]


@in_trio
async def test_history_in_answers() -> None:
    made = [Ring.create("stager"), MetricBlock.create(), Ring.create("server")]
    try:
        job = Job(made, "open")
        answer = await job.observer.describe_history({"step": 10})
        assert (answer["step"], answer["rows"], answer["columns"]) == (10, [], list(COLUMNS))
        since: tuple[Any, ...] = ("x", True, float("nan"), 10**400)
        for wrong in ({"step": 7}, {"step": [1]}, *({"since": one} for one in since)):
            with pytest.raises(ValueError, match=r"step: |since: "):
                await job.observer.describe_history(wrong)
    finally:
        for fd in made:
            os.close(fd)


@in_trio
async def test_a_fault_costs_figures_and_nothing_else(
    fds: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import trio

    monkeypatch.setattr(module, "FAILED_PAUSE_S", 0.01)
    job, failed = Job(fds, "open"), []

    def look() -> None:
        failed.append(1)
        if len(failed) < 3:
            raise RuntimeError("made up")

    monkeypatch.setattr(job.observer, "look", look)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(job.observer.run)
        with trio.fail_after(20):
            while len(failed) < 3:
                job.loop.looked.unpark_all()
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    assert caplog.text.count("are not kept for a while") == 2
