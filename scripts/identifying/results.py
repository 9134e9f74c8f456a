"""What a cell came to, and what a table of results says."""

from __future__ import annotations

import dataclasses
import statistics
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plan_play
from numpy.typing import NDArray

from identifying import bars, virtual
from identifying.cells import NOTHING, SEED, WORLD, WRONG, Cell
from nopfsfs.config import MountConfig
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.visible_opens import VisibleOpens
from nopfsfs.protocol.tripwires import Tripwires
from nopfsfs.supervisor.event_loop import STAGING_PAUSE_S
from nopfsfs.supervisor.plan_worker import make_follower
from nopfsfs.system.launcher import candidate_worlds
from nopfsfs.text.units import format_ranks

# What is said, and what says more of it: something true, something false. A world may be either.
_MORE = ((NOTHING, SEED), (SEED, WORLD), (NOTHING, WORLD))
_FALSE = ((NOTHING, WRONG), (SEED, WORLD), (NOTHING, WORLD))
# What may be foreseen or not by how long a job happened to take: a share of the opens, or those between two looks.
_CHANCE = 0.002
_CHANCE_OPENS = round(STAGING_PAUSE_S / bars.OPEN_S)
_RANKS_WIDTH = 12
# A cell without a result has this one, beside its error.
_NOTHING: NDArray[np.uint8] = np.zeros(0, np.uint8)


@dataclass(frozen=True, eq=False)
class Result:
    """`share` of the judged opens that were foreseen, None where there are none; `worst` of one rank; `second`: share
    of the ranks' second epoch; `foreseen` u8[opens]; `believed`: what the status said in the end; `others`: `foreseen`
    of the cell's further runs. CPU in seconds."""

    cell: Cell
    opens: int = 0
    judged: int = 0
    share: float | None = None
    worst: float | None = None
    second: float | None = None
    locked: int | None = None
    believed: str = ""
    costs: virtual.Costs = dataclasses.field(default_factory=virtual.Costs)
    foreseen: NDArray[np.uint8] = dataclasses.field(default_factory=lambda: _NOTHING)
    error: str = ""
    others: tuple[NDArray[np.uint8], ...] = ()

    @property
    def short(self) -> bool:
        """Whether it fell short."""
        return bool(self.error) or (self.share is not None and self.share < bars.SHARE)

    @property
    def cpu(self) -> float:
        return self.costs.supervisor + self.costs.jobs + self.costs.apart

    def record(self) -> dict[str, Any]:
        """All but the opens, for JSON."""
        known = {name.name: getattr(self, name.name) for name in dataclasses.fields(self)}
        del known["foreseen"], known["others"]
        return {
            "name": self.cell.name,
            **known,
            "cell": vars(self.cell),
            "costs": vars(self.costs),
            "short": self.short,
        }


@dataclass(frozen=True, eq=False)
class Pair:
    """Two cells of a group, the second of which says more."""

    less: Result
    more: Result

    def foreseen(self) -> tuple[list[int], list[int]]:
        """How many were, of the opens that both saw: in each run of either, that which counts first."""
        both = min(self.less.opens, self.more.opens)
        counts = [[int(run[:both].sum()) for run in (one.foreseen, *one.others)] for one in (self.less, self.more)]
        return counts[0], counts[1]

    @property
    def clear(self) -> bool:
        """True: by the runs that count, saying more foresaw clearly less; and no run of it reached any without. Runs of
        one cell differ: how long a job takes decides over some tens of opens."""
        less, more = self.foreseen()
        chance = max(_CHANCE_OPENS, _CHANCE * min(self.less.opens, self.more.opens))
        return less[0] > more[0] + chance and min(less) > max(more)


def showing(cell: Cell) -> VisibleOpens:
    """Whose opens show on a mount of the cell's files that refuses OPEN."""
    index = plan_play.index(cell.files)
    wires = Tripwires(index.n_dirs, index.n, index.total_bytes)
    return VisibleOpens(wires.mask(), wires.apart)


def follower_of(cell: Cell) -> Follower:
    """As a mount of the cell's files makes it."""
    worlds = candidate_worlds(cell.environment)
    config = MountConfig(source="/source", mountpoint="/mount", seed=cell.seed_said, worlds=worlds)
    return make_follower(plan_play.index(cell.files), config)


def run(cell: Cell, beyond: bool, tripwires: bool = False) -> Result:
    """One cell. What fails is a result."""
    try:
        shown = showing(cell) if tripwires else None
        case, follower = bars.case(cell, beyond=beyond, showing=shown), follower_of(cell)
        if shown is not None:
            follower.show_only(shown)
        played = virtual.play(follower, case.opens)
    except Exception:
        return Result(cell, error=traceback.format_exc())
    status = played.status
    believed = status.state
    if status.sampler is not None:
        ranks = _ranks(status.ranks)
        believed += f" {status.sampler} seed {status.seed} epoch {status.epoch}, rank {ranks} of {status.world}"
    return Result(
        cell, len(case.opens), int(case.judged.sum()), bars.share(played.foreseen, case.judged),
        bars.worst_rank(played.foreseen, case.opens, case.judged), bars.share(played.foreseen, case.second),
        played.locked, believed, played.costs, played.foreseen,
    )  # fmt: skip


def less_for_more(results: Sequence[Result]) -> Iterator[Pair]:
    """Where something true was said beside, and foresaw clearly less."""
    return _pairs(results, _MORE, true=True)


def less_for_false(results: Sequence[Result]) -> Iterator[Pair]:
    """Where something false was said, a seed or a world's ranks, and foresaw clearly less."""
    return _pairs(results, _FALSE, true=False)


def doubted(results: Sequence[Result]) -> list[Cell]:
    """The cells of all pairs in which more, or something wrong, foresaw less, and that ran once. How long a job takes
    decides over some tens of opens, and one run tells little of it."""
    pairs = (*less_for_more(results), *less_for_false(results))
    return list(dict.fromkeys(one.cell for pair in pairs for one in (pair.less, pair.more) if not one.others))


def together(runs: Sequence[Sequence[Result]]) -> list[Result]:
    """By cell, in the order of the first run: a result that fell short, else that with the median of what was foreseen,
    with the others beside. The further runs may lack cells."""
    by_cell: dict[Cell, list[Result]] = {}
    for result in (one for run in runs for one in run):
        by_cell.setdefault(result.cell, []).append(result)
    return [_median(of) for of in by_cell.values()]


def _median(of: Sequence[Result]) -> Result:
    middle = sorted(of, key=lambda one: int(one.foreseen.sum()))[(len(of) - 1) // 2]
    chosen = next((one for one in of if one.short), middle)
    return dataclasses.replace(chosen, others=tuple(one.foreseen for one in of if one is not chosen))


def _pairs(results: Sequence[Result], pairs: Sequence[tuple[str, str]], *, true: bool) -> Iterator[Pair]:
    by_group: dict[str, dict[str, Result]] = defaultdict(dict)
    for result in results:
        if not result.error:
            by_group[result.cell.group][result.cell.said] = result
    for said in by_group.values():
        for less, more in pairs:
            if less in said and more in said and true == (more != WRONG and _is_true(said[more].cell)):
                pair = Pair(said[less], said[more])
                if pair.clear:
                    yield pair


def _is_true(cell: Cell) -> bool:
    return cell.said != WORLD or cell.world_is_true


def line(result: Result) -> str:
    """A cell that fell short."""
    if result.error:
        return f"{result.cell.name}: FAILED: {result.error.strip().splitlines()[-1]}"
    cell = result.cell
    locked = f"locked after {result.locked:,}" if result.locked is not None else "never locked"
    truth = f"true: seed {cell.seed}, rank {_ranks(cell.ranks)} of {cell.world}"
    return (
        f"{cell.name}: {_percent(result.share)} of {result.judged:,}; {locked}; {truth}; in the end {result.believed}"
    )


def _ranks(ranks: tuple[int, ...]) -> str:
    """Those of a few ranks, or the first ones."""
    text = format_ranks(ranks)
    return text if len(text) <= _RANKS_WIDTH else f"{text[:_RANKS_WIDTH]}... ({len(ranks)})"


def summary(results: Sequence[Result]) -> Iterator[str]:
    """What all came to, in lines."""
    judged = [one for one in results if one.share is not None or one.error]
    short = [one for one in results if one.short]
    good = len(judged) - len(short)
    yield f"{good:,} of {len(judged):,} judged cells foresee {bars.SHARE:.0%}; {len(short):,} fall short"
    unjudged = [one for one in results if one.share is None and not one.error]
    if unjudged:
        good = sum(1 for one in unjudged if one.second is not None and one.second >= bars.SHARE)
        yield (
            f"{len(unjudged):,} cells end before their bar (--beyond goes on);"
            f" in their second epochs {good:,} foresee {bars.SHARE:.0%}"
        )
    for said in dict.fromkeys(one.cell.said for one in results):
        yield _of(said, [one for one in results if one.cell.said == said])
    for begin in dict.fromkeys(one.cell.begin for one in results):
        yield _of(begin, [one for one in results if one.cell.begin == begin])
    for pair in less_for_more(results):
        yield "said more, foresaw less: " + _pair(pair)
    for pair in less_for_false(results):
        yield "said something wrong, foresaw less: " + _pair(pair)
    yield from _most(results)


def _of(what: str, results: Sequence[Result]) -> str:
    judged = [one for one in results if one.share is not None]
    short = sum(1 for one in results if one.short)
    locked = [one.locked for one in results if one.locked is not None]
    median = f"median {statistics.median(locked):,.0f}, most {max(locked):,}" if locked else "never"
    mean = statistics.fmean(one.share or 0.0 for one in judged) if judged else None
    return (
        f"  {what:8} {short:5,} of {len(judged):5,} short; mean {_percent(mean):>7};"
        f" {len(locked):,} of {len(results):,} locked: {median} opens"
    )


def _pair(pair: Pair) -> str:
    less, more = (f"{runs[0]:,}" + (f" (at {most} {ends(runs):,})" if runs[1:] else "")
                  for runs, most, ends in zip(pair.foreseen(), ("least", "most"), (min, max), strict=True))  # fmt: skip
    return f"{pair.more.cell.name}: {more} opens, with {pair.less.cell.said} said {less}"


def _most(results: Sequence[Result]) -> Iterator[str]:
    measures: tuple[tuple[str, Callable[[Result], float]], ...] = (
        ("longest observe", lambda one: one.costs.longest_observe),
        ("longest other call of the supervisor", lambda one: one.costs.longest_other),
        ("longest job", lambda one: one.costs.longest_job),
        ("most CPU of jobs apart", lambda one: one.costs.apart),
        ("most CPU of the supervisor, an open", lambda one: one.costs.supervisor / max(one.opens, 1)),
        ("most CPU", lambda one: one.cpu),
    )
    for what, key in measures:
        worst = max(results, key=key, default=None)
        if worst is not None:
            yield f"{what}: {_seconds(key(worst))} ({worst.cell.name})"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms" if value >= 1e-3 else f"{1e6 * value:.0f} µs"


def _percent(value: float | None) -> str:
    """Rounded down: 99 % is a bar."""
    return "–" if value is None else f"{int(value * 10_000) / 100:.2f} %"
