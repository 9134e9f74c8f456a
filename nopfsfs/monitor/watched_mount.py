"""Mounts that are looked at once a second, each by a thread of its own: one that hangs holds nobody else.

A screen reads `WatchedMount.moment` whenever it likes, and waits for nothing.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nopfsfs.control.client import Command, Connection, Record
from nopfsfs.control.find_mount import locate
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.monitor.stats_lines import StatsLine, stats_line
from nopfsfs.text.printable import printable

EACH_S = 1.0  # for an answer, with all that leads to it
PERIOD_S = 1.0
KEPT_S = 120  # seconds of a curve
ANSWER_MOST = 1 << 20  # bytes; two minutes of history have some 30,000
CURVES = ("opens", "waiting", "source_bytes", "limit")
_COLUMNS = {"opens": "opens", "waiting": "wait_share", "source_bytes": "source_bytes", "limit": "limit"}
_LEAST_S = 0.01  # left for a step, however late it is
_TEXT_MOST = 200  # characters

Ask = Callable[[Command, Mapping[str, Any]], Record]


@dataclass(frozen=True, slots=True)
class Moment:
    """A mount as it was last seen. `trouble`: why there are no figures now, "" where there are. `line`: of the last
    second, None before there were two answers. `waiting`: readers that waited at a time. `curves`: by name of CURVES,
    the last KEPT_S seconds, the latest last."""

    mountpoint: str
    trouble: str = "not asked yet"
    line: StatsLine | None = None
    waiting: float = 0.0
    source: str = ""
    sampler: str = ""
    plan: str = ""
    epoch: int | None = None
    share: float | None = None
    errors: int = 0
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def asker(mountpoint: str) -> Ask:
    """Ask the mount that is at a mountpoint then, which may be another than before. What it returns raises NopfsError:
    no mount is there, or it does not answer within EACH_S."""

    def ask(command: Command, further: Mapping[str, Any]) -> Record:
        until = time.monotonic() + EACH_S
        located = locate(mountpoint, os.environ)
        with Connection(located.state_dir, EACH_S, located.owner) as connection:
            connection.send(command, max(_LEAST_S, until - time.monotonic()), **further)
            return connection.receive(max(_LEAST_S, until - time.monotonic()), ANSWER_MOST)

    return ask


class WatchedMount:
    """Looks at one mount until `stop`."""

    def __init__(self, mountpoint: str, ask: Ask | None = None) -> None:
        self.moment = Moment(mountpoint)
        self._ask = asker(mountpoint) if ask is None else ask
        self._curves = {name: deque([0.0] * KEPT_S, KEPT_S) for name in CURVES}
        self._before: Record | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {mountpoint}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End: the thread does so by itself, at the latest when its answer is due."""
        self._stopped.set()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            self.look()
            due = max(due + PERIOD_S, time.monotonic())

    def look(self) -> None:
        """Ask once, and set `moment`."""
        try:
            self.moment = self._seen(self._ask("metrics", {}))
        except NopfsError as error:
            gone = error.exit_code == Exit.NOT_MOUNTED
            self._lost("not mounted" if gone else error.message)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
            self._lost("the figures are not understood; the mount may be of another release")
        except (OSError, RuntimeError) as error:  # no descriptor, process or thread is to be had
            self._lost(str(error))

    def _lost(self, trouble: str) -> None:
        self._before = None
        for curve in self._curves.values():
            curve.append(0.0)
        self.moment = Moment(self.moment.mountpoint, _short(trouble), curves=self._shown())

    def _seen(self, figures: Record) -> Moment:
        before, self._before = self._before, figures
        line, waiting = None, 0.0
        if before is None:
            self._fill(float(figures["time"]))
        else:
            line = stats_line(before, figures)
            seconds = max(1e-3, float(figures["time"]) - float(before["time"]))
            done = float(figures["reader_waits"]["seconds"]) - float(before["reader_waits"]["seconds"])
            waiting = max(0.0, done / seconds)
            for name, value in zip(CURVES, (line.opens, waiting, line.source_bytes, line.limit), strict=True):
                self._curves[name].append(_finite(value))
        info, plan = figures["info"], figures["plan"]
        epoch, length = plan["epoch"], plan["length"]
        return Moment(
            mountpoint=self.moment.mountpoint, trouble="", line=line, waiting=_finite(waiting),
            source=_short(info["source"]), sampler=_short(info["sampler"]), plan=_short(plan["state"]),
            epoch=int(epoch) if isinstance(epoch, int) else None,
            share=min(1.0, max(0.0, float(plan["position"]) / float(length))) if length else None,
            errors=int(figures["read_errors"]) + sum(int(one["errors"]) for one in figures["fetches"].values()),
            curves=self._shown(),
        )  # fmt: skip

    def _fill(self, now: float) -> None:
        """Begin the curves with what the mount remembers of the last seconds; without, where it does not say."""
        try:
            found = self._ask("history", {"step": 1, "since": now - KEPT_S})
            for name, column in _COLUMNS.items():
                at = found["columns"].index(column)
                self._curves[name].extend(_finite(row[at]) for row in found["rows"][-KEPT_S:])
        except (NopfsError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            pass

    def _shown(self) -> dict[str, tuple[float, ...]]:
        return {name: tuple(curve) for name, curve in self._curves.items()}


def _finite(value: Any) -> float:
    """A number that can be drawn: 0 for what is not known."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    number = float(value)
    return number if math.isfinite(number) and number >= 0 else 0.0


def _short(text: Any) -> str:
    """A text from elsewhere, on one line."""
    return printable(str(text)).replace("\n", " ")[:_TEXT_MOST]
