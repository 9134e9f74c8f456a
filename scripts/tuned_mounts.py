"""Mounts of a slow source with a throughput curve, each with a reader that takes all it gets. Who tunes them may change
while they run: their own tuner, a fixed limit, or a rival of the tuner from outside.

A rival runs in a thread of this process. Each tick it reads the metrics of its mount over the control socket, and sets
the limit by `tune`.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import bench_files
import lab
from lab import Mount
from mount_control import MountControl
from slow_source import SlowSource
from slow_source_load import BIN_S, Curve, Limits
from slow_source_sharing import throughput_curve

from nopfsfs.policy.limit_policy import LimitPolicy
from nopfsfs.protocol.server_stager import YOUNG_S

# Few servers, which thrash; many; and no knee. Two processors carry some 600 reads a second beside mounts.
CURVES = {
    "knee4": Curve(0.008, 500.0, 4.0, falls_from=12.0, halves_after=24.0),
    "knee24": Curve(0.040, 600.0, 4.0, falls_from=72.0, halves_after=62.0),
    "smooth": Curve(0.040, 600.0, 1.0),
}
IDLE = Curve(0.0001, 100_000.0)
FILES, FILE_BYTES, CLASSES = 24_000, 4096, 20
RAM = "48M"  # a quarter of the files stay: the source goes on being read; a thousand are staged ahead
ATTR_TIMEOUT_S = 60.0
# Mounts drain on the full and the half minute of the wall clock; a drain takes less than `DRAIN_S`.
MINUTE_S, HALF_MINUTE_S, DRAIN_S = 60.0, 30.0, 4.0
FEW, EMPTY_S = 2, 10.0  # requests that may still be under way when a policy begins; s until it begins anyhow
PLAN = "all"
Policy = Callable[[], LimitPolicy]


def slower(curve: Curve, times: float) -> Curve:
    """The curve of a source with which everything takes so many times longer, with the same concurrency at its knee."""
    return replace(curve, seconds=curve.seconds * times, most=curve.most / times)


@dataclass(frozen=True)
class Share:
    """What mounts got of a source in some time. `rates`: reads a second of each mount; `share`: of the most that the
    source can give, by all; `under_way`: the mean of the reads under way at the source."""

    rates: tuple[float, ...]
    share: float
    under_way: float

    @property
    def ratio(self) -> float:
        """The largest rate over the least."""
        return max(self.rates) / max(min(self.rates), 1e-9)


class OutsideTuner(threading.Thread):
    """A policy that sets the limit of a mount, from `start` to `stop`."""

    def __init__(self, control: MountControl, policy: LimitPolicy) -> None:
        super().__init__(daemon=True)
        self._control, self._policy = control, policy
        self._stopped = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        limit = None
        try:
            while not self._stopped.is_set():
                decision = self._policy.step(self._control.sample())
                if decision.limit != limit:
                    limit = decision.limit
                    self._control.set_limit(limit)
                self._stopped.wait(decision.wait)
        except Exception as error:
            self._error = error

    def stop(self) -> None:
        """End. Raises what the policy or the mount raised."""
        self._stopped.set()
        self.join()
        if self._error is not None:
            raise self._error


@dataclass(frozen=True)
class ReadMount:
    """A mount and its reader."""

    mount: Mount
    control: MountControl
    reader: subprocess.Popen[bytes]

    def ended(self) -> tuple[float, int]:
        """The time, and the requests at the source that ended well until then."""
        count = self.control.ended()
        return time.monotonic(), count

    def read(self, does: bool) -> None:
        """Let the reader go on, or stop it."""
        self.reader.send_signal(signal.SIGCONT if does else signal.SIGSTOP)


@dataclass(frozen=True)
class Laboratory:
    """A source and its mounts."""

    source: SlowSource
    curve: Curve
    mounts: Sequence[ReadMount]

    def read(self, mounts: int) -> None:
        """Have the readers of so many mounts read. The others prefetch hardly any more, and learn nothing of a source
        that fixed limits and rivals load, which take part in no drain."""
        for number, one in enumerate(self.mounts):
            one.read(number < mounts)
            if number >= mounts:
                one.control.set_limit(1)

    def measure(self, mounts: int, policy: Policy | None, settle: float, seconds: float) -> Share:
        """The share of the first so many mounts under a policy; None: their own tuner, between two drains. The source
        does the same in each measurement: its speed wanders alike."""
        chosen = self.mounts[:mounts]
        if policy is None:
            await_gap(settle + seconds)
        with contextlib.ExitStack() as stack:
            self.source.set_limits(Limits(curve=self.curve))
            for one in chosen:
                stack.enter_context(tuned(one.control, policy))
            time.sleep(settle)
            self.source.reset()
            before = [one.ended() for one in chosen]
            time.sleep(seconds)
            series = self.source.counters(files=False, series=True).series
            after = [one.ended() for one in chosen]
        rates = [(last - first) / (end - begin) for (begin, first), (end, last) in zip(before, after, strict=True)]
        ended = sum(reads for _, reads in series) / (len(series) * BIN_S)
        under_way = sum(mean for mean, _ in series) / len(series)
        return Share(tuple(rates), ended / throughput_curve(self.curve).best, under_way)


def await_drain() -> None:
    """Return when the mounts have had a drain since now, and know what the idle source is."""
    time.sleep(MINUTE_S - time.time() % MINUTE_S + DRAIN_S)


def await_end_of_requests(control: MountControl) -> None:
    """Return when few requests are under way, or after a while: a policy takes what is under way for its own."""
    end = time.monotonic() + EMPTY_S
    while control.sample().under_way > FEW and time.monotonic() < end:
        time.sleep(0.05)


def await_gap(seconds: float) -> None:
    """Return when no drain comes for so many seconds; at once, if they are too many for that. In a short time a drain
    would count for more than it costs."""
    passed = time.time() % HALF_MINUTE_S
    fits = seconds <= HALF_MINUTE_S - DRAIN_S
    if fits and not DRAIN_S <= passed <= HALF_MINUTE_S - seconds:
        time.sleep((DRAIN_S - passed) % HALF_MINUTE_S)


@contextlib.contextmanager
def tuned(control: MountControl, policy: Policy | None) -> Iterator[None]:
    """Let a policy, or the mount's own tuner, set the limit meanwhile."""
    if policy is None:
        control.set_limit(None)
        yield
        return
    control.set_limit(1)
    await_end_of_requests(control)
    tuner = OutsideTuner(control, policy())
    tuner.start()
    try:
        yield
    finally:
        tuner.stop()


@contextlib.contextmanager
def laboratory(curve: Curve, mounts: int, weights: Sequence[float] = ()) -> Iterator[Laboratory]:
    """So many mounts of one source, whose readers read, with these claims beside others (default: 1 each). An earlier
    mount has seen a drain of the source, so that all begin with the same base. Raises LabError."""
    tree, paths = data_set()
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(lab.place())
        bench_files.write_plan(place, PLAN, paths)
        source = stack.enter_context(SlowSource(tree, curve=curve, attr_timeout=ATTR_TIMEOUT_S))
        with read_mount(source, place, "earlier", paths):
            await_drain()
        made = []
        for number in range(mounts):
            weight = weights[number] if weights else None
            made.append(stack.enter_context(read_mount(source, place, f"mount{number}", paths, weight)))
        try:
            yield Laboratory(source, curve, made)
        finally:
            source.set_limits(Limits(curve=IDLE))  # hundreds of reads of a source that thrashes would hold the unmounts


@contextlib.contextmanager
def read_mount(
    source: SlowSource, place: Path, name: str, paths: Sequence[str], weight: float | None = None
) -> Iterator[ReadMount]:
    """A mount below `place` that a reader reads; `weight` is at most 1."""
    options = ["--index-dir", place / "index", "--plan", place / f"{PLAN}.toml", "--ram", RAM]
    if weight is not None:
        policy = place / f"{name}-policy.toml"
        policy.write_text(f"version = 1\ndefault = {{ weight = {weight} }}\n")
        options += ["--policy", policy]
    with lab.nopfs_mount(source.path, place / name, *options, env=disciplined()) as mount:
        listing = bench_files.write_listing(place / f"{name}.list", mount.path, paths)
        with endless_reader(listing) as reader:
            yield ReadMount(mount, MountControl(mount.path), reader)


def disciplined() -> dict[str, str]:
    """The environment in which a mount takes the clock for disciplined, so that it drains."""
    paths = (lab.SCRIPTS / "disciplined", os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(os.fspath(path) for path in paths if path)}


@contextlib.contextmanager
def endless_reader(listing: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that reads the files of a list again and again. Raises LabError if it failed."""
    command: list[str | Path] = [sys.executable, lab.SCRIPTS / "readers" / "endless.py", listing]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield process
            if process.poll() not in (None, 0):
                raise lab.LabError(f"the reader ended with exit {process.returncode}")
        finally:
            process.kill()


def data_set() -> tuple[Path, list[str]]:
    """The files, below build/, and the order in which to read them. Waits until they are old: a mount reads files twice
    that were written just before."""
    root = lab.BUILD / f"tuned-{FILES}"
    order = root.with_suffix(".order")
    if not order.exists():
        rng = random.Random(0)
        paths = [f"{bench_files.TOP}/c{number % CLASSES:02d}/{number:05d}.bin" for number in range(FILES)]
        for label in range(CLASSES):
            (root / bench_files.TOP / f"c{label:02d}").mkdir(parents=True, exist_ok=True)
        for path in paths:
            (root / path).write_bytes(rng.randbytes(FILE_BYTES))
        rng.shuffle(paths)
        order.write_text("\n".join(paths))
    wait = order.stat().st_mtime + YOUNG_S - time.time()
    if wait > 0:
        print(f"  {wait:.0f} s of waiting: a mount reads files twice that were written just before", flush=True)
        time.sleep(wait)
    return root, order.read_text().split("\n")
