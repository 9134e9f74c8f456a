"""The settings of a mount by origin, and how `-o` and a configuration file give them.

A layer holds the settings of one origin: the command line, `-o`, a configuration file. A setting of a higher layer
replaces that of a lower one, the disks included.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, TypeVar

from nopfsfs.cli.option_list import SETTINGS, Setting
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.system.atomic_file import whole_file
from nopfsfs.text.toml_table import KINDS, TomlTable, kind, read_text

# Options of mount(8) and fstab(5) that mean nothing to a read-only file system. mount(8) always passes `rw`, and
# mount.fuse3 passes `dev,suid`: an error would forbid every call through them.
_IGNORED = frozenset(
    re.findall(
        r"\S+",
        """
        defaults rw ro auto noauto nofail _netdev _rnetdev user nouser users group owner default_permissions
        exec suid nosuid dev nodev sync async dirsync silent loud mand nomand iversion noiversion
        atime noatime diratime nodiratime relatime norelatime strictatime nostrictatime lazytime nolazytime
        """,
    )
)
_IGNORED_PREFIXES = ("x-", "X-", "comment=", "context=", "fscontext=", "defcontext=", "rootcontext=")
_KERNEL_FLAGS = ("noexec", "nosymfollow")


@dataclass(frozen=True, slots=True)
class Given:
    """A parsed value, and its origin for messages."""

    value: Any
    origin: str


Layer = dict[str, Given]
T = TypeVar("T")


def usage(message: str) -> NopfsError:
    """Return the error for a wrong option."""
    return NopfsError(Exit.USAGE, message)


def need_package(who: str, package: str, extra: str, instead: str = "") -> None:
    """Raises NopfsError where a package of an extra of nopfsfs is not installed."""
    if importlib.util.find_spec(package.replace("-", "_")) is None:
        raise usage(f"{who} needs {package}; install it: pip install 'nopfsfs[{extra}]'{instead}")


def parsed(parse: Callable[[str], T], text: str, origin: str) -> T:
    """Return what `parse` makes of `text`. Raises NopfsError that names `origin`."""
    try:
        return parse(text)
    except ValueError as error:
        raise usage(f"{origin}: {error}") from error


@contextmanager
def output_file(path: str, origin: str) -> Iterator[IO[bytes]]:
    """Yield a file that is written to `path` whole or not at all. Raises NopfsError that names `origin`."""
    try:
        with whole_file(path, 0o644) as file:
            yield file
    except OSError as error:
        raise usage(f"{origin} {path}: {error.strerror or error}; name a file in a directory of yours") from error


def put(layer: Layer, name: str, text: str, origin: str) -> None:
    """Parse `text` as setting `name` and put it into `layer`. A later word replaces an earlier one, except for settings
    that may be repeated.

    Raises NopfsError that names `origin`.
    """
    setting = SETTINGS[name]
    value = parsed(setting.parse, text, origin)
    if setting.many:
        value = (*(layer[name].value if name in layer else ()), value)
    layer[name] = Given(value, origin)


def read_options(groups: Sequence[str]) -> tuple[Layer, tuple[str, ...], str | None]:
    """Return the contents of `-o`: settings, flags for the kernel, and a configuration file. Raises NopfsError."""
    layer: Layer = {}
    flags: dict[str, None] = {}
    config = None
    for option in (o for group in groups for o in split_options(group)):
        key, equals, value = option.partition("=")
        name = key.replace("-", "_")
        if option in _KERNEL_FLAGS:
            flags[option] = None
        elif option in _IGNORED or option.startswith(_IGNORED_PREFIXES):
            continue
        elif name == "config" and value:
            config = value
        elif name in SETTINGS and (equals or bool in SETTINGS[name].types):
            put(layer, name, value if equals else "yes", f"-o {key}")
        elif name.startswith("no_") and name[3:] in SETTINGS and bool in SETTINGS[name[3:]].types and not equals:
            put(layer, name[3:], "no", f"-o {key}")
        else:
            hint = "needs a value" if name in SETTINGS else "no such option; quote a value that has commas"
            raise usage(f"-o {option}: {hint}; see nopfs-mount --help")
    return layer, tuple(flags), config


def split_options(text: str) -> Iterator[str]:
    """Yield the options of a comma-separated list. A comma in double quotes or after a backslash belongs to its option:
    `ranks="0-3,6"`.
    """
    word = ""
    quoted = escaped = False
    for char in text:
        if escaped:
            word, escaped = word + char, False
        elif char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif char == "," and not quoted:
            if word:
                yield word
            word = ""
        else:
            word += char
    if quoted or escaped:
        raise usage(f"-o {text}: {'a quote is not closed' if quoted else 'it ends in a backslash'}")
    if word:
        yield word


def read_config(path: str) -> Layer:
    """Return the settings of the TOML file `path`. Raises NopfsError that names the file, the line and the key."""
    table = TomlTable.parse(read_text(path, "a configuration file"), path)
    layer: Layer = {}
    for key in table.values:
        name = key.replace("-", "_")
        if name not in SETTINGS:
            raise table.unknown(key, tuple(SETTINGS))
        setting = SETTINGS[name]
        for word in table.may(key, partial(_words, setting), []):
            put(layer, name, _beside(path, word) if setting.paths else word, table.place(key))
    return layer


def _words(setting: Setting, value: Any) -> list[str]:
    """Return a TOML value as the words of the command line for that value. Raises ValueError for a wrong type."""
    if type(value) not in setting.types:  # exactly: in Python, True is an int
        expected = " or ".join(KINDS[one] for one in setting.types)
        raise ValueError(f"{kind(value)} is given, {expected} is expected")
    if not isinstance(value, list):
        return [str(value)]
    element = str if setting.many else int
    if not value or any(type(item) is not element for item in value):
        raise ValueError(f"a list of {'strings' if setting.many else 'whole numbers'} is expected")
    return value if setting.many else [",".join(map(str, value))]


def _beside(path: str, word: str) -> str:
    """Return a path of a configuration file relative to the directory of that file: fstab and batch jobs start
    anywhere.
    """
    return os.path.join(os.path.dirname(os.path.abspath(path)), word) if word else word
