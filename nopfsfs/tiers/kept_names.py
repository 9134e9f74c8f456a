"""Names of kept copies: what a file name says of a copy, and which copy a row of the index may have.

A copy is called KEY-SUM. KEY stands for the source and for path, size, mtime, ctime and inode number of the file there.
SUM stands for the copy's bytes (docs/decisions/0018-kept-copies.md).
"""

from __future__ import annotations

import hashlib
import re
import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nopfsfs.dataset.index import Index
from nopfsfs.protocol.columns import Columns
from nopfsfs.system.file_system import FileSystem
from nopfsfs.tiers.source import Identity, Source

KEY_BYTES = 20
PART, YOUNG = ".part", ".young"  # a copy that is being written; one of a file that may yet change under the same times
SOURCE_NAME = re.compile("[0-9a-f]{32}")
SUBDIRECTORY = re.compile("[0-9a-f]{2}")
_NAME = re.compile(rf"([0-9a-f]{{{2 * KEY_BYTES}}})-([0-9a-f]{{16}})(\.part|\.young)?")
_RECORD = KEY_BYTES + 8  # bytes: a key and a sum
_identity = struct.Struct("<qqqQ").pack


class CopyName(NamedTuple):
    """The parts of a copy's file name. `check`: xxh3 of its bytes; `suffix`: "", PART or YOUNG."""

    key: bytes
    check: int
    suffix: str = ""

    @property
    def path(self) -> str:
        """The path below the directory of the source."""
        key = self.key.hex()
        return f"{key[:2]}/{key}-{self.check:016x}{self.suffix}"


def parsed_name(name: str) -> CopyName | None:
    """Return the parts of a file name; None for a file that no mount has made."""
    found = _NAME.fullmatch(name)
    return found and CopyName(bytes.fromhex(found[1]), int(found[2], 16), found[3] or "")


def source_name(root: bytes, inode: int, known: FileSystem | None) -> str:
    """Return the name of a source: of its path, its root's inode number, and the kind of its file system."""
    kind = 0 if known is None else known.kind
    return hashlib.blake2b(b"%d\0%d\0%s" % (inode, kind, root), digest_size=16).hexdigest()


def key_of(source: str, path: bytes, identity: Identity) -> bytes:
    """Return the key of a version of a file."""
    words = source.encode() + _identity(identity.size, identity.mtime_ns, identity.ctime_ns, identity.ino)
    return hashlib.blake2b(words + path, digest_size=KEY_BYTES).digest()


class KeptRows:
    """The rows of a mount as a kept cache names them. `name`: that of the source. `charged_bytes`: what copies of all
    files take. `unconfirmed` u8[n]: 1 while the copy
    on disk was left by another mount, and the source was not looked at since. The stager has one of these."""

    def __init__(self, root: bytes, index: Index, columns: Columns, source: Source, known: FileSystem | None) -> None:
        self.root = root
        self.name = source_name(root, index.at.src_ino[0], known)
        self.index, self._columns, self._source = index, columns, source
        self.unconfirmed = np.zeros(index.n, np.uint8)
        self.charged_bytes = int((np.maximum(1, -(-index.size[self.files] // 4096)) * 4096).sum())

    @property
    def files(self) -> npt.NDArray[np.int64]:
        """The regular files, i64[m]."""
        return np.flatnonzero(self.index.mode >> 12 == 0o10)

    def size(self, row: int) -> int:
        """The bytes of a row."""
        return self._source.size(row)

    def key(self, row: int, version: int) -> bytes | None:
        """The key of a version of a row; None when that is not the row's version any more."""
        identity = self._source.identity(row)
        if self._columns.version[row] != version or self._columns.stale[row]:
            return None
        return key_of(self.name, self.index.path(row), identity)

    def key_now(self, row: int) -> bytes:
        """The key of the present version of a row."""
        return key_of(self.name, self.index.path(row), self._source.identity(row))

    def staged_check(self, row: int) -> int:
        """xxh3 of the bytes of this version that were staged last; 0: none were."""
        return int(self._columns.check[row])

    def confirm(self, row: int) -> None:
        """Look at the source for an unconfirmed row. Raises Changed, OSError."""
        self._source.confirm(row)
        self.unconfirmed[row] = 0


class FoundCopies:
    """Copies that a directory lists, 28 bytes each: found by key. `sort` comes after the last `add`."""

    def __init__(self) -> None:
        self._words = bytearray()
        self._first = np.zeros(0, np.uint64)
        self._order = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._words) // _RECORD

    def add(self, name: CopyName) -> None:
        """Note a copy."""
        self._words += name.key + name.check.to_bytes(8, "big")

    def sort(self) -> None:
        """Make the copies ready to be found."""
        first = np.frombuffer(bytes(self._words), np.dtype([("first", ">u8"), ("rest", "V20")]))["first"]
        self._order = np.argsort(first, kind="stable")
        self._first = first[self._order].astype(np.uint64)

    def check_of(self, key: bytes) -> int | None:
        """The sum of the copy of that key; None for none, or for two that differ."""
        at = int(np.searchsorted(self._first, np.uint64(int.from_bytes(key[:8], "big"))))
        checks = set()
        while at < len(self._order) and (record := self._record(at))[:8] == key[:8]:
            if record[:KEY_BYTES] == key:
                checks.add(record[KEY_BYTES:])
            at += 1
        return int.from_bytes(checks.pop(), "big") if len(checks) == 1 else None

    def _record(self, at: int) -> bytes:
        start = int(self._order[at]) * _RECORD
        return bytes(self._words[start : start + _RECORD])
