"""The plan alone: what the order of one epoch costs, and how many opens show which order it is.

python scripts/bench_plan.py --order '{"sampler": "distributed", "n": 1281167}'    one order, in this process; JSON
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import lab
import plan_cases
import plan_play
from bench_entry import Entry, median_entry
from lab import Progress

from nopfsfs.plan.samplers import registry

SEED, EPOCH = 42, 1
IMAGENET, IMAGENET_22K = 1_281_167, 14_197_122
LIMIT_S = {IMAGENET: 1.5, IMAGENET_22K: 20.0}
# bytes a sample at the peak, results included: a small multiple of an int64
LIMIT_BYTES = 48
TIMEOUT_S = 300.0
# identification
FILES, SHARDS = 20_000, 2000
WORKERS = (0, 2, 8)
# of a program whose seed nobody gave: one of the two that are tried first, and a common one
COMMON = (42, 1234)
MOST_OPENS = 1024


def order(name: str, n: int) -> dict[str, float]:
    """Seconds and peak bytes of the order of one epoch, in a process that has done nothing else."""
    family = registry.sampler(name.split("-")[0])
    spec = plan_cases.specs(family, SEED, n)[name]
    family.shared(plan_cases.specs(family, SEED, 1000)[name], 1000, EPOCH)  # what is imported late is no part of it
    before = _reset_peak()
    start = time.perf_counter()
    samples = family.shared(spec, n, EPOCH)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak_bytes": max(_peak() - before, 0), "samples": len(samples)}


def _reset_peak() -> int:
    """Bytes that are resident now; the high-water mark begins there, where the kernel lets it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return _peak()


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def imagenet() -> Iterator[Entry]:
    """plan/*/1281167/*"""
    return orders(IMAGENET)


def imagenet_22k() -> Iterator[Entry]:
    """plan/*/14197122/*"""
    return orders(IMAGENET_22K)


def orders(n: int) -> Iterator[Entry]:
    """plan/<family>/<n>/{seconds,peak_bytes}, and of all plan/all/<n>/{seconds,peak_bytes}_of_limit, whose value
    is the largest: above 1 is too much."""
    names = [name for family in registry.SAMPLERS.values() for name in plan_cases.specs(family, SEED, 1)]
    seconds, bytes_each = [], []
    with Progress(len(names)) as progress:
        for name in names:
            progress.doing(f"plan: {name}, {n:,} samples")
            asked = json.dumps({"sampler": name, "n": n})
            found = json.loads(lab.run([sys.executable, __file__, "--order", asked], TIMEOUT_S))
            seconds.append(found["seconds"] / LIMIT_S[n])
            bytes_each.append(found["peak_bytes"] / max(found["samples"], n) / LIMIT_BYTES)
            yield Entry(f"plan/{name}/{n}/seconds", found["seconds"], "s", [found["seconds"]])
            yield Entry(f"plan/{name}/{n}/peak_bytes", found["peak_bytes"], "B", [found["peak_bytes"]])
            progress.step()
    yield Entry(f"plan/all/{n}/seconds_of_limit", max(seconds), "x", seconds)
    yield Entry(f"plan/all/{n}/peak_bytes_of_limit", max(bytes_each), "x", bytes_each)


def identification() -> Iterator[Entry]:
    """identify/<family>/{opens,found} with the seed given, {opens,found}_no_seed with a common one: after how many
    opens the plan was known, and in what share of the runs it was within `MOST_OPENS`. A run for each of `WORKERS`."""
    families = plan_cases.identified()
    with Progress(len(families) * len(WORKERS) * (1 + len(COMMON))) as progress:
        for family in families:
            for suffix, seeds, given in (("", (SEED,), True), ("_no_seed", COMMON, False)):
                found: list[int | None] = []
                for seed in seeds:
                    for workers in WORKERS:
                        progress.doing(f"identify: {family.name}, seed {seed if given else 'not given'}")
                        found.append(opens_needed(family.name, seed, workers, given=given))
                        progress.step()
                known = [float(opens) for opens in found if opens is not None]
                if known:
                    yield median_entry(f"identify/{family.name}/opens{suffix}", "opens", known)
                share = statistics.fmean(opens is not None for opens in found)
                yield Entry(f"identify/{family.name}/found{suffix}", share, "", [share])


def opens_needed(name: str, seed: int, workers: int, *, given: bool, most: int = MOST_OPENS) -> int | None:
    """How many opens of a job show its plan; None when `most` do not."""
    reading = plan_cases.reading(registry.sampler(name), seed)
    datasets = plan_play.tree(SHARDS if reading.data == "shards" else FILES, reading.data)
    follower = plan_play.follower_for(reading, datasets, seed if given else None)
    return plan_play.play(reading, follower, datasets, workers, epochs=1, most=most).opens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--order", required=True, help="JSON: sampler, n")
    asked = json.loads(parser.parse_args().order)
    print(json.dumps(order(asked["sampler"], asked["n"])))


if __name__ == "__main__":
    main()
