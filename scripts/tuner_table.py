#!/usr/bin/env python3
"""The tuner of the limit of requests beside its rivals, at shared sources in virtual time.

python scripts/tuner_table.py                    three Markdown tables of medians; a minute or two on two processors
python scripts/tuner_table.py --seeds 20         of more seeds
python scripts/tuner_table.py --who ours         one row of each

`!` marks what falls short of its bar, `<` where a rival is better by more than 5 %, in p99 one that gets as much. The
exit code is 1 if a bar is missed. All figures go to build/tuner_table.json. docs/tuner.md explains the columns.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import lab
import tuner_bars
from lab import Progress
from tuner_bars import ALONE, CLOCKS, COMPANY, Column, Key

from nopfsfs.sim.tuning.trials import FIRST_MOUNT, OURS, RIVALS, Figures

WHO = (*RIVALS, OURS, FIRST_MOUNT)
FIXED = "fixed 64"
TABLES = {"alone": ALONE, "8 mounts": COMPANY, "8 mounts, wrong clocks": CLOCKS}
SEEDS = 5
Table = dict[str, list[float]]


def measure(who: Sequence[str], columns: Sequence[Column], seeds: Sequence[int], jobs: int) -> Table:
    """The medians of the columns, by who tunes."""
    keys: list[Key] = list(dict.fromkeys((column.trial, column.source) for column in columns))
    asked = [(name, key, seed) for name in who for key in keys for seed in seeds]
    found: dict[str, dict[Key, list[Figures]]] = {name: {key: [] for key in keys} for name in who}
    with Progress(len(asked)) as progress, ProcessPoolExecutor(jobs) as pool:
        started = [(name, key, pool.submit(key[0], name, key[1], seed)) for name, key, seed in asked]
        for name, key, figures in started:
            progress.doing(f"{key[0].__name__} on {key[1]}: {name}")
            found[name][key].append(figures.result())
            progress.step()
    return {name: tuner_bars.medians(found[name], columns) for name in who}


def short_number(value: float) -> str:
    if math.isinf(value):
        return "never"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def marks(columns: Sequence[Column], at: int, table: Mapping[str, Sequence[float]]) -> str:
    """The marks of the tuner's figure in a column. A p99 is compared with rivals that get as much of the source."""
    column, ours = columns[at], table[OURS]
    rivals = [table[name] for name in table if name in RIVALS]
    if column.is_cost:
        shares = [other for other, one in enumerate(columns) if (one.figure, one.source) == ("share", column.source)]
        share = shares[0]
        rivals = [row for row in rivals if row[share] >= (1 - tuner_bars.FAR) * ours[share]]
    better = column.figure != "under way" and any(column.is_better(row[at], ours[at]) for row in rivals)
    fixed = table[FIXED][at] if FIXED in table else 0.0
    return ("" if column.holds(ours[at], fixed) else " !") + (" <" if better else "")


def lines(first: str, columns: Sequence[Column], table: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """A Markdown table with a row for each that tunes."""
    yield f"| {first} | {' | '.join(column.title for column in columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for name, values in table.items():
        cells = [
            short_number(value) + (marks(columns, at, table) if name == OURS else "") for at, value in enumerate(values)
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def missed(columns: Sequence[Column], table: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """A line for each bar that the tuner of a seen source misses."""
    for column, value in zip(columns, table.get(OURS, ()), strict=False):
        if not column.holds(value):
            wanted = f"at least {column.least:g}" if value < column.least else f"at most {column.most:g}"
            yield f"{column.trial.__name__}, {column.title}: {short_number(value)}, wanted {wanted}"
    if FIXED in table and OURS in table:
        for column, ours, fixed in zip(columns, table[OURS], table[FIXED], strict=True):
            if ours < column.over_fixed * fixed:
                times = f"{ours / fixed:.2f} times that of a fixed 64, wanted at least {column.over_fixed:g}"
                yield f"{column.trial.__name__}, {column.title}: {times}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--who", action="append", choices=WHO)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="simulations at once")
    parser.add_argument("--record", type=Path, default=lab.BUILD / "tuner_table.json")
    asked = parser.parse_args(argv)
    lab.exit_on_sigterm()
    who, seeds = asked.who or WHO, range(1, asked.seeds + 1)
    tables = {title: measure(who, columns, seeds, asked.jobs) for title, columns in TABLES.items()}
    asked.record.parent.mkdir(exist_ok=True)
    asked.record.write_text(json.dumps({"seeds": asked.seeds, **tables}, indent=1) + "\n")
    for title, columns in TABLES.items():
        print("\n".join([*lines(title, columns, tables[title]), ""]))
    short = [line for title, columns in TABLES.items() for line in missed(columns, tables[title])]
    all_known = {OURS, FIXED} <= set(who)
    print("\n".join(short or ["Every bar holds." if all_known else "Every bar of which these rows tell holds."]))
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
