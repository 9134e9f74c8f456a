"""What all inputs of the fuzzer have in common: cases, each from a number; a limit on its time; what was found.

A case is played from `Random(f"{seed} {number}")`, so seed and number give it again. A finding is whatever a case
raises, what is logged with an exception, what ends a thread, and a case that takes too long.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import re
import signal
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, ClassVar

from nopfsfs.system.node_memory import give_back

OUTCOMES_MOST = 500  # different ones that are counted
FINDINGS_MOST = 12  # different ones, after which an input is left: the first ones tell enough
GROWTH_MOST = 48 << 20  # bytes of memory that an input may take from its first tenth to its end
TRACE_LINES = 14  # of a finding
HUNG_TIMES = 6  # times a case's limit, after which the whole process is taken for hung
SETTLED = 0.1  # of the time: caches are full by then, and memory is measured from there


class TooLong(BaseException):
    """A case took longer than its limit. No Exception: nothing that is tried may swallow it."""


class Wrong(AssertionError):
    """What a case has seen must not be."""


class Input(ABC):
    """One kind of input. Made once, then plays case after case."""

    name: ClassVar[str]
    limit_s: ClassVar[float] = 10.0  # for a case

    def __init__(self, work: Path) -> None:
        """`work`: an empty directory."""
        self.work = work
        self.outcomes: Counter[str] = Counter()
        self.sent = 0

    @abstractmethod
    def play(self, rng: Random) -> None:
        """One case. Raises for what must not be."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Leave nothing."""

    def tell(self, outcome: str) -> None:
        """One more thing was sent, and this is what became of it."""
        self.sent += 1
        if outcome in self.outcomes or len(self.outcomes) < OUTCOMES_MOST:
            self.outcomes[outcome] += 1

    def tell_error(self, error: BaseException) -> None:
        """It was refused as documented."""
        self.tell(f"{type(error).__name__}: {shape(str(error))}")


def shape(message: str) -> str:
    """What a message says, without what it quotes: so that equal refusals are one outcome."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\d+|/\S+", "#", message)
    return " ".join(text.split())[:60]


@dataclass(frozen=True)
class Finding:
    """`case`: with the seed it gives this again."""

    case: int
    what: str
    trace: str

    @property
    def kind(self) -> str:
        """The same for findings that most likely have one cause."""
        frames = [line for line in self.trace.splitlines() if "File " in line]
        return f"{self.what.partition(':')[0]} {shape(self.what)[:20]} {frames[-1] if frames else ''}"


@dataclass
class Report:
    """What became of an input. `memory`: bytes of resident memory in the beginning, at half time and in the end."""

    name: str
    seed: int
    cases: int = 0
    sent: int = 0
    seconds: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    memory: tuple[int, int, int] = (0, 0, 0)
    findings: list[Finding] = field(default_factory=list)  # one of each kind

    def add(self, finding: Finding) -> None:
        if finding.kind not in {known.kind for known in self.findings}:
            self.findings.append(finding)


def resident() -> int:
    """Bytes of memory of this process, without what it could give back."""
    gc.collect()
    give_back()
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmRSS:\s*(\d+)", status)[0]) << 10


class _Watch(logging.Handler):
    """What goes wrong beside what a case raises: exceptions that are logged, and those that end a thread."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.seen: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.seen.append((f"logged: {record.getMessage()[:200]}", trace_of(record.exc_info[1])))

    def thread(self, args: Any) -> None:
        self.seen.append((f"a thread ended: {args.exc_value!r}", trace_of(args.exc_value)))

    def unraisable(self, args: Any) -> None:
        self.seen.append((f"unraisable: {args.exc_value!r}", trace_of(args.exc_value)))


def trace_of(error: BaseException | None) -> str:
    if error is None:
        return ""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n".join(lines[-TRACE_LINES:])


@contextmanager
def _watching() -> Iterator[_Watch]:
    watch = _Watch()
    root = logging.getLogger()
    before = root.handlers[:], root.level, threading.excepthook, sys.unraisablehook
    root.handlers[:], root.level = [watch], logging.WARNING
    threading.excepthook, sys.unraisablehook = watch.thread, watch.unraisable
    try:
        yield watch
    finally:
        root.handlers[:], root.level, threading.excepthook, sys.unraisablehook = before


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise TooLong in the main thread after so long; where that has no effect, end the process with a trace."""

    def rise(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"after {seconds:g} s in {frame.f_code.co_name if frame else '?'}")

    before = signal.signal(signal.SIGALRM, rise)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(HUNG_TIMES * seconds, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()


def fuzz(
    make: Callable[[Path], Input], work: Path, seed: int, seconds: float, *, only: int | None = None,
    began: Callable[[int], None] = lambda case: None, most: int = 1 << 62,
) -> Report:  # fmt: skip
    """Play cases for so long, at most `most`, or `only` one. `began` is told before each."""
    target = make(work)
    report = Report(target.name, seed)
    start = now = time.monotonic()
    memory: list[int] = []
    try:
        with _watching() as watch:
            for case in range(most) if only is None else [only]:
                now = time.monotonic()
                if (now - start > seconds or len(report.findings) >= FINDINGS_MOST) and case != only:
                    break
                if len(memory) < 2 and max((now - start) / seconds, case / most) >= (SETTLED, 0.5)[len(memory)]:
                    memory.append(resident())
                began(case)
                _play(target, seed, case, watch, report)
                report.cases += 1
            memory.append(resident())
    finally:
        target.close()
    report.memory = memory[0], memory[min(1, len(memory) - 1)], memory[-1]
    if report.memory[2] - report.memory[0] > GROWTH_MOST:
        grown = (report.memory[2] - report.memory[0]) >> 20
        report.add(Finding(-1, f"memory grew by {grown} MiB", ""))
    report.sent, report.outcomes, report.seconds = target.sent, dict(target.outcomes), time.monotonic() - start
    return report


def _play(target: Input, seed: int, case: int, watch: _Watch, report: Report) -> None:
    watch.seen.clear()
    try:
        with _limit(target.limit_s):
            target.play(Random(f"{seed} {case}"))
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt):
            raise
        said = f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
        report.add(Finding(case, said, trace_of(e)))
    for what, trace in watch.seen:
        report.add(Finding(case, what, trace))
    watch.seen.clear()
