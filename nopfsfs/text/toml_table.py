"""Tables of TOML files that people write, read key by key. Each error names the file, the line and the key, and says
what to write instead. The caller knows the meaning of the keys.

A reader turns a TOML value into the wanted type. It raises ValueError with a text that says what to write.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nopfsfs.errors import Exit, NopfsError
from nopfsfs.text.toml_lines import Path, line_of
from nopfsfs.text.units import MAX_DURATION_S, MAX_RATE, MAX_SIZE, format_size, parse_duration, parse_rate, parse_size

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SIZE_MOST = 1 << 18  # bytes: a cluster file has one or two thousand; room for a capacity of each of many nodes
LONGEST = 400  # characters of a reason, which quotes the user's text or names all settings of a mount
# A key of 64 parts or more: tomllib takes gigabytes for a key of thousands. A match begins at the start of a word, so
# that the search takes a time linear in the text.
_DEEP_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){64}""", re.ASCII)
_AT_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_BARE = re.compile(r"[A-Za-z0-9_-]{1,40}")
KINDS = {  # of TOML values, for people
    str: "a string", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "a table",
}  # fmt: skip

T = TypeVar("T")
D = TypeVar("D")
Reader = Callable[[Any], T]


class ForeignFile(NopfsError):
    """An error for a file that belongs to a user whose files are not trusted."""


def read_text(path: str, what: str, users: Collection[int] | None = None, most: int = SIZE_MOST) -> str:
    """Return the text of a file of at most `most` bytes. `what`: the expected kind of file, for messages. `users`: the
    uids that may own the file; a link is then refused. Raises NopfsError with Exit.USAGE; ForeignFile for another
    owner."""
    link = 0 if users is None else os.O_NOFOLLOW
    try:
        _check_file(os.stat(path, follow_symlinks=not link), path, what, users)
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK | link)) as file:
            _check_file(os.fstat(file.fileno()), path, what, users)  # another file may have taken its place
            raw = file.read(most + 1)
    except OSError as error:
        raise usage(path, None, f"{error.strerror}; name {what} that can be read") from error
    except ValueError as error:  # a NUL, or no file name in this encoding
        raise usage(ascii(path), None, f"{error}; name {what}") from error
    if len(raw) > most:
        raise usage(path, None, f"larger than {format_size(most)}; name {what}")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise usage(path, raw.count(b"\n", 0, error.start) + 1, f"not UTF-8 text; name {what}") from error


def _check_file(found: os.stat_result, path: str, what: str, users: Collection[int] | None) -> None:
    if users is not None and found.st_uid not in users:
        whose = f"of user {found.st_uid}, not yours or root's; name {what} of yours"
        raise ForeignFile(Exit.USAGE, f"{path}: {whose}")
    if not stat.S_ISREG(found.st_mode):
        raise usage(path, None, f"not a regular file; name {what}")


def usage(origin: str, line: int | None, reason: str) -> NopfsError:
    """The error for line `line`, from 1, of the file `origin`; None: for the whole file."""
    said = " ".join(reason.split())
    said = said if len(said) <= LONGEST else f"{said[: LONGEST // 2]} ... {said[-LONGEST // 2 :]}"
    return NopfsError(Exit.USAGE, f"{_place(origin, line)}: {said}")


def _place(origin: str, line: int | None) -> str:
    return origin if line is None else f"{origin}:{line}"


@dataclass(frozen=True, slots=True)
class TomlTable:
    """A table of a TOML file. `at`: the path of keys to the table; `values`: as tomllib gives them. All methods raise
    NopfsError with Exit.USAGE."""

    origin: str
    text: str
    at: Path
    values: Mapping[str, Any]

    @staticmethod
    def parse(text: str, origin: str) -> TomlTable:
        """The top table of a file with this text; `origin` names the file in errors."""
        deep = _DEEP_KEY.search(text)
        if deep is not None:
            line = text.count("\n", 0, deep.start()) + 1
            raise usage(origin, line, "a key of more than 64 parts; write one of a few")
        try:
            return TomlTable(origin, text, (), tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            found = _AT_LINE.search(str(error))
            line = int(found[1]) if found else max(1, len(text.splitlines()))
            raise usage(origin, line, f"not valid TOML: {error}") from error
        except RecursionError as error:
            raise usage(origin, None, "not valid TOML: nested too deeply") from error
        except ValueError as error:  # a number of thousands of digits
            raise usage(origin, None, f"not valid TOML: {error}") from error

    def place(self, key: str) -> str:
        """The file, the line and the key of a value, for messages."""
        path = (*self.at, key)
        return f"{_place(self.origin, line_of(self.text, path))}: {_dotted(path)}"

    def error(self, key: str, reason: str) -> NopfsError:
        """The error for the value of a key, or for the table where the key is missing."""
        path = (*self.at, key)
        return usage(self.origin, line_of(self.text, path), f"{_dotted(path)}: {reason}")

    def need(self, key: str, read: Reader[T], example: str) -> T:
        """The value of a required key. `example`: a value in TOML, for the error."""
        if key not in self.values:
            raise self.error(key, f"missing; write {key} = {example}")
        return self._read(key, read)

    def may(self, key: str, read: Reader[T], default: D) -> T | D:
        """The value of a key, or `default` where it is missing."""
        return self._read(key, read) if key in self.values else default

    def _read(self, key: str, read: Reader[T]) -> T:
        try:
            return read(self.values[key])
        except ValueError as error:
            raise self.error(key, str(error)) from error

    def table(self, key: str) -> TomlTable:
        """The table of a required key."""
        if key not in self.values:
            raise self.error(key, f"missing; write a table that begins with [{key}]")
        value = self.values[key]
        if not isinstance(value, dict):
            raise self.error(key, f"{kind(value)} is given; write a table that begins with [{key}]")
        return TomlTable(self.origin, self.text, (*self.at, key), value)

    def tables(self, key: str) -> list[TomlTable]:
        """The tables [[key]], in the order of the file; none where the key is missing."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.error(key, f"write tables that begin with [[{key}]], with two brackets on each side")
        return [TomlTable(self.origin, self.text, (*self.at, key, i), one) for i, one in enumerate(value)]

    def only(self, known: Sequence[str]) -> None:
        """Refuse keys that are not `known`."""
        for key in self.values:
            if key not in known:
                raise self.unknown(key, known)

    def unknown(self, key: str, known: Sequence[str]) -> NopfsError:
        """The error for a key that is not `known`."""
        near = difflib.get_close_matches(key[:40], known, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        return self.error(key, f"no such key{meant}; known are {', '.join(known)}")


def _dotted(path: Path) -> str:
    """A path as text, such as `class[2].read`. Numbers begin at 1; a key that is no plain word is in quotes."""
    said = ""
    for part in path:
        if isinstance(part, int):
            said += f"[{part + 1}]"
        else:
            said += ("." if said else "") + (part if _BARE.fullmatch(part) else ascii(part[:40]))
    return said


def kind(value: object) -> str:
    """The kind of a TOML value, for people."""
    return KINDS.get(type(value), "a date or time")


def shown(value: object) -> str:
    """A TOML value as the user wrote it, or its kind where the value would be long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 1 << 128:
        return "a number of that size"
    return repr(value) if isinstance(value, (str, int, float)) else kind(value)


def text(value: object) -> str:
    """Reader: a string, of any characters."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a text: write it in quotes")
    return value


def name(value: object) -> str:
    """Reader: a word or a few, for one line."""
    if not isinstance(value, str) or not 0 < len(value) <= 80 or not value.isprintable() or value != value.strip():
        raise ValueError(f'{shown(value)} is not a name: write up to 80 characters in quotes, such as "ram"')
    return value


def flag(value: object) -> bool:
    """Reader: true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is neither true nor false: write one of them, without quotes")
    return value


def whole(least: int, most: int) -> Reader[int]:
    """Reader: a whole number of that range."""

    def read(value: object) -> int:
        if type(value) is not int or not least <= value <= most:  # exactly: in Python, True is an int
            raise ValueError(f"{shown(value)} is not allowed: write a whole number from {least} to {most}")
        return value

    return read


def size(least: int = 0, most: int = MAX_SIZE) -> Reader[int]:
    """Reader: bytes, as a whole number or as `units.parse_size` takes them."""

    def read(value: object) -> int:
        number = parse_size(value) if isinstance(value, str) else value
        if type(number) is not int:
            raise ValueError(f'{shown(value)} is not a size: write bytes or a text such as "1024 MB"')
        if not least <= number <= most:
            raise ValueError(f"{shown(value)} is not allowed: write a size of {least} to {most} bytes")
        return number

    return read


def rate(value: object) -> float:
    """Reader: bytes per second, as a number or as `units.parse_rate` takes them."""
    return _number(value, parse_rate, 1, MAX_RATE, 'a rate: write one from 1 B/s to 1000 PB/s, such as "146 MB/s"')


def seconds(value: object) -> float:
    """Reader: seconds, as a number or as `units.parse_duration` takes them."""
    return _number(value, parse_duration, 0, MAX_DURATION_S, 'a time: write seconds, or a text such as "5ms"')


def _number(value: object, parse: Callable[[str], float], least: float, most: float, what: str) -> float:
    if isinstance(value, str):
        return parse(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ValueError(f"{shown(value)} is not {what}")
    return float(value)
