"""Looks at the counters of a mount: when an epoch begins, and once a second. Owns records of epochs and the history.

A look takes some 100 µs. A look is made when the event loop has looked at the rings, so that it wakes nobody. Where the
event loop did not look for a while, the history of that time is filled with its means.
"""

from __future__ import annotations

import logging
import math
import os
import time
from typing import Any

import numpy as np
import trio

from nopfsfs.plan.following.follower_output import PlanStatus
from nopfsfs.policy.reading_lead import ReadingLead
from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.durations import quantile_s
from nopfsfs.supervisor.observing.counts import TIERS, Count, Counts, by_tier, counts, waits
from nopfsfs.supervisor.observing.epoch_records import EpochLabel, EpochRecords, Look
from nopfsfs.supervisor.observing.history import COLUMNS, STEPS, History, Row
from nopfsfs.supervisor.observing.parts import MountParts
from nopfsfs.supervisor.observing.source_expectation import SourceExpectation
from nopfsfs.supervisor.source_tuning import TuningFigures
from nopfsfs.system.outages import Backoff
from nopfsfs.system.proc import Usage, usage

log = logging.getLogger(__name__)
FAILED_PAUSE_S = 1.0  # after the first fault; twice as long after the next
USAGE_EVERY = 10  # rows of the history for which one look at the processes' time counts: it costs as much as all else
LEAD_MOST_S = 1e6  # that the stager gets
LEAD_SHOWN_S = 1e4  # a reader that reads no more has a lead that grows: more is not shown
SINCE_MOST_S = 1e12  # from 1970, either way
ROUNDING_S = 0.01  # a client may ask from the begin of a row on, as it was answered, while the clock is set
ROWS_MOST = 720  # of the history in one answer: to write more numbers would hold the supervisor up


class Observer:
    """Sees one mount, through the parts of its supervisor."""

    def __init__(self, parts: MountParts) -> None:
        self._memory, self._loop, self._signal, self._budget = parts.memory, parts.loop, parts.signal, parts.budget
        self._tuning = parts.tuning
        self._processes, self._files = parts.processes, parts.index.n - parts.index.n_dirs
        self._stager = np.frombuffer(parts.memory.stager_metrics, np.int64)
        self._expected = SourceExpectation(parts.memory.stager_metrics)
        now = time.monotonic()
        first = self._counts()
        self.epochs = EpochRecords(first)
        self.history = History(now)
        self._row_before, self._row_at = first, now
        self._seen = self._loop.observed  # opens that were seen at the last look
        self._first_at, self._last_at = math.inf, now  # when the first since the last count was, and the last
        self._reading = ReadingLead()
        self.lead_s: float | None = None  # of reading that is fetched ahead; None where nobody reads by a plan
        self._cpu, self._cpu_s, self._cpu_at = math.nan, math.nan, now
        self._rows = 0

    async def run(self) -> None:
        """Look whenever there is something to see. Until cancelled; a fault in here costs figures, nothing else."""
        backoff = Backoff(FAILED_PAUSE_S)
        while True:
            await self._loop.looked.park()
            try:
                self.look()
            except Exception:
                log.exception("epochs and history are not kept for a while")
                await trio.sleep(backoff.failed())

    def look(self, *, last: bool = False) -> None:
        """Look, if an epoch has begun or a second is over. `last`: in any case."""
        now, seen = time.monotonic(), self._loop.observed
        due = self.history.due(now) > 0 or last
        if seen == self._seen and not due:
            return
        if seen != self._seen:
            self._seen, self._last_at = seen, now
            self._first_at = min(self._first_at, now)
        status = self._loop.follower.status() if self._loop.follower is not None else PlanStatus("none")
        label = self._label(status)
        same = self.epochs.note(label)
        if same and not due:
            return  # what was opened since the last look is counted at the next
        found, tuner = self._counts(), self.tuner
        look = Look(
            found, now, min(self._first_at, now), max(self._last_at, self._row_at), time.time() - now,
            0.0 if same else self._begun(), self._signal.estimated, tuner.limit, tuner.slowdown,
        )  # fmt: skip
        self.epochs.look(look, label)
        self._first_at = math.inf
        if rows := self.history.due(now):
            self._follow_lead(now)
            self.history.add(now, self._row(found, now, status, rows))
            self._row_before, self._row_at = found, now

    def _counts(self) -> Counts:
        server = self._signal.estimate(self._memory.server_metrics.total())
        return counts(server, self._stager, self._signal.predicted)

    def _label(self, status: PlanStatus) -> EpochLabel:
        follower = self._loop.follower
        locked = status.state == "locked"
        return EpochLabel(
            follower.epoch_key if follower is not None else (), locked, status.length if locked else self._files,
            status.dataset, status.sampler, status.seed, status.epoch,
        )  # fmt: skip

    def _begun(self) -> float:
        """Opens of the present epoch so far: those that the plan has seen, and those that are yet to be looked at."""
        follower, server = self._loop.follower, self._memory.server_metrics.total()
        seen = follower.epoch_opens if follower is not None else 0.0
        waiting = int(server[Metric.OPENS] + server[Metric.TRIPWIRES]) - self._loop.observed
        waiting = max(0, min(waiting, self._loop.pending))
        # Right after OPEN is refused for the first time, opens wait that all showed: each tells of itself alone.
        wires = min(waiting, self._signal.waiting(server))
        return seen + waiting - wires + wires * self._signal.apart

    @property
    def tuner(self) -> TuningFigures:
        """The limit of requests at the source, and the slowdown that the tuner sees, if it decides."""
        return self._tuning.figures

    # ---- rows of the history ------------------------------------------------------------------------------

    def _follow_lead(self, now: float) -> None:
        """Find the lead, and write it down for the stager: -1 where it is not known."""
        follower, lead = self._loop.follower, None
        if follower is not None:
            ahead = self._loop.policy.fetches.ahead_of(follower.position)
            lead = self._reading.observe(now, follower.generation, follower.position, ahead)
        self._memory.metrics[Metric.LEAD_MS] = -1 if lead is None else round(1e3 * min(lead, LEAD_MOST_S))
        self.lead_s = lead if lead is not None and lead < LEAD_SHOWN_S else None

    def _row(self, found: Counts, now: float, status: PlanStatus, rows: int) -> Row:
        """Each of the `rows` that end now, f4[len(COLUMNS)]. A row has an equal part of what was done since the last
        row, so that all rows together have all that was done. A row also has figures of now."""
        done, seconds = found - self._row_before, max(1e-3, now - self._row_at)
        waited, used = waits(done), self._budget.used(self._loop.policy.pages_used)
        tiers, tuner = by_tier(done), self.tuner
        rates = {tier: tiers[tier] for tier in TIERS} | {
            "opens": done[Count.OPENS], "bytes": done[Count.BYTES], "predicted": done[Count.PREDICTED],
            "wait_share": done[Count.WAIT_NS] / 1e9, "source_reads": done[Count.SOURCE_READS],
            "source_bytes": done[Count.SOURCE_BYTES], "errors": done[Count.READ_ERRORS] + done[Count.SOURCE_ERRORS],
        }  # fmt: skip
        moment = {
            "wait_p50": quantile_s(waited, 0.5), "wait_p99": quantile_s(waited, 0.99),
            "fetches_in_flight": self._loop.policy.fetches.under_way, "limit": tuner.limit,
            "slowdown": tuner.slowdown, "slots_waited": self._expected.observe(seconds),
            "source_expected": self._expected.at(tuner.limit), "source_cap": tuner.bandwidth, "lead": self.lead_s,
            "ram_bytes": used["ram"], "page_cache_bytes": used["page_cache"], "disk_bytes": used["disk"],
            "epoch": status.epoch if status.state == "locked" else None,
            "position": status.position / status.length if status.length else None, "cpu": self._cpu_now(now),
        }  # fmt: skip
        known = {name: rate / rows for name, rate in rates.items()} | moment
        return np.array([math.nan if known[name] is None else known[name] for name in COLUMNS], np.float32)

    def _cpu_now(self, now: float) -> float:
        """Processors that the mount's processes take, as of the last look at them."""
        if self._rows % USAGE_EVERY == 0:
            taken = sum(used.cpu_seconds for _, used, _ in self.processes())
            self._cpu = max(0.0, taken - self._cpu_s) / max(1e-3, now - self._cpu_at)
            self._cpu_s, self._cpu_at = taken, now
        self._rows += 1
        return self._cpu

    def processes(self) -> list[tuple[str, Usage, int]]:
        """(role, resources, processes that took the place of another) of each process that lives: supervisor, server,
        stager."""
        found = [("supervisor", usage(os.getpid()), 0)]
        for process in self._processes:
            child = process.living
            if child is not None:
                found.append((child.role.partition("-")[0], usage(child.pid), process.restarts))
        return [(role, used, restarts) for role, used, restarts in found if used is not None]

    # ---- answers ------------------------------------------------------------------------------------------

    async def describe_history(self, request: dict[str, Any]) -> dict[str, Any]:
        """Rows of the history: `step` 1, 10 or 60 s, `since` seconds since 1970, at most ROWS_MOST, oldest first.
        Raises ValueError."""
        step, since, now = request.get("step", 1), request.get("since", 0), time.time() - time.monotonic()
        if not isinstance(step, int | float) or step not in STEPS:
            raise ValueError("step: 1, 10 or 60 is expected")
        if isinstance(since, bool) or not isinstance(since, int | float) or not abs(since) < SINCE_MOST_S:
            raise ValueError("since: a number of seconds since 1970 is expected")
        return await self._described(int(step), float(since) - now - ROUNDING_S, ROWS_MOST, now)

    async def whole_history(self) -> list[dict[str, Any]]:
        """All rows of each step, for the final report."""
        now = time.time() - time.monotonic()
        return [await self._described(step, 0.0, count, now) for step, count in STEPS.items()]

    async def _described(self, step: int, since: float, most: int, offset: float) -> dict[str, Any]:
        begin, rows = self.history.rows(step, since, most)
        numbers = []
        for at, row in enumerate(rows.tolist()):
            numbers.append([None if math.isnan(value) else float(f"{value:.6g}") for value in row])
            if at % 100 == 99:
                await trio.lowlevel.checkpoint()  # the rings are to be looked at meanwhile
        return {
            "step": step, "begin": round(begin + offset, 3), "most": most, "columns": list(COLUMNS), "rows": numbers,
        }  # fmt: skip
