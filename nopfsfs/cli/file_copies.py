"""`nopfs warm`, `nopfs drop` and `nopfs check`: have files of a mount staged before a job reads them, forgotten, or
compared with the source."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from nopfsfs.cli.error_exit import NOPFS, Commands, Parser, add_command, printable, say
from nopfsfs.cli.mount import progress_bar
from nopfsfs.control.client import CALL_S, Connection, understood
from nopfsfs.control.find_mount import Located, locate_living
from nopfsfs.control.named_paths import batches, named_paths
from nopfsfs.errors import Exit
from nopfsfs.text.units import format_size

TURN_S = 60.0  # for an answer: others may have taken the supervisor's time for callers
TOLD_MOST = 100  # lines about single files; all are counted
KEPT_MOST = 10_000  # of these lines, for --json

Record = Mapping[str, Any]
Problems = list[tuple[str, str]]  # (path, what is wrong)


def add_warm(commands: Commands) -> None:
    """Add `nopfs warm`."""
    parser = add_command(
        commands, "warm", warm, "stage files before a job reads them",
        "Stage files of a mount, all or those that are named, as far as there is room; return when that is done. What "
        "is there already is not read again.",
    )  # fmt: skip
    _add_paths(parser)


def add_drop(commands: Commands) -> None:
    """Add `nopfs drop`."""
    parser = add_command(
        commands, "drop", drop, "forget copies of files",
        "Forget all copies of files of a mount, in memory, in the page cache and on disk, so that the next read comes "
        "from the source. Files that a reader has open are left.",
    )  # fmt: skip
    _add_paths(parser)


def add_check(commands: Commands) -> None:
    """Add `nopfs check`."""
    parser = add_command(
        commands, "check", check, "compare copies of files with the source",
        "Compare what a mount holds of files, in memory and on disk, with the source, byte for byte.",
    )  # fmt: skip
    _add_paths(parser)


def _add_paths(parser: Parser) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="*", help="files or directories of the mount (default: all)")
    parser.add_argument("--list", metavar="FILE", help="a file that names them, one path a line")
    parser.add_argument("--json", action="store_true", help="print the record as JSON")


def warm(options: argparse.Namespace) -> int:
    """Stage files of one mount; return the exit code. Raises NopfsError."""
    return _carry_out("warm", options, ("there", "staged", "unfit", "elsewhere", "failed"), warm_text)


def drop(options: argparse.Namespace) -> int:
    """Forget files of one mount; return the exit code. Raises NopfsError."""
    return _carry_out("drop", options, ("nothing", "dropped", "open", "busy"), drop_text)


def check(options: argparse.Namespace) -> int:
    """Compare files of one mount with the source; return the exit code. Raises NopfsError."""
    return _carry_out("check", options, ("nothing", "same", "differ", "failed", "left"), check_text)


def _carry_out(
    command: Literal["warm", "drop", "check"], options: argparse.Namespace, results: Sequence[str],
    text: Callable[[Record], str],
) -> int:  # fmt: skip
    """Have a command carried out with the files that are named, each of which has one of the `results`."""
    located = locate_living(options.mountpoint, os.environ)
    paths = named_paths(located, options.mountpoint, options.paths, options.list)
    problems = _Problems(quiet=options.json)
    record = _asked(command, located, paths, results, problems)
    if options.json:
        figures = {name: record[name] for name in ("asked", *results, "stalled")}
        print(json.dumps({**figures, "wrong": problems.wrong, "failures": problems.failed}), flush=True)
    else:
        print(printable(text(record)), flush=True)
    problems.summarise()
    if record.get("differ", {}).get("files"):
        return Exit.INTERNAL
    if problems.wrong_files:
        return Exit.USAGE
    return Exit.SOURCE if problems.failed else Exit.OK


def _asked(
    command: Literal["warm", "drop", "check"], located: Located, paths: Iterable[str], results: Sequence[str],
    problems: _Problems,
) -> Record:  # fmt: skip
    """Ask the daemon; return the last record of what became of the files."""
    with Connection(located.state_dir, CALL_S, located.owner) as connection, understood():
        for batch in batches(paths):
            connection.send(command, TURN_S, paths=batch)
            for at, why in connection.receive(TURN_S)["wrong"]:
                problems.add(batch[at], str(why))
        connection.send(command, TURN_S, follow=True)
        size = connection.receive(TURN_S)["asked"]["bytes"]
        style = {"desc": command, "total": size, "unit": "B", "unit_scale": True, "unit_divisor": 1024}
        with progress_bar(sys.stderr.isatty(), **style) as show:
            while not _followed(record := connection.receive(TURN_S), results, problems, show):
                pass
        return record


def _followed(record: Record, results: Sequence[str], problems: _Problems, show: Callable[[float], None]) -> bool:
    """Take a record in; return True for the last one."""
    for path, why in record["failures"]:
        problems.fail(str(path), str(why))
    show(sum(int(record[name]["bytes"]) for name in results))
    return bool(record["done"])


def warm_text(record: Record) -> str:
    """Return the text that `nopfs warm` prints."""
    there, staged, asked = record["there"], record["staged"], record["asked"]
    kept = {unit: there[unit] + staged[unit] for unit in ("files", "bytes")}
    lines = [
        f"staged     {_files(kept)} of {_files(asked)}: {there['files']:,} were there, "
        f"{staged['files']:,} ({format_size(staged['bytes'])}) were fetched"
    ]
    if record["unfit"]["files"]:
        why = "found no room in time, beside what the job reads; run nopfs warm again later"
        if not record["stalled"]:
            why = "did not fit; --ram and --disk give the mount more room, nopfs status says how much it has"
        lines.append(f"left       {_files(record['unfit'])} {why}")
    if record["elsewhere"]["files"]:
        lines.append(f"elsewhere  {_files(record['elsewhere'])} are for other nodes to keep; run nopfs warm there")
    if record["failed"]["files"]:
        lines.append(f"failed     {_files(record['failed'])} could not be read at the source")
    return "\n".join(lines)


def drop_text(record: Record) -> str:
    """Return the text that `nopfs drop` prints."""
    lines = [f"dropped    {_files(record['dropped'])} of {_files(record['asked'])}"]
    if record["nothing"]["files"]:
        lines.append(f"nothing    {_files(record['nothing'])} had no copy here")
    if record["open"]["files"]:
        lines.append(f"left       {_files(record['open'])} are open; run nopfs drop again when they are closed")
    if record["busy"]["files"]:
        lines.append(f"left       {_files(record['busy'])} were not dropped in time; nopfs status says what is off")
    return "\n".join(lines)


def check_text(record: Record) -> str:
    """Return the text that `nopfs check` prints."""
    lines = [f"same       {_files(record['same'])} of {_files(record['asked'])} are as at the source"]
    for name, words in (
        ("differ", "differ from the source; drop them: nopfs drop"), ("nothing", "have no copy here"),
        ("failed", "changed, or could not be read at the source"),
        ("left", "were not compared in time, beside what the job reads; run nopfs check again later"),
    ):  # fmt: skip
        if record[name]["files"]:
            lines.append(f"{name:<11}{_files(record[name])} {words}")
    return "\n".join(lines)


def _files(tally: Record) -> str:
    return f"{tally['files']:,} files ({format_size(tally['bytes'])})"


class _Problems:
    """Files that are not there or could not be read: told in a line each, up to a number. `quiet`: not told."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._told = quiet, 0
        self.wrong_files = 0
        self.wrong: Problems = []
        self.failed: Problems = []

    def add(self, path: str, why: str) -> None:
        """Note a path that names nothing."""
        self.wrong_files += 1
        self._note(self.wrong, path, why)

    def fail(self, path: str, why: str) -> None:
        """Note a file that could not be read."""
        self._note(self.failed, path, why)

    def _note(self, where: Problems, path: str, why: str) -> None:
        if len(where) < KEPT_MOST:
            where.append((path, why))
        if self._told < TOLD_MOST and not self._quiet:
            say(NOPFS, f"{path}: {why}")
        self._told += 1

    def summarise(self) -> None:
        """Say how many there were that no line was printed for."""
        if self._told > TOLD_MOST and not self._quiet:
            say(NOPFS, f"{self._told - TOLD_MOST:,} more such files; --json lists them")
