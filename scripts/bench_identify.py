"""How soon the order of a job that never waits is known, and what that costs: the follower alone, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator

from bench_entry import Entry, median_entry
from identifying import opens, results, virtual
from identifying.cells import NOTHING, SEED, Cell
from lab import Progress

FILES = (4000, 60_000, 1_281_167)
# (what is said, where the job begins, the true seed, opens that are shown): those that nobody says are searched for
JOBS = {
    "said": (SEED, "start", 42, 2000),
    "said_middle": (SEED, "middle", 42, 8000),
    "said_epoch37": (SEED, "epoch37", 42, 8000),
    "nothing_default": (NOTHING, "start", 42, 8000),
    "nothing": (NOTHING, "start", 4711, 20_000),
    "nothing_middle": (NOTHING, "middle", 4711, 40_000),
}
WORKERS = (0, 2, 8)


def entries() -> Iterator[Entry]:
    """identify/job/<files>/<job>/{opens,cpu,longest}: opens until the lock, seconds of a core of all jobs for it, and
    seconds of the longest of these. Four ranks of eight; a run for each of `WORKERS`; those that are not found count
    all their opens, and are told by found."""
    with Progress(len(FILES) * len(JOBS) * len(WORKERS)) as progress:
        for files in FILES:
            for name, (said, begin, seed, most) in JOBS.items():
                played = []
                for workers in WORKERS:
                    progress.doing(f"identify: {files:,} files, {name}, {workers} workers")
                    cell = Cell(files, 8, "four", (4, 5, 6, 7), workers, begin, said, seed, 0, all_said=True)
                    played.append(virtual.play(results.follower_of(cell), opens.opens(cell, most)))
                    progress.step()
                prefix = f"identify/job/{files}/{name}"
                found = [float(one.locked is not None) for one in played]
                yield Entry(f"{prefix}/found", sum(found) / len(found), "", found)
                yield median_entry(f"{prefix}/opens", "opens", [float(one.locked or most) for one in played])
                yield median_entry(f"{prefix}/cpu", "s", [one.costs.jobs + one.costs.apart for one in played])
                yield median_entry(f"{prefix}/longest", "s", [one.costs.longest_job for one in played])
