#!/usr/bin/env python3
"""Send garbage, and what is valid but for some edits, to everything that parses something: nothing may die, wait, or
take more and more memory.

    python scripts/fuzz.py --minutes 10                     each input for so long
    python scripts/fuzz.py --only fuse control --seed 7     some of them, by another seed
    python scripts/fuzz.py --only index --seed 7 --case 123     one case again

Each input runs in a process of its own, whose memory is limited. Exit code 1: something was found.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue

from fuzzing.core import Finding, Input, Report, fuzz
from tqdm import tqdm

INPUTS = {"fuse": "FuseInput", "control": "ControlInput", "peers": "PeersInput", "index": "IndexInput",
          "files": "FilesInput"}  # fmt: skip
MEMORY_MOST = 3 << 30  # bytes of addresses that an input's process may take beyond what it starts with
START_S = 60.0  # for a process to start and to end, beside its time
SHOWN = 6  # outcomes of an input, the most frequent ones


def make(name: str) -> type[Input]:
    found: type[Input] = getattr(import_module(f"fuzzing.{name}_input"), INPUTS[name])
    return found


def work(name: str, seed: int, seconds: float, case: int | None, most: int) -> None:
    """One input, in this process: its report is the last line on standard output; before that, each case's number."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    target = make(name)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_MOST,) * 2)
    at = -1

    def began(number: int) -> None:
        nonlocal at
        at = number
        out.write(f"{number}\n")
        out.flush()

    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        report = fuzz(target, Path(directory), seed, seconds, only=case, began=began, most=most)
    out.write(json.dumps(asdict(report)) + "\n")
    out.flush()
    os._exit(0)  # threads that wait for something must not keep the report back


def run(name: str, options: argparse.Namespace) -> Report:
    """One input in a process of its own."""
    argv = [sys.executable, __file__, "--worker", name, "--seed", str(options.seed), "--seconds", str(options.seconds)]
    argv += ["--most", str(options.most)] + (["--case", str(options.case)] if options.case is not None else [])
    last = ""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        timer = threading.Timer(options.seconds + START_S, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            last = line
        process.wait()
        timer.cancel()
        if last.startswith("{"):
            return _report(json.loads(last))
        errors.seek(0)
        tail = "\n".join(errors.read().splitlines()[-40:])
    case = int(last) if last.strip().isdigit() else -1
    died = Finding(case, f"the process ended with status {process.returncode}", tail)
    return Report(name, options.seed, cases=max(case, 0), findings=[died])


def _report(raw: dict[str, object]) -> Report:
    found = Report(**raw)  # type: ignore[arg-type]
    found.findings = [Finding(**one) for one in raw["findings"]]  # type: ignore[attr-defined]
    return found


def show(report: Report) -> None:
    start, half, end = (size / 2**20 for size in report.memory)
    tqdm.write(
        f"{report.name}: {report.sent} sent in {report.cases} cases, {report.seconds:.0f} s, seed {report.seed}; "
        f"{len(report.outcomes)} outcomes; memory {start:.0f}, {half:.0f}, {end:.0f} MiB; "
        f"{len(report.findings)} findings"
    )
    for outcome, count in sorted(report.outcomes.items(), key=lambda one: -one[1])[:SHOWN]:
        tqdm.write(f"    {count:9} {outcome}")
    for finding in report.findings:
        again = f"--only {report.name} --seed {report.seed} --case {finding.case}"
        tqdm.write(f"  FOUND {finding.what}\n    again: python scripts/fuzz.py {again}")
        for line in finding.trace.splitlines():
            tqdm.write(f"    | {line}")


def fuzz_all(options: argparse.Namespace) -> list[Report]:
    """All inputs, `--jobs` at a time."""
    names: SimpleQueue[str] = SimpleQueue()
    for name in options.only:
        names.put(name)
    done: SimpleQueue[Report] = SimpleQueue()

    def serve() -> None:
        while not names.empty():
            done.put(run(names.get(), options))

    for _ in range(options.jobs):
        threading.Thread(target=serve, daemon=True).start()
    reports: list[Report] = []
    rounds = -(-len(options.only) // options.jobs)
    total = int(rounds * options.seconds) + 1
    with tqdm(total=total, unit="s", disable=None, leave=False, delay=2) as bar:
        began = time.monotonic()
        while len(reports) < len(options.only):
            try:
                reports.append(done.get(timeout=1.0))
                show(reports[-1])
            except Empty:
                pass
            bar.n = min(int(time.monotonic() - began), total)
            bar.refresh()
    return reports


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="for each input (default: 1)")
    parser.add_argument("--seconds", type=float, help="the same, in seconds")
    parser.add_argument("--only", nargs="+", choices=INPUTS, default=list(INPUTS), metavar="INPUT",
                        help=f"of {', '.join(INPUTS)}")  # fmt: skip
    parser.add_argument("--seed", type=int, default=int(time.monotonic_ns() % 1_000_000), help="another each time")
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--most", type=int, default=1 << 62, help="cases of each input")
    parser.add_argument("--jobs", type=int, default=1, help="inputs at a time (default: 1)")
    parser.add_argument("--worker", choices=INPUTS, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.seconds = options.seconds if options.seconds is not None else 60 * options.minutes
    return options


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    if options.worker:
        work(options.worker, options.seed, options.seconds, options.case, options.most)
    return 1 if any(report.findings for report in fuzz_all(options)) else 0


if __name__ == "__main__":
    sys.exit(main())
