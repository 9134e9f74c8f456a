"""Opens of the access log as lines for people and programs, and their sums (`nopfs accesslog`). Pure."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Any, NamedTuple, TypeVar

SHOWN = 10  # directories, readers and files of a profile
NAMES_MOST = 1_000_000  # files that a profile tells apart; 200 MB
Name = TypeVar("Name", bound=Hashable)
FORESEEN = {True: "foreseen", False: "unforeseen", None: "-"}


class LoggedOpen(NamedTuple):
    """An open: seconds since 1970, the process, whether it was foreseen (None: there was no plan), and the path
    relative to the mountpoint."""

    time: float
    reader: int
    foreseen: bool | None
    path: str


@dataclass(frozen=True, slots=True)
class OpensRecord:
    """A record of the access log. `stand_for`: the number of opens that each of `opens` stands for, more than 1 in a
    sample. `dropped` opens and `lost` events were left out before."""

    opens: Sequence[LoggedOpen]
    stand_for: float
    dropped: int
    lost: int

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> OpensRecord:
        """Read what a daemon sends. Raises KeyError, TypeError, ValueError for what is no such record."""
        columns = (record["times"], record["readers"], record["foreseen"], record["paths"])
        opens = [
            LoggedOpen(float(at), int(reader), None if foreseen is None else bool(foreseen), str(path))
            for at, reader, foreseen, path in zip(*columns, strict=True)
        ]
        return cls(opens, float(record["stand_for"]), int(record["dropped"]), int(record["lost"]))

    def until(self, end: float) -> OpensRecord:
        """The record without opens after `end`, seconds since 1970."""
        return OpensRecord([one for one in self.opens if one.time <= end], self.stand_for, self.dropped, self.lost)


def text_lines(record: OpensRecord, sample: bool) -> Iterator[str]:
    """Yield a line for each open, and lines that begin with `#` for what is left out. `sample`: the record before was
    of a sample."""
    if record.opens and (record.stand_for > 1) != sample:
        yield f"# {_sample(record.stand_for)}" if record.stand_for > 1 else "# all opens are seen again"
    if record.dropped or record.lost:
        yield f"# left out here: {left_out(record.dropped, record.lost)}"
    for one in record.opens:
        clock = f"{time.strftime('%H:%M:%S', time.localtime(one.time))}.{int(one.time % 1 * 1e6):06}"
        yield f"{clock} {one.reader:>8}  {FORESEEN[one.foreseen]:<10}  {_one_line(one.path)}"


def json_lines(record: OpensRecord) -> Iterator[str]:
    """Yield an object for each open, and one for what is left out."""
    if record.dropped or record.lost:
        yield json.dumps({"dropped": record.dropped, "lost": record.lost})
    for one in record.opens:
        yield json.dumps(one._asdict() | {"stand_for": record.stand_for})


def _one_line(path: str) -> str:
    return path.replace("\n", "\\n")


def left_out(dropped: int, lost: int) -> str:
    """Say how many opens are missing."""
    words = [f"{dropped:,} opens, which came faster than they can be logged or read" if dropped else ""]
    words += [f"{lost:,} events that the supervisor was too late for" if lost else ""]
    return "; ".join(word for word in words if word) or "nothing"


def _sample(stand_for: float) -> str:
    return f"a sample: the kernel opens files by itself now, and each line stands for about {stand_for:.3g} opens"


@dataclass
class Profile:
    """Sums of opens. Shares are of `opens`; in a sample an open counts for as many as it stands for."""

    seconds: float = 0.0
    opens: float = 0.0
    foreseen: float = 0.0
    judged: float = 0.0  # of the opens, those for which there was a plan
    sampled: bool = False
    dropped: int = 0
    lost: int = 0
    directories: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    readers: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    files: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    others: float = 0.0  # opens of files beyond NAMES_MOST

    def add(self, record: OpensRecord) -> None:
        """Count the opens of a record."""
        each = record.stand_for
        self.dropped += record.dropped
        self.lost += record.lost
        self.sampled |= bool(record.opens) and each > 1
        for one in record.opens:
            self.opens += each
            self.judged += each * (one.foreseen is not None)
            self.foreseen += each * (one.foreseen is True)
            self.readers[one.reader] += each
            if one.path in self.files or len(self.files) < NAMES_MOST:
                self.files[one.path] += each
                self.directories[os.path.dirname(one.path) or "."] += each
            else:
                self.others += each

    def figures(self) -> dict[str, Any]:
        """The sums as one JSON object."""
        sums: dict[str, Any] = {
            "seconds": round(self.seconds, 3), "counts": "estimated" if self.sampled else "exact",
            "opens": round(self.opens), "judged": round(self.judged), "foreseen": round(self.foreseen),
            "dropped": self.dropped, "lost": self.lost, "distinct_files": len(self.files),
        }  # fmt: skip
        tables: dict[str, Mapping[Any, float]] = {
            "directories": self.directories, "readers": self.readers, "files": self.files,
        }  # fmt: skip
        most = {
            title: [{"name": name, "opens": round(count)} for name, count in _most(counted)]
            for title, counted in tables.items()
        }
        return sums | most

    def text(self, command_of: Callable[[int], str]) -> str:
        """The sums as a text. `command_of(pid)`: the name of a reader's program."""
        share = f", {100 * self.foreseen / self.judged:.1f}% of them foreseen" if self.judged else ", without a plan"
        about = "about " if self.sampled else ""
        rate = self.opens / self.seconds if self.seconds else 0.0
        lines = [f"{about}{self.opens:,.0f} opens in {self.seconds:.1f} s ({rate:,.0f}/s){share if self.opens else ''}"]
        lines += [f"{len(self.files):,} different files by {len(self.readers):,} readers"]
        if self.sampled:
            lines.append("a sample: while the kernel opens files by itself, only some opens show")
        if self.dropped or self.lost:
            lines.append(f"left out: {left_out(self.dropped, self.lost)}")
        if self.others:
            lines.append(f"{self.others:,.0f} opens are of further files, which are not told apart")
        lines += self._table("directories", self.directories, str)
        lines += self._table("readers", self.readers, lambda pid: f"{pid} {command_of(pid)}".strip())
        return "\n".join(lines + self._table("files", self.files, str))

    def _table(self, title: str, counted: Mapping[Name, float], name: Callable[[Name], str]) -> list[str]:
        if not counted:
            return []
        rows = [
            f"  {count:>12,.0f}{100 * count / self.opens:>7.1f}%  {_one_line(name(key))}"
            for key, count in _most(counted)
        ]
        more = [f"  and {len(counted) - SHOWN:,} more"] if len(counted) > SHOWN else []
        return ["", f"opens by {title}" if title != "files" else "most opened files", *rows, *more]


def _most(counted: Mapping[Name, float]) -> list[tuple[Name, float]]:
    return nlargest(SHOWN, counted.items(), key=lambda item: item[1])
