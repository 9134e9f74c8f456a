#!/usr/bin/env python3
"""Writes the options of `nopfs-mount` into docs/commands.md: the tables, and the example of a configuration file.

    python scripts/options_table.py

All are made from `nopfsfs/cli/option_list.py`, and stand between the marks `begin` and `end` in the page.
"""

from __future__ import annotations

import re
from pathlib import Path

from nopfsfs.cli.option_list import GROUPS, SETTINGS, MountOption

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
EXAMPLE = "configuration file"
_BLOCK = re.compile(r"(<!-- begin: scripts/options_table\.py, ([^\n]*) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def row(option: MountOption) -> str:
    """The row of an option in its table."""
    words = [f"{word} {option.metavar}".strip() for word in option.flags]
    if option.negative:
        words.append(f"--no-{option.flags[-1].removeprefix('--')}")
    meaning = [option.help + ("; can be given several times" if option.many else "")]
    meaning += [option.more] if option.more else []
    return f"| {', '.join(f'`{word}`' for word in words)} | {'. '.join(meaning)} | {option.default} |"


def block(title: str) -> str:
    """The text between the marks of this title: the table of a group, or the example."""
    if title == EXAMPLE:
        return "".join(["```toml\n", *(f"{one.name} = {one.toml}\n" for one in SETTINGS.values()), "```\n"])
    return "\n".join(["| option | meaning | default |", "|---|---|---|", *map(row, GROUPS[title]), ""])


def written(page: str) -> str:
    """The page with the text of each block made anew. Raises ValueError unless it has each block once."""
    titles = [found[2] for found in _BLOCK.finditer(page)]
    if sorted(titles) != sorted([*GROUPS, EXAMPLE]):
        raise ValueError(f"the page has blocks for {titles}, not one for each of {[*GROUPS, EXAMPLE]}")
    return _BLOCK.sub(lambda found: found[1] + block(found[2]), page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
