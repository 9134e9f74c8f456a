"""The tuner beside its rivals at a source that mounts share, for `nopfs simulate --tuner`: records, and their text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nopfsfs.sim.table import NONE, aligned, counted
from nopfsfs.sim.tuning import trials
from nopfsfs.sim.tuning.trials import FIRST_MOUNT, FIXED, OURS, SOURCES, Figures
from nopfsfs.text.units import format_duration

MOST_LIMIT = 1024
USUAL = ("ours", "fixed-64", "prisma", "aimd", "gradient2", "probing")
NAMES: Mapping[str, str] = {
    "ours": OURS, "ours-first": FIRST_MOUNT, "prisma": "PRISMA", "aimd": "AIMD", "gradient2": "gradient2",
    "probing": "probing",
}  # fmt: skip
_FIXED = re.compile(r"fixed-([1-9]\d{0,3})", re.ASCII)
_KEYS = {
    "share": "share_of_best", "seconds to 90 %": "seconds_to_90", "under way": "under_way", "jain": "jain",
    "p99": "demand_p99",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """The figures of one policy of the limit at one source; `figures` as `trials.alone` or `trials.company` names
    them."""

    source: str
    policy: str
    mounts: int
    seed: int
    figures: Figures

    def record(self) -> dict[str, object]:
        """Values for JSON: shares and ratios, seconds, requests; None for what was never reached."""
        found = {key: self.figures[name] for name, key in _KEYS.items() if name in self.figures}
        values = {key: value if math.isfinite(value) else None for key, value in found.items()}
        said = {"source": self.source, "policy": self.policy, "mounts": self.mounts, "seed": self.seed}
        return {**said, **values}


def tuner_of(name: str) -> str:
    """The tuner of `trials` that a name of `--policy` means, such as `fixed-16`. Raises ValueError."""
    fixed = _FIXED.fullmatch(name)
    if fixed and int(fixed[1]) <= MOST_LIMIT:
        return f"{FIXED}{fixed[1]}"
    if name not in NAMES:
        raise ValueError(f"{name!r} tunes no limit: choose among {', '.join(NAMES)}, fixed-1 to fixed-{MOST_LIMIT}")
    return NAMES[name]


def source_of(name: str) -> str:
    """A source of `trials`. Raises ValueError."""
    if name not in SOURCES:
        raise ValueError(f"{name!r} is no source: choose among {', '.join(SOURCES)}")
    return name


def simulated(
    sources: Sequence[str], policies: Sequence[str], mounts: int, seed: int, progress: Callable[[float], None]
) -> list[LimitRecord]:
    """A record for each source and policy. `progress` takes how many are done."""
    found: list[LimitRecord] = []
    for source in sources:
        for name in policies:
            who = tuner_of(name)
            if mounts == 1:
                figures = trials.alone(who, source, seed)
            else:
                figures = trials.company(who, source, seed, mounts=mounts)
            found.append(LimitRecord(source, name, mounts, seed, figures))
            progress(len(found))
    return found


def text(records: Iterable[LimitRecord]) -> str:
    """A table for each source, with a row for each policy."""
    by_source: dict[str, list[LimitRecord]] = {}
    for one in records:
        by_source.setdefault(one.source, []).append(one)
    return "\n\n".join(_table(source, found) for source, found in by_source.items())


def _table(source: str, records: Sequence[LimitRecord]) -> str:
    curve, first = SOURCES[source], records[0]
    head = (
        f"source {source}, {counted(first.mounts, 'mount')}; at best {curve.best:,.0f} requests a second, "
        f"{counted(curve.knee(), 'request')} under way bring 90 % of it; {format_duration(curve.seconds)} idle"
    )
    columns = [name for name in _KEYS if name in first.figures]
    titles = {"share": "of best", "seconds to 90 %": "s to 90 %", "p99": "demand p99"}
    rows = [["policy", *(titles.get(name, name) for name in columns)]]
    rows += [[one.policy, *(_cell(name, one.figures[name]) for name in columns)] for one in records]
    return "\n".join([head, *aligned(rows)])


def _cell(name: str, value: float) -> str:
    if not math.isfinite(value):
        return NONE
    return f"{value:.0f}" if name == "under way" else f"{value:.1f}" if name == "seconds to 90 %" else f"{value:.2f}"
