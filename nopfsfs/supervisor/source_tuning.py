"""The supervisor's part of the tuner: metrics of the stager in, limits for the stager out (docs/tuner.md).

One task. It sleeps while nothing is under way at the source, and is woken by the next command to fetch. The tuner's
clock stands still meanwhile: time in which nothing is read says nothing of the source. A fault in here leaves the
limit as it is.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import trio

from nopfsfs.config import MountConfig
from nopfsfs.policy.limit_policy import TICK_SECONDS, LimitDecision, Reason, SourceSample
from nopfsfs.policy.reading_lead import ReadingLead
from nopfsfs.policy.site_rules import SiteLimits
from nopfsfs.policy.tuner import CAP, SlowdownTuner
from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.source_metrics import SIZE_NAMES, read_ended
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.supervisor.cluster.placement_agreement import PlacementAgreement
from nopfsfs.supervisor.cluster.shared_base import SharedBase
from nopfsfs.supervisor.event_loop import EventLoop
from nopfsfs.supervisor.mount_memory import MountMemory
from nopfsfs.supervisor.source_caps import AUTO, SourceCaps, TuneRequest
from nopfsfs.supervisor.source_memory import SourceMemoryFile
from nopfsfs.supervisor.stager_socket import StagerSocket
from nopfsfs.system import clock_state
from nopfsfs.system.outages import Backoff, Outages, reason

log = logging.getLogger(__name__)
IDLE_S = 1.0  # between looks at whether demands are under way, or a stager has another limit than the mount
SILENT_S, SILENT_PAUSE_S = 10.0, 1.0  # where nothing has ended for so long, looks are so far apart
BUSY_S = 0.002  # until the next look at sums that are being changed
CLOCK_S = 10.0  # between looks at the state of the wall clock
KEEP_S = 60.0  # between writes of what is known of the source
DECISIONS = 64  # the last ones are kept
DRAINS = 1440  # the same, of the times of drains: those of a day
FAILED_PAUSE_S = 1.0  # after the first fault; twice as long after the next
SOUND_S = 5.0  # without a fault, after which it is said to work
WHAT = "tuner"


class Clocks(NamedTuple):
    """Seconds of a clock that only runs forward and of the wall clock, and whether the latter is disciplined."""

    now: Callable[[], float] = trio.current_time
    wall: Callable[[], float] = time.time
    disciplined: Callable[[], bool] = clock_state.disciplined


class TuningFigures(NamedTuple):
    """Requests that may be under way at once; how much longer they take than at an idle source; bytes a second at most.
    None: not known, or no bound."""

    limit: float | None
    slowdown: float | None
    bandwidth: float | None


class SourceTuning:
    """Decides how many requests the stager may have under way at the source, and says why.

    `metrics`: the stager's block; `own`: the supervisor's, where a limit that a command asked for outlives the
    supervisor. `follow(limit)` is called with each limit; `lead()` returns the seconds of reading that are staged.
    """

    def __init__(
        self, config: MountConfig, metrics: memoryview, own: memoryview, stager: StagerSocket, outages: Outages, *,
        follow: Callable[[int], None], lead: Callable[[], float | None] = lambda: None, clocks: Clocks | None = None,
        shared: SharedBase | None = None,
    ) -> None:  # fmt: skip
        self._config, self._metrics, self._own, self._stager, self._outages = config, metrics, own, stager, outages
        self._follow, self._lead, self._shared = follow, lead, shared
        self._clocks = clocks or Clocks()
        self._file = SourceMemoryFile(config)
        self._tuner: SlowdownTuner | None = None
        self._sent = 0
        self._idle = 0.0  # seconds for which the tuner's clock stood still
        self._step, self._step_at = 0, 0.0  # of the sums, when they were last seen to change
        self._disciplined, self._clock_at = False, float("-inf")
        self._drains: deque[float] = deque(maxlen=DRAINS)
        self._last: LimitDecision | None = None
        self._lead_now: float | None = None
        self._decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS)
        self._counted = dict.fromkeys(Reason, 0)
        self._caps = SourceCaps(config, own, bound=os.geteuid() != 0)  # only root may take more than the site's limits
        self._asked = trio.Event()  # replaced when a command asks for another limit

    @classmethod
    def of(
        cls, config: MountConfig, memory: MountMemory, stager: StagerSocket, outages: Outages, loop: EventLoop,
        job: PlacementAgreement | None,
    ) -> SourceTuning:  # fmt: skip
        """The tuning of a mount, with its event loop; `job`: what agrees with the other nodes."""
        return cls(
            config, memory.stager_metrics, memory.metrics, stager, outages, follow=loop.policy.fetches.set_source_limit,
            lead=partial(staged_lead, loop, ReadingLead()), shared=job.source if job is not None else None,
        )  # fmt: skip

    # ---- the task -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tune until cancelled. A fault costs the mount its tuner for a while, and the limit stays."""
        backoff = Backoff(FAILED_PAUSE_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep)
            while True:
                began = trio.current_time()
                try:
                    await self._begin()
                    while True:
                        await self._turn()
                        if backoff.failures and trio.current_time() - began > SOUND_S:
                            backoff.succeeded()
                            self._outages.ended(WHAT)
                except Exception as e:
                    log.exception("the tuner fails; the limit of requests at the source stays for a while")
                    self._outages.began(WHAT, f"failed: {reason(e)}")
                    await trio.sleep(backoff.failed())

    async def remember(self) -> None:
        """Keep what is known of the source for the next mount."""
        if self._tuner is not None:
            await self._file.write(self._tuner.memory)

    async def _keep(self) -> None:
        while True:
            await trio.sleep(KEEP_S)
            await self.remember()

    async def _begin(self) -> None:
        memory = await self._file.read()
        first = self._metrics[Metric.SOURCE_LIMIT] or self._config.first_limit
        self._last, self._step_at = None, self._clocks.now()
        self._tuner = SlowdownTuner(memory, first=first)
        self._keep_to_caps(self._tuner)

    async def _turn(self) -> None:
        """Decide once, or pause until there is something to decide."""
        fixed = self.fixed
        if fixed is not None:
            await self._send(fixed)
            await self._pause(IDLE_S)
        elif (self._stager.attached and self._active()) or await self._woken():
            if (sample := self._sample()) is None:
                await self._pause(BUSY_S)
            else:
                await self._decide(sample)

    async def _decide(self, sample: SourceSample) -> None:
        tuner = self._tuner
        assert tuner is not None
        decision = tuner.step(sample)
        self._agree(tuner, decision)
        self._counted[decision.reason] += 1
        self._note(decision, sample)
        self._last = decision
        await self._send(decision.limit, mark=decision.mark)
        silent = self._clocks.now() - self._step_at > SILENT_S  # what is under way hangs
        await self._pause(max(decision.wait, SILENT_PAUSE_S) if silent else decision.wait)

    def _agree(self, tuner: SlowdownTuner, decision: LimitDecision) -> None:
        """Tell the job's other nodes what a drain has shown; go by what they have agreed upon."""
        if self._shared is not None:
            if self._last is not None and self._last.reason is Reason.DRAIN is not decision.reason:
                self._shared.share(tuner.base.found_here)
            self._shared.update(tuner)

    async def _woken(self) -> bool:
        """Wait until something is ordered, or for `IDLE_S`; True when something is. The tuner's clock stands still, but
        in a drain, which others hold as well."""
        if self._last is not None and self._last.reason is Reason.DRAIN:
            await trio.sleep(TICK_SECONDS)
            return True
        began, woken = self._clocks.now(), False
        with trio.move_on_after(IDLE_S):
            await self._stager.fetch_sent()
            woken = True
        self._step_at = self._clocks.now()
        self._idle += self._step_at - began
        return woken

    def _active(self) -> bool:
        """True while requests are under way, or have ended since the last look."""
        step = self._metrics[Metric.ENDED_STEP]
        if step != self._step:
            self._step, self._step_at = step, self._clocks.now()
            return True
        return bool(self._metrics[Metric.UNDER_WAY])

    def _sample(self) -> SourceSample | None:
        """The metrics now; None while they are being changed."""
        sums = read_ended(self._metrics)
        if sums is None:
            return None
        now, metrics = self._clocks.now(), self._metrics
        if now - self._clock_at >= CLOCK_S:
            self._clock_at, self._disciplined = now, self._clocks.disciplined()
        self._lead_now = self._lead()
        return SourceSample(
            now - self._idle, self._clocks.wall(), sums.ended, sums.log2_ns, sums.young_ended, sums.young_log2_ns,
            metrics[Metric.UNDER_WAY_NS] / 1e9, metrics[Metric.SLOTS_WAITED_NS] / 1e9, metrics[Metric.UNDER_WAY],
            metrics[Metric.SOURCE_ERRORS], self._lead_now, self._disciplined,
        )  # fmt: skip

    async def _send(self, limit: int, *, mark: bool = False) -> None:
        """Let the stager have that limit and the bandwidth, unless it has. A stager that died may have missed the last
        ones."""
        bandwidth = self._caps.bandwidth
        has = self._metrics[Metric.SOURCE_LIMIT] == limit == self._sent
        if not self._stager.attached or (has and not mark and self._metrics[Metric.SOURCE_BANDWIDTH] == bandwidth):
            return
        if limit != self._sent:
            self._follow(limit)
        self._sent = limit
        await self._stager.command(StagerCommand.LIMITS, np.array([int(mark), bandwidth], np.int64), limit)

    async def _pause(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._asked.wait()

    def _wake(self) -> None:
        """End the pause of the task: what it is to keep to has changed."""
        self._asked.set()
        self._asked = trio.Event()

    # ---- what commands ask for ----------------------------------------------------------------------------

    @property
    def fixed(self) -> int | None:
        """The limit that a user stated; None where the tuner decides."""
        return self._caps.fixed

    def follow_site(self, site: SiteLimits) -> None:
        """Keep to these limits of the site from now on."""
        self._caps.site = site
        if self._tuner is not None:
            self._keep_to_caps(self._tuner)
        self._wake()

    def _keep_to_caps(self, tuner: SlowdownTuner) -> None:
        site, nodes = self._caps.site, max(1, self._config.job_nodes)
        tuner.cap, tuner.weight, tuner.ranks = min(CAP, site.concurrency), self._caps.weight, site.share.ranks(nodes)

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out `tune`, and report: keep a limit, let the tuner decide, or change nothing. Raises ValueError; then
        nothing has changed."""
        asked = TuneRequest.parse(request)
        limit = asked.limit
        if limit is None and asked.hold:
            limit = self._metrics[Metric.SOURCE_LIMIT] if self.fixed is None else self.fixed
        if limit is not None:
            self._own[Metric.LIMIT_ASKED] = limit
            log.info("requests at the source: %s, as a command asks", "tuned" if limit == AUTO else f"{limit} at most")
        if asked.bandwidth is not None:
            self._own[Metric.BANDWIDTH_ASKED] = asked.bandwidth
            most = self._caps.bandwidth or "as many as there are"
            log.info("bytes a second from the source: %s, as a command asks", most)
        if asked.weight is not None:
            self._own[Metric.WEIGHT_ASKED] = asked.weight
            log.info("the weight at the source: %g, as a command asks", self._caps.weight)
            if self._tuner is not None:
                self._keep_to_caps(self._tuner)
        if limit is not None or asked.bandwidth is not None:
            self._wake()
            await self._send(self.fixed or self._sent or self._metrics[Metric.SOURCE_LIMIT])
        return self.report()

    # ---- what it says -------------------------------------------------------------------------------------

    def _note(self, decision: LimitDecision, sample: SourceSample) -> None:
        """Keep a decision that changes something."""
        last, tuner = self._last, self._tuner
        assert tuner is not None
        if last is not None and last.limit == decision.limit:
            return
        if decision.reason is Reason.DRAIN and (last is None or last.reason is not Reason.DRAIN):
            self._drains.append(round(sample.clock, 3))
        self._decisions.append(
            {
                "time": round(sample.clock, 3), "limit": decision.limit, "reason": decision.reason.value,
                "slowdown": round(tuner.slowdown, 3), "under_way": sample.under_way,
            }
        )  # fmt: skip

    @property
    def drains(self) -> list[float]:
        """The last times at which the tuner held back to see what idle is, seconds since 1970."""
        return list(self._drains)

    @property
    def figures(self) -> TuningFigures:
        """The figures now."""
        tuner = self._tuner if self.fixed is None else None
        limit = self.fixed or self._metrics[Metric.SOURCE_LIMIT]  # the stager has one that was asked for a moment later
        slowdown = None if tuner is None else round(tuner.slowdown, 3)
        return TuningFigures(limit or None, slowdown, self._caps.bandwidth or None)

    def counted(self) -> dict[str, Any]:
        """The part `tuner` of the figures of a mount; seconds."""
        tuner = self._tuner if self.fixed is None else None
        base = tuner.memory.log2_ns if tuner is not None else ()
        return {
            **self.figures._asdict(),
            "under_way": self._metrics[Metric.UNDER_WAY],
            "aim": round(tuner.aim, 3) if tuner is not None else None,
            "base_seconds": {name: _seconds(one) for name, one in zip(SIZE_NAMES, base, strict=False)},
            "decisions": {reason.value: count for reason, count in self._counted.items()},
        }

    def status(self) -> dict[str, Any]:
        """The part `tuning` of the record."""
        metrics, fixed, figures = self._metrics, self.fixed, self.figures
        return {
            "mode": "auto" if fixed is None else "fixed",
            "asked": bool(self._own[Metric.LIMIT_ASKED]),
            "limit": figures.limit or 0,
            "bandwidth": self._caps.bandwidth or None,
            "bandwidth_by": by.value if (by := self._caps.bandwidth_by) is not None else None,
            "under_way": metrics[Metric.UNDER_WAY],
            "demands": metrics[Metric.DEMANDS_UNDER_WAY],
            "slowdown": figures.slowdown,
            "reason": self._decisions[-1]["reason"] if fixed is None and self._decisions else None,
        }

    def report(self) -> dict[str, Any]:
        """The record of `nopfs tune`: status, metrics, the tuner's state, the last decisions. Times are seconds; lists
        are by size class."""
        metrics, tuner = self._metrics, self._tuner
        sums = read_ended(metrics)
        memory = tuner.memory if tuner is not None else None
        return {
            **self.status(),
            "ended": list(sums.ended) if sums is not None else None,
            "mean_seconds": _means(sums.ended, sums.log2_ns) if sums is not None else None,
            "errors": metrics[Metric.SOURCE_ERRORS],
            "under_way_seconds": metrics[Metric.UNDER_WAY_NS] / 1e9,
            "waited_seconds": metrics[Metric.SLOTS_WAITED_NS] / 1e9,
            "weight": self._caps.weight,
            "aim": round(tuner.aim, 3) if tuner is not None else None,
            "base_seconds": [_seconds(one) for one in memory.log2_ns] if memory is not None else None,
            "evidence": list(memory.evidence) if memory is not None else None,
            "knee": tuner.base.knee if tuner is not None and tuner.memory.knees else None,
            "lead_seconds": self._lead_now,
            "disciplined": self._disciplined,
            "decisions": list(self._decisions),
            "drains": self.drains,
        }


def staged_lead(loop: EventLoop, lead: ReadingLead) -> float | None:
    """Seconds of reading that are staged ahead, while the plan has held for a while; else None."""
    follower = loop.follower
    if follower is None or not follower.steady:
        return None
    ahead = loop.policy.fetches.ahead_of(follower.position)
    return lead.observe(trio.current_time(), follower.generation, follower.position, ahead)


def _means(ended: tuple[int, ...], log2_ns: tuple[float, ...]) -> list[float | None]:
    return [_seconds(total / count) if count else None for count, total in zip(ended, log2_ns, strict=True)]


def _seconds(log2_ns: float | None) -> float | None:
    return None if log2_ns is None else float(2.0**log2_ns * 1e-9)
