"""Line numbers of the keys of a TOML file. Only for text that tomllib accepts: errors of syntax are not noticed."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import lru_cache

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Path = tuple[str | int, ...]  # ("class", 1, "read"): the key `read` of the second [[class]], or of the second in a list
DEEPEST = 8  # parts of one dotted key that are recorded: the files that this package reads have four at most
_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r]+|\#[^\n]*)
    |(?P<end>\n)
    |(?P<text>\"{3}(?:[^"\\]|\\.|\"{1,2}(?!"))*\"{3,5}|'{3}(?:[^']|'{1,2}(?!'))*'{3,5}
             |"(?:[^"\\\n]|\\.)*"|'[^'\n]*')
    |(?P<mark>[\[\]{}=,.])
    |(?P<word>[^\s\[\]{}=,.\#"']+)""",
    re.VERBOSE | re.DOTALL,
)


def line_of(text: str, path: Path) -> int | None:
    """The line, from 1, of the last key of `path`. Where that key is missing, the line of the nearest table around it.
    None where there is no such table, as for a key that is missing at the top."""
    lines = key_lines(text)
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


@lru_cache(maxsize=1)  # a reader asks for the line of each key of one file
def key_lines(text: str) -> Mapping[Path, int]:
    """The line, from 1, in which each key first appears, and in which each table that is an entry of a list begins."""
    scan = _Scan()
    for match in _TOKEN.finditer(text):
        scan.take(match.lastgroup or "", match[0])
    return scan.lines


class _Scan:
    """A pass over the tokens of a file. A key lies between the beginning of a line, `{` or `,` and the `=`; all other
    tokens belong to a value."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        self._line = 1
        self._header: Path = ()  # the table that the last [header] opened
        self._entries: dict[Path, int] = {}  # the last entry of each list of tables
        self._open: list[tuple[Path, bool]] = []  # open brackets in a value: path of their value, True for a list
        self._path: Path = ()  # of the current value
        self._keys: list[str] = []
        self._brackets = 0  # brackets that began the current header
        self._in_key = True

    def take(self, group: str, token: str) -> None:
        if group == "end":
            self._line += 1
            if not self._open:
                self._expect_key()
        elif self._in_key:
            self._take_key(group, token)
        else:
            self._take_value(group, token)

    def _expect_key(self) -> None:
        self._in_key = True
        self._brackets = 0
        self._keys.clear()

    def _take_key(self, group: str, token: str) -> None:
        if group in ("text", "word"):
            if len(self._keys) < DEEPEST:
                self._keys.append(tomllib.loads(f"k = {token}")["k"] if group == "text" else token)
        elif token == "[":
            self._brackets += 1
        elif token == "]" and self._brackets:
            self._end_header(self._brackets == 2)
        elif token == "=":
            self._path = self._open[-1][0] if self._open else self._header
            for key in self._keys:
                self._note((*self._path, key))
            self._in_key = False
        elif token == "}":
            self._close()

    def _end_header(self, entry: bool) -> None:
        self._path = ()
        for number, key in enumerate(self._keys, 1):
            path = (*self._path, key)
            if entry and number == len(self._keys):
                self._entries[path] = self._entries.get(path, -1) + 1
            self._note(path)
            if path in self._entries:
                self._note((*path, self._entries[path]))
        self._header = self._path
        self._brackets = 0

    def _take_value(self, group: str, token: str) -> None:
        if group == "text":
            self._line += token.count("\n")
        elif token == "{":
            self._note(self._path)
            self._open.append((self._path, False))
            self._expect_key()
        elif token == "[":
            self._open.append((self._path, True))
            self._path = (*self._path, 0)
        elif token in ("]", "}"):
            self._close()
        elif token == "," and self._open:
            if self._open[-1][1]:
                self._path = (*self._path[:-1], int(self._path[-1]) + 1)
            else:
                self._expect_key()

    def _close(self) -> None:
        if self._open:
            self._path = self._open.pop()[0]
            self._in_key = False

    def _note(self, path: Path) -> None:
        self._path = path
        self.lines.setdefault(path, self._line)
