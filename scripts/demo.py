#!/usr/bin/env python3
"""The demo: one training job on a slow source, through a nopfsfs mount, and on a local copy; a table, a picture,
verdicts.

    make demo        (or: python scripts/demo.py --help)

An unmodified PyTorch loop (train_loop.py) reads real JPEG files for three epochs. The source is a stand-in
for a parallel file system (slow_source.py). Each run is a fresh process, each mounted run a fresh mount. With
several runs, those on the local copy and the mount take turns, so that what else the machine does meets both. Ends
with one PASS or FAIL per promise, with three lines to paste, and with the name of the mount's own report,
build/demo.html; writes build/demo.json and build/demo.png; and exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lab
import make_images
from demo_result import (
    AGAIN,
    EPOCHS,
    LOCAL,
    MOUNT,
    NAMES,
    SOURCE,
    TRIPWIRE,
    Check,
    Job,
    MountedRun,
    checks,
    is_bound_by_io,
    table,
    verdict_lines,
)
from lab import Epoch, Mount, TimedProgress, train
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
# Milliseconds of a file, on the source and elsewhere, and seconds until the loop reads: for the progress bar alone.
SOURCE_MS = {"bytes": 4.2, "sums": 4.2, "decode": 7.2, "decode-3.14": 7.2}
LOCAL_MS = {"bytes": 0.15, "sums": 0.1, "decode": 1.4, "decode-3.14": 1.4}
START_S = 5.0

MountFactory = Callable[..., AbstractContextManager[Mount]]  # source, mountpoint, options


@dataclass(frozen=True)
class Demo:
    """How often to run, and where."""

    runs: int
    place: Path  # for mountpoints
    mount: MountFactory
    progress: TimedProgress
    wait_s: float = 0.0  # expected after the runs on the source, until a mount reads each image once


def rows(mode: str, runs: int) -> list[str]:
    """Where each run of a mode reads: the source once; then the local copy and mounts in turn."""
    return [SOURCE, *([LOCAL, MOUNT, *([TRIPWIRE] if is_bound_by_io(mode) else []), AGAIN] * runs)]


def expected_epoch_s(mode: str, row: str, files: int) -> float:
    return files * (SOURCE_MS if row == SOURCE else LOCAL_MS)[mode] / 1000


def expected_s(files: Mapping[str, int], chosen: Callable[[str], list[str]]) -> float:
    """Seconds that the chosen rows of all modes are expected to take; `files`: by mode, how many are read."""
    runs = [(mode, row, count) for mode, count in files.items() for row in chosen(mode)]
    return sum(START_S + EPOCHS * expected_epoch_s(*run) for run in runs)


@contextlib.contextmanager
def prepared(files: Mapping[str, int], runs: int, use_bindfs: bool = False) -> Iterator[Demo]:
    """Make the images; a place and a progress bar for all runs."""
    for count in files.values():
        images(count)
    wait_s = max(0.0, seconds_until_old(files) - expected_s(files, lambda mode: [SOURCE]))
    total_s = wait_s + expected_s(files, lambda mode: rows(mode, runs))
    with workplace() as place, TimedProgress(total_s) as progress:
        yield Demo(runs, place, bindfs if use_bindfs else nopfs(place / "index"), progress, wait_s)


def run_jobs(demo: Demo, files: Mapping[str, int]) -> list[Job]:
    """All runs of the modes; `files`: by mode, how many are read. The source first: the images grow old meanwhile."""
    jobs = [Job(mode, count) for mode, count in files.items()]
    for job in jobs:
        with slow_source(images(job.files), demo.place / "source") as source:
            job.direct.append(timed(demo, job, SOURCE, source.path))
    until_old(demo, files)
    for job in jobs:
        tree = images(job.files)
        with lab.local_copy(tree) as local, slow_source(tree, demo.place / "source") as source:
            for number in range(demo.runs):
                run_in_turn(demo, job, local, source, last=number == demo.runs - 1)
    return jobs


def run_in_turn(demo: Demo, job: Job, local: Path, source: SlowSource, last: bool) -> None:
    """A run on the local copy, on a mount of each kind, and on the local copy again."""
    # The last I/O-bound run waits after each epoch, to read the mount's own numbers at its end.
    step = last and is_bound_by_io(job.mode)
    job.local.append(timed(demo, job, LOCAL, local))
    job.mounted.append(mounted_run(demo, job, MOUNT, source, step))
    if is_bound_by_io(job.mode):
        job.tripwire.append(mounted_run(demo, job, TRIPWIRE, source, step, "--signal", "tripwire"))
    job.again.append(timed(demo, job, AGAIN, local))


def seconds_until_old(files: Mapping[str, int]) -> float:
    """Seconds until a mount reads each image of the modes once: what was just written is read twice."""
    made = max(make_images.manifest_path(image_root(count)).stat().st_mtime for count in files.values())
    return max(0.0, made + NETWORK_S + 1 - time.time())


def until_old(demo: Demo, files: Mapping[str, int]) -> None:
    """Wait until a mount reads each image of the modes once."""
    demo.progress.begin("waiting until the files are old", demo.wait_s)
    wait_s = seconds_until_old(files)
    if wait_s > 0:
        demo.progress.say(f"  {wait_s:.0f} s of waiting: a mount reads files twice that were written just before")
        time.sleep(wait_s)


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


def begin_epoch(demo: Demo, job: Job, row: str, epoch: int) -> None:
    """Tell the progress bar which epoch begins; the first includes the start of the run."""
    if epoch < EPOCHS:
        start_s = 0.0 if epoch else START_S
        what = f"{NAMES[job.mode]}: {row}, epoch {epoch + 1}"
        demo.progress.begin(what, start_s + expected_epoch_s(job.mode, row, job.files))


def timed(demo: Demo, job: Job, row: str, root: Path) -> list[Epoch]:
    """One run on a directory that is there."""
    begin_epoch(demo, job, row, 0)
    epochs = train(root / "train", job.mode, EPOCHS, lambda epoch: begin_epoch(demo, job, row, epoch.epoch + 1))
    say(demo, job, row, epochs)
    return epochs


def mounted_run(demo: Demo, job: Job, row: str, source: SlowSource, step: bool, *options: str) -> MountedRun:
    """One run on a mount of its own."""
    begin_epoch(demo, job, row, 0)
    opens: list[int] = []
    statuses: list[dict[str, Any]] = []

    def between(epoch: Epoch) -> None:
        opens.append(source.counters(files=False).opens)
        if step and not statuses:
            statuses.append(mount.status())
        begin_epoch(demo, job, row, epoch.epoch + 1)

    source.reset()
    with demo.mount(source.path, demo.place / "mount", *options) as mount:
        epochs = train(mount.path / "train", job.mode, EPOCHS, between, step)
    say(demo, job, row, epochs)
    counters = source.counters()
    return MountedRun(
        epochs=epochs,
        mount_seconds=mount.mount_seconds,
        head_start=epochs[0].started - mount.answered,
        opens_by_epoch=opens,
        opens_per_file=opens_per_file(counters, job.files),
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


def say(demo: Demo, job: Job, row: str, epochs: list[Epoch]) -> None:
    seconds = "  ".join(f"{epoch.seconds:6.2f}" for epoch in epochs)
    demo.progress.say(f"  {f'{NAMES[job.mode]}: {row}':28}{seconds}")


def image_root(files: int) -> Path:
    return lab.BUILD / f"images-{files}"


def images(files: int) -> Path:
    """The image set of so many training files."""
    root = image_root(files)
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


def measure(arguments: argparse.Namespace) -> tuple[list[Job], float]:
    """All runs, and the seconds that they took together."""
    modes = {"bytes": arguments.files, "decode": arguments.decode_files}
    files = {mode: count for mode, count in modes.items() if count}
    with prepared(files, arguments.runs, arguments.no_mount) as demo:
        started = time.monotonic()
        demo.progress.say(f"Seconds of each of {EPOCHS} epochs:")
        return run_jobs(demo, files), time.monotonic() - started


def save_page(path: Path, report: Mapping[str, Any]) -> None:
    """Write the page of a run that `nopfs report` makes of what `nopfs-umount --report` wrote."""
    from nopfsfs.monitor import report_page, run_record  # with matplotlib

    written = path.with_name(f"{path.stem}-report.json")  # build/demo.json has all figures
    written.write_text(json.dumps(report) + "\n")
    path.write_text(report_page.page(run_record.read_report(str(written)), time.time()))


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


def lines_to_paste(source: Path) -> list[str]:
    """Three commands that mount the source, train, and unmount. Makes the mountpoint."""
    mountpoint = lab.BUILD / "mnt"
    mountpoint.mkdir(parents=True, exist_ok=True)
    commands, where = short(lab.COMMANDS), short(mountpoint)
    return [
        f"{commands}/nopfs-mount {short(source)} {where} --seed {SEED}",
        f"{commands}/python {short(lab.SCRIPTS)}/train_loop.py {where}/train --seed {SEED}",
        f"{commands}/nopfs-umount {where}",
    ]


def short(path: Path) -> str:
    """The path as it is typed in the working directory."""
    return os.fspath(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One training job: slow source, nopfsfs mount, local copy.")
    parser.add_argument("--files", type=int, default=4000, help="for the I/O-bound job (0: leave it out)")
    parser.add_argument("--decode-files", type=int, default=1000, help="for the decoding job (0: leave it out)")
    parser.add_argument("--runs", type=int, default=1, help="to take the median of; 5 give figures worth quoting")
    parser.add_argument("--no-mount", action="store_true", help="try the demo itself: bindfs for nopfsfs")
    parser.add_argument("--record", type=Path, default=lab.BUILD / "demo.json")
    parser.add_argument("--picture", type=Path, default=lab.BUILD / "demo.png")
    parser.add_argument("--page", type=Path, default=lab.BUILD / "demo.html")
    arguments = parser.parse_args(argv)
    if arguments.runs < 1 or not (arguments.files or arguments.decode_files):
        parser.error("nothing to run")
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    lab.exit_on_sigterm()
    try:
        jobs, seconds = measure(arguments)
    except (lab.LabError, RuntimeError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    verdict = checks(jobs, BANDWIDTH)
    print(table(jobs, BANDWIDTH), "", *verdict_lines(verdict), sep="\n")
    finish(arguments, jobs, verdict, seconds)
    return 1 if any(check.passed is False for check in verdict) else 0


def finish(arguments: argparse.Namespace, jobs: list[Job], verdict: list[Check], seconds: float) -> None:
    """Write the record and the picture, and say what to do next."""
    from demo_picture import save  # matplotlib takes a second to import, which benchmarks need not

    write_record(arguments.record, jobs, verdict, seconds)
    save(arguments.picture, jobs)
    source = image_root(jobs[0].files)
    print(f"\nTook {seconds:.0f} s. Picture: {short(arguments.picture)}; all figures: {short(arguments.record)}")
    print()
    print(f"To mount a directory of your own, paste these lines with its path in place of {short(source)}.")
    print("The second may be any command that reads, such as ls:")
    print(*lines_to_paste(source), sep="\n")
    if report := next((job.mounted[-1].report for job in jobs if job.mounted), None):
        save_page(arguments.page, report)
        print(f"\nThe mount's own view of its last run: {short(arguments.page)}")


if __name__ == "__main__":
    sys.exit(main())
