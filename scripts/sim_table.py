#!/usr/bin/env python3
"""Our placement on every shipped cluster and data set, over what is possible at best, and over NoPFS's.

python scripts/sim_table.py                            all of them; two Markdown tables and the worst ratios
python scripts/sim_table.py --cluster sc21 --nodes 64  some of them

The training is the data set's, but nothing is dropped at the end of an epoch. As many simulations
run at once as there are processors and memory for. All figures are written to build/sim_table.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import lab
from lab import Progress

from nopfsfs.sim.run import Simulation
from nopfsfs.sim.shipped import find_cluster, find_dataset, shipped_clusters, shipped_datasets

NODES = (4, 16, 64, 256, 1024)
MOST_OF_BOUND = 1.03  # where the storage of all nodes holds the data set
MOST_OF_NOPFS = 1.005
EACH_BYTES = 8e9  # of memory that a simulation may take


@dataclass(frozen=True)
class Cell:
    """One data set on one cluster of so many nodes. `reads`: from the source in the last epoch; NoPFS's beside."""

    cluster: str
    dataset: str
    nodes: int
    fits: bool
    seconds: float
    of_bound: float
    of_nopfs: float
    reads: int
    nopfs_reads: int

    @property
    def place(self) -> str:
        return f"{self.cluster}, {self.dataset}, N = {self.nodes:,}"

    @property
    def short(self) -> str:
        """Over the bound and over NoPFS; in brackets where the data set does not fit."""
        text = f"{self.of_bound:.3f} / {self.of_nopfs:.3f}"
        return text if self.fits else f"({text})"


def simulate(cluster: str, dataset: str, nodes: int) -> Cell:
    on = replace(find_cluster(cluster), nodes=nodes)
    data, training = find_dataset(dataset)
    simulation = Simulation(on, data, replace(training, drop_last=False))
    homes, nopfs = simulation.run("homes"), simulation.run("nopfs")
    assert homes.seconds is not None
    assert nopfs.seconds is not None
    return Cell(
        cluster, dataset, nodes, fits=int(on.capacities().sum()) >= int(simulation.sizes.sum()), seconds=homes.seconds,
        of_bound=homes.seconds / homes.bound_seconds, of_nopfs=homes.seconds / nopfs.seconds,
        reads=homes.source_reads_per_epoch[-1], nopfs_reads=nopfs.source_reads_per_epoch[-1],
    )  # fmt: skip


def matrix(clusters: Sequence[str], datasets: Sequence[str], nodes: Sequence[int], jobs: int = 0) -> list[Cell]:
    """All of them, in order; `jobs` at once, 0: as many as there is room for. Raises BrokenProcessPool where there was
    no memory for one."""
    asked = [(cluster, dataset, number) for cluster in clusters for dataset in datasets for number in nodes]
    largest_first = sorted(asked, key=lambda one: -find_dataset(one[1])[0].samples)
    apart = multiprocessing.get_context("spawn")
    with Progress(len(asked)) as progress, ProcessPoolExecutor(jobs or _room(), apart) as pool:
        started = {pool.submit(simulate, *one): one for one in largest_first}
        try:
            for done in as_completed(started):
                progress.doing("{}: {}, {} nodes".format(*started[done]))
                progress.step()
        except BaseException:  # nobody wants what is under way
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        found = {one: done.result() for done, one in started.items()}
    return [found[one] for one in asked]


def _room() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), int(memory / EACH_BYTES)))


# ---- what came of it ---------------------------------------------------------------------------------------


def long_table(cells: Sequence[Cell]) -> Iterator[str]:
    yield "| cluster | data set | N | fits | seconds | / bound | / NoPFS | source reads, later epoch | NoPFS's |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for cell in cells:
        fits = "yes" if cell.fits else "no"
        yield (
            f"| {cell.cluster} | {cell.dataset} | {cell.nodes:,} | {fits} | {cell.seconds:,.2f} | {cell.of_bound:.4f} "
            f"| {cell.of_nopfs:.4f} | {cell.reads:,} | {cell.nopfs_reads:,} |"
        )


def short_table(cells: Sequence[Cell]) -> Iterator[str]:
    """A row for each cluster and data set, a column for each number of nodes."""
    nodes = sorted({cell.nodes for cell in cells})
    yield f"| cluster | data set | {' | '.join(f'N = {number:,}' for number in nodes)} |"
    yield "|---|---|" + "---|" * len(nodes)
    rows: dict[tuple[str, str], dict[int, str]] = {}
    for cell in cells:
        rows.setdefault((cell.cluster, cell.dataset), {})[cell.nodes] = cell.short
    for (cluster, dataset), row in rows.items():
        yield f"| {cluster} | {dataset} | {' | '.join(row.get(number, '') for number in nodes)} |"


def worst(cells: Sequence[Cell]) -> tuple[Cell | None, Cell]:
    """Over the bound, where all nodes together hold the data set, if any do; and over NoPFS."""
    fitting = max((cell for cell in cells if cell.fits), key=lambda cell: cell.of_bound, default=None)
    return fitting, max(cells, key=lambda cell: cell.of_nopfs)


def is_good(cells: Sequence[Cell]) -> bool:
    fitting, other = worst(cells)
    return (fitting is None or fitting.of_bound <= MOST_OF_BOUND) and other.of_nopfs <= MOST_OF_NOPFS


def report(cells: Sequence[Cell]) -> Iterator[str]:
    """Both tables and the worst ratios."""
    yield from (*long_table(cells), "", *short_table(cells), "")
    fitting, other = worst(cells)
    if fitting is not None:
        yield f"Worst over the bound, where it fits: {fitting.of_bound:.4f} ({fitting.place}); at most {MOST_OF_BOUND}."
    yield f"Worst over NoPFS: {other.of_nopfs:.4f} ({other.place}); at most {MOST_OF_NOPFS}."


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", action="append", choices=shipped_clusters())
    parser.add_argument("--dataset", action="append", choices=shipped_datasets())
    parser.add_argument("--nodes", action="append", type=int)
    parser.add_argument("--jobs", type=int, default=0, help="simulations at once; 0: as many as there is room for")
    parser.add_argument("--record", type=Path, default=lab.BUILD / "sim_table.json")
    asked = parser.parse_args(argv)
    lab.exit_on_sigterm()
    clusters, datasets = asked.cluster or shipped_clusters(), asked.dataset or shipped_datasets()
    try:
        cells = matrix(clusters, datasets, asked.nodes or NODES, asked.jobs)
    except BrokenProcessPool:
        print("sim_table: a simulation was killed; is there memory for so many at once? (--jobs)", file=sys.stderr)
        return 1
    asked.record.parent.mkdir(exist_ok=True)
    asked.record.write_text(json.dumps([asdict(cell) for cell in cells], indent=1) + "\n")
    print("\n".join(report(cells)))
    return 0 if is_good(cells) else 1


if __name__ == "__main__":
    sys.exit(main())
