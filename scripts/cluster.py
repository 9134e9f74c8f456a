#!/usr/bin/env python3
"""A cluster of mounts on one machine: ranks of MPI, each with a mount of its own, and readers on each of them.

    python scripts/cluster.py SOURCE --nodes 4 --share 0.3 --epochs 3 [--implementation openmpi] [--placement nopfs]

prints what the source was asked in each epoch and where the bytes came from. Tests and benchmarks use `cluster` and
`train_all`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import COMMANDS, SCRIPTS, Epoch, LabError, run, tree_bytes, unmount
from mpirun import IMPLEMENTATIONS, mpirun, of_each_rank
from slow_source import is_mounted

START_S = 60.0
END_S = 30.0


@dataclass
class Cluster:
    """Mounts of one source, `mountpoints` by node."""

    process: subprocess.Popen[str]
    mountpoints: list[Path]
    log: Path
    reports: list[dict[str, Any]] = field(default_factory=list)

    def status(self, node: int) -> dict[str, Any]:
        """The record of a node's mount."""
        record: dict[str, Any] = json.loads(run([COMMANDS / "nopfs", "status", self.mountpoints[node], "--json"]))
        return record

    def statuses(self) -> list[dict[str, Any]]:
        return [self.status(node) for node in range(len(self.mountpoints))]

    def unmount(self, nodes: Sequence[int] | None = None) -> int | None:
        """Unmount these, or all: then the exit status of mpirun, and `reports` has the mounts' records."""
        for node in range(len(self.mountpoints)) if nodes is None else nodes:
            report = self.mountpoints[node].with_name(f"report{node}.json")
            run([COMMANDS / "nopfs-umount", self.mountpoints[node], "--report", report])
            self.reports.append(json.loads(report.read_text()))
        return self.process.wait(END_S) if nodes is None else None


@contextlib.contextmanager
def cluster(
    source: Path, base: Path, nodes: int, *options: object, implementation: str = "mpich",
    own: Sequence[Sequence[object]] = (), first: Sequence[Sequence[str]] = (), env: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:  # fmt: skip
    """Mounts of `source` below `base` in so many ranks of one MPI job; nothing of them is left, come what may. `own`:
    options of each node's own; `first`: the words before each node's command; `env` is added to the environment."""
    mountpoints = [base / f"node{number}" for number in range(nodes)]
    for mountpoint in mountpoints:
        mountpoint.mkdir(parents=True, exist_ok=True)
    log = base / "mounts.log"
    words = [str(COMMANDS / "nopfs-mount"), str(source), str(base / "node{rank}"), "--peers", "on"]
    words += ["--log-file", str(log), *map(str, options)]
    if own or first:
        each = zip(first or [()] * nodes, own or [()] * nodes, strict=True)
        words = of_each_rank([[*before, *words, *map(str, options)] for before, options in each])
    with (base / "mpirun.log").open("w") as said:
        process = mpirun(implementation, nodes, words, env, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    made = Cluster(process, mountpoints, log)
    try:
        _await(made, base / "mpirun.log")
        yield made
    finally:
        for mountpoint in mountpoints:
            if is_mounted(mountpoint):
                with contextlib.suppress(LabError):
                    run([COMMANDS / "nopfs-umount", mountpoint])
                unmount(mountpoint)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        if process.poll() is None:
            process.kill()
            process.wait()


def _await(made: Cluster, said: Path) -> None:
    for mountpoint in made.mountpoints:
        while not is_mounted(mountpoint):
            if made.process.poll() is not None:
                raise LabError(f"the mounts did not start: {said.read_text().strip()}")
            time.sleep(0.02)
        run([COMMANDS / "nopfs", "wait", mountpoint], START_S)


class Readers:
    """One PyTorch loop for each rank of the job, on the mount of its node. They begin each epoch together, as the
    ranks of a job do."""

    def __init__(self, mountpoints: Sequence[Path], a_node: int = 1, *, mode: str = "bytes", epochs: int = 3) -> None:
        world = len(mountpoints) * a_node
        self._processes = [
            subprocess.Popen(
                [sys.executable, SCRIPTS / "train_loop.py", mountpoints[rank // a_node], "--json", "--step",
                 "--mode", mode, "--epochs", str(epochs), "--world", str(world), "--rank", str(rank), "--workers", "1"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(world)
        ]  # fmt: skip

    def __enter__(self) -> Readers:
        return self

    def epoch(self) -> list[Epoch]:
        """Wait for all to have read one more epoch."""
        done = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise LabError(f"a training loop failed with exit {process.wait()}")
            done.append(Epoch(**json.loads(line)))
        return done

    def go_on(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
            process.communicate()


def train_all(
    mountpoints: Sequence[Path], *, epochs: int, a_node: int = 1, mode: str = "bytes",
    between: Callable[[int, list[Epoch]], None] = lambda number, done: None,
) -> list[list[Epoch]]:  # fmt: skip
    """Epochs of all ranks; `between` is called after each, before the next begins."""
    made = []
    with Readers(mountpoints, a_node, mode=mode, epochs=epochs) as readers:
        for number in range(epochs):
            made.append(readers.epoch())
            between(number, made[-1])
            readers.go_on()
    return made


def main(argv: list[str] | None = None) -> int:
    from slow_source import SlowSource

    parser = argparse.ArgumentParser(description="Train over a cluster of mounts on this machine.")
    parser.add_argument("source", type=Path, help="a folder of class folders")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--share", type=float, default=0.3, help="of the data, for which each node has room")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--implementation", choices=IMPLEMENTATIONS, default="mpich")
    parser.add_argument("options", nargs="*", help="further ones for nopfs-mount")
    arguments = parser.parse_args(argv)
    data = tree_bytes(arguments.source)
    with tempfile.TemporaryDirectory(prefix="nopfs-cluster-") as name, SlowSource(arguments.source) as source:
        ram = int(arguments.share * data)
        options = ["--seed", 42, "--ram", ram, *arguments.options]
        with cluster(
            source.path, Path(name), arguments.nodes, *options, implementation=arguments.implementation
        ) as made:
            before = 0

            def between(number: int, done: list[Epoch]) -> None:
                nonlocal before
                opens = source.counters().opens
                seconds = max(one.seconds for one in done)
                print(f"epoch {number + 1}: {opens - before} opens of the source, {seconds:.2f} s", flush=True)
                before = opens

            train_all(made.mountpoints, epochs=arguments.epochs, between=between)
            code = made.unmount()
            for node, report in enumerate(made.reports):
                print(f"node {node}: {json.dumps(report['served'])} {json.dumps(report.get('peers', {}))}")
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
