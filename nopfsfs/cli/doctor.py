"""`nopfs doctor`: says what is likely wrong with a mount or a node, and what to do; collects what experts need. Before
the first mount of a source, says what a mount would find on this node."""

from __future__ import annotations

import argparse
import os
import secrets
import textwrap
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nopfsfs.cli.error_exit import Parser, printable
from nopfsfs.control.find_mount import locate
from nopfsfs.errors import Exit, NopfsError

if TYPE_CHECKING:
    from nopfsfs.doctor.findings import Facts, Finding

WRITE_S = 30.0  # for the archive
WIDTH = 100


def add_doctor(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add `nopfs doctor`."""
    parser = commands.add_parser(
        "doctor",
        help="say what is wrong with a mount, and what to do",
        description="Say what is likely wrong with a mount, or without MOUNTPOINT with this node, and what to do\n"
        "about it. Collect what is needed to find out more in an archive. For a directory that is no\n"
        "mount, say what a mount of it would find on this node.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mountpoint", metavar="MOUNTPOINT|SOURCE", nargs="?")
    parser.add_argument("--output", metavar="F.tar.gz", help="the archive, a new file (default: one in this directory)")
    parser.add_argument("--hash-paths", action="store_true", help="replace names of files in the archive by hashes")
    parser.set_defaults(handler=doctor)


def doctor(options: argparse.Namespace) -> int:
    """Diagnose; return the exit code. Raises NopfsError: the archive cannot be written."""
    from nopfsfs.doctor.archive import files_of, write_archive  # other commands need none of it
    from nopfsfs.doctor.bounded_parts import PartToCollect, collect_all, failed
    from nopfsfs.doctor.diagnosis import collect_mount, collect_node, judge
    from nopfsfs.doctor.findings import Facts
    from nopfsfs.doctor.hidden_paths import all_hidden

    located = None
    if options.mountpoint is not None:
        try:
            located = locate(options.mountpoint, os.environ)
        except NopfsError as error:
            if error.exit_code != Exit.NOT_MOUNTED:
                raise
            return before_mount(options)
    output = _output(options.output)
    parts = collect_node(os.environ) if located is None else collect_mount(located, os.environ)
    facts = Facts(parts)
    text = report(facts, judge(facts))
    print(printable(text), flush=True)
    if options.hash_paths:
        parts, text = all_hidden(parts, text)
    files = files_of(parts, text)
    written = collect_all([PartToCollect("archive", lambda: write_archive(output, files), WRITE_S)])["archive"]
    if (why := failed(written)) is not None:
        raise NopfsError(Exit.USAGE, f"the archive cannot be written to {output}: {why}; name another with --output")
    hint = "" if options.hash_paths else ", or make one with --hash-paths"
    print(printable(f"\nThe archive is {output}. Look through it before you send it to others{hint}."), flush=True)
    return Exit.OK


def before_mount(options: argparse.Namespace) -> int:
    """Print what a mount of a source would find on this node; return the exit code with which it would fail, else 0.
    Raises NopfsError."""
    from nopfsfs.doctor.before_mount import look_at_node
    from nopfsfs.doctor.lines_before_mount import LineVerdict, judge_node

    if options.output is not None or options.hash_paths:
        message = f"{options.mountpoint} is no nopfs mount, so there is no archive; leave out --output and --hash-paths"
        raise NopfsError(Exit.USAGE, message)
    source = os.path.abspath(options.mountpoint)
    lines = judge_node(look_at_node(source, os.environ))
    said = [f"{source} is no nopfs mount. A mount of it would find on this node:"]
    for title, line in lines.items():
        said += _wrapped(line.says, f"  {line.verdict.name.lower():<8} {title:<16} ")
        if line.verdict is not LineVerdict.GOOD:
            said += _wrapped(line.do, f"{'-> ':>30}")
    print(printable("\n".join(said)), flush=True)
    return next((line.code for line in lines.values() if line.verdict is LineVerdict.MISSING), Exit.OK)


def report(facts: Facts, findings: Sequence[Finding]) -> str:
    """Return what is printed: findings, the worst first, and what could not be collected."""
    about = facts.path or "this node"
    lines = [f"{about}: {_count(findings)}"]
    for number, finding in enumerate(findings, 1):
        lines += ["", *_wrapped(finding.says, f"{number:>2}. "), *_wrapped(finding.do, "    -> ")]
    if facts.failures:
        lines += ["", "Not collected:", *(f"  {name}: {why}" for name, why in facts.failures.items())]
    return "\n".join(lines)


def _count(findings: Sequence[Finding]) -> str:
    if not findings:
        return "nothing is found to be wrong"
    return "1 finding" if len(findings) == 1 else f"{len(findings)} findings, the worst first"


def _wrapped(text: str, head: str) -> list[str]:
    """Lines of a text. Words are kept whole, so that commands and paths can be copied."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _output(path: str | None) -> str:
    """The absolute path of the archive, where nothing may be yet."""
    name = path or f"nopfs-doctor-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}.tar.gz"
    if not os.path.basename(name):
        raise NopfsError(Exit.USAGE, f"--output: {name} is no name of a file")
    try:
        return os.path.abspath(name)
    except OSError as error:
        raise NopfsError(Exit.USAGE, "this directory is gone; name an archive with --output") from error
