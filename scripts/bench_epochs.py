"""Epochs of a PyTorch loop: on the slow source, through the mount, on a local copy. A smaller cousin of the
demo."""

from __future__ import annotations

from collections.abc import Iterator

import demo
from bench_entry import Entry, median_entry
from demo_result import Job
from lab import Epoch

REPEATS = 5
FILES = {"bytes": 2000, "sums": 2000, "decode": 500, "decode-3.14": 500}


def first(run: list[Epoch]) -> float:
    return run[0].seconds


def later(run: list[Epoch]) -> float:
    """Mean seconds of the epochs after the first."""
    return sum(epoch.seconds for epoch in run[1:]) / (len(run) - 1)


def entries() -> Iterator[Entry]:
    """epoch/{bytes,sums,decode,decode-3.14}/{first,later}/... seconds and ratios."""
    with demo.prepared(FILES, REPEATS) as work:
        for job in demo.run_jobs(work, FILES):
            yield from job_entries(job)


def job_entries(job: Job) -> Iterator[Entry]:
    """The source is run once: its one time is compared with each of the others."""
    mounted = [run.epochs for run in job.mounted]
    for name, seconds in (("first", first), ("later", later)):
        prefix = f"epoch/{job.mode}/{name}"
        direct = seconds(job.direct[0])
        own = [seconds(run) for run in mounted]
        local = [seconds(run) for run in job.local]
        yield median_entry(f"{prefix}/source/seconds", "s", [direct])
        yield median_entry(f"{prefix}/mount/seconds", "s", own)
        yield median_entry(f"{prefix}/local/seconds", "s", local)
        yield median_entry(f"{prefix}/source/ratio_to_local", "x", [direct / base for base in local])
        ratios = [one / base for one, base in zip(own, local, strict=True)]
        yield median_entry(f"{prefix}/mount/ratio_to_local", "x", ratios)
        yield median_entry(f"{prefix}/mount/speedup_over_source", "x", [direct / one for one in own])
        if job.tripwire:
            ratios = [seconds(run.epochs) / base for run, base in zip(job.tripwire, local, strict=True)]
            yield median_entry(f"{prefix}/tripwire/ratio_to_local", "x", ratios)
