"""Records of epochs: what was read, where it came from, how long readers waited. Pure.

An epoch is one of the plan that `nopfs status` shows. Where no plan is certain, as many opens as there are files make a
record. What was counted between two looks belongs to the epoch of the later one. Where an epoch began in between, the
count is divided like the opens.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nopfsfs.protocol.durations import most_s, quantile_s
from nopfsfs.supervisor.observing.counts import LENGTH, Count, Counts, by_tier, waits

RECORDS_MOST = 128
_GO_ON = 8  # of the last records, those that go on when their epoch is read again, as with data sets read by turns
_SAMPLES_MOST = 512


@dataclass(frozen=True, slots=True)
class EpochLabel:
    """The epoch that is read now. `key`: as of `Follower.epoch_key`. `length`: accesses of the epoch, or where no plan
    is certain the files that there are. `locked`: the plan is certain."""

    key: tuple[int, ...]
    locked: bool
    length: int
    dataset: str | None = None
    sampler: str | None = None
    seed: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The counts at the moment `at`, seconds of a clock that never goes back; `wall` is that clock's 0, since 1970.
    `first`, `last`: when the first and the last open since the look before were seen, by the same clock. `begun`: opens
    of the present epoch so far. `estimated`: opens are counted by tripwires. `limit`, `slowdown`: of the tuner, None
    where there is none."""

    counts: Counts
    at: float
    first: float
    last: float
    wall: float = 0.0
    begun: float = 0.0
    estimated: bool = False
    limit: float | None = None
    slowdown: float | None = None


class Samples:
    """Some hundreds of values, evenly chosen from however many there are, in 8 bytes each."""

    def __init__(self) -> None:
        self._kept = array("d")
        self._every, self._skip = 1, 0

    def add(self, value: float | None) -> None:
        """Take a further value, if there is one."""
        if value is None:
            return
        if self._skip:
            self._skip -= 1
            return
        self._kept.append(value)
        self._skip = self._every - 1
        if len(self._kept) >= _SAMPLES_MOST:
            self._kept, self._every = self._kept[::2], 2 * self._every

    def summary(self) -> dict[str, float] | None:
        """The median and the 95th percentile of the values; None where there are none."""
        if not self._kept:
            return None
        median, p95 = np.percentile(self._kept, [50, 95]).tolist()
        return {"median": median, "p95": p95}


@dataclass(slots=True, eq=False)
class _Record:
    """An epoch, as it is counted."""

    label: EpochLabel
    counts: Counts = field(default_factory=lambda: np.zeros(LENGTH))
    begin: float | None = None  # since 1970; None: nothing was opened yet
    began_at: float = 0.0
    active_at: float = 0.0
    locked: bool = False  # the plan was certain at some time
    estimated: bool = False
    limit: Samples = field(default_factory=Samples)
    slowdown: Samples = field(default_factory=Samples)

    def add(self, found: Counts, look: Look, first: float | None = None) -> None:
        """Count what happened until that look; `first`: when the first of these opens was seen, if it is known."""
        self.counts += found
        if found[Count.OPENS] > 0:
            if self.begin is None:
                self.began_at = look.first if first is None else first
                self.begin = look.wall + self.began_at
            self.active_at = max(self.began_at, look.last)
            self.estimated |= look.estimated
        if self.begin is not None:
            self.limit.add(look.limit)
            self.slowdown.add(look.slowdown)

    def describe(self, *, ended: bool) -> dict[str, Any]:
        """The record as `nopfs status --json` shows it. Seconds and bytes; shares from 0 to 1."""
        found, label, waited = self.counts, self.label, waits(self.counts)
        files = by_tier(found)
        total = sum(files.values())
        return {
            "epoch": label.epoch if self.locked else None,
            "dataset": label.dataset,
            "sampler": label.sampler if self.locked else None,
            "seed": label.seed if self.locked else None,
            "begin": round(self.begin or 0.0, 3),
            "seconds": round(self.active_at - self.began_at, 3),
            "ended": ended,
            "counts": "estimated" if self.estimated else "exact",
            "files": round(found[Count.OPENS]),
            "bytes": round(found[Count.BYTES]),
            "predicted": min(round(found[Count.PREDICTED]), round(found[Count.OPENS])),
            "served": {tier: round(count / total, 4) if total else 0.0 for tier, count in files.items()},
            "stall_seconds": round(found[Count.WAIT_NS] / 1e9, 6),
            "waits": round(found[Count.WAITS]),
            "wait_p50_seconds": _rounded(quantile_s(waited, 0.5)),
            "wait_p99_seconds": _rounded(quantile_s(waited, 0.99)),
            "wait_most_seconds": _rounded(most_s(waited)),
            "source_reads": round(found[Count.SOURCE_READS]),
            "source_bytes": round(found[Count.SOURCE_BYTES]),
            "second_reads": round(found[Count.SECOND_READS]),
            "read_errors": round(found[Count.READ_ERRORS]),
            "source_errors": round(found[Count.SOURCE_ERRORS]),
            "limit": self.limit.summary(),
            "slowdown": self.slowdown.summary(),
        }


class _EndedEpoch(NamedTuple):
    """An epoch that does not go on: its description, as JSON, which takes a fifth of the memory."""

    began_at: float
    text: str


class EpochRecords:
    """The epochs of one mount, the last RECORDS_MOST of them."""

    def __init__(self, first: Counts) -> None:
        """`first`: the counts when the supervisor began: of one that takes over they are not 0."""
        self._last = first
        self._now = _Record(EpochLabel((), False, 0))
        self._before: list[_Record] = []  # those that may go on
        self._ended: deque[_EndedEpoch] = deque(maxlen=RECORDS_MOST - 1 - _GO_ON)

    def note(self, label: EpochLabel) -> bool:
        """Note what is known of the present epoch. False: that is another epoch than the one that is counted now."""
        now = self._now
        if label.key != now.label.key and now.locked:
            return False
        # a plan that is found in the middle of an epoch tells which that is
        now.label, now.locked = label, now.locked or label.locked
        return True

    def look(self, look: Look, label: EpochLabel) -> None:
        """Take what was counted since the last look."""
        found, self._last = look.counts - self._last, look.counts
        now = self._now
        if self.note(label):
            now.add(found, look)
            self._cut(found, look)
            return
        goes_on = self._found_again(label)
        opens = float(found[Count.OPENS])
        share = 1.0 if goes_on is not None else min(1.0, look.begun / opens) if opens > 0 else 0.0
        new = np.rint(found * share)
        now.add(found - new, look)
        self._turn(goes_on or _Record(label))
        self.note(label)
        self._now.add(new, look, look.at)

    def _found_again(self, label: EpochLabel) -> _Record | None:
        """The record of an epoch that is read again after another data set was."""
        found = next((one for one in self._before if label.key and one.label.key == label.key), None)
        if found is not None:
            self._before.remove(found)
        return found

    def _cut(self, found: Counts, look: Look) -> None:
        """Begin another record where no plan is certain, and all files might have been opened once."""
        now, opens = self._now, float(found[Count.OPENS])
        beyond = float(now.counts[Count.OPENS]) - now.label.length
        if now.locked or now.label.length <= 0 or beyond <= 0 or opens <= 0:
            return
        rest = np.rint(found * min(1.0, beyond / opens))
        now.counts -= rest
        self._turn(_Record(now.label))
        self._now.add(rest, look, look.at)

    def _turn(self, record: _Record) -> None:
        if self._now.begin is not None:
            self._before.append(self._now)
            if len(self._before) > _GO_ON:
                oldest = self._before.pop(0)
                self._ended.append(_EndedEpoch(oldest.began_at, json.dumps(oldest.describe(ended=True))))
        else:  # what happened before any open, as an error, belongs to the next
            record.counts += self._now.counts
        self._now = record

    def describe(self, *, ended: bool = False) -> list[dict[str, Any]]:
        """The records, oldest first. `ended`: the mount has ended, and its last epoch with it."""
        found = [(one.began_at, json.loads(one.text)) for one in self._ended]
        found += [(one.began_at, one.describe(ended=True)) for one in self._before]
        if self._now.begin is not None:
            found.append((self._now.began_at, self._now.describe(ended=ended)))
        return [description for _, description in sorted(found, key=lambda one: one[0])]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
