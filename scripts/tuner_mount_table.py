#!/usr/bin/env python3
"""The tuner of a mount beside its rivals: real mounts of the slow source with three curves, alone and by two.

python scripts/tuner_mount_table.py                 a Markdown table, in about 25 minutes
python scripts/tuner_mount_table.py --seconds 6     each figure is of 6 s, after as many in which the limit settles: too
                                                    few for two mounts of a source without a knee
python scripts/tuner_mount_table.py --curve knee4   of one curve
python scripts/tuner_mount_table.py --slower 3      reads take three times as long: for a machine with other work

A share is of the most that the source can give, at the best concurrency; the ratio is that of two mounts' shares. `!`
marks what falls short of its bar, `<` where a rival is better by more than 5 %. The exit code is 1 if a bar is missed.
All figures go to build/tuner_mount_table.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import lab
import tuned_mounts
from lab import Progress
from tuned_mounts import CURVES, Policy, Share

from nopfsfs.sim.tuning.rivals import AimdLimit, FixedLimit, Gradient2Limit, PrismaLimit

OURS = "ours"
WHO: Mapping[str, Policy | None] = {
    OURS: None, "fixed 64": partial(FixedLimit, 64), "PRISMA": PrismaLimit, "AIMD": AimdLimit,
    "gradient2": Gradient2Limit,
}  # fmt: skip
SECONDS = 20.0  # in which two mounts come to the same limit
FAR = 0.05  # a rival is better by more than this part
MOST_RATIO = 1.3  # of two mounts' shares
Found = dict[str, dict[str, Share]]  # by column's key, then by who tunes


@dataclass(frozen=True)
class Column:
    """A figure of so many mounts at a curve; the tuner's is at least `least` and at most `most`."""

    curve: str
    mounts: int
    is_ratio: bool = False
    least: float = -math.inf
    most: float = math.inf

    @property
    def key(self) -> str:
        return f"{self.curve}, {'alone' if self.mounts == 1 else f'by {self.mounts}'}"

    @property
    def title(self) -> str:
        return f"{self.key}: {'ratio' if self.is_ratio else 'share'}"

    def of(self, share: Share) -> float:
        return share.ratio if self.is_ratio else share.share

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most

    def is_better(self, value: float, other: float) -> bool:
        """True when a rival's `value` is better than `other` by far."""
        return value < other * (1 - FAR) if self.is_ratio else value > other * (1 + FAR)


def columns(curve: str) -> list[Column]:
    """The figures of a curve, with their bars."""
    least = 0.6 if CURVES[curve].bend == 1.0 else 0.85
    return [Column(curve, 1, least=least), Column(curve, 2), Column(curve, 2, is_ratio=True, most=MOST_RATIO)]


def measure(curve: str, seconds: float, times: float, progress: Progress) -> Found:
    """The shares of all who tune, alone and by two."""
    found: Found = {column.key: {} for column in columns(curve)}
    progress.doing(f"{curve}: an earlier mount sees a drain")
    with tuned_mounts.laboratory(tuned_mounts.slower(CURVES[curve], times), 2) as room:
        for column, who in order(curve):
            room.read(column.mounts)
            progress.doing(f"{column.key}: {who}")
            found[column.key][who] = room.measure(column.mounts, WHO[who], seconds, seconds)
            progress.step()
    return found


def order(curve: str) -> Iterator[tuple[Column, str]]:
    """Who tunes when. The mounts' own tuners come first: beside rivals, which take part in no drain, they would learn
    another base."""
    alone, by_two, _ = columns(curve)
    yield from ((by_two, OURS), (alone, OURS))
    yield from ((column, who) for column in (alone, by_two) for who in WHO if who != OURS)


def lines(chosen: Sequence[Column], found: Found) -> Iterator[str]:
    """A Markdown table with a row for each that tunes."""
    yield f"| | {' | '.join(column.title for column in chosen)} |"
    yield "|---" * (len(chosen) + 1) + "|"
    for who in WHO:
        cells = [f"{column.of(found[column.key][who]):.2f}" for column in chosen]
        if who == OURS:
            cells = [cell + marks(column, found[column.key]) for cell, column in zip(cells, chosen, strict=True)]
        yield f"| {who} | {' | '.join(cells)} |"


def marks(column: Column, shares: Mapping[str, Share]) -> str:
    """The marks of the tuner's figure. Ratios are compared among those who get as much."""
    ours = shares[OURS]
    rivals = [share for who, share in shares.items() if who != OURS]
    if column.is_ratio:
        rivals = [share for share in rivals if share.share >= (1 - FAR) * ours.share]
    better = any(column.is_better(column.of(share), column.of(ours)) for share in rivals)
    return ("" if column.holds(column.of(ours)) else " !") + (" <" if better else "")


def missed(chosen: Sequence[Column], found: Found) -> Iterator[str]:
    """A line for each bar that the tuner misses."""
    for column in chosen:
        value = column.of(found[column.key][OURS])
        if not column.holds(value):
            wanted = f"at least {column.least:g}" if value < column.least else f"at most {column.most:g}"
            yield f"{column.title}: {value:.2f}, wanted {wanted}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curve", action="append", choices=CURVES)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each figure, and before it")
    parser.add_argument("--slower", type=float, default=1.0, metavar="TIMES", help="so many times longer take reads")
    parser.add_argument("--record", type=Path, default=lab.BUILD / "tuner_mount_table.json")
    asked = parser.parse_args(argv)
    lab.exit_on_sigterm()
    curves = asked.curve or list(CURVES)
    chosen = [column for curve in curves for column in columns(curve)]
    found: Found = {}
    try:
        with Progress(2 * len(WHO) * len(curves)) as progress:
            for curve in curves:
                found |= measure(curve, asked.seconds, asked.slower, progress)
    except (lab.LabError, RuntimeError) as error:
        print(f"tuner_mount_table: {error}", file=sys.stderr)
        return 1
    asked.record.parent.mkdir(exist_ok=True)
    shares = {key: {who: asdict(share) for who, share in row.items()} for key, row in found.items()}
    record = {"machine": lab.machine(), "seconds": asked.seconds, "slower": asked.slower, "shares": shares}
    asked.record.write_text(json.dumps(record, indent=1) + "\n")
    short = list(missed(chosen, found))
    print("\n".join([*lines(chosen, found), "", *(short or ["Every bar holds."])]))
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
