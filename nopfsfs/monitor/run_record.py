"""The record of a run, from a mount that is there or from the report of one that is gone, checked key by key.

A report is what `nopfs-umount --report` wrote: the last status record with the history. Whatever else a file or the
daemon of another release holds is refused in one line.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from nopfsfs.control.client import NoAnswer, Refused
from nopfsfs.control.find_mount import Located
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.monitor.mount_view import ROWS_MOST, EpochRecord, HistoryTable, read_history
from nopfsfs.system.descriptors import closing_fd

REPORT_MOST = 64 << 20  # bytes of a file; the report of a week has some six million
EPOCHS_MOST = 256  # a mount keeps 128
FILES_MOST = 8  # of a site's policy; there are two at most
_STEPS = (1, 10, 60)
_ASK_S = 5.0
_LARGEST = 1e15  # of a figure: far above all that there is, and products of two can still be computed
# By column, those that a page is made of; a history without one of them is of another release.
COLUMNS = (
    "opens", "page_cache", "ram", "disk", "peer", "source", "wait_share", "wait_p50", "wait_p99", "source_bytes",
    "fetches_in_flight", "limit", "slowdown", "slots_waited", "source_expected", "source_cap", "lead", "ram_bytes",
    "page_cache_bytes", "disk_bytes",
)  # fmt: skip
_TEXTS = frozenset({"dataset", "sampler", "counts"})
_UNKNOWN = frozenset({"epoch", "dataset", "sampler", "seed", "wait_p50_seconds", "wait_p99_seconds",
                      "wait_most_seconds", "limit", "slowdown"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceBounds:
    """Bounds that people set on the reads of the source, as they were last. `fixed`: the number of requests is one that
    somebody set, `asked`: by `nopfs tune`. `most`: the most that the site allows, None: not known. `bandwidth`: bytes a
    second, None: no bound; `bandwidth_by`: who has set it, a value of `supervisor/source_caps.py`. `files`:
    those of the site's policy, with the rules that apply, from 1; `errors`: what is wrong with others."""

    fixed: bool = False
    asked: bool = False
    most: float | None = None
    bandwidth: float | None = None
    bandwidth_by: str = ""
    files: tuple[tuple[str, tuple[int, ...]], ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run. `explained`: how the plan was found, in a few sentences, "" where that is not known. `epochs`: oldest
    first. `histories`: by step, finest first, each with rows. `budget`: bytes by tier. `drains`: when the tuner held
    back, seconds since 1970, as far as that is known. `bounds`: on the reads of the source. `live`: the mount is
    there."""

    mountpoint: str
    source: str
    live: bool
    plan: Mapping[str, Any]
    explained: str
    epochs: tuple[EpochRecord, ...]
    histories: tuple[HistoryTable, ...]
    budget: Mapping[str, float]
    drains: tuple[float, ...]
    bounds: SourceBounds


def read_report(path: str) -> RunRecord:
    """Read the report of a mount that is gone. Raises NopfsError with Exit.USAGE for whatever else is at the path."""
    try:
        with closing_fd(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                raise NopfsError(Exit.USAGE, f"{path} is neither a nopfs mount nor a report of nopfs-umount --report")
            if about.st_size > REPORT_MOST:
                raise NopfsError(Exit.USAGE, f"{path} has {about.st_size} bytes; no report is as long")
            with open(fd, "rb", closefd=False) as file:
                data = file.read(REPORT_MOST + 1)
    except OSError as error:
        raise NopfsError(Exit.USAGE, f"{path}: no nopfs mount, and no report: {error.strerror}") from error
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NopfsError(Exit.USAGE, f"{path} is damaged, or no report: it is not JSON") from error
    try:
        return checked(found, found.get("history") or (), found.get("explanation"), found, live=False)
    except _NOT_UNDERSTOOD as error:
        message = f"{path} is no report that this release of nopfs understands ({_reason(error)})"
        raise NopfsError(Exit.USAGE, message) from error


def ask_mount(located: Located) -> RunRecord:
    """Ask a mount for its record. Raises NopfsError, which says what to do, where its daemon does not answer."""
    status = located.call("status", _ASK_S)
    explanation = tune = None
    with suppress(Refused, NoAnswer):  # there is no plan, or the daemon is of an earlier release: the page says less
        explanation = located.call("plan", _ASK_S, next=0).get("explanation")
    with suppress(Refused, NoAnswer):
        tune = located.call("tune", _ASK_S)
    histories = [read_history(located, step) for step in _STEPS]
    try:
        return checked(status, histories, explanation, tune, live=True)
    except _NOT_UNDERSTOOD as error:
        message = f"the daemon's record is not understood; it may be of another release ({_reason(error)})"
        raise NopfsError(Exit.INTERNAL, message) from error


_NOT_UNDERSTOOD = (KeyError, TypeError, ValueError, AttributeError, OverflowError)


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"no {error.args[0]}"
    return str(error) if type(error) is ValueError else "a value of another kind"


def checked(
    record: Mapping[str, Any], histories: Sequence[Any], explanation: Any, tune: Any, *, live: bool
) -> RunRecord:
    """Make a RunRecord of a status record, and of histories as the control socket or `nopfsfs.Mount` gives them.
    `tune`: an object with `drains` and `policy`, or else nothing is known of them. Raises KeyError, TypeError,
    ValueError, AttributeError, OverflowError for others."""
    plan, budget = record["plan"], record["budget"]
    if not isinstance(plan, dict) or not isinstance(budget, dict):
        raise TypeError("plan and budget are objects")
    if len(record["epochs"]) > EPOCHS_MOST or len(histories) > len(_STEPS):
        raise ValueError("more epochs or histories than a mount keeps")
    made = [_drawable(one if isinstance(one, HistoryTable) else _history(one)) for one in histories]
    for one in made:
        if missing := [name for name in COLUMNS if name not in one.columns]:
            raise KeyError(f"history column {missing[0]}")
    text = explanation.get("text") if isinstance(explanation, dict) else None
    drains, policy = (tune.get("drains"), tune.get("policy")) if isinstance(tune, dict) else (None, None)
    return RunRecord(
        mountpoint=_text(record["mountpoint"]),
        source=_text(record["source"]),
        live=live,
        plan=plan,
        explained=text if isinstance(text, str) else "",
        epochs=tuple(_epoch(one) for one in record["epochs"]),
        histories=tuple(sorted((one for one in made if len(one)), key=lambda one: one.step)),
        budget={_text(name): _number(size) for name, size in budget.items()},
        drains=tuple(_number(one) for one in drains) if isinstance(drains, list) else (),
        bounds=_bounds(record.get("tuning") or {}, policy or {}),
    )


def _bounds(tuning: Mapping[str, Any], policy: Mapping[str, Any]) -> SourceBounds:
    """The bounds by the part `tuning` of a status record, and the policy of the site, either of which may lack."""
    rate, by, most = tuning.get("bandwidth"), tuning.get("bandwidth_by"), policy.get("concurrency")
    files = [(_text(one["path"]), tuple(int(_number(rule)) for rule in one["rules"]))
             for one in policy.get("files") or ()]  # fmt: skip
    return SourceBounds(
        fixed=tuning.get("mode") == "fixed", asked=bool(tuning.get("asked")),
        most=None if most is None else _number(most),
        bandwidth=None if rate is None else _number(rate), bandwidth_by="" if by is None else _text(by),
        files=tuple(files[:FILES_MOST]), errors=tuple(_text(one) for one in policy.get("errors") or ())[:FILES_MOST],
    )  # fmt: skip


def _number(found: Any) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise TypeError("a number is expected")
    return float(found)


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError("a text is expected")
    return found


def _epoch(found: Mapping[str, Any]) -> EpochRecord:
    """The record of an epoch, whose values are of the kinds that `nopfs status --json` has."""
    values: dict[str, Any] = {}
    for one in fields(EpochRecord):
        value = found[one.name]
        if value is None and one.name in _UNKNOWN:
            pass
        elif one.name in ("served", "limit", "slowdown"):
            value = {_text(name): _number(share) for name, share in value.items()}
        elif one.name in _TEXTS:
            value = _text(value)
        elif one.name == "ended":
            value = bool(value)
        elif _number(value) < 0 and one.name != "seed":
            raise ValueError(f"a negative {one.name}")
        values[one.name] = value
    return EpochRecord(**values)


def _history(found: Mapping[str, Any]) -> HistoryTable:
    """The history from one part of a report. Null is NaN."""
    step, names, rows = found["step"], [_text(name) for name in found["columns"]], found["rows"]
    if step not in _STEPS or len(rows) > ROWS_MOST or len(names) > 256:
        raise ValueError("a history of other steps or lengths than a mount keeps")
    table = np.full((len(rows), len(names)), np.nan, np.float64)
    for at, row in enumerate(rows):
        if len(row) != len(names):
            raise ValueError("a row that is not as long as its heading")
        table[at] = [np.nan if value is None else _number(value) for value in row]
    narrow = np.clip(table, -_LARGEST, _LARGEST).astype(np.float32)
    begins = _number(found["begin"]) + step * np.arange(len(rows), dtype=np.float64)
    return HistoryTable(int(step), begins, {name: narrow[:, at] for at, name in enumerate(names)})


def _drawable(history: HistoryTable) -> HistoryTable:
    """The history with NaN for what no curve can show. Raises ValueError where its times are no times."""
    if not np.isfinite(history.time).all():
        raise ValueError("a history without a begin")
    columns = {name: np.where(np.abs(column) <= _LARGEST, column, np.nan).astype(np.float32)
               for name, column in history.columns.items()}  # fmt: skip
    return HistoryTable(history.step, history.time, columns)
