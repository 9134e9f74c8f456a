"""Fetches between two ranks through the mount's peer path, over a plain mpi4py ping-pong of the same sizes in the same
run.

    python scripts/bench_peer.py      (or make bench BENCH='peer/*')

A fetch goes from a request at the socket of one peer process to the answer there that the bytes lie in the arena and
were compared with their checksum; as many are under way as a stager has (48, or 64 MB). `peer/...`: what stands for the
stagers does as little as can be, and uses the same extents again and again. `peer/stager/...`: the product's own stager
code, from an order to fetch rows that live on the other node to all of them published; the files pass through, 32 MB of
them are there at a time. The ping-pong blocks, with as many buffers in turn as fetches are under way, and with one; its
throughput is that of one way, half the round trip. Of each, processor time, in all processes together.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import lab
import numpy as np
from bench_entry import Entry, median_entry
from cluster import cluster
from lab import LabError
from mpirun import IMPLEMENTATIONS, mpirun
from peer_mount import Asked, cpu_s

ROUNDS = 7
SIZES = {
    "4KB": Asked(4096, 6000, ROUNDS),
    "117KB": Asked(117_000, 3000, ROUNDS),  # ImageNet's mean
    "16MB": Asked(1 << 24, 60, ROUNDS),  # CosmoFlow's samples
}
FILES = {"117KB": 1000, "16MB": 16}  # for stagers
IDLE_S, IDLE_TIMES = 5.0, 3
IDLE_FILES = 200
TIMEOUT_S = 300.0
DEFAULT = "mpich"


def prefix(implementation: str) -> str:
    """What the names of its entries begin with."""
    return "peer" if implementation == DEFAULT else f"peer/{implementation}"


def entries(implementation: str, name: str) -> Iterator[Entry]:
    """PREFIX/SIZE/{ratio_to_pingpong,fetches,rate,pingpong_fetches,pingpong_rate,cpu_us,pingpong_cpu_us}, and of each
    process PREFIX/SIZE/cpu_us/..."""
    yield from of_runs(f"{prefix(implementation)}/{name}", SIZES[name].size, run(implementation, SIZES[name]))


def stager_entries(implementation: str, name: str) -> Iterator[Entry]:
    """The same as PREFIX/stager/SIZE/..."""
    with source(SIZES[name].size, FILES[name]) as directory:
        asked = replace(SIZES[name], fetches=FILES[name], source=str(directory))
        yield from of_runs(f"{prefix(implementation)}/stager/{name}", asked.size, run(implementation, asked))


@contextlib.contextmanager
def source(size: int, files: int) -> Iterator[Path]:
    """A directory of so many files in memory."""
    rng = np.random.default_rng(7)
    with lab.tmpfs_directory(size * files) as directory:
        for number in range(files):
            (directory / f"{number:05}").write_bytes(rng.bytes(size))
        yield directory


def run(implementation: str, asked: Asked) -> list[dict[str, Any]]:
    """What rank 0 says of each round."""
    words = [sys.executable, str(lab.SCRIPTS / "peer_rank.py"), json.dumps(asdict(asked))]
    process = mpirun(implementation, 2, words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise LabError(f"{implementation}: no end of fetches of {asked.size} bytes") from None
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()
    if process.returncode:
        raise LabError(f"{implementation}: exit {process.returncode}: {errors.strip()[-2000:]}")
    found: list[dict[str, Any]] = json.loads(out.strip().splitlines()[-1])
    return found


def of_runs(name: str, size: int, runs: list[dict[str, Any]]) -> Iterator[Entry]:
    """Of one size, from all rounds."""
    fetches, pongs = [run["fetch"] for run in runs], [run["pong"] for run in runs]
    for what, key in (("ratio_to_pingpong", "pong"), ("ratio_to_pingpong_of_one_buffer", "pong_of_one")):
        yield median_entry(f"{name}/{what}", "x", [run[key]["seconds"] / run["fetch"]["seconds"] for run in runs])
    for of, some in (("", fetches), ("pingpong_", pongs)):
        yield median_entry(f"{name}/{of}fetches", "1/s", [1 / one["seconds"] for one in some])
        yield median_entry(f"{name}/{of}rate", "MB/s", [size / one["seconds"] / 1e6 for one in some])
    for of in ("peer0", "peer1", "mount0", "mount1"):
        yield median_entry(f"{name}/cpu_us/{of}", "us", [1e6 * one[f"{of}_cpu_s"] for one in fetches])
    totals = [1e6 * sum(value for key, value in one.items() if key.endswith("_cpu_s")) for one in fetches]
    yield median_entry(f"{name}/cpu_us", "us", totals)
    yield median_entry(f"{name}/pingpong_cpu_us", "us", [1e6 * one["cpu_s"] for one in pongs])


def idle_entries(implementation: str) -> Iterator[Entry]:
    """PREFIX/idle_cpu_share: of a processor, by a peer process of two mounts that nobody reads."""
    with (
        lab.place() as place, source(4096, IDLE_FILES) as directory,
        cluster(directory, place, 2, "--seed", 42, implementation=implementation) as made,
    ):  # fmt: skip
        pids = peers_below(place)
        if len(pids) != 2:
            raise LabError(f"{implementation}: the peer processes are not found")
        time.sleep(1.0)  # all is staged
        shares = [share for _ in range(IDLE_TIMES) for share in idle_shares(pids)]
        if made.unmount():
            raise LabError(f"{implementation}: the mounts ended badly")
    yield median_entry(f"{prefix(implementation)}/idle_cpu_share", "", shares)


def peers_below(place: Path) -> list[int]:
    """The peer processes of the mounts below a place."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            if words[1:2] == [os.fsencode(lab.COMMANDS / "nopfs-mount")] and os.fsencode(place) in b" ".join(words):
                found.append(int(entry))
    return found


def idle_shares(pids: list[int]) -> list[float]:
    """The share of a processor that each of these processes takes for a while."""
    before, began = [cpu_s(pid) for pid in pids], time.perf_counter()
    time.sleep(IDLE_S)
    took = time.perf_counter() - began
    return [(cpu_s(pid) - cpu) / took for pid, cpu in zip(pids, before, strict=True)]


def all_entries() -> Iterator[Entry]:
    for implementation in IMPLEMENTATIONS:
        for name in SIZES:
            yield from entries(implementation, name)
        for name in FILES:
            yield from stager_entries(implementation, name)
        yield from idle_entries(implementation)


if __name__ == "__main__":
    for entry in all_entries():
        print(f"{entry.name:42}{entry.value:10.4g} {entry.unit:6}{min(entry.runs):10.4g}{max(entry.runs):10.4g}")
