"""What makes the slow source slow: latency, bandwidth, a limit of concurrent requests, or a curve; faults, counters.

Owns no FUSE: `slow_source_fs` calls it around each request. Everything here runs on one trio thread and has
to be cheap, because the machine that runs the source also runs what is measured.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import trio
from slow_source_clock import Timer

if TYPE_CHECKING:
    from slow_source_sharing import Sharing

BIN_S, BINS_MOST = 0.1, 36_000  # of the series of requests under way: the last hour
OPERATIONS = ("open", "read", "lookup", "getattr", "readdir")

_DURATION = re.compile(r"([0-9.]+)\s*(us|ms|s)?")
_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, None: 1.0}
_RATE = re.compile(r"([0-9.]+)\s*([kmgKMG]?)(i?)B?(?:/s)?")
_RATE_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}


def parse_duration(text: str) -> float:
    """Seconds from "5ms", "200us", "1s" or "0.5". Raises ValueError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a duration: {text!r} (like 5ms)")
    return float(match[1]) * _DURATION_UNITS[match[2]]


def parse_rate(text: str) -> float:
    """Bytes per second from "400MB/s", "1GiB/s" or "4000000". Raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a bandwidth: {text!r} (like 400MB/s)")
    return float(match[1]) * float((1024 if match[3] else 1000) ** _RATE_POWERS[match[2].lower()])


@dataclass(frozen=True)
class Curve:
    """Throughput of a source that all reads under way share equally, whatever their size.

    With n of them it ends `((n / seconds)^-bend + most^-bend)^(-1 / bend)` a second, and from `falls_from` on less (0:
    never): half of that at `falls_from + halves_after`. `seconds`: of a read at the idle source. A `bend` of 1 has no
    knee, one of 4 a sharp knee at `seconds * most`. noise: 1: log-normal work (sigma 0.6), of which 1 % takes 8 times
    as long, at a speed that wanders by 8 %; 0: none. seed: of what is random.
    """

    seconds: float
    most: float
    bend: float = 4.0
    falls_from: float = 0.0
    halves_after: float = 0.0
    noise: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.seconds, self.most, self.bend) <= 0:
            raise ValueError("seconds, most and bend of a curve are above 0")
        if min(self.falls_from, self.halves_after, self.noise) < 0 or (self.falls_from > 0) != (self.halves_after > 0):
            raise ValueError("a curve that falls has both falls_from and halves_after, and nothing is below 0")


@dataclass(frozen=True)
class Change:
    """The state of a source with a curve from some time on, in full: what is not said is as usual.

    at: seconds after the schedule was given. bandwidth: the part of `most` that is left. slower: how many times longer
    everything takes. stalled: nothing ends. background: reads of others that are always under way. errno: with which
    reads fail when they end (0: they do not).
    """

    at: float = 0.0
    bandwidth: float = 1.0
    slower: float = 1.0
    stalled: bool = False
    background: int = 0
    errno: int = 0

    def __post_init__(self) -> None:
        if min(self.bandwidth, self.slower) <= 0 or min(self.at, self.background, self.errno) < 0:
            raise ValueError("bandwidth and slower of a change are above 0, and nothing is below 0")


def parse_change(text: str) -> Change:
    """The change "10s: bandwidth=0.33 background=20", "20s: stalled", "30s: errno=EIO" or "40s:". Raises ValueError."""
    at, colon, words = text.partition(":")
    fields: dict[str, Any] = {}
    for word in words.split():
        name, _, value = word.partition("=")
        if name not in _CHANGES or bool(value) == (name == "stalled"):
            raise ValueError(f"not a change: {word!r} (like bandwidth=0.33 slower=3 background=20 stalled errno=EIO)")
        fields[name] = _CHANGES[name](value)
    if not colon:
        raise ValueError(f"no time of a change: {text!r} (like 10s: bandwidth=0.33)")
    return Change(parse_duration(at), **fields)


def _parse_errno(text: str) -> int:
    return int(getattr(errno, text.upper(), None) or text)


_CHANGES: Mapping[str, Callable[[str], Any]] = {
    "bandwidth": float, "slower": float, "background": int, "errno": _parse_errno, "stalled": lambda _: True,
}  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """How slow the source is; times in seconds, bandwidth in bytes per second (0: no limit). A `curve` takes the place
    of read latency, bandwidth and `concurrent`."""

    open_latency: float = 0.0
    read_latency: float = 0.0
    bandwidth: float = 0.0
    concurrent: int = 64
    curve: Curve | None = None

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Limits:
        """Limits of the fields of `dataclasses.asdict`."""
        curve = fields.get("curve")
        return cls(**{**fields, "curve": Curve(**curve) if curve is not None else None})


class UnderWay:
    """Requests under way over time. Holds their integral, their peak, and a series: for each `BIN_S` since the reset
    the mean of those under way, and the reads that ended well; of the last `BINS_MOST`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Begin anew; what is under way stays so."""
        self.peak = self.count
        self._series: deque[tuple[float, int]] = deque(maxlen=BINS_MOST)
        self._seconds = 0.0  # the integral until `_at`
        self._at = self._clock()
        self._bin_end = self._at + BIN_S
        self._bin_seconds, self._bin_reads = 0.0, 0

    def begin(self) -> None:
        self._pass(self._clock())
        self.count += 1
        self.peak = max(self.peak, self.count)

    def end(self, at: float | None = None, *, read: bool = False) -> None:
        """End a request, now or at an earlier time than now; `read`: it was a read, and ended well."""
        self._pass(self._clock() if at is None else max(at, self._at))
        self.count -= 1
        self._bin_reads += read

    def record(self, series: bool) -> dict[str, Any]:
        """The counters by name; with `series` also [[mean under way, reads ended], ...] of the bins that have ended."""
        self._pass(self._clock())
        state = {"in_flight": self.count, "peak": self.peak, "under_way_seconds": self._seconds}
        return {**state, "series": list(self._series)} if series else state

    def _pass(self, now: float) -> None:
        """Count the time since the last call, in which nothing changed."""
        while now >= self._bin_end:
            self._add(self._bin_end)
            self._series.append((self._bin_seconds / BIN_S, self._bin_reads))
            self._bin_end += BIN_S
            self._bin_seconds, self._bin_reads = 0.0, 0
        self._add(now)

    def _add(self, until: float) -> None:
        passed = (until - self._at) * self.count
        self._seconds += passed
        self._bin_seconds += passed
        self._at = until


class Load:
    """Delays requests. With a curve all reads are served at once and share it. Without one so many at a time have a
    place, each with its latency, and all share one line."""

    def __init__(self, limits: Limits, timer: Timer) -> None:
        self.limits = replace(limits, curve=None)
        self.under_way = UnderWay()
        self._timer = timer
        self._line_free = 0.0  # when the shared line has sent all that was promised
        self._taken = 0  # places
        self._waiting = trio.lowlevel.ParkingLot()
        self._sharing: Sharing | None = None
        self._has_shared = trio.Event()
        self.set_limits(limits)

    async def run(self) -> None:
        """End what is due, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._timer.run)
            await self._has_shared.wait()
            assert self._sharing is not None
            nursery.start_soon(self._sharing.run)

    def set_limits(self, limits: Limits) -> None:
        """Be as slow as this for the requests that arrive from now on. A curve, also the same again, begins anew."""
        if limits.curve is not None:
            if self._sharing is None:
                from slow_source_sharing import Sharing  # a source without a curve starts faster without numpy

                self._sharing = Sharing(limits.curve, self.under_way)
                self._has_shared.set()
            else:
                self._sharing.set_curve(limits.curve)
        self.limits = limits

    def schedule(self, changes: Sequence[Change]) -> None:
        """Change the source at these times from now, instead of what was scheduled. Raises ValueError."""
        if self._sharing is None or self.limits.curve is None:
            raise ValueError("only a source with a curve has a schedule")
        self._sharing.schedule(changes)

    def record(self, series: bool) -> dict[str, Any]:
        """The counters of what was under way (`UnderWay.record`)."""
        if self._sharing is not None:
            self._sharing.catch_up()
        return self.under_way.record(series)

    async def open(self) -> None:
        """Wait as long as an open takes."""
        await self._enter()
        try:
            if self.limits.open_latency:
                await self._timer.sleep_until(time.monotonic() + self.limits.open_latency)
        finally:
            self._leave()

    async def read(self, size: int) -> None:
        """Wait as long as reading `size` bytes takes. Raises OSError if a schedule says so."""
        if self.limits.curve is not None and self._sharing is not None:
            await self._sharing.read()
            return
        await self._enter()
        well = False
        try:
            await self._use_line(size)
            well = True
        finally:
            self._leave(read=well)

    async def _use_line(self, size: int) -> None:
        """Wait for latency and line. The line serves in order of arrival; all latencies are equal, so no answer has to
        overtake another."""
        limits = self.limits
        now = time.monotonic()
        due = now + limits.read_latency
        if limits.bandwidth:
            due = self._line_free = max(due, self._line_free) + size / limits.bandwidth
        if due > now:
            await self._timer.sleep_until(due)

    async def _enter(self) -> None:
        """Take one of the `concurrent` places, which `_leave` gives back; with a curve there is one for all."""
        if self.limits.curve is None and self._taken >= self.limits.concurrent:
            await self._waiting.park()  # the place is handed over
        else:
            self._taken += 1
        self.under_way.begin()

    def _leave(self, *, read: bool = False) -> None:
        self.under_way.end(read=read)
        if self._waiting:
            self._waiting.unpark()
        else:
            self._taken -= 1


@dataclass
class Fault:
    """What happens to the next `count` requests (None: all) of an operation on matching paths.

    With an errno they fail; without one they wait until released.
    """

    operation: str
    pattern: str
    errno: int | None
    count: int | None
    released: trio.Event = field(default_factory=trio.Event)

    def take(self, operation: str, path: str) -> bool:
        """Whether this request is struck; uses up one of `count`."""
        if self.count == 0 or self.operation not in (operation, "any"):
            return False
        if not fnmatch.fnmatchcase(path, self.pattern):
            return False
        if self.count is not None:
            self.count -= 1
        return True


class Faults:
    """The faults that tests ordered."""

    def __init__(self) -> None:
        self.stalled = 0
        self._faults: list[Fault] = []

    def __bool__(self) -> bool:
        return bool(self._faults)

    def add(self, fault: Fault) -> None:
        if fault.operation not in (*OPERATIONS, "any"):
            raise ValueError(f"no such operation: {fault.operation}")
        self._faults.append(fault)

    def release(self) -> None:
        """End all faults; stalled requests go on."""
        for fault in self._faults:
            fault.released.set()
        self._faults.clear()

    async def strike(self, operation: str, path: str) -> None:
        """Raise OSError, wait, or do nothing, as ordered for this request."""
        for fault in self._faults:
            if fault.take(operation, path):
                if fault.errno is not None:
                    raise OSError(fault.errno, os.strerror(fault.errno))
                self.stalled += 1
                try:
                    await fault.released.wait()
                finally:
                    self.stalled -= 1
                return


class Counters:
    """Requests that arrived (failed ones too) and bytes that were answered, in total and per path."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.opens: defaultdict[str, int] = defaultdict(int)
        self.reads: defaultdict[str, int] = defaultdict(int)
        self.bytes: defaultdict[str, int] = defaultdict(int)
        self.looks: defaultdict[str, int] = defaultdict(int)  # at attributes: lookups, getattrs
        self.listings: defaultdict[str, int] = defaultdict(int)  # of directories

    def record(self, per_file: bool) -> dict[str, Any]:
        """Totals, and with `per_file` also {path: [opens, reads, bytes]}, and looks and listings by path."""
        totals: dict[str, Any] = {
            "opens": sum(self.opens.values()),
            "reads": sum(self.reads.values()),
            "bytes": sum(self.bytes.values()),
        }
        if per_file:
            paths = self.opens.keys() | self.reads.keys()
            totals["files"] = {p: [self.opens.get(p, 0), self.reads.get(p, 0), self.bytes.get(p, 0)] for p in paths}
            totals |= {"looks": dict(self.looks), "listings": dict(self.listings)}
        return totals
