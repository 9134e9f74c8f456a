"""The settings of a mount, by name: how each is written, and where it was given. All ways to write a setting share one
table.

A layer holds the settings from one origin: the command line, `-o`, a configuration file. A setting in a higher layer
replaces that in a lower one, the disks included.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nopfsfs.config import DiskSpec
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.text.units import format_size, parse_duration, parse_ranks, parse_size

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_TRUE = ("yes", "true", "on", "1")
_FALSE = ("no", "false", "off", "0")

_COUNTED_IN_G = 4  # digits of a number without a unit that may mean GiB; a longer number means bytes
LEAST_SIZE = 1 << 14  # bytes, of memory or of a disk tier: less holds next to nothing, so its unit is missing or wrong
MAX_WORLD_SIZE = 1 << 20
MAX_SERVERS = 32  # each is a process
MAX_EPOCHS = 1 << 20
MIN_RECHECK_S = 60.0  # less would only load the source: directories are checked once a minute anyhow
MAX_RECHECK_S = 7 * 86_400.0
MAX_CONCURRENCY = 1024  # reads of the source in flight; each is a thread and a descriptor


@dataclass(frozen=True, slots=True)
class Given:
    """A parsed value, and its origin for messages."""

    value: Any
    origin: str


Layer = dict[str, Given]


@dataclass(frozen=True, slots=True)
class Setting:
    """The form of one setting: `parse` takes text, and `types` are the TOML types that a configuration file may use.

    `parse` raises ValueError. `paths`: in a configuration file, the value is relative to the directory of that file.
    """

    parse: Callable[[str], Any]
    types: tuple[type, ...] = (str,)
    many: bool = False  # may be repeated; the value is a tuple
    paths: bool = False


def parse_seed(text: str) -> int:
    """Return a seed that torch.manual_seed takes: -2**63 to 2**64 - 1."""
    if not _INTEGER.fullmatch(text) or not -(2**63) <= int(text) < 2**64:
        raise ValueError(f"{text!r} is not a seed: write a whole number of at most 64 bits, such as 42")
    return int(text)


def parse_sampler(text: str) -> str:
    """Return the name of a known sampler."""
    from nopfsfs.plan.samplers import registry  # with numpy: plain mounts need none of it

    if text not in (registry.AUTO, *registry.SAMPLERS):
        raise ValueError(f"{text!r} is not a sampler: choose one of {', '.join((registry.AUTO, *registry.SAMPLERS))}")
    return text


def parse_option(text: str) -> str:
    """Return `text`, of the form NAME=VALUE."""
    if not text.partition("=")[0].strip() or "=" not in text:
        raise ValueError(f"{text!r} is not an option of a sampler: write NAME=VALUE, such as drop_last=true")
    return text


def parse_flag(text: str) -> bool:
    """Return True for yes, False for no."""
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(f"{text!r} is neither yes nor no")
    return text.lower() in _TRUE


def parse_disk(text: str) -> DiskSpec:
    """Return the disk tier of `PATH[:SIZE]`. What follows the last colon is a size unless it holds a
    slash.
    """
    path, colon, size = text.rpartition(":")
    if not colon or "/" in size:
        path, size = text, ""
    if not path:
        raise ValueError(f"{text!r} names no directory: write PATH or PATH:SIZE, such as /local/scratch:200G")
    return DiskSpec(os.path.abspath(path), _positive_size(size) if size else None)


def parse_path(text: str) -> str:
    """Return an absolute path."""
    if not text:
        raise ValueError("the path is empty")
    return os.path.abspath(text)


def parse_name(text: str) -> str:
    """Return a name that is not empty."""
    if not text:
        raise ValueError("the name is empty")
    return text


def _positive_size(text: str) -> int:
    size = parse_size(text)
    if size == 0:
        raise ValueError(f"{text!r} leaves no room: write a size above zero, or leave it out")
    if size < LEAST_SIZE:
        small = f"{text!r} is {format_size(size)}, and less than 16K is of no use"
        raise ValueError(f"{small}: did you mean {_meant(text)}?")
    return size


def _meant(text: str) -> str:
    """The size that the user probably meant by a far too small one: `5G` for `5`, `8M` for `8K`; else the least."""
    number = re.match(r"[\d.]+", text.strip())
    if number is not None:
        said = text.strip()[number.end() :].strip().lower()
        for unit in "MG" if said[:1] not in ("", "b") else "G" if len(number[0]) <= _COUNTED_IN_G else "":
            if parse_size(number[0] + unit) >= LEAST_SIZE:
                return number[0] + unit
    return "16K"


def _positive_time(text: str) -> float:
    seconds = parse_duration(text)
    if seconds == 0:
        raise ValueError(f"{text!r} leaves no time: write one above zero")
    return seconds


def parse_recheck(text: str) -> float:
    """Return seconds, 0 for `no`."""
    if text.lower() in _FALSE:
        return 0.0
    seconds = parse_duration(text)
    if not MIN_RECHECK_S <= seconds <= MAX_RECHECK_S:
        raise ValueError(f"{text!r} is not from 1m to 7d: write a time within that, such as 15m, or no")
    return seconds


def _count(most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not 1 <= int(text) <= most:
            raise ValueError(f"{text!r} is not a whole number from 1 to {most}")
        return int(text)

    return parse


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text

    return parse


SETTINGS: Mapping[str, Setting] = {
    "seed": Setting(parse_seed, (str, int)),
    "sampler": Setting(parse_sampler),
    "sampler_option": Setting(parse_option, (str, list), many=True),
    "plan": Setting(parse_path, paths=True),
    "world_size": Setting(_count(MAX_WORLD_SIZE), (str, int)),
    "ranks": Setting(parse_ranks, (str, int, list)),
    "ram": Setting(_positive_size, (str, int)),
    "page_cache": Setting(_positive_size, (str, int)),
    "disk": Setting(parse_disk, (str, list), many=True, paths=True),
    "log_file": Setting(parse_path, paths=True),
    "user": Setting(parse_name),
    "index_dir": Setting(parse_path, paths=True),
    "remember": Setting(parse_flag, (str, bool)),
    "io_timeout": Setting(_positive_time, (str, int, float)),
    "recheck": Setting(parse_recheck, (str, int, float, bool)),
    "expose": Setting(parse_flag, (str, bool)),
    "calibration": Setting(parse_path, paths=True),
    "source_concurrency": Setting(_count(MAX_CONCURRENCY), (str, int)),
    "servers": Setting(_count(MAX_SERVERS), (str, int)),
    "fast_path": Setting(parse_flag, (str, bool)),
    "signal": Setting(_one_of("open", "tripwire", "auto")),
    "passthrough": Setting(_one_of("auto", "on", "off")),
    "peers": Setting(_one_of("auto", "on", "off")),
    "placement": Setting(_one_of("homes", "nopfs")),
    "epochs": Setting(_count(MAX_EPOCHS), (str, int)),
    "follow_symlinks": Setting(parse_flag, (str, bool)),
    "rescan": Setting(parse_flag, (str, bool)),
    "allow_other": Setting(parse_flag, (str, bool)),
    "foreground": Setting(parse_flag, (str, bool)),
}


def usage(message: str) -> NopfsError:
    """Return the error for a wrong option."""
    return NopfsError(Exit.USAGE, message)


def put(layer: Layer, name: str, text: str, origin: str) -> None:
    """Parse `text` as setting `name` and put it into `layer`. A later word replaces an earlier one, except for settings
    that may be repeated.

    Raises NopfsError that names `origin`.
    """
    setting = SETTINGS[name]
    try:
        value = setting.parse(text)
    except ValueError as error:
        raise usage(f"{origin}: {error}") from error
    if setting.many:
        value = (*(layer[name].value if name in layer else ()), value)
    layer[name] = Given(value, origin)


def read_config(path: str) -> Layer:
    """Return the settings of the TOML file `path`. Raises NopfsError that names the file, the key and, where
    known, the line.
    """
    try:
        with open(path, "rb") as file:
            text = file.read().decode()
        table = tomllib.loads(text)
    except OSError as error:
        raise usage(f"--config {path}: {error.strerror}; name a readable TOML file") from error
    except UnicodeDecodeError as error:
        raise usage(f"--config {path}: not UTF-8 text; name a TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise usage(f"--config {path}: not valid TOML: {error}") from error
    layer: Layer = {}
    for key, value in table.items():
        origin = f"{path}, {_line_of(key, text)}{key}"
        name = key.replace("-", "_")
        if name not in SETTINGS:
            raise usage(f"{origin}: no such setting; known are {', '.join(SETTINGS)}")
        for word in _words(SETTINGS[name], value, origin):
            put(layer, name, _beside(path, word) if SETTINGS[name].paths else word, origin)
    return layer


def _line_of(key: str, text: str) -> str:
    found = re.search(rf"""^\s*\[?\s*["']?{re.escape(key)}["']?\s*[\].=]""", text, re.MULTILINE)
    return f"line {text.count(chr(10), 0, found.end()) + 1}: " if found else ""


def _words(setting: Setting, value: Any, origin: str) -> list[str]:
    """Return a TOML value as the words of the command line for that value. Raises NopfsError for a wrong
    type.
    """
    if type(value) not in setting.types:  # exactly: in Python, True is an int
        raise usage(f"{origin}: {_kind(type(value))} is given, {_kinds(setting)} is expected")
    if not isinstance(value, list):
        return [str(value)]
    element = str if setting.many else int
    if not value or any(type(item) is not element for item in value):
        raise usage(f"{origin}: a list of {'strings' if setting.many else 'whole numbers'} is expected")
    return value if setting.many else [",".join(map(str, value))]


_KINDS = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}


def _kind(kind: type) -> str:
    return _KINDS.get(kind, f"a {'table' if kind is dict else 'date or time'}")


def _kinds(setting: Setting) -> str:
    return " or ".join(_KINDS[kind] for kind in setting.types)


def _beside(path: str, word: str) -> str:
    """Return a path of a configuration file relative to the directory of that file: fstab and batch jobs start
    anywhere.
    """
    return os.path.join(os.path.dirname(os.path.abspath(path)), word) if word else word
