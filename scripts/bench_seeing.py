"""What it costs a reader that somebody watches the mount: `nopfs top`, the exporter and the access log, all at once.

Runs with and without watchers follow each other on one mount. Each ratio is of a run with watchers and the mean of the
runs before and after it, so that a machine which grows slower or faster meanwhile does not count. The reader takes one
processor; the mount and whoever watches need another.
"""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import bench_warm
from bench_entry import Entry, median_entry
from lab import COMMANDS, LabError, Progress

ROUNDS = 15
RUN_S = 3.0  # of each run: `top` looks several times in it
SCRAPE_S = 1.0  # Prometheus asks each 15 s, or each minute
LIMIT_S = 10.0
ADDRESS = "127.0.0.1:9815"
READY_S = 2.0  # until all three have begun
SIGNALS = {"default": (), "open": ("--signal", "open")}


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


def _drain(screen: int) -> None:
    """Take what `top` shows, until it has ended."""
    with contextlib.suppress(OSError):
        while os.read(screen, 1 << 16):
            pass


def _scrape(ended: threading.Event) -> None:
    while not ended.wait(SCRAPE_S):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{ADDRESS}/metrics", timeout=LIMIT_S) as page:
            page.read()


def entries() -> Iterator[Entry]:
    """seeing/hit_rate_ratio of the default signal, seeing/open/hit_rate_ratio with each open seen, and the noise: the
    ratio of two runs without watchers."""
    files = bench_warm.SETS["117KB"]
    factories = {name: bench_warm.nopfs(*options) for name, options in SIGNALS.items()}
    seen: dict[str, list[float]] = {name: [] for name in SIGNALS}
    noise: dict[str, list[float]] = {name: [] for name in SIGNALS}
    with bench_warm.mounted(files, factories, readers=1) as found, Progress(ROUNDS * len(SIGNALS)) as progress:
        found.pop(bench_warm.TMPFS)
        for system in found.values():
            system.warm("python", RUN_S)
        for _ in range(ROUNDS):
            for name, system in found.items():
                progress.doing(f"seeing: {name}")
                alone = system.run("python").rate
                with watched(system.mount.path):
                    beside = system.run("python").rate
                after = system.run("python").rate
                seen[name].append(2 * beside / (alone + after))
                noise[name].append(after / alone)
                progress.step()
        for system in found.values():
            system.cold_share()
    for name in SIGNALS:
        prefix = "seeing" if name == "default" else f"seeing/{name}"
        yield median_entry(f"{prefix}/hit_rate_ratio", "x", seen[name])
        yield median_entry(f"{prefix}/noise", "x", noise[name])
