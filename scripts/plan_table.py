#!/usr/bin/env python3
"""Measures what the plan knows of each framework's orders, and writes the table of docs/plans.md.

    python scripts/plan_table.py            (some ten minutes)
    python scripts/plan_table.py --only PyTorch --only DALI    prints these frameworks' rows, writes nothing

Nothing is mounted: the follower is shown what a job would open, in three epochs of 20,000 files, by two workers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import plan_play
from plan_play import Outcome, Reading
from plan_rows import SEED, SHARDS, Row, rows
from tqdm import tqdm

from nopfsfs.plan.epoch_order import DataSet, Hypothesis, build
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.samplers import registry

PAGE = Path(__file__).resolve().parent.parent / "docs" / "plans.md"
BEGIN, END = "<!-- begin: scripts/plan_table.py -->", "<!-- end: scripts/plan_table.py -->"
FILES = 20_000
WORKERS = 2
# Opens after which a plan without a seed is no longer waited for.
MOST_OPENS = 1024
HEAD = (
    "| framework | program | plan | order | opens, seed given | opens, common seed | said: epoch 1 | later | "
    "found: epoch 1 | later |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True)
class Measured:
    """`said`: with the plan; `found`: with the seed alone; `common`: with nothing said at all."""

    said: Outcome | None
    found: Outcome
    common: Outcome | None


def told(reading: Reading, datasets: Sequence[DataSet]) -> Follower:
    """A follower that was told what is read: the sampler's name and the seed where that says it all, else a plan
    file."""
    assert reading.spec is not None
    spec = reading.spec
    if spec in registry.sampler(spec.sampler).variants(SEED) and reading.subset is None:
        return plan_play.follower_for(reading, datasets, SEED, spec.sampler)
    follower = plan_play.follower_for(reading, datasets, SEED)
    at = next(i for i, one in enumerate(datasets) if one.name == "train")
    order = next(i for i, one in enumerate(datasets[at].orders) if reading.files in one.names)
    spec = plan_play.spec_over(reading, datasets)
    said = Hypothesis(at, order, spec, reading.start, reading.world, reading.ranks, reading.subset)
    follower.register([(build(said, datasets), None)])
    return follower


def measure(row: Row) -> Measured:
    """Three jobs: told, found by its seed, found without one."""
    reading = row.reading
    datasets = plan_play.tree(SHARDS if reading.data == "shards" else FILES, reading.data)
    found = plan_play.play(reading, plan_play.follower_for(reading, datasets, SEED), datasets, WORKERS)
    if reading.spec is None:
        return Measured(None, found, None)
    said = plan_play.play(reading, told(reading, datasets), datasets, WORKERS)
    if registry.sampler(reading.spec.sampler).seeds is None and reading.subset is None:
        return Measured(said, found, found)  # there is no seed to give
    nothing = plan_play.follower_for(reading, datasets, None)
    return Measured(said, found, plan_play.play(reading, nothing, datasets, WORKERS, most=MOST_OPENS))


def line(row: Row, measured: Measured) -> str:
    """One row of the table, in Markdown."""
    order = f"cannot be known: {row.why}" if row.why else "exact"
    cells = [row.framework, row.program, row.plan or "–", order, opens(measured.found), opens(measured.common)]
    cells += [*shares(measured.said), *shares(measured.found)]
    return f"| {' | '.join(cells)} |"


def opens(outcome: Outcome | None) -> str:
    if outcome is None:
        return "–"
    return "not found" if outcome.opens is None else str(outcome.opens)


def shares(outcome: Outcome | None) -> tuple[str, str]:
    """Foreseen in the first epoch, and in the later ones; rounded down, as 100 % is a promise."""
    if outcome is None:
        return "–", "–"
    return percent(outcome.shares[0]), percent(statistics.fmean(outcome.shares[1:]))


def percent(share: float) -> str:
    return f"{int(share * 1000) / 10:g} %"


def write(lines: Sequence[str]) -> None:
    """Puts the table between the page's marks."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{PAGE}: the marks {BEGIN} and {END} are not there")
    PAGE.write_text("\n".join([before + BEGIN, *lines, END + after]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="FRAMEWORK", help="print these frameworks' rows")
    only = parser.parse_args(argv).only
    chosen = [row for row in rows() if not only or row.framework in only]
    if not chosen:
        parser.error(f"no such framework: known are {', '.join(dict.fromkeys(row.framework for row in rows()))}")
    lines = list(HEAD)
    with tqdm(chosen, unit="row", disable=None, leave=False) as bar:
        for row in bar:
            bar.set_description(f"{row.framework}: {row.plan or row.program}"[:60])
            lines.append(line(row, measure(row)))
            if only or not sys.stderr.isatty():
                tqdm.write(lines[-1])
    if not only:
        write(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
