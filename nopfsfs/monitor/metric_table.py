"""The metrics of a mount, a line each: name, kind, help, labels, and where in the answer of `metrics` the values are.

Pure. docs/metrics.md has the same table for people. Labels have few values: those of the tuples here. What an answer
lacks, or has otherwise than expected, is left out: the daemon of another user, or of another release, may say anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from nopfsfs.policy.choice import Rerouted
from nopfsfs.policy.limit_policy import Reason
from nopfsfs.protocol.durations import BUCKETS
from nopfsfs.protocol.source_metrics import SIZE_NAMES as SIZES

PREFIX = "nopfs_"
TIERS = ("page_cache", "ram", "disk", "peer", "source")
ORIGINS = ("source", "disk", "peer")
STATES = ("none", "watching", "locked", "mismatch", "unknown")
ROLES = ("supervisor", "server", "stager")
REASONS = tuple(reason.value for reason in Reason)
INFO = ("source", "rank", "version", "sampler")
_TEXT_MOST = 512  # characters of a label's value

Figures = Mapping[str, Any]
Labels = tuple[str, ...]


class MetricKind(Enum):
    """The kind of a metric, as in OpenMetrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Durations:
    """Value of a histogram: one count for each bucket of `protocol/durations.py`, and the sum in seconds."""

    counts: tuple[int, ...]
    seconds: float


Value = float | Durations
Read = Callable[[Figures], Iterator[tuple[Labels, Value]]]


@dataclass(frozen=True, slots=True)
class MetricLine:
    """A metric. `labels`: beside `mountpoint`, which all have. `read` yields the values of further labels, and the
    value."""

    name: str
    kind: MetricKind
    help: str
    labels: Labels
    read: Read


def _number(found: Any) -> float | None:
    """A finite number, or None for whatever else there is."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        number = float(found)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _at(figures: Any, path: Labels) -> Any:
    for key in path:
        figures = figures.get(key) if isinstance(figures, Mapping) else None
    return figures


def _one(*path: str) -> Read:
    """Read the number at a path of keys."""

    def read(figures: Figures) -> Iterator[tuple[Labels, Value]]:
        number = _number(_at(figures, path))
        if number is not None:
            yield (), number

    return read


def _each(group: str | Labels, names: Labels, *path: str) -> Read:
    """Read the number at a path of keys below each of some names of a group: a key, or a path of keys."""
    above = (group,) if isinstance(group, str) else group

    def read(figures: Figures) -> Iterator[tuple[Labels, Value]]:
        for name in names:
            number = _number(_at(figures, (*above, name, *path)))
            if number is not None:
                yield (name,), number

    return read


def _durations(found: Any) -> Durations | None:
    counts, seconds = _at(found, ("buckets",)), _number(_at(found, ("seconds",)))
    if not isinstance(counts, list) or len(counts) != BUCKETS or seconds is None or seconds < 0:
        return None
    whole = tuple(count for count in counts if type(count) is int and 0 <= count < 1 << 63)
    return Durations(whole, seconds) if len(whole) == BUCKETS else None


def _histogram(group: str) -> Read:
    """Read the durations of a group."""

    def read(figures: Figures) -> Iterator[tuple[Labels, Value]]:
        found = _durations(figures.get(group))
        if found is not None:
            yield (), found

    return read


def _histograms(group: str, names: Labels) -> Read:
    """Read the durations below each of some names of a group."""

    def read(figures: Figures) -> Iterator[tuple[Labels, Value]]:
        for name in names:
            found = _durations(_at(figures, (group, name)))
            if found is not None:
                yield (name,), found

    return read


def _info(figures: Figures) -> Iterator[tuple[Labels, Value]]:
    found = figures.get("info")
    if isinstance(found, Mapping):
        yield tuple(label_text(found.get(name, "")) for name in INFO), 1.0


def _state(figures: Figures) -> Iterator[tuple[Labels, Value]]:
    now = _at(figures, ("plan", "state"))
    for state in STATES:
        yield (state,), float(state == now)


def _estimated(figures: Figures) -> Iterator[tuple[Labels, Value]]:
    yield (), float(figures.get("counts") == "estimated")


def label_text(found: Any) -> str:
    """A label's value that can be written as UTF-8, of a bounded length."""
    return str(found).encode("utf-8", "backslashreplace").decode()[:_TEXT_MOST]


_C, _G, _H, _I = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM, MetricKind.INFO
_KEPT = ("page_cache", "ram", "disk")
_PUSHED, _ASKED = ("done", "spared", "failed"), ("done", "refused", "late", "corrupt")
_WHY = tuple(why.value for why in Rerouted)
_LINES: tuple[tuple[str, MetricKind, str, Labels, Read], ...] = (
    ("mount_info", _I, "The mount, and the plan that it follows", INFO, _info),
    ("plan_state", _G, "1 for the state of the plan, 0 for the others", ("state",), _state),
    ("counts_estimated", _G, "1 while opens are counted by tripwires", (), _estimated),
    ("opens_total", _C, "Files that were opened", (), _one("opens")),
    ("opens_predicted_total", _C, "Opens that were foreseen", (), _one("opens_predicted")),
    ("served_files_total", _C, "Files by what served them", ("tier",), _each("served", TIERS, "files")),
    ("served_bytes_total", _C, "Bytes by what served them", ("tier",), _each("served", TIERS, "bytes")),
    ("reader_wait_seconds", _H, "READs that waited", (), _histogram("reader_waits")),
    ("read_errors_total", _C, "READs that failed", (), _one("read_errors")),
    ("direct_reads_total", _C, "Reads of the source by a server", (), _one("direct_reads")),
    ("fetch_seconds", _H, "Fetches of files read at once", ("from",), _histograms("fetches", ORIGINS)),
    ("fetched_files_total", _C, "Files staged", ("from",), _each("fetches", ORIGINS, "files")),
    ("fetched_bytes_total", _C, "Bytes staged", ("from",), _each("fetches", ORIGINS, "bytes")),
    ("fetch_errors_total", _C, "Fetches that failed", ("from",), _each("fetches", ORIGINS, "errors")),
    ("fetches_rerouted_total", _C, "Choices against the usual order", ("reason",), _each("rerouted", _WHY)),
    ("fetches_in_flight", _G, "Fetches commanded and not done", (), _one("fetches_in_flight")),
    ("source_opens_total", _C, "Opens of files of the source", (), _one("source", "opens")),
    ("source_read_bytes_total", _C, "Bytes read from the source", (), _one("source", "bytes")),
    ("source_requests_total", _C, "Requests at the source", ("size_class",), _each(("source", "requests"), SIZES)),
    ("source_compared_opens_total", _C, "Opens to read again", (), _one("source", "compared_opens")),
    ("source_compared_bytes_total", _C, "Bytes that were read again", (), _one("source", "compared_bytes")),
    ("source_second_reads_total", _C, "Files read from the source again", (), _one("source", "second_reads")),
    ("source_changed_files_total", _C, "Files that changed at the source", (), _one("source", "changed")),
    ("source_stuck_reads", _G, "Reads that the source does not answer", (), _one("source", "stuck")),
    ("source_limit", _G, "Requests that may be under way at the source", (), _one("tuner", "limit")),
    ("source_requests_under_way", _G, "Requests under way at the source", (), _one("tuner", "under_way")),
    ("source_slowdown_ratio", _G, "Duration of requests over that at an idle source", (), _one("tuner", "slowdown")),
    ("source_bandwidth_limit_bytes_per_second", _G, "Bytes a second at most", (), _one("tuner", "bandwidth")),
    ("source_aim", _G, "What limit and slowdown balance", (), _one("tuner", "aim")),
    ("source_base_seconds", _G, "At the idle source", ("size_class",), _each(("tuner", "base_seconds"), SIZES)),
    ("tuner_decisions_total", _C, "Decisions of the tuner", ("decision",), _each(("tuner", "decisions"), REASONS)),
    ("policy_files", _G, "Policy files of the site whose rules the mount has", (), _one("policy", "files")),
    ("policy_files_refused", _G, "Policy files that cannot be taken as they are", (), _one("policy", "refused")),
    ("epoch", _G, "Epoch of the plan", (), _one("plan", "epoch")),
    ("epoch_position", _G, "Accesses of the epoch so far", (), _one("plan", "position")),
    ("epoch_length", _G, "Accesses of the whole epoch", (), _one("plan", "length")),
    ("lead_seconds", _G, "Seconds of reading that are fetched ahead", (), _one("lead_seconds")),
    ("cached_bytes_ratio", _G, "Share of all bytes that some tier holds", (), _one("cached_ratio")),
    ("tier_budget_bytes", _G, "Bytes that a tier may take", ("tier",), _each("tiers", _KEPT, "budget")),
    ("tier_used_bytes", _G, "Bytes that a tier takes", ("tier",), _each("tiers", _KEPT, "used")),
    ("tier_files", _G, "Files that a tier holds", ("tier",), _each("tiers", _KEPT, "files")),
    ("tier_usable", _G, "1 unless the tier is off", ("tier",), _each("tiers", _KEPT, "usable")),
    ("evictions_total", _C, "Copies removed for others", ("tier",), _each("tiers", _KEPT, "evictions")),
    ("pushes_total", _C, "Pushes into the page cache", ("result",), _each("pushes", _PUSHED)),
    ("pushed_bytes_total", _C, "Bytes pushed into the page cache", (), _one("pushed_bytes")),
    ("page_cache_resident_ratio", _G, "Share of pushed bytes there", (), _one("page_cache", "resident_ratio")),
    ("page_cache_evicted_files_total", _C, "Pushed files found gone", (), _one("page_cache", "evicted")),
    ("peers_connected", _G, "Other nodes that answer", (), _one("peers", "connected")),
    ("peer_fetches_total", _C, "Fetches from other nodes", ("result",), _each("peers", _ASKED)),
    ("lent_bytes_total", _C, "Bytes that other nodes fetched here", (), _one("peers", "lent_bytes")),
    ("process_cpu_seconds_total", _C, "Processor time", ("role",), _each("processes", ROLES, "cpu_seconds")),
    ("process_resident_bytes", _G, "Resident memory", ("role",), _each("processes", ROLES, "resident_bytes")),
    ("process_restarts_total", _C, "Processes replaced", ("role",), _each("processes", ROLES, "restarts")),
    ("parts_off", _G, "Parts that are off after a failure, and are tried again", (), _one("off")),
)
METRICS = tuple(MetricLine(*line) for line in _LINES)
UP = MetricLine("up", _G, "1 for a mount that answers", (), lambda figures: iter([((), 1.0)]))
