"""The model's figures of a source and a storage class, fitted to measured times. Pure. Bytes, seconds.

A file that is read alone takes `latency + size / stream`. Files that are read at once share the source's bandwidth and
overlap their latencies. That holds until as many are under way as the source, or this node, works on at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nopfsfs.performance.model import Curve, Floats

REACHES = 0.95  # of the best rate: more files at once than this needs are not worth it
FEWEST = 8  # readings that a line is drawn through
KNOWN = 5.0  # a latency counts as told apart from the bytes when it is this many times its own standard error
BYTES_MATTER = 2.0  # bytes limit a rate where files without their bytes come so many times as often
_ROUNDS = 12  # of reweighting; the line has settled after about five
_HUBER = 1.345  # robust standard deviations beyond which a reading loses weight (Huber 1964)
_ROBUST = 1.4826  # a normal distribution's standard deviation over its median absolute deviation
_LEAST_MODEL = 0.05  # of the median time; a shorter predicted time counts as this, else one reading would outweigh all


@dataclass(frozen=True, slots=True)
class Readings:
    """Reads by several threads, n in all. Fields, f64[n] each: begin, end, bytes, share of the file that was read (1:
    the whole), and number of the thread."""

    begin: Floats
    end: Floats
    size: Floats
    share: Floats
    thread: Floats


@dataclass(frozen=True, slots=True)
class Level:
    """Files and bytes per second with `at_once` files under way."""

    at_once: int
    files: float
    bytes: float


@dataclass(frozen=True, slots=True)
class LineFit:
    """The line time = latency + size * per_byte; `error` is the standard error of the latency."""

    latency: float
    per_byte: float
    error: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds for each file beside its bytes. `stream`: bytes per second of one file alone, infinite where that is not
    known. `fitted`: True when fitted to times against sizes, with standard error `error`; else the time until a file's
    first byte."""

    seconds: float
    stream: float
    fitted: bool
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second. `least`: the rate is a lower bound, because something else was the limit."""

    rate: float
    least: bool


def throughput(readings: Readings, at_once: int) -> Level:
    """Files and bytes per second while all threads were reading, or over the whole time if that was less than half of
    it. Reads that were under way at the borders count for the part within.

    Raises ValueError without readings."""
    threads = np.unique(readings.thread)
    begin = max(float(readings.begin[readings.thread == one].min()) for one in threads)
    end = min(float(readings.end[readings.thread == one].max()) for one in threads)
    first, last = float(readings.begin.min()), float(readings.end.max())
    if end - begin < (last - first) / 2:
        begin, end = first, last
    within = np.minimum(readings.end, end) - np.maximum(readings.begin, begin)
    lasted = np.maximum(readings.end - readings.begin, 1e-9)  # the clock's own step
    part = np.clip(within / lasted, 0.0, 1.0)
    seconds = max(end - begin, 1e-9)
    files, size = float(part @ readings.share), float(part @ readings.size)
    return Level(at_once, files / seconds, size / seconds)


def draw_line(sizes: Floats, seconds: Floats) -> LineFit | None:
    """The line through times against sizes, f64[n]: least squares of relative errors, in which readings that lie far
    off count for less (Huber's weights). Neither number is below 0. None: too few readings, or all of one size."""
    if len(sizes) < FEWEST or float(np.ptp(sizes)) == 0.0:
        return None
    unit = float(np.mean(sizes))
    x = np.asarray(sizes, np.float64) / unit
    least = _LEAST_MODEL * float(np.median(seconds)) + 1e-12
    weights = np.ones(len(x))
    a = b = 0.0
    for _ in range(_ROUNDS):
        a, b = _solve(x, seconds, weights)
        model = np.maximum(a + b * x, least)
        off = np.abs(seconds - a - b * x) / model
        spread = _ROBUST * float(np.median(off))
        robust = np.minimum(1.0, _HUBER * spread / np.maximum(off, 1e-300)) if spread > 0 else np.ones(len(x))
        weights = robust / model**2
    return LineFit(a, b / unit, _error(x, seconds - a - b * x, weights))


def _solve(x: Floats, y: Floats, weights: Floats) -> tuple[float, float]:
    """Weighted least squares of y = a + b x with a, b >= 0."""
    total, wx, wy = float(weights.sum()), float(weights @ x), float(weights @ y)
    wxx, wxy = float(weights @ (x * x)), float(weights @ (x * y))
    width = total * wxx - wx * wx
    b = (total * wxy - wx * wy) / width if width > 0 else -1.0
    if b < 0:
        return wy / total, 0.0
    a = (wy - b * wx) / total
    return (a, b) if a >= 0 else (0.0, wxy / wxx)


def _error(x: Floats, off: Floats, weights: Floats) -> float:
    total, wx, wxx = float(weights.sum()), float(weights @ x), float(weights @ (x * x))
    width = total * wxx - wx * wx
    if width <= 1e-12 * total * wxx:
        return math.inf
    variance = float(weights @ (off * off)) / (len(x) - 2)
    return math.sqrt(variance * wxx / width)


def latency_of(sizes: Floats, seconds: Floats, first_bytes: Floats) -> Latency:
    """The latency of a source. `sizes` and `seconds` f64[n]: of whole files read one after the other; `first_bytes`
    f64[m]: times until other files' first bytes. The latency comes from the line through `seconds` where the line tells
    latency and bytes apart. Else it is the median of `first_bytes`, or of `seconds` where there are no first bytes.

    Raises ValueError without any times."""
    line = draw_line(sizes, seconds)
    if line is not None and line.latency > 0 and line.error <= line.latency / KNOWN:
        return Latency(line.latency, 1 / line.per_byte if line.per_byte else math.inf, True, line.error)
    alone = first_bytes if len(first_bytes) else seconds
    if len(alone) == 0:
        raise ValueError("nothing was timed")
    latency = float(np.median(alone))
    stream = math.inf
    if len(sizes):
        bytes_alone = float(np.median(seconds)) - latency
        if bytes_alone > latency / 10:  # else the difference is as likely to be noise
            stream = float(np.median(sizes)) / bytes_alone or math.inf
    return Latency(latency, stream, False)


def knee(points: Sequence[tuple[int, float]]) -> int:
    """The smallest x with a rate of at least `REACHES` of the best, of points (x, rate). Raises ValueError without
    points."""
    best = max(rate for _, rate in points)
    return min(x for x, rate in points if rate >= REACHES * best)


def overlap(levels: Sequence[Level]) -> float:
    """The average number of files whose times pass at once at best. By Little's law that is the most files per second
    over those of files one by one. Less than `knee` of them where files under way wait for each other.

    Raises ValueError without levels."""
    return max(level.files for level in levels) / min(levels, key=lambda level: level.at_once).files


def curve(points: Sequence[tuple[int, float]]) -> Curve:
    """The model's curve through points (x, rate > 0). Raises ValueError for other rates, or without points."""
    if not points or any(not 0 < rate < math.inf for _, rate in points):
        raise ValueError(f"not a curve: {points}")
    return Curve(tuple((float(x), float(rate)) for x, rate in sorted(points)))


def bandwidth(levels: Sequence[Level], first_bytes: Level | None, large: Level | None) -> Bandwidth:
    """The highest rate that one node was seen to get. `levels`: of files as they are; `large`: of the largest files.
    `first_bytes`: of files of which only the first byte was read, with as many at once as in the last level.

    The rate is a measured bandwidth where the bytes take the time. That is so where more files at once did not bring
    more, and files without their bytes came at least `BYTES_MATTER` times as often. Else the rate is a lower bound. The
    limit may be the latency, the requests that the source works on at a time, or this machine's processors."""
    best = max([*levels, *([large] if large else [])], key=lambda level: level.bytes)
    flat = knee([(level.at_once, level.bytes) for level in levels]) < max(level.at_once for level in levels)
    heavy = first_bytes is not None and first_bytes.files >= BYTES_MATTER * best.files
    return Bandwidth(best.bytes, not (flat and heavy))
