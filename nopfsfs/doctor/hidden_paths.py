"""Names of files replaced by hashes in what a diagnosis collected. Pure, but for the key.

The same name has the same hash within one archive, and another in the next, so that nobody can look names up.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

# Parts without names of anybody's files.
PLAIN_PARTS = frozenset(
    {"versions", "kernel", "clock", "node", "cgroup", "history", "stacks", "processes"}
)  # fmt: skip
PATH_PARTS = ("disk_paths", "mount_paths")
# Keys whose values are paths, or names of directories of the data.
PATH_KEYS = frozenset(
    {"source", "mountpoint", "path", "looked_at", "log_file", "index_dir", "state_dir", "run_dir", "root", "dataset",
     "calibration", "name", "policy"}
)  # fmt: skip
_KEPT = re.compile(r"(/dev|/proc|/sys|/etc)(/|$)|[\d.,]*([kKMGTP]?i?B)?/s$|I/O$|Input/output$")
_QUOTED = re.compile(r"(['\"])([^'\"\n]*/[^'\"\n]*)\1")
_TOKEN = re.compile(r"[^\s\"'(),;=]*/[^\s\"'(),;=]*[^\s\"'(),;=:.]|/(?=\s|$)")
_HASHED = re.compile(r"(/?#[0-9a-f]{8})+")


class PathHider:
    """Replaces each name of a path by `#` and eight hexadecimal digits."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        """`parts`: what was collected. Paths that it states are replaced wherever they stand."""
        self._key = secrets.token_bytes(16)
        known = {path for name, part in parts.items() if name not in PLAIN_PARTS for path in _stated(part, name)}
        longest_first = sorted((path for path in known if path.strip("./")), key=len, reverse=True)
        self._known = re.compile("|".join(rf"(?<![\w/]){re.escape(path)}(?!\w)" for path in longest_first) or r"(?!)")

    def hidden(self, name: str, part: Any) -> Any:
        """A part with its paths hidden."""
        return part if name in PLAIN_PARTS else self._value(part, path=name in PATH_PARTS)

    def text(self, text: str) -> str:
        """A text with all hidden that is a known path, or looks like one."""
        text = self._known.sub(lambda found: self.path(found[0]), text)
        text = _QUOTED.sub(lambda found: f"{found[1]}{self.path(found[2])}{found[1]}", text)
        return _TOKEN.sub(lambda found: self.path(found[0]), text)

    def path(self, path: str) -> str:
        """A path with its names hidden."""
        if _KEPT.match(path) or _HASHED.fullmatch(path):
            return path
        return "/".join(self._name(name) for name in path.split("/"))

    def _name(self, name: str) -> str:
        if name in ("", ".", "..") or _HASHED.fullmatch(name):
            return name
        return f"#{hashlib.blake2b(name.encode('utf-8', 'surrogatepass'), key=self._key, digest_size=4).hexdigest()}"

    def _value(self, value: Any, *, path: bool) -> Any:
        if isinstance(value, Mapping):
            return {key: self._value(one, path=path or _is_path(key, one)) for key, one in value.items()}
        if isinstance(value, list):
            return [self._value(one, path=path) for one in value]
        if not isinstance(value, str):
            return value
        return self.path(value) if path else self.text(value)


def _is_path(key: str, value: Any) -> bool:
    return key in PATH_KEYS and not isinstance(value, Mapping)


def _stated(value: Any, key: str) -> Iterator[str]:
    """The paths that a value states."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _stated(one, name if key not in PATH_PARTS else "path")
    elif isinstance(value, list):
        for one in value:
            yield from _stated(one, key)
    elif isinstance(value, str) and key in PATH_KEYS:
        yield value


def all_hidden(parts: Mapping[str, Any], report: str) -> tuple[dict[str, Any], str]:
    """Return the parts and the report with paths hidden."""
    hider = PathHider(parts)
    lines = map(hider.text, report.split("\n"))
    return {name: hider.hidden(name, part) for name, part in parts.items()}, "\n".join(lines)
