#!/usr/bin/env python3
"""The demo: one training job on a slow source, through a nopfsfs mount, and on a local copy; a table; a
verdict.

    make demo        (or: python scripts/demo.py --help)

An unmodified PyTorch loop (train_loop.py) reads real JPEG files for three epochs. The source is a stand-in
for a parallel file system (slow_source.py). Each run is a fresh process, each mounted run a fresh mount; runs
on the local copy and the mount take turns, so that what else the machine does meets both. Ends with one PASS
or FAIL per promise, writes build/demo.json, and exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lab
import make_images
from demo_result import EPOCHS, Check, Job, MountedRun, checks, is_bound_by_io, table
from lab import Epoch, Mount, Progress, train
from slow_source import SlowSource, SourceCounters

from nopfsfs.stager.young_files import NETWORK_S

SEED = 42
VAL_IMAGES = 200
OPEN_LATENCY_S, READ_LATENCY_S = 0.005, 0.002
BANDWIDTH = 400e6  # bytes per second; the table says how many times what the direct run reaches
CONCURRENT = 64
# As long as libfuse lets names and attributes be kept by default; a parallel file system's client keeps them
# longer.
ATTR_TIMEOUT_S = 1.0


MountFactory = Callable[..., AbstractContextManager[Mount]]  # source, mountpoint, options


@dataclass(frozen=True)
class Demo:
    """How often to run, and where."""

    repeats: int
    place: Path  # for mountpoints
    mount: MountFactory
    progress: Progress


def run_job(demo: Demo, mode: str, tree: Path, files: int) -> Job:
    """All runs of one mode, the local copy and the mount in turn."""
    job = Job(mode, files)
    with lab.local_copy(tree) as local, slow_source(tree, demo.place / "source") as source:
        job.direct.append(timed(demo, f"{mode}: source", source.path, mode))
        until_old(demo, tree)
        for repeat in range(demo.repeats):
            job.local.append(timed(demo, f"{mode}: local", local, mode))
            # The last I/O-bound run waits after each epoch, to read the mount's own numbers at its end.
            step = is_bound_by_io(mode) and repeat == demo.repeats - 1
            job.mounted.append(mounted_run(demo, source, mode, files, step))
            if is_bound_by_io(mode):
                job.tripwire.append(mounted_run(demo, source, mode, files, step, "--signal", "tripwire"))
                job.again.append(timed(demo, f"{mode}: local again", local, mode))
    return job


def until_old(demo: Demo, tree: Path) -> None:
    """Wait until the images are so old that a mount reads each once: what had just been written it reads twice."""
    made = make_images.manifest_path(tree).stat().st_mtime
    wait = made + NETWORK_S + 1 - time.time()
    if wait > 0:
        demo.progress.doing(f"waiting {wait:.0f} s: files that were just written are read twice")
        time.sleep(wait)


def slow_source(tree: Path, mountpoint: Path) -> SlowSource:
    return SlowSource(
        tree,
        mountpoint,
        open_latency=OPEN_LATENCY_S,
        read_latency=READ_LATENCY_S,
        bandwidth=BANDWIDTH,
        concurrent=CONCURRENT,
        attr_timeout=ATTR_TIMEOUT_S,
    )


def timed(demo: Demo, what: str, root: Path, mode: str) -> list[Epoch]:
    """One run on a directory that is there."""
    demo.progress.doing(what)
    epochs = train(root / "train", mode, EPOCHS, lambda _: demo.progress.step())
    say(demo, what, epochs)
    return epochs


def mounted_run(demo: Demo, source: SlowSource, mode: str, files: int, step: bool, *options: str) -> MountedRun:
    """One run on a mount of its own."""
    what = f"{mode}: mount {options[-1]}" if options else f"{mode}: mount"
    demo.progress.doing(what)
    opens: list[int] = []
    statuses: list[dict[str, Any]] = []

    def between(epoch: Epoch) -> None:
        demo.progress.step()
        opens.append(source.counters(files=False).opens)
        if step and not statuses:
            statuses.append(mount.status())

    source.reset()
    with demo.mount(source.path, demo.place / "mount", *options) as mount:
        epochs = train(mount.path / "train", mode, EPOCHS, between, step)
    say(demo, what, epochs)
    counters = source.counters()
    return MountedRun(
        epochs=epochs,
        mount_seconds=mount.mount_seconds,
        head_start=epochs[0].started - mount.answered,
        opens_by_epoch=opens,
        opens_per_file=opens_per_file(counters, files),
        source_reads=counters.reads,
        source_bytes=counters.bytes,
        report=mount.report,
        after_first_epoch=statuses[0] if statuses else {},
    )


def opens_per_file(counters: SourceCounters, files: int) -> dict[int, int]:
    """How many training files were opened 0, 1, 2... times."""
    counted: dict[int, int] = {}
    training = [c.opens for path, c in counters.files.items() if path.startswith("train/")]
    for opens in [*training, *[0] * (files - len(training))]:
        counted[opens] = counted.get(opens, 0) + 1
    return counted


def say(demo: Demo, what: str, epochs: list[Epoch]) -> None:
    seconds = "  ".join(f"{epoch.seconds:6.2f}" for epoch in epochs)
    demo.progress.say(f"  {what:22}{seconds}  s")


def images(files: int) -> Path:
    """The image set of so many training files."""
    root = lab.BUILD / f"images-{files}"
    make_images.build(root, make_images.Recipe(files, VAL_IMAGES, classes=100, seed=SEED))
    return root


def nopfs(index: Path) -> MountFactory:
    return partial(nopfs_mount, index)


def nopfs_mount(index: Path, source: Path, mountpoint: Path, *options: str) -> AbstractContextManager[Mount]:
    return lab.nopfs_mount(source, mountpoint, "--seed", SEED, "--index-dir", index, *options)


def bindfs(source: Path, mountpoint: Path, *_options: str) -> AbstractContextManager[Mount]:
    return lab.bindfs_mount(source, mountpoint)


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """build/demo, empty; leftovers of a killed demo are unmounted and removed."""
    place = lab.BUILD / "demo"
    clear(place)
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        clear(place)


def clear(place: Path) -> None:
    for name in ("mount", "source"):
        lab.unmount(place / name)
    shutil.rmtree(place, ignore_errors=True)


def measure(arguments: argparse.Namespace) -> list[Job]:
    modes = [("bytes", arguments.files), ("decode", arguments.decode_files)]
    trees = {mode: images(files) for mode, files in modes if files}
    with workplace() as place:
        mount = bindfs if arguments.no_mount else nopfs(place / "index")
        with Progress(sum(steps(mode, arguments.repeats) for mode in trees)) as progress:
            demo = Demo(arguments.repeats, place, mount, progress)
            progress.say(f"Seconds of each of {EPOCHS} epochs:")
            return [run_job(demo, mode, trees[mode], files) for mode, files in modes if files]


def steps(mode: str, repeats: int) -> int:
    """Epochs of all runs: direct once; then local and mount in turn, I/O-bound with both signals, and local again."""
    return EPOCHS * (1 + (4 if is_bound_by_io(mode) else 2) * repeats)


def write_record(path: Path, jobs: list[Job], verdict: list[Check], seconds: float) -> None:
    source = {"open_latency": OPEN_LATENCY_S, "read_latency": READ_LATENCY_S, "bandwidth": BANDWIDTH}
    record = {
        "machine": lab.machine(),
        "source": {**source, "concurrent": CONCURRENT},
        "seconds": seconds,
        "jobs": [asdict(job) for job in jobs],
        "checks": [asdict(check) for check in verdict],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One training job: slow source, nopfsfs mount, local copy.")
    parser.add_argument("--files", type=int, default=8000, help="for the I/O-bound job (0: leave it out)")
    parser.add_argument("--decode-files", type=int, default=3000, help="for the decoding job (0: leave it out)")
    parser.add_argument("--repeats", type=int, default=5, help="runs to take the median of")
    parser.add_argument("--no-mount", action="store_true", help="try the demo itself: bindfs for nopfsfs")
    parser.add_argument("--record", type=Path, default=lab.BUILD / "demo.json")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    lab.exit_on_sigterm()
    started = time.monotonic()
    try:
        jobs = measure(arguments)
    except (lab.LabError, RuntimeError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    verdict = checks(jobs, BANDWIDTH)
    print(table(jobs, BANDWIDTH))
    for check in verdict:
        print(check)
    write_record(arguments.record, jobs, verdict, time.monotonic() - started)
    return 0 if all(check.passed for check in verdict) else 1


if __name__ == "__main__":
    sys.exit(main())
