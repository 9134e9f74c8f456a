"""Words about what limited the reading of the source: the source itself, a bound that was set, or the job. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from nopfsfs.monitor.mount_view import EpochRecord, HistoryTable
from nopfsfs.monitor.run_record import RunRecord
from nopfsfs.monitor.run_words import HARDLY, name_epochs
from nopfsfs.policy.tuner import CAP

ROWS_LEAST = 3  # of an epoch: of fewer nothing is said
MEANS_OVER_S = 9  # a block of a file may take longer than a second at a low cap
AT_CAP = 0.85  # of the cap, from which on it counts as used: time passes between epochs, and at their ends
MOSTLY = 0.5  # of a row, in which a slot was waited for


class ReadLimit(Enum):
    """Cause for which the mount did not read more of the source."""

    SOURCE = "source"
    REQUESTS = "requests"
    BANDWIDTH = "bandwidth"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class SourceUse:
    """Reading of the source in an epoch. `share`: of the time in which the source was read, in which `limit` held.
    Bytes a second, means of that time: `rate`, what was `expected` of the source, and the `cap`; NaN: not known."""

    epoch: EpochRecord
    limit: ReadLimit
    share: float
    rate: float
    expected: float
    cap: float


def source_uses(run: RunRecord) -> list[SourceUse | None]:
    """The reading in each epoch of a run; None where the source was not read, or the history is too coarse."""
    return [_use(one, run.histories, run.bounds.most) for one in run.epochs]


def _use(epoch: EpochRecord, histories: Sequence[HistoryTable], most: float | None) -> SourceUse | None:
    for history in histories:
        within = (history.time >= epoch.begin - history.step) & (history.time < epoch.begin + epoch.seconds)
        if within.sum() >= ROWS_LEAST and history.time[0] <= epoch.begin:
            break
    else:
        return None
    column = {
        name: history[name][within].astype(np.float64)
        for name in ("source_bytes", "slots_waited", "slowdown", "limit", "source_expected", "source_cap")
    }
    read = np.nan_to_num(column["source_bytes"])
    smooth, reads = _smooth(read, max(1, MEANS_OVER_S // history.step)), read > 0
    if epoch.source_bytes <= 0 or not reads.any():
        return None
    capped = smooth >= AT_CAP * np.where(column["source_cap"] > 0, column["source_cap"], np.inf)
    waited = ~capped & (np.nan_to_num(column["slots_waited"]) >= MOSTLY)
    fixed = np.isnan(column["slowdown"]) | (column["limit"] >= (np.inf if most is None else most))
    held = {
        ReadLimit.BANDWIDTH: capped, ReadLimit.SOURCE: waited & ~fixed, ReadLimit.REQUESTS: waited & fixed,
        ReadLimit.JOB: ~capped & ~waited,
    }  # fmt: skip
    shares = {limit: float((rows & reads).sum() / reads.sum()) for limit, rows in held.items()}
    limit = max(shares, key=lambda one: shares[one])
    return SourceUse(
        epoch, limit, shares[limit], float(smooth[reads].mean()), _mean(column["source_expected"][reads]),
        _mean(column["source_cap"][reads]),
    )  # fmt: skip


def _smooth(values: NDArray[np.float64], over: int) -> NDArray[np.float64]:
    """Means of each value and those around it, of those that there are."""
    ones = np.ones(min(over, len(values)))
    total: NDArray[np.float64] = np.convolve(values, ones, "same")
    return total / np.convolve(np.ones(len(values)), ones, "same")


def _mean(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def source_lines(run: RunRecord) -> Iterator[str]:
    """A sentence or two for each group of epochs, one after the other, that had the same limit; then the bounds."""
    uses = [one for one in source_uses(run) if one is not None]
    for _, group in groupby(uses, key=lambda one: (one.limit, one.epoch.dataset, one.epoch.epoch is None)):
        yield _line(list(group))
    yield from bound_lines(run)


def _line(group: Sequence[SourceUse]) -> str:
    limit, share = group[0].limit, sum(one.share for one in group) / len(group)
    rate, expected, cap = (
        _mean(np.array([getattr(one, name) for one in group])) for name in ("rate", "expected", "cap")
    )
    time = "all of the time" if share > 0.995 else f"{100 * share:.0f} % of the time"
    says = {
        ReadLimit.SOURCE: f"the source was the limit for {time} in which it was read",
        ReadLimit.REQUESTS: f"the number of requests, which was set, was the limit for {time}",
        ReadLimit.BANDWIDTH: f"the bound on bytes was the limit for {time}",
        ReadLimit.JOB: f"the job was the limit for {time}, as it asked for no more",
    }[limit]
    figures = [f"{_rate(rate)} were read"]
    if not np.isnan(expected):
        figures.append(f"{_rate(expected)} were expected of the source")
    if not np.isnan(cap):
        figures.append(f"{_rate(cap)} were allowed")
    stall, seconds = (sum(getattr(one.epoch, name) for one in group) for name in ("stall_seconds", "seconds"))
    ahead = limit is not ReadLimit.JOB and stall < HARDLY * seconds
    waits = " Readers hardly waited, so that the job was no slower for that." if ahead else ""
    return f"{name_epochs([one.epoch for one in group])}: {says}. {_listed(figures)}.{waits}"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _rate(rate: float) -> str:
    for size, unit in ((1e9, "GB/s"), (1e6, "MB/s")):
        if rate >= size:
            return f"{rate / size:,.3g} {unit}"
    return f"{rate / 1e3:,.3g} KB/s"


_RULES_SHOWN = 16
_SETTERS = {"option": "--source-bandwidth", "command": "nopfs tune", "site": "the rules of the site"}


def bound_lines(run: RunRecord) -> Iterator[str]:
    """Say which bounds were in force at the end, and who has set them; nothing where there were none."""
    bounds, tense = run.bounds, "is" if run.live else "was, at the end,"
    if bounds.bandwidth is not None:
        setter = _SETTERS.get(bounds.bandwidth_by)
        by = f", set by {setter}" if setter else ""
        yield f"The bound on bytes {tense} {_rate(bounds.bandwidth)} for this mount{by}."
    if bounds.fixed:
        setter = "nopfs tune" if bounds.asked else "--source-concurrency"
        yield f"The number of requests {tense} fixed by {setter}."
    elif bounds.most is not None and bounds.most < CAP:
        yield f"The number of requests {tense} at most {bounds.most:.0f}, by the rules of the site."
    for path, rules in bounds.files:
        numbers = ", ".join(map(str, rules[:_RULES_SHOWN])) + (", ..." if len(rules) > _RULES_SHOWN else "")
        applies = f"rules {numbers} apply" if rules else "only the default applies"
        yield f"Rules of the site: {path}: {applies}."
    for error in bounds.errors:
        yield f"Rules of the site that are refused: {error}."
