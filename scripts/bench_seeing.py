"""What it costs a reader that somebody watches the mount: `nopfs top`, the exporter and the access log, all at once; or
clients that ask without end, and clients that never read. And what looks and answers cost the mount.

Runs with and without watchers follow each other on one mount. Each ratio is of a run with watchers and the mean of the
runs before and after it, so that a machine which grows slower or faster meanwhile does not count. One such ratio is off
by 8 % where the machine is shared with others; so there are many. The reader takes one processor; the mount and whoever
watches need another.
"""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import bench_warm
from bench_entry import Entry, median_entry
from lab import COMMANDS, LabError, Mount, Progress
from slow_source import cpu_seconds

from nopfsfs.control.client import Connection
from nopfsfs.control.find_mount import locate_living
from nopfsfs.errors import NopfsError

RUN_S = 3.0  # of each run: `top` looks several times in it
SCRAPE_S = 1.0  # Prometheus asks each 15 s, or each minute
LIMIT_S = 10.0
ADDRESS = "127.0.0.1:9815"
READY_S = 2.0  # until all three have begun
SIGNALS = {"default": (), "open": ("--signal", "open")}
ASKING, DEAF = 6, 8  # clients that ask as fast as they are answered, and clients that do not read their answers
COST_S = 10.0  # of each measurement of processor time
COST_ROUNDS = 3
SCRAPES = 50


@contextlib.contextmanager
def watched(mountpoint: Path) -> Iterator[None]:
    """Somebody looks at the mount in all three ways."""
    ended = threading.Event()
    screen, terminal = pty.openpty()
    commands: list[list[str]] = [
        ["top", str(mountpoint)], ["accesslog", str(mountpoint)], ["exporter", "--listen", ADDRESS]
    ]  # fmt: skip
    processes: list[subprocess.Popen[bytes]] = []
    threads = [threading.Thread(target=_drain, args=(screen,)), threading.Thread(target=_scrape, args=(ended,))]
    try:
        for words in commands:
            output = terminal if words[0] == "top" else subprocess.DEVNULL
            command, environment = [str(COMMANDS / "nopfs"), *words], {**os.environ, "TERM": "xterm"}
            processes.append(subprocess.Popen(command, env=environment, stdin=terminal, stdout=output, stderr=output))
        os.close(terminal)
        for thread in threads:
            thread.start()
        time.sleep(READY_S)
        yield
        for process, words in zip(processes, commands, strict=True):
            if process.poll() is not None:
                raise LabError(f"nopfs {words[0]} ended with exit {process.returncode}")
    finally:
        ended.set()
        for process in processes:
            process.terminate()
            process.wait(LIMIT_S)
        for thread in threads:
            thread.join(LIMIT_S)
        os.close(screen)


@contextlib.contextmanager
def asked(mountpoint: Path) -> Iterator[None]:
    """Clients ask without end, and others send requests whose answers they never read."""
    state_dir = locate_living(os.fspath(mountpoint), os.environ).state_dir
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():  # also after an error
            with contextlib.suppress(NopfsError), Connection(state_dir) as connection:
                while not ended.is_set():
                    connection.send("status")
                    connection.receive(LIMIT_S)

    threads = [threading.Thread(target=ask) for _ in range(ASKING)]
    with contextlib.ExitStack() as stack:
        for deaf in [stack.enter_context(Connection(state_dir)) for _ in range(DEAF)]:
            for _ in range(20):
                deaf.send("history")
        for thread in threads:
            thread.start()
        try:
            time.sleep(READY_S)
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join(2 * LIMIT_S)


def _drain(screen: int) -> None:
    """Take what `top` shows, until it has ended."""
    with contextlib.suppress(OSError):
        while os.read(screen, 1 << 16):
            pass


def _scrape(ended: threading.Event) -> None:
    while not ended.wait(SCRAPE_S):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{ADDRESS}/metrics", timeout=LIMIT_S) as page:
            page.read()


Watching = Callable[[Path], AbstractContextManager[None]]
CASES: dict[str, tuple[str, Watching, int]] = {  # signal, who watches, rounds
    "seeing": ("default", watched, 45),
    "seeing/open": ("open", watched, 15),
    "seeing/asked": ("default", asked, 15),
}


def entries() -> Iterator[Entry]:
    """seeing/hit_rate_ratio of the default signal, seeing/open/hit_rate_ratio with each open seen,
    seeing/asked/hit_rate_ratio with clients that ask without end, and the noise: the ratio of two runs without
    watchers."""
    files = bench_warm.SETS["117KB"]
    factories = {name: bench_warm.nopfs(*options) for name, options in SIGNALS.items()}
    seen: dict[str, list[float]] = {name: [] for name in CASES}
    noise: dict[str, list[float]] = {name: [] for name in CASES}
    rounds = sum(rounds for _, _, rounds in CASES.values())
    with bench_warm.mounted(files, factories, readers=1) as found, Progress(rounds) as progress:
        found.pop(bench_warm.TMPFS)
        for system in found.values():
            system.warm("python", RUN_S)
        for name, (signal, watching, rounds) in CASES.items():
            progress.doing(name)
            system = found[signal]
            before = system.run("python").rate
            for _ in range(rounds):
                with watching(system.mount.path):
                    beside = system.run("python").rate
                after = system.run("python").rate
                seen[name].append(2 * beside / (before + after))
                noise[name].append(after / before)
                before = after
                progress.step()
        for system in found.values():
            system.cold_share()
    for name in CASES:
        yield median_entry(f"{name}/hit_rate_ratio", "x", seen[name])
        yield median_entry(f"{name}/noise", "x", noise[name])


# ---- processor time of the supervisor -----------------------------------------------------------------------


def cost_entries() -> Iterator[Entry]:
    """supervisor/core_share: processor time of the supervisor of a mount that nobody reads, over the time;
    supervisor/watched_core_share: the same while everybody watches; supervisor/scrape_ms: for one answer to the
    exporter."""
    shares: dict[str, list[float]] = {"core_share": [], "watched_core_share": []}
    scrapes: list[float] = []
    files, factories = bench_warm.SETS["117KB"], {"default": bench_warm.nopfs()}
    with bench_warm.mounted(files, factories, readers=1) as found, Progress(COST_ROUNDS) as progress:
        system = found["default"]
        system.warm("python", RUN_S)
        for _ in range(COST_ROUNDS):
            progress.doing("supervisor")
            alone = _core_share(system.mount, lambda: time.sleep(COST_S))
            shares["core_share"].append(alone)
            with watched(system.mount.path):
                shares["watched_core_share"].append(_core_share(system.mount, lambda: time.sleep(COST_S)))
            scrapes.append(1e3 * (_core_share(system.mount, lambda: _scrapes(system.mount)) - alone) * COST_S / SCRAPES)
            progress.step()
    for name, runs in shares.items():
        yield median_entry(f"supervisor/{name}", "x", runs)
    yield median_entry("supervisor/scrape_ms", "ms", scrapes)


def _core_share(mount: Mount, during: Callable[[], None]) -> float:
    """Processor time of the supervisor over the time that `during` takes."""
    pid = next(one["pid"] for one in mount.status()["processes"] if one["role"] == "supervisor")
    before, began = cpu_seconds(pid), time.monotonic()
    during()
    return (cpu_seconds(pid) - before) / (time.monotonic() - began)


def _scrapes(mount: Mount) -> None:
    """Ask for the metrics SCRAPES times in COST_S, so that the bound on a client's processor time holds nobody up."""
    located, end = locate_living(os.fspath(mount.path), os.environ), time.monotonic() + COST_S
    for left in range(SCRAPES, 0, -1):
        located.call("metrics")
        time.sleep(max(0.0, (end - time.monotonic()) / left))
