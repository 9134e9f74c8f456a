#!/usr/bin/env python3
"""Writes man pages, and completions for bash and zsh, from the parsers of the commands: the source of --help.

python scripts/site_files.py DIRECTORY        man1/*.1, bash/*, zsh/_*; completions need shtab
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from nopfsfs import __version__
from nopfsfs.cli.mount_config import mount_parser
from nopfsfs.cli.nopfs import nopfs_parser
from nopfsfs.cli.umount import umount_parser

DIRECTORIES = {"SOURCE", "MOUNTPOINT", "MOUNTPOINT|SOURCE", "DIR", "D"}  # values that are completed as directories
FILES = {"FILE", "F", "F.tar.gz", "CLUSTER", "DATASET"}


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each program, by name."""
    return {"nopfs-mount": mount_parser(), "nopfs-umount": umount_parser(), "nopfs": nopfs_parser()}


def commands_of(parser: argparse.ArgumentParser) -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """The sub-commands of a program by name: one line of what it does, and its parser."""
    found: dict[str, tuple[str, argparse.ArgumentParser]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            found |= {name: (helps.get(name, ""), one) for name, one in action.choices.items()}
    return found


def pages() -> dict[str, str]:
    """All man pages by name, such as `nopfs-status`, in roff."""
    made: dict[str, str] = {}
    for name, parser in parsers().items():
        commands = commands_of(parser)
        made[name] = page(
            name, _summary(parser), parser, {f"{name}-{one}": says for one, (says, _) in commands.items()}
        )
        made |= {f"{name}-{one}": page(f"{name} {one}", says, sub, {}) for one, (says, sub) in commands.items()}
    return made


def page(name: str, summary: str, parser: argparse.ArgumentParser, commands: dict[str, str]) -> str:
    """A man page in roff. `commands`: pages of sub-commands, each with one line."""
    title = name.replace(" ", "-")
    usage = parser.format_usage().partition(":")[2]
    lines = [f'.TH "{title.upper()}" 1 "" "nopfsfs {__version__}" "nopfsfs"']
    lines += [".SH NAME", _text(f"{title} - {summary}"), ".SH SYNOPSIS", _text(" ".join(usage.split()))]
    lines += [".SH DESCRIPTION", *_paragraphs(parser.description or summary)]
    for group in parser._action_groups:
        entries = [line for action in group._group_actions for line in _entry(action)]
        if entries:
            lines += [f".SH {_text((group.title or 'options').upper())}", *entries]
    if commands:
        lines += [".SH COMMANDS"]
        lines += [part for one, says in commands.items() for part in (".TP", f".BR {_text(one)} (1)", _text(says))]
    if parser.epilog:
        lines += [".SH NOTES", ".nf", *(_text(line) for line in parser.epilog.splitlines()), ".fi"]
    lines += [".SH SEE ALSO", "docs/commands.md describes all commands, their output and exit codes in full."]
    return "\n".join([*lines, ""])


def _summary(parser: argparse.ArgumentParser) -> str:
    first = " ".join((parser.description or "").split()).partition(". ")[0].rstrip(".")
    return first[:1].lower() + first[1:]


def _entry(action: argparse.Action) -> Iterator[str]:
    """The lines of one option or argument."""
    if action.help == argparse.SUPPRESS or isinstance(action, argparse._SubParsersAction):
        return
    value = str(action.metavar or (action.dest.upper() if action.nargs != 0 else ""))
    if action.option_strings:
        flags = ", ".join(rf"\fB{_text(flag)}\fR" for flag in action.option_strings)
        head = rf"{flags} \fI{_text(value)}\fR" if value and action.nargs != 0 else flags
    else:
        head = rf"\fI{_text(value)}\fR"
    yield from (".TP", head, _text(action.help or "-").replace("%%", "%"))


def _paragraphs(text: str) -> list[str]:
    return [_text(" ".join(part.split())) for part in text.split("\n\n")]


def _text(text: str) -> str:
    r"""Plain text as roff: what is shown as it stands. `-` is `\-`, so that options can be copied."""
    shown = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq")
    return rf"\&{shown}" if shown.startswith(".") else shown


def completions() -> dict[str, str]:
    """The completions by path: `bash/PROGRAM` and `zsh/_PROGRAM`. Needs shtab."""
    import shtab

    made: dict[str, str] = {}
    for name, parser in parsers().items():
        for one in (parser, *(sub for _, sub in commands_of(parser).values())):
            for action in one._actions:
                if action.metavar in DIRECTORIES:
                    action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
                elif action.metavar in FILES:
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
        made[f"bash/{name}"] = shtab.complete(parser, "bash")
        made[f"zsh/_{name}"] = shtab.complete(parser, "zsh")
    return made


def main() -> None:
    [target] = sys.argv[1:]
    files = {f"man1/{name}.1": text for name, text in pages().items()} | completions()
    for name, text in files.items():
        path = Path(target, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
