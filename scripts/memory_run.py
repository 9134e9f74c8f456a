#!/usr/bin/env python3
"""Whether the memory of a mount's processes grows, in hours of mixed load.

    sudo sh scripts/apart.sh .venv/bin/python scripts/memory_run.py --seconds 7200

In namespaces of its own (`apart.sh`), as the exporter would show the mounts of others as well.

One mount with a small memory and disk tier, of which readers ask more than fits: a training job in shuffled order that
checks each byte, now and then a second job with another seed (a process of its own, as jobs are), random ranges of
large files, listings, names that are not there. Files of the source change, come and go meanwhile. The exporter writes
its file; metrics, access log and status are read; the tuner is steered.

The memory of a process is what no file backs and no other process shares (Pss_Anon of smaps_rollup): the tiers, which
are bounded, are not in it. The growth is the slope of a line through all looks from the 20th minute on, in percent of
their mean an hour.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableSequence
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event as Stopped
from pathlib import Path

import lab
import numpy as np
from lab import COMMANDS, LabError, Mount, Progress

from nopfsfs.control.find_mount import locate_living
from nopfsfs.control.process_list import Process, read_pids
from nopfsfs.plan.samplers.registry import order
from nopfsfs.plan.samplers.sampler import Spec

FILES, CLASSES, LARGE, LARGE_BYTES = 20_000, 20, 4, 32 << 20
SEED, OTHER_SEED = 42, 7
RAM, DISK = "48M", "64M"
OPENS_A_SECOND = 150.0
SECOND_JOB_S = 60.0  # between the runs of the second job, which take some eight minutes each
SETTLED_S, LOOK_S = 1200.0, 20.0
SETTLES_S = 20.0  # a change of a file, at most
MOST_PERCENT_AN_HOUR = 1.0
PROCESSES = multiprocessing.get_context("spawn")


def content(number: int, version: int, length: int) -> bytes:
    """What a file holds: nothing else is right."""
    return random.Random(number << 20 | version).randbytes(64) * (length // 64)


@dataclass
class Source:
    """The files, and the version of each."""

    root: Path
    versions: MutableSequence[int]  # shared by all processes

    def path(self, number: int) -> Path:
        return self.root / f"class{number * CLASSES // FILES:02}" / f"{number:05}.jpg"

    def fill(self) -> None:
        for number in range(FILES):
            self.path(number).parent.mkdir(parents=True, exist_ok=True)
            self.write(number, 0)
        for number in range(LARGE):
            (self.root / f"large{number}.bin").write_bytes(content(FILES + number, 0, LARGE_BYTES))

    def write(self, number: int, version: int) -> None:
        """Replace the file, as those do who change a data set under a job."""
        new = self.root / f".new{number}"
        new.write_bytes(content(number, version, self.length(number)))
        self.versions[number] = version
        new.rename(self.path(number))

    def length(self, number: int) -> int:
        return 64 * (16 + number % 112)


class Checking:
    """Reads files of a mount as one job, and compares all bytes."""

    def __init__(self, source: Source, mountpoint: Path) -> None:
        self._source, self._mountpoint = source, mountpoint
        self._shown: dict[int, int] = {}  # by file: its last version that was read
        self.waited = 0  # reads of files that were changing

    def read(self, number: int) -> None:
        """Read a file, which holds one of its versions, and none before one that was read before. Raises LabError."""
        length, least = self._source.length(number), self._shown.get(number, 0)
        data = self._bytes(self._mountpoint / self._source.path(number).relative_to(self._source.root))
        for version in range(least, self._source.versions[number] + 2):
            if data == content(number, version, length):
                self._shown[number] = max(version, self._shown.get(number, 0))
                return
        raise LabError(f"file {number} has wrong bytes")

    def _bytes(self, path: Path) -> bytes:
        """What the file holds. A change gives ESTALE until it has settled (docs/semantics.md)."""
        end = time.monotonic() + SETTLES_S
        while True:
            try:
                return path.read_bytes()
            except OSError as error:
                if error.errno != errno.ESTALE or time.monotonic() > end:
                    raise
                self.waited += 1
                time.sleep(0.2)


def epochs(seed: int, most: int) -> Iterator[int]:
    """The files of so many epochs, in the order of a DistributedSampler."""
    for epoch in range(most):
        yield from (int(sample) for sample in order(Spec("distributed", seed), FILES, epoch))


def second_job(
    root: Path, versions: MutableSequence[int], mountpoint: Path, stopped: Stopped, opens: Synchronized[int]
) -> None:
    """A process: one epoch with another seed, again and again, with pauses in between."""
    job = Checking(Source(root, versions), mountpoint)
    while not stopped.wait(SECOND_JOB_S):  # twice in the minutes that do not count
        for number in epochs(OTHER_SEED, 1):
            if stopped.wait(0.02):
                return
            job.read(number)
            opens.value += 1


class Load:
    """Readers and clients of a mount, each in a thread, until `stop`. The first error ends all."""

    def __init__(self, source: Source, mount: Mount) -> None:
        self._source, self._mount = source, mount
        self._stopped = threading.Event()
        self._job = Checking(source, mount.path)
        self.error: Exception | None = None
        self.counts: dict[str, int] = {}
        parts: list[Callable[[], None]] = [
            self._train, self._validate, self._read_ranges, self._list, self._miss, self._change, self._ask
        ]  # fmt: skip
        self._threads = [threading.Thread(target=self._guarded, args=(part,), daemon=True) for part in parts]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all readers, and wait for them."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(60.0)

    def _guarded(self, part: Callable[[], None]) -> None:
        try:
            part()
        except Exception as error:
            self.error = error
            self._stopped.set()

    def _did(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _every(self, seconds: float) -> Iterator[int]:
        turn = 0
        while not self._stopped.wait(seconds):
            yield turn
            turn += 1

    def _train(self) -> None:
        due = time.monotonic()
        for number in epochs(SEED, 10_000):
            if self._stopped.is_set():
                return
            self._job.read(number)
            self._did("opens of the job")
            self.counts["reads while a change settles"] = self._job.waited
            due += 1.0 / OPENS_A_SECOND
            time.sleep(max(0.0, due - time.monotonic()))

    def _validate(self) -> None:
        stopped, opens = PROCESSES.Event(), PROCESSES.Value("q", 0)
        asked = self._source.root, self._source.versions, self._mount.path, stopped, opens
        job = PROCESSES.Process(target=second_job, args=asked)
        job.start()
        try:
            while not self._stopped.wait(1.0):
                self.counts["opens of a second job"] = opens.value
                if job.exitcode is not None:
                    raise LabError(f"the second job ended with exit {job.exitcode}")
        finally:
            stopped.set()
            job.join(60.0)

    def _read_ranges(self) -> None:
        chosen = random.Random(1)
        whole = [content(FILES + number, 0, LARGE_BYTES) for number in range(LARGE)]
        for _ in self._every(0.5):
            number, length = chosen.randrange(LARGE), chosen.randrange(1, 1 << 20)
            at = chosen.randrange(LARGE_BYTES - length)
            with open(self._mount.path / f"large{number}.bin", "rb") as file:
                if os.pread(file.fileno(), length, at) != whole[number][at : at + length]:
                    raise LabError(f"large file {number} has wrong bytes")
            self._did("ranges of large files")

    def _list(self) -> None:
        for turn in self._every(3.0):
            found = list((self._mount.path / f"class{turn % CLASSES:02}").iterdir())
            if len(found) < FILES // CLASSES:
                raise LabError(f"a listing shows {len(found)} files")
            self._did("listings")

    def _miss(self) -> None:
        for turn in self._every(0.1):
            if (self._mount.path / f"class{turn % CLASSES:02}" / f"absent{turn}").exists():
                raise LabError("a name that is not there was found")
            self._did("names that are not there")

    def _change(self) -> None:
        chosen = random.Random(2)
        for turn in self._every(5.0):
            number = chosen.randrange(FILES)
            self._source.write(number, self._source.versions[number] + 1)
            extra = self._source.root / f"class{turn % CLASSES:02}" / f"zz{turn}.txt"
            extra.write_bytes(b"new")
            with contextlib.suppress(FileNotFoundError):
                (self._source.root / f"class{(turn - 9) % CLASSES:02}" / f"zz{turn - 9}.txt").unlink()
            self._did("changes of the source")

    def _ask(self) -> None:
        located = locate_living(os.fspath(self._mount.path), os.environ)
        for turn in self._every(10.0):
            located.call("status")
            lab.run([COMMANDS / "nopfs", "metrics", self._mount.path])
            if turn % 6 == 0:
                lab.run([COMMANDS / "nopfs", "accesslog", self._mount.path, "--seconds", "2", "--json"])
                located.call("tune", concurrency="auto" if turn % 12 else 8)
            self._did("rounds of clients")


def anonymous_bytes(pid: int) -> int:
    """The memory that only this process has, and that no file backs."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) << 10
    raise LabError("the kernel does not say Pss_Anon")


@dataclass
class Looks:
    """What was seen of each process: seconds since the start, and bytes."""

    seen: dict[Process, list[tuple[float, int]]] = field(default_factory=dict)

    def look(self, directory: str, now: float) -> None:
        for process in read_pids(directory):
            with contextlib.suppress(OSError):
                self.seen.setdefault(process, []).append((now, anonymous_bytes(process.pid)))

    def lines(self, settled_s: float) -> tuple[list[str], bool]:
        """The table, and whether each process keeps to the bar."""
        lines, good = [f"{'process':20} {'looks':>6} {'MB at first':>12} {'MB at last':>11} {'% an hour':>10}"], True
        for process, looks in self.seen.items():
            late = np.array([look for look in looks if look[0] >= settled_s], dtype=np.float64)
            if len(late) < 3:
                lines.append(f"{process.role:20} {len(late):6} ended too early to say")
                continue
            slope = np.polyfit(late[:, 0], late[:, 1], 1)[0] * 3600
            percent = 100 * slope / late[:, 1].mean()
            good &= percent <= MOST_PERCENT_AN_HOUR
            first, last = late[0, 1] / 1e6, late[-1, 1] / 1e6
            lines.append(f"{process.role:20} {len(late):6} {first:12.2f} {last:11.2f} {percent:10.2f}")
        return lines, good


def measure(seconds: float, settled_s: float, record: Path, progress: Progress) -> bool:
    looks = Looks()
    with lab.place() as place:
        source = Source(place / "source", PROCESSES.RawArray("i", FILES))
        progress.doing("files")
        source.fill()
        disk = place / "disk"
        disk.mkdir(mode=0o700)
        options = ["--seed", SEED, "--ram", RAM, "--disk", f"{disk}:{DISK}"]
        with lab.nopfs_mount(source.root, place / "mnt", *options) as mount:
            directory = locate_living(os.fspath(mount.path), os.environ).state_dir
            exporter = subprocess.Popen([COMMANDS / "nopfs", "exporter", "--textfile", place])
            exported = looks.seen.setdefault(Process("exporter", exporter.pid, 0), [])
            load = Load(source, mount)
            started = time.monotonic()
            foreseen: list[float] = []
            try:
                progress.doing("load")
                while (now := time.monotonic() - started) < seconds and load.error is None:
                    looks.look(directory, now)
                    exported.append((now, anonymous_bytes(exporter.pid)))
                    seen = {f"{process.role} {process.pid}": found for process, found in looks.seen.items()}
                    record.write_text(json.dumps({"counts": load.counts, "seen": seen}) + "\n")
                    time.sleep(LOOK_S)
                foreseen = [one["predicted"] / one["files"] for one in mount.status()["epochs"] if one["ended"]]
            finally:
                load.stop()
                exporter.terminate()
                exporter.wait(30.0)
            if load.error is not None:
                raise LabError(f"the load failed: {load.error!r}")
    lines, good = looks.lines(settled_s)
    counts = [f"{count} {what}" for what, count in load.counts.items()]
    share = f"of an epoch's opens at least {min(foreseen):.3f} were foreseen" if foreseen else "no epoch has ended"
    progress.say("\n".join([*lines, "", ", ".join([*counts, share])]))
    return good


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=7200.0)
    parser.add_argument("--settled", type=float, default=SETTLED_S, help="seconds that do not count")
    parser.add_argument("--record", type=Path, default=lab.BUILD / "memory_run.json", help="each look, as it is made")
    asked = parser.parse_args(argv)
    lab.exit_on_sigterm()
    asked.record.parent.mkdir(exist_ok=True)
    try:
        with Progress(1) as progress:
            good = measure(asked.seconds, asked.settled, asked.record, progress)
    except LabError as error:
        print(f"memory_run: {error}", file=sys.stderr)
        return 1
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
