"""What the demo measured, as a table and as kept or broken promises. Pure: values in, text out."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from lab import Epoch, medians

EPOCHS = 3
LEAST_FIRST_SPEEDUP = 2.0
LEAST_LATER_SPEEDUP = 5.0
MOST_DECODE_RATIO = 1.15
LEAST_SHARE = 0.99
LEAST_BANDWIDTH_RATIO = 4.0
MOST_LATER_RATIO = 1.05  # over the local copy, with the noise of a second run of that on top
LEAST_RUNS = 3  # of which the median is compared with the local copy: one run may meet what else the machine does
WHAT = {
    "bytes": "the loader returns the file's bytes",
    "sums": "the loader returns the file's bytes, which stay in the workers",
    "decode": "JPEG decoding",
    "decode-3.14": "JPEG decoding, of files that are opened as CPython 3.14 does",
}
NAMES = {"bytes": "reading", "sums": "sums", "decode": "decoding", "decode-3.14": "decoding (3.14)"}
# The rows of the table.
SOURCE, MOUNT, TRIPWIRE, LOCAL, AGAIN = (
    "slow source", "nopfsfs mount", "mount, tripwires", "local copy", "local copy again",
)  # fmt: skip


def is_bound_by_io(mode: str) -> bool:
    return not mode.startswith("decode")


@dataclass
class MountedRun:
    """One run through the mount, and what the source and the mount counted."""

    epochs: list[Epoch]
    mount_seconds: float
    head_start: float  # seconds from the mount's answer to the first epoch
    opens_by_epoch: list[int]  # of the source, counted when each epoch ended
    opens_per_file: dict[int, int]  # how many of the training files the source saw opened so often
    source_reads: int
    source_bytes: int
    report: dict[str, Any]
    after_first_epoch: dict[str, Any] = field(default_factory=dict)  # status, where the loop waited for it


@dataclass
class Job:
    """All runs of one mode."""

    mode: str
    files: int
    direct: list[list[Epoch]] = field(default_factory=list)
    local: list[list[Epoch]] = field(default_factory=list)
    again: list[list[Epoch]] = field(default_factory=list)  # the local copy a second time: the noise
    mounted: list[MountedRun] = field(default_factory=list)
    tripwire: list[MountedRun] = field(default_factory=list)  # with --signal tripwire

    def seconds(self) -> dict[str, list[float]]:
        """Median seconds of each epoch, by row of the table."""
        rows = {SOURCE: self.direct, MOUNT: [run.epochs for run in self.mounted]}
        rows[TRIPWIRE] = [run.epochs for run in self.tripwire]
        rows |= {LOCAL: self.local, AGAIN: self.again}
        return {name: medians(runs) for name, runs in rows.items() if runs}

    def mounts(self) -> dict[str, list[MountedRun]]:
        """The mounted runs, by row of the table."""
        return {MOUNT: self.mounted, **({TRIPWIRE: self.tripwire} if self.tripwire else {})}

    def is_judged(self) -> bool:
        """Tell whether the runs are enough to compare their medians with the local copy's."""
        return len(self.local) >= LEAST_RUNS


@dataclass(frozen=True)
class Check:
    """One promise; `judged`: there were enough runs for it."""

    what: str
    value: float | None
    limit: float
    at_most: bool = False
    judged: bool = True

    @property
    def passed(self) -> bool | None:
        """None where the runs were too few."""
        if not self.judged:
            return None
        if self.value is None:
            return False
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def __str__(self) -> str:
        found = "not reported" if self.value is None else f"{self.value:.4g}"
        bound = f"at {'most' if self.at_most else 'least'} {self.limit:.4g}"
        word = {True: "PASS", False: "FAIL", None: "----"}[self.passed]
        return f"{word}  {self.what}: {found} ({bound})"


def verdict_lines(found: list[Check]) -> list[str]:
    """The verdicts, and the command that decides the open ones."""
    is_open = any(check.passed is None for check in found)
    few = f"----  fewer than {LEAST_RUNS} runs cannot tell this from noise: make demo DEMO='--runs 5'"
    return [*map(str, found), *([few] if is_open else [])]


def checks(jobs: list[Job], bandwidth: float) -> list[Check]:
    """All promises of the demo, in the order of its table."""
    found: list[Check] = []
    for job in jobs:
        found += io_checks(job, bandwidth) if is_bound_by_io(job.mode) else decode_checks(job)
        found += source_checks(job)
    return found


def io_checks(job: Job, bandwidth: float) -> list[Check]:
    seconds = job.seconds()
    direct, mount = seconds[SOURCE], seconds[MOUNT]
    later = sum(direct[1:]) / sum(mount[1:])
    found = [
        Check(
            "source bandwidth / what the direct run reaches",
            bandwidth / direct_rate(job),
            LEAST_BANDWIDTH_RATIO,
        ),
        Check("I/O-bound, epoch 1: times faster than the source", direct[0] / mount[0], LEAST_FIRST_SPEEDUP),
        Check("I/O-bound, later epochs: times faster than the source", later, LEAST_LATER_SPEEDUP),
        Check("I/O-bound, runs whose bytes differ from the local copy's", runs_that_differ(job), 0, at_most=True),
    ]
    if job.mode == "bytes" and job.again:
        local, limit = sum(seconds[LOCAL][1:]), MOST_LATER_RATIO + noise(job)
        for name in job.mounts():
            what = f"I/O-bound, later epochs, {name} / local copy (5 % and the noise)"
            found.append(Check(what, sum(seconds[name][1:]) / local, limit, True, job.is_judged()))
    return found


def noise(job: Job) -> float:
    """The share by which the local copy's later epochs differ when they are read again."""
    seconds = job.seconds()
    local, again = (sum(seconds[name][1:]) for name in (LOCAL, AGAIN))
    return abs(again / local - 1)


def decode_checks(job: Job) -> list[Check]:
    seconds = job.seconds()
    ratio = sum(seconds[MOUNT]) / sum(seconds[LOCAL])
    what = "decoding, all epochs: mount / local copy"
    return [Check(what, ratio, MOST_DECODE_RATIO, at_most=True, judged=job.is_judged())]


def source_checks(job: Job) -> list[Check]:
    """What the source counted and the mount reported: the worst of the runs."""
    name = "I/O-bound" if is_bound_by_io(job.mode) else "decoding"
    runs = [*job.mounted, *job.tripwire]
    once = [run.opens_per_file.get(1, 0) / job.files for run in runs]
    later = [1 - (run.opens_by_epoch[-1] - run.opens_by_epoch[0]) / (job.files * (EPOCHS - 1)) for run in runs]
    predicted = [predicted_share(run.report) for run in runs]
    reported = [share for run in runs if (share := reported_later_share(run)) is not None]
    found = [
        Check(f"{name}: share of files that the source saw opened exactly once", min(once), 1.0),
        Check(f"{name}: share of later epochs' opens without the source, by its count", min(later), LEAST_SHARE),
        Check(f"{name}: share of opens predicted, by the report", worst(predicted), LEAST_SHARE),
    ]
    if is_bound_by_io(job.mode):
        what = f"{name}: share of later epochs' opens without the source, by the report"
        found.append(Check(what, min(reported, default=None), LEAST_SHARE))
    return found


def worst(shares: list[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return min(known) if known and len(known) == len(shares) else None


def predicted_share(report: dict[str, Any]) -> float | None:
    opens = report.get("opens", {})
    return opens["predicted"] / opens["total"] if opens.get("total") else None


def reported_later_share(run: MountedRun) -> float | None:
    """Of the opens after the first epoch, the share that the mount did not serve from the source."""
    before, after = run.after_first_epoch, run.report
    if not before or not after:
        return None
    opens = after["opens"]["total"] - before["opens"]["total"]
    slow = after["served"]["source"]["files"] - before["served"]["source"]["files"]
    return 1 - slow / opens if opens else None


def direct_rate(job: Job) -> float:
    """Bytes per second that the loop reaches on the source itself, in its fastest epoch."""
    return max(epoch.bytes / epoch.seconds for run in job.direct for epoch in run)


def runs_that_differ(job: Job) -> int:
    """Runs, direct or mounted, in which an epoch read other bytes than the local copy has."""
    expected = {(epoch.files, epoch.bytes, epoch.checksum) for epoch in job.local[0]}
    runs = [*job.direct, *(run.epochs for run in (*job.mounted, *job.tripwire))]
    return sum({(e.files, e.bytes, e.checksum) for e in run} != expected for run in runs)


def table(jobs: list[Job], bandwidth: float) -> str:
    return "\n".join(line for job in jobs for line in job_table(job, bandwidth))


def job_table(job: Job, bandwidth: float) -> list[str]:
    runs = len(job.local)
    each = "one run of each" if runs == 1 else f"medians of {runs} runs (source: {len(job.direct)})"
    lines = ["", f"{job.files} files, {WHAT[job.mode]}; {each}"]
    epochs = "".join(f"{f'epoch {number}':>10}" for number in range(1, EPOCHS + 1))
    lines.append(f"{'seconds':20}{epochs}{'files/s':>10}{'speedup 1':>11}{'later':>8}{'/ local':>9}")
    seconds = job.seconds()
    lines += [row(name, job, seconds) for name in seconds]
    lines.append(f"files/s, later and / local are of epochs 2 to {EPOCHS}; speedups are over the slow source.")
    if job.again:
        lines += noise_lines(job)
    if is_bound_by_io(job.mode):
        lines += bandwidth_line(job, bandwidth)
    return lines + mount_lines(job)


def row(name: str, job: Job, seconds: dict[str, list[float]]) -> str:
    own, direct, local = seconds[name], seconds[SOURCE], seconds[LOCAL]
    cells = "".join(f"{value:10.2f}" for value in own)
    rate = job.files * (EPOCHS - 1) / sum(own[1:])
    later, ratio = sum(direct[1:]) / sum(own[1:]), sum(own[1:]) / sum(local[1:])
    return f"{name:20}{cells}{rate:10.0f}{direct[0] / own[0]:11.1f}{later:8.1f}{ratio:9.2f}"


def noise_lines(job: Job) -> list[str]:
    """Say how far the figures can be trusted: the local copy against itself, or the range of all runs."""
    if len(job.local) == 1:
        return [
            f"Noise: the local copy, read again, differs by {noise(job):.0%} from itself. "
            "Smaller differences between rows mean nothing."
        ]
    runs = {MOUNT: [run.epochs for run in job.mounted], AGAIN: job.again}
    ratios = {name: sorted(map(later_ratio, own, job.local)) for name, own in runs.items()}
    spans = (f"{name} {found[0]:.2f} to {found[-1]:.2f}" for name, found in ratios.items())
    return [f"/ local, run by run: {', '.join(spans)} (noise)."]


def later_ratio(own: list[Epoch], local: list[Epoch]) -> float:
    return sum(epoch.seconds for epoch in own[1:]) / sum(epoch.seconds for epoch in local[1:])


def bandwidth_line(job: Job, bandwidth: float) -> list[str]:
    rate = direct_rate(job)
    return [
        f"The source's bandwidth is {bandwidth / 1e6:.0f} MB/s, {bandwidth / rate:.0f} times "
        f"the {rate / 1e6:.0f} MB/s that the direct run reaches."
    ]


def mount_lines(job: Job) -> list[str]:
    """What the mounts took from the source and said of themselves."""
    runs = job.mounted
    opens = sorted({times for run in runs for times in run.opens_per_file})
    counts = ", ".join(
        f"{times}: {statistics.median(run.opens_per_file.get(times, 0) for run in runs):.0f}" for times in opens
    )
    megabytes = statistics.median(run.source_bytes for run in runs) / 1e6
    lines = [
        f"Mounting took {statistics.median(run.mount_seconds for run in runs):.1f} s; the first epoch began "
        f"{statistics.median(run.head_start for run in runs):.1f} s later (Python and torch start).",
        f"Training files by how often the mount opened each at the source: {counts}; {megabytes:.0f} MB.",
    ]
    served = runs[-1].report.get("served")
    if served:
        parts = [f"{tier} {where['files'] if isinstance(where, dict) else where}" for tier, where in served.items()]
        lines.append(f"Served from (last run): {', '.join(parts)}")
    return lines
