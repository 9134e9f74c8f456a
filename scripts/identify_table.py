#!/usr/bin/env python3
"""How much of a job's opens the plan foresees, whatever the job and whatever was said: the table of issue 16.

python scripts/identify_table.py                           all cells at 4,000 files, 300 drawn at 60,000; an hour
python scripts/identify_table.py --files 4000 --draw 40    some 40 drawn cells
python scripts/identify_table.py --mounts 150              drawn cells on real mounts, at half a millisecond an open
python scripts/identify_table.py --tripwires --beyond      the same where OPEN is refused: only tripwires are seen
python scripts/identify_table.py --only '*/w16/*/start/*'  cells of these names (FILES/wWORLD/LOCAL/workersN/BEGIN/SAID)

Nothing is mounted: the follower alone is shown what the job opens, one file each half millisecond of a virtual clock
whatever the number of ranks and workers, and its jobs take as long on that clock as they take of a processor. Cells
are drawn in groups of four that differ only in what was said.

Prints what fell short, where saying more foresaw less, and what it cost. How long a job takes decides over some tens
of opens: where saying more foresaw less, both cells run five times, their medians are compared, and it is told where
no run of the one reached any of the other. The exit status is 1 when there is any.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from identifying import bars, cells, mounts, results
from identifying.cells import Cell
from identifying.results import Result
from lab import Progress

DRAWN = {60_000: 300}
AGAIN = 4  # an even number


def table(chosen: Sequence[Cell], jobs: int, *, beyond: bool, tripwires: bool = False) -> list[Result]:
    """All of them; what falls short is said at once."""
    found: list[Result] = []
    apart = multiprocessing.get_context("spawn")
    places = {cell: place for place, cell in enumerate(chosen)}
    run = partial(results.run, beyond=beyond, tripwires=tripwires)
    with Progress(len(chosen)) as progress, ProcessPoolExecutor(jobs, apart) as pool:
        for done in as_completed([pool.submit(run, cell) for cell in chosen]):
            result = done.result()
            found.append(result)
            if result.short:
                progress.say(results.line(result))
            progress.doing(result.cell.group)
            progress.step()
    return sorted(found, key=lambda one: places[one.cell])


def on_mounts(count: int, seed: int) -> int:
    """Drawn cells on real mounts, one after the other: 1 where any falls short."""
    short = 0
    with Progress(count) as progress:
        for found in mounts.measured(count, seed):
            progress.say(f"{found} ({found.late:.2f} s late)")
            short += found.short
            progress.step()
    print(f"{count - short} of {count} cells on real mounts foresee {bars.SHARE:.0%}; {short} fall short")
    return int(short > 0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, action="append", choices=cells.FILES, help="only so many files")
    parser.add_argument("--draw", type=int, metavar="N", help="N drawn cells of each number of files")
    parser.add_argument("--seed", type=int, default=16, help="of what is drawn")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="cells with such a name")
    parser.add_argument("--beyond", action="store_true", help="go on where the bar lies after two epochs")
    parser.add_argument("--tripwires", action="store_true", help="only the opens of tripwires are seen, and count")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="so many processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    parser.add_argument("--mounts", type=int, metavar="N", help="instead: N drawn cells on real mounts")
    options = parser.parse_args(argv)
    if options.mounts is not None:
        return on_mounts(options.mounts, options.seed)
    files = options.files or cells.FILES
    drawn = DRAWN if options.draw is None else dict.fromkeys(files, options.draw)
    chosen = cells.chosen(files, options.only, drawn, options.seed)
    if not chosen:
        parser.error("no such cell")
    found = table(chosen, options.jobs, beyond=options.beyond, tripwires=options.tripwires)
    runs = [found]
    while doubted := results.doubted(found):
        print(f"{len(doubted):,} cells of pairs in which more foresaw less run {AGAIN} times more")
        runs.append(table(doubted * AGAIN, options.jobs, beyond=options.beyond, tripwires=options.tripwires))
        found = results.together(runs)
    for line in results.summary(found):
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps([result.record() for result in found], indent=1) + "\n")
    return int(any(result.short for result in found) or any(results.less_for_more(found)))


if __name__ == "__main__":
    sys.exit(main())
