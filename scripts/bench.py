#!/usr/bin/env python3
"""The benchmarks: what is compared is measured side by side in one run, and quoted as a ratio.

    make bench      (or: python scripts/bench.py --only 'warm/*')

Prints a table and writes build/bench.json: {"machine", "entries": [{"name", "value", "unit", "runs"}]}. A
benchmark is a function that yields entries; `BENCHMARKS` lists them by the pattern of the names they yield.
To add one, write the function in a bench_*.py and add its line.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import bench_agree
import bench_choice
import bench_cluster
import bench_cost
import bench_epochs
import bench_identify
import bench_kept
import bench_latency
import bench_peer
import bench_plan
import bench_seeing
import bench_sim
import bench_tuned_changes
import bench_tuned_mount
import bench_tuner
import bench_wake
import bench_warm
import lab
from bench_entry import Entry
from tuned_mounts import CURVES


@dataclass(frozen=True)
class Benchmark:
    """Something to measure; `names` are the entries it yields, with * for what varies."""

    names: str
    what: str
    measure: Callable[[], Iterable[Entry]]


def index_entries() -> Iterable[Entry]:
    """What bench_index.py, which needs a process of its own, prints: one JSON object, name to number,
    last."""
    script = lab.SCRIPTS / "bench_index.py"
    if not script.exists():
        return
    last = lab.run([sys.executable, script, "--json"], timeout=600).strip().splitlines()[-1]
    for name, value in json.loads(last).items():
        if isinstance(value, (int, float)):
            yield Entry(f"index/{name}", value, "", [value])


def warm(prefix: str, readers: int, what: str) -> list[Benchmark]:
    """One for each size of files."""
    sizes = bench_warm.SETS
    return [Benchmark(f"{prefix}/{s}/*", what, partial(bench_warm.entries, prefix, sizes[s], readers)) for s in sizes]


def peers(implementation: str) -> list[Benchmark]:
    """One for each size of files, with drivers and with stagers, and one for peer processes that are idle."""
    prefix, of = bench_peer.prefix(implementation), bench_peer
    kinds = (
        ("", of.entries, of.SIZES, "fetches between two ranks"),
        ("stager/", of.stager_entries, of.FILES, "the same by stagers"),
    )
    return [
        *(
            Benchmark(f"{prefix}/{kind}{size}/*", what, partial(measure, implementation, size))
            for kind, measure, sizes, what in kinds
            for size in sizes
        ),
        Benchmark(f"{prefix}/idle_cpu_share", "peer processes without work", partial(of.idle_entries, implementation)),
    ]


def clusters() -> list[Benchmark]:
    """One for each number of nodes, and one for each room that is compared with the simulator."""
    of, prefix = bench_cluster, "cluster/n"
    timed, compared = "trainings over mounts of a slow source", "mounts of four nodes against their simulator"
    return [
        *(Benchmark(f"{prefix}{n}/*", timed, partial(of.entries, n)) for n in of.ROOMS),
        *(Benchmark(f"{prefix}4/{s}share_difference/*", compared, partial(of.share_entries, s)) for s in of.COMPARED),
    ]


def tuned() -> list[Benchmark]:
    """One for each source that a lone mount reads, simulated and real, and one for each number of mounts that share
    one."""
    of, real = bench_tuner, bench_tuned_mount
    lone, together = "a tuned mount, in virtual time", "mounts that share a source, in virtual time"
    return [
        *(Benchmark(f"tuner/{source}/*", lone, partial(of.alone_entries, source)) for source in of.SOURCES),
        *(
            Benchmark(f"tuner/mount/{curve}/*", "a tuned mount of the slow source", partial(real.entries, curve))
            for curve in CURVES
        ),
        Benchmark("tuner/mount/changes/*", "a tuned mount whose source changes", bench_tuned_changes.change_entries),
        Benchmark("fair/mount/2/*", "two mounts of the slow source", bench_tuned_changes.pair_entries),
        Benchmark("fair/mount/8/*", "eight mounts of the slow source", bench_tuned_changes.many_entries),
        *(Benchmark(f"fair/{n}/*", together, partial(of.company_entries, n)) for n in of.COMPANIES),
    ]


BENCHMARKS = (
    *warm("warm", 1, "reads of cached files, over tmpfs"),
    *warm("warm2", 2, "the same by two readers at once"),
    Benchmark(
        "confined/117KB/*", "the same as warm on one processor",
        partial(bench_warm.confined_entries, "confined", bench_warm.SETS["117KB"], 1),
    ),
    Benchmark("wake/*", "what every request and its answer cost at least", bench_wake.entries),
    Benchmark("latency/*", "reads of staged files while others are staged", bench_latency.entries),
    Benchmark("cpu/*", "processor time for a cached file", bench_cost.cpu_entries),
    Benchmark("rss/*", "memory of the processes for each file", bench_cost.rss_entries),
    Benchmark("epoch/*", "a PyTorch loop on a slow source, over a local copy", bench_epochs.entries),
    Benchmark("kept/*", "the same on a mount that finds kept copies on disk", bench_kept.entries),
    Benchmark("index/*", "memory and time of a large index", index_entries),
    Benchmark("plan/*/1281167/*", "the order of an epoch of ImageNet", bench_plan.imagenet),
    Benchmark("plan/*/14197122/*", "the order of an epoch of ImageNet-22k", bench_plan.imagenet_22k),
    Benchmark("identify/*", "opens that show which order it is", bench_plan.identification),
    Benchmark("identify/job/*", "a job that never waits, in virtual time", bench_identify.entries),
    Benchmark("sim/thesis/*", "the simulator, against the published tables", bench_sim.thesis_entries),
    Benchmark("sim/homes/distinct_share/*", "what nodes keep that hold the data set once", bench_sim.share_entries),
    Benchmark("sim/homes/worst_ratio_to_*", "all shipped clusters and data sets", bench_sim.table_entries),
    Benchmark("sim/imagenet-1k/*", "time and memory of 90 epochs", partial(bench_sim.cost_entries, "imagenet-1k", 90)),
    Benchmark("sim/imagenet-22k/*", "time and memory of 5 epochs", partial(bench_sim.cost_entries, "imagenet-22k", 5)),
    Benchmark("sim/mount/*", "the mount against its simulator", bench_agree.entries),
    *tuned(),
    Benchmark("choice/slow_disk/*", "a disk that becomes slower than the source", bench_choice.disk_entries),
    Benchmark("choice/hung_node/*", "a node that hangs", bench_choice.node_entries),
    Benchmark("supervisor/*", "what looks and answers cost the supervisor", bench_seeing.cost_entries),
    Benchmark("seeing/*", "reads of cached files while somebody watches", bench_seeing.entries),
    *peers("mpich"),
    *peers("openmpi"),
    *clusters(),
)


def selected(patterns: list[str]) -> list[Benchmark]:
    """The benchmarks that may yield a name that matches; without patterns all."""
    if not patterns:
        return list(BENCHMARKS)
    return [b for b in BENCHMARKS if any(overlap(b.names, p) for p in patterns)]


def overlap(names: str, pattern: str) -> bool:
    """Whether a name may match both, of which * stands for a part between slashes, at the end for all that follows."""
    one, other = names.split("/"), pattern.split("/")
    alike = (fnmatch.fnmatchcase(a, b) or fnmatch.fnmatchcase(b, a) for a, b in zip(one, other, strict=False))
    return all(alike) and (len(one) == len(other) or min(one, other, key=len)[-1] == "*")


def number(value: float) -> str:
    return f"{value:10.0f}" if abs(value) >= 1000 else f"{value:10.3g}"


def table(entries: Iterable[Entry]) -> str:
    lines = [f"{'benchmark':50}{'median':>10} {'':8}{'least':>10}{'most':>10}{'runs':>6}"]
    for entry in entries:
        spread = f"{number(min(entry.runs))}{number(max(entry.runs))}{len(entry.runs):6}"
        lines.append(f"{entry.name:50}{number(entry.value)} {entry.unit:8}{spread}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure nopfsfs against what it competes with.")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="such as 'warm/*'")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and stop")
    parser.add_argument("--record", type=Path, default=lab.BUILD / "bench.json")
    arguments = parser.parse_args(argv)
    lab.exit_on_sigterm()
    chosen = selected(arguments.only)
    if arguments.list or not chosen:
        print("\n".join(f"{b.names:20} {b.what}" for b in BENCHMARKS))
        return 0 if chosen else 2
    started = time.monotonic()
    entries: list[Entry] = []
    failures: list[str] = []
    for benchmark in chosen:
        print(f"{benchmark.names}: {benchmark.what}", flush=True)
        try:
            entries += benchmark.measure()
        except (lab.LabError, RuntimeError) as error:
            failures.append(f"{benchmark.names}: {error}")
    record = {"machine": lab.machine(), "seconds": time.monotonic() - started, "failures": failures}
    arguments.record.parent.mkdir(exist_ok=True)
    arguments.record.write_text(json.dumps({**record, "entries": [asdict(e) for e in entries]}, indent=1) + "\n")
    print(table(entries))
    for failure in failures:
        print(f"bench: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
