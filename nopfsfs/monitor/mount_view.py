"""`nopfsfs.Mount`: what a mount says of itself, as Python objects (docs/python.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.control.client import understood
from nopfsfs.control.find_mount import Located, find_mount_above
from nopfsfs.monitor.metric_table import METRICS, PREFIX, Value

ANSWERS_MOST = 64  # that one history is made of; that of a week takes 14
ROWS_MOST = 20_000  # of one history; a mount keeps 10,080


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """Record of an epoch. Times in seconds (`begin`: since 1970), sizes in bytes, shares from 0 to 1; None: not known.
    `counts`: "exact", or "estimated" where opens were counted by tripwires."""

    epoch: int | None
    dataset: str | None
    sampler: str | None
    seed: int | None
    begin: float
    seconds: float
    ended: bool
    counts: str
    files: int
    bytes: int
    predicted: int
    served: Mapping[str, float]
    stall_seconds: float
    waits: int
    wait_p50_seconds: float | None
    wait_p99_seconds: float | None
    wait_most_seconds: float | None
    source_reads: int
    source_bytes: int
    second_reads: int
    read_errors: int
    source_errors: int
    limit: Mapping[str, float] | None
    slowdown: Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """Rows of the history. `time` f8[k]: when each row began, seconds since 1970; `columns`: by name, f4[k], NaN where
    a figure is not known. docs/control-socket.md describes the columns."""

    step: int
    time: NDArray[np.float64]
    columns: Mapping[str, NDArray[np.float32]]

    def __len__(self) -> int:
        return len(self.time)

    def __getitem__(self, column: str) -> NDArray[np.float32]:
        return self.columns[column]


@dataclass(frozen=True, slots=True)
class MetricSample:
    """Value of a metric, or the durations of a histogram."""

    name: str
    labels: Mapping[str, str]
    value: Value


class MountView:
    """The mount at a path, or above it. Each call asks the daemon anew, and waits some seconds for it at most.

    The methods raise `nopfsfs.errors.NopfsError`: the mount has ended, its daemon does not answer, or is another
    user's."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Find the mount. Raises NopfsError where there is none."""
        self._located, _ = find_mount_above(os.fspath(path))

    @property
    def path(self) -> str:
        """The mountpoint."""
        return self._located.path

    def __repr__(self) -> str:
        return f"nopfsfs.Mount({self.path!r})"

    def status(self) -> SimpleNamespace:
        """The record that `nopfs status --json` prints, with attributes for keys: `status().served.ram.files`."""
        found: SimpleNamespace = _named(self._located.call("status"))
        return found

    def epochs(self) -> list[EpochRecord]:
        """The records of the last epochs, oldest first. The last one may be under way."""
        names = [one.name for one in fields(EpochRecord)]
        with understood():
            found = self._located.call("status")["epochs"]
            return [EpochRecord(**{name: one[name] for name in names}) for one in found]

    def history(self, step: int = 1, since: float = 0.0) -> HistoryTable:
        """Rows of `step` seconds (1, 10 or 60) that began at `since`, seconds since 1970, or later. Raises ValueError
        for another step."""
        if step not in (1, 10, 60):
            raise ValueError(f"step: {step!r} is not 1, 10 or 60")
        return read_history(self._located, step, since)

    def metrics(self) -> list[MetricSample]:
        """The metrics, as `nopfs metrics` prints them."""
        figures = self._located.call("metrics")
        return [
            MetricSample(PREFIX + line.name, dict(zip(line.labels, labels, strict=True)), value)
            for line in METRICS
            for labels, value in line.read(figures)
        ]


def read_history(located: Located, step: int, since: float = 0.0) -> HistoryTable:
    """Ask a mount for its rows of `step` seconds (1, 10 or 60) that began at `since` or later. Raises NopfsError."""
    begins: list[float] = []
    rows: list[list[float]] = []
    with understood():
        for _ in range(ANSWERS_MOST):
            found = located.call("history", step=step, since=since)
            names, more = list(found["columns"]), found["rows"]
            begins += [float(found["begin"]) + step * at for at in range(len(more))]
            rows += [[np.nan if value is None else float(value) for value in row] for row in more]
            if len(rows) > ROWS_MOST:
                raise ValueError("more rows than a mount keeps")
            if len(more) < found["most"]:
                break
            since = begins[-1] + step / 2
        table = np.array(rows, np.float32).reshape(len(rows), len(names))
    return HistoryTable(step, np.array(begins), {name: table[:, at] for at, name in enumerate(names)})


def _named(found: Any) -> Any:
    """Give attributes for keys."""
    if isinstance(found, Mapping):
        return SimpleNamespace(**{str(key): _named(value) for key, value in found.items()})
    return [_named(one) for one in found] if isinstance(found, list) else found
