"""Trainings over clusters of mounts on this machine, one slow source below all of them.

    python scripts/bench_cluster.py      (or make bench BENCH='cluster/*')

The source is as slow as the demo's (5 ms for an open, 2 ms for a read, 64 at a time, 400 MB/s), for all nodes together.
Each node has room for 30 % of the data where there are four, 60 % where there are two, all where there is one, and for
1 % in its page cache. Its mount is read by an unmodified PyTorch loop with one worker, as each reads the source where
that is read directly. Nothing but this machine's processors is shared, but these are.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import cluster_shares
import lab
from bench_entry import Entry, median_entry
from lab import Progress

ROOMS = {1: 1.0, 2: 0.6, 4: 0.3}  # by number of nodes
SETS = {"": (6000, 20_000), "117KB/": (2000, 117_000)}  # files, bytes
COMPARED = {"": 0.3, "small/": 0.125}  # room of each of four nodes, of the data
COMPARED_FILES, COMPARED_SIZE = 2000, 20_000


def entries(nodes: int) -> Iterator[Entry]:
    """cluster/nN/[117KB/]{source_opens_per_file,epoch2_speedup_over_source}, and the seconds of epochs."""
    with lab.place() as place, Progress(2 * len(SETS)) as progress:
        for name, (files, size) in SETS.items():
            with tempfile.TemporaryDirectory(dir=place) as directory:
                tree = cluster_shares.make_files(Path(directory), files, size)
                progress.doing(f"{nodes} nodes, {files} files, directly")
                direct = cluster_shares.train_directly(tree, place, nodes, files, 2 if nodes < max(ROOMS) else 3)
                progress.step()
                progress.doing(f"{nodes} nodes, {files} files")
                run = cluster_shares.train_timed(tree, place, nodes, ROOMS[nodes], files)
                progress.step()
            prefix, slow, fast = f"cluster/n{nodes}/{name}", direct.seconds[1:], run.seconds[1:]
            opens = [count / files for count in run.opens]
            yield Entry(f"{prefix}source_opens_per_file", opens[-1], "", opens)
            ratios = [statistics.median(slow) / seconds for seconds in fast]
            yield Entry(f"{prefix}epoch2_speedup_over_source", statistics.median(ratios), "x", ratios)
            yield median_entry(f"{prefix}epoch2_seconds", "s", fast)
            yield median_entry(f"{prefix}epoch2_source_seconds", "s", slow)


def share_entries(name: str) -> Iterator[Entry]:
    """cluster/n4/[small/]share_difference/{local,disk,peer,source}: between mounts and simulator, in points, of the
    reads of all epochs from the second on; the runs are the epochs."""
    with lab.place() as place, tempfile.TemporaryDirectory(dir=place) as directory:
        tree = cluster_shares.make_files(Path(directory), COMPARED_FILES, COMPARED_SIZE)
        run = cluster_shares.train_compared(tree, place, 4, COMPARED[name], COMPARED_FILES)
    for where, difference in run.differences().items():
        each = [100 * (a[where] - b[where]) for a, b in zip(run.shares[1:], run.simulated[1:], strict=True)]
        yield Entry(f"cluster/n4/{name}share_difference/{where}", difference, "points", each)


def all_entries() -> Iterator[Entry]:
    for nodes in ROOMS:
        yield from entries(nodes)
    for name in COMPARED:
        yield from share_entries(name)


if __name__ == "__main__":
    for entry in all_entries():
        print(entry)
