"""The immutable index of a source tree: numpy columns, names in one buffer. No I/O but `save` and `load`.

Row r is inode r + 1. Row 0 is the root. Rows 0..n_dirs-1 are the directories, sorted by relative path + b"/", so that
the directories below a directory are the rows just after it. The other rows follow in the order of (directory row,
name) of their first entry. So the same tree gives the same inode numbers on every node. Entries are names: hard links
are several entries of one row. Entries are sorted by (parent row, name as bytes); the entries of directory row d are
first_entry[d]:first_entry[d+1].
"""

from __future__ import annotations

import itertools
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

NO_ENTRY = 0xFFFF_FFFF  # `primary` of the root, which no entry names
PATHS_KEPT = 65_536  # directory paths remembered: more than ImageNet-22k has, a few MiB

# Bits of `flags`.
HAS_ACL = 1  # has a POSIX access ACL: the mode bits alone do not say who may read
FOLLOWED = 2  # the path leads through a followed link out of the source: it is opened from the link's target
UNSURE = 4  # a directory whose unchanged times do not prove that its listing is still true: list it again
LEAVES = 8  # a symbolic link that leads out of the source and stayed a link

# name, dtype, length: n rows, m entries, d directories, l links, v devices, t bytes of names, u bytes of targets of
# links, f followed links, w bytes of paths that these led to, a rows with an ACL, k different ACLs, x bytes of ACLs.
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("size", "<i8", "n"),
    ("mtime_ns", "<i8", "n"),
    ("ctime_ns", "<i8", "n"),
    ("src_ino", "<u8", "n"),
    ("name_start", "<u8", "m+1"),
    ("devices", "<u8", "v"),
    ("link_start", "<u8", "l+1"),
    ("led_start", "<u8", "f+1"),
    ("mode", "<u4", "n"),
    ("uid", "<u4", "n"),
    ("gid", "<u4", "n"),
    ("nlink", "<u4", "n"),
    ("primary", "<u4", "n"),
    ("entry_parent", "<u4", "m"),
    ("entry_row", "<u4", "m"),
    ("first_entry", "<u4", "d+1"),
    ("link_row", "<u4", "l"),
    ("led_row", "<u4", "f"),
    ("src_dev", "<u2", "n"),
    ("flags", "|u1", "n"),
    ("names", "|u1", "t"),
    ("link_targets", "|u1", "u"),
    ("led_places", "|u1", "w"),
    ("acl_start", "<u8", "k+1"),
    ("acl_row", "<u4", "a"),
    ("acl_number", "<u4", "a"),
    ("acls", "|u1", "x"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """A source tree in columns, all read-only. In a hot path read single rows through `at`, which is faster than numpy
    scalars."""

    size: NDArray[np.int64]  # (n,) bytes; of a device node: its rdev
    mtime_ns: NDArray[np.int64]  # (n,)
    ctime_ns: NDArray[np.int64]  # (n,)
    src_ino: NDArray[np.uint64]  # (n,) inode at the source
    src_dev: NDArray[np.uint16]  # (n,) index into devices
    mode: NDArray[np.uint32]  # (n,) type and permission bits
    uid: NDArray[np.uint32]  # (n,)
    gid: NDArray[np.uint32]  # (n,)
    nlink: NDArray[np.uint32]  # (n,) as the source counts them
    flags: NDArray[np.uint8]  # (n,) HAS_ACL, FOLLOWED, UNSURE, LEAVES
    primary: NDArray[np.uint32]  # (n,) entry by which the row is reached at the source; NO_ENTRY for the root
    entry_parent: NDArray[np.uint32]  # (m,) directory row
    entry_row: NDArray[np.uint32]  # (m,)
    name_start: NDArray[np.uint64]  # (m+1,) offsets into names
    names: NDArray[np.uint8]
    first_entry: NDArray[np.uint32]  # (n_dirs+1,)
    devices: NDArray[np.uint64]  # (v,) st_dev values
    link_row: NDArray[np.uint32]  # (l,) rows of symbolic links, ascending
    link_start: NDArray[np.uint64]  # (l+1,) offsets into link_targets
    link_targets: NDArray[np.uint8]
    acl_start: NDArray[np.uint64]  # (k+1,) offsets into acls
    acl_row: NDArray[np.uint32]  # (a,) rows that have a POSIX access ACL, ascending
    acl_number: NDArray[np.uint32]  # (a,) which of the different ACLs
    acls: NDArray[np.uint8]
    led_row: NDArray[np.uint32]  # (f,) rows whose own path is a followed link, ascending
    led_start: NDArray[np.uint64]  # (f+1,) offsets into led_places
    led_places: NDArray[np.uint8]  # the absolute path, free of links, that each of these links led to at the scan
    fingerprint: str  # hex; the same on every node that sees the same names, sizes and times
    at: Views = field(init=False, repr=False)
    _paths: dict[int, bytes] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name, _, _ in COLUMNS:
            getattr(self, name).flags.writeable = False
        object.__setattr__(self, "at", Views(self))

    @property
    def n(self) -> int:
        """The number of rows."""
        return len(self.mode)

    @property
    def n_dirs(self) -> int:
        """The number of directories: rows 0..n_dirs-1."""
        return len(self.first_entry) - 1

    @property
    def n_entries(self) -> int:
        return len(self.entry_row)

    @property
    def any_acl(self) -> bool:
        """True when a row has a POSIX access ACL."""
        return len(self.acl_row) > 0

    @property
    def total_bytes(self) -> int:
        """The sum of the sizes of regular files. Reads a whole column: keep the result."""
        return int(self.size[self.mode & 0o170000 == stat.S_IFREG].sum())

    def lookup(self, dir_row: int, name: bytes) -> int:
        """The row of `name` in the directory, or -1, also for b"." and b".."."""
        at = self.at
        entry = self.position(dir_row, name) + at.first_entry[dir_row]
        if entry < at.first_entry[dir_row + 1] and self.name(entry) == name:
            return at.entry_row[entry]
        return -1

    def position(self, dir_row: int, name: bytes) -> int:
        """The number of names in the directory that are less than `name`."""
        at = self.at
        starts, names = at.name_start, at.names
        low = first = at.first_entry[dir_row]
        high = at.first_entry[dir_row + 1]
        while low < high:
            middle = (low + high) >> 1
            if names[starts[middle] : starts[middle + 1]].tobytes() < name:
                low = middle + 1
            else:
                high = middle
        return low - first

    def entries(self, dir_row: int, start: int = 0) -> Iterator[tuple[int, bytes, int]]:
        """(position in the directory, name, row) of each entry from position `start`, sorted by name."""
        at = self.at
        first = at.first_entry[dir_row]
        rows = at.entry_row
        for entry in range(first + start, at.first_entry[dir_row + 1]):
            yield entry - first, self.name(entry), rows[entry]

    def name(self, entry: int) -> bytes:
        """The name of an entry."""
        at = self.at
        return at.names[at.name_start[entry] : at.name_start[entry + 1]].tobytes()

    def parent(self, row: int) -> int:
        """The directory row of a row's primary entry; the root is its own parent."""
        entry = self.at.primary[row]
        return 0 if entry == NO_ENTRY else self.at.entry_parent[entry]

    def path(self, row: int) -> bytes:
        """The path at the source, relative to it, by the primary entry; b"" for the root."""
        if row == 0:
            return b""
        if row >= self.n_dirs:
            entry = self.at.primary[row]
            prefix = self._directory(self.at.entry_parent[entry])
            return prefix + b"/" + self.name(entry) if prefix else self.name(entry)
        return self._directory(row)

    def _directory(self, dir_row: int) -> bytes:
        """The path of a directory; at most `PATHS_KEPT` paths are remembered."""
        paths, at = self._paths, self.at
        known = paths.get(dir_row)
        if known is not None:
            return known
        parts = []
        row = dir_row
        while row:
            entry = at.primary[row]
            parts.append(self.name(entry))
            row = at.entry_parent[entry]
        if len(paths) >= PATHS_KEPT:
            paths.clear()
        path = paths[dir_row] = b"/".join(reversed(parts))
        return path

    def readlink(self, row: int) -> bytes:
        """The target of a symbolic link as the mount presents it. Raises KeyError for a row that is no
        link."""
        i = int(np.searchsorted(self.link_row, row))
        if i == len(self.link_row) or self.link_row[i] != row:
            raise KeyError(row)
        return self.link_targets[int(self.link_start[i]) : int(self.link_start[i + 1])].tobytes()

    def acl(self, row: int) -> bytes:
        """The POSIX access ACL as the kernel gives it; b"" for none."""
        if not self.at.flags[row] & HAS_ACL:
            return b""
        number = int(self.acl_number[int(np.searchsorted(self.acl_row, row))])
        return self.acls[int(self.acl_start[number]) : int(self.acl_start[number + 1])].tobytes()

    def acl_values(self) -> list[bytes]:
        """The different ACLs, by their numbers."""
        ends, acls = self.acl_start.tolist(), self.acls.tobytes()
        return [acls[start:end] for start, end in itertools.pairwise(ends)]

    def led_to(self, row: int) -> bytes | None:
        """The absolute path that the followed link at the row's path led to at the scan; None where the path is no
        followed link."""
        i = int(np.searchsorted(self.led_row, row))
        if i == len(self.led_row) or self.led_row[i] != row:
            return None
        return self.led_places[int(self.led_start[i]) : int(self.led_start[i + 1])].tobytes()

    def anchor(self, row: int) -> tuple[int, bytes]:
        """(row, path): the nearest row, at or above `row`, that is the root or whose path is a followed link. The path
        leads from that row to `row`, and is b"" where they are the same."""
        if not len(self.led_row):
            return 0, self.path(row)
        parts: list[bytes] = []
        at = self.at
        while row and not (at.flags[row] & FOLLOWED and self.led_to(row) is not None):
            entry = at.primary[row]
            parts.append(self.name(entry))
            row = at.entry_parent[entry]
        return row, b"/".join(reversed(parts))


class Views:
    """The columns as memoryviews: indexing a memoryview gives a Python int three times faster than numpy does."""

    __slots__ = tuple(name for name, _, _ in COLUMNS)

    size: memoryview[int]
    mtime_ns: memoryview[int]
    ctime_ns: memoryview[int]
    src_ino: memoryview[int]
    src_dev: memoryview[int]
    mode: memoryview[int]
    uid: memoryview[int]
    gid: memoryview[int]
    nlink: memoryview[int]
    flags: memoryview[int]
    primary: memoryview[int]
    entry_parent: memoryview[int]
    entry_row: memoryview[int]
    name_start: memoryview[int]
    names: memoryview[int]
    first_entry: memoryview[int]
    devices: memoryview[int]
    link_row: memoryview[int]
    link_start: memoryview[int]
    link_targets: memoryview[int]
    acl_start: memoryview[int]
    acl_row: memoryview[int]
    acl_number: memoryview[int]
    acls: memoryview[int]
    led_row: memoryview[int]
    led_start: memoryview[int]
    led_places: memoryview[int]

    def __init__(self, index: Index) -> None:
        for name, _, _ in COLUMNS:
            setattr(self, name, memoryview(getattr(index, name)))


def fingerprint(columns: dict[str, NDArray[Any]]) -> str:
    """The fingerprint of a tree, 32 hex digits: xxh3, 128 bits, over names, types, link targets, and sizes and mtimes
    of all rows but directories.

    Owners, permissions, directory times and source inodes are left out: none changes which files are read, or in
    which order."""
    n_dirs = len(columns["first_entry"]) - 1
    digest = xxhash.xxh3_128()
    whole = ("name_start", "entry_parent", "entry_row", "names", "link_row", "link_start", "link_targets")
    parts: list[NDArray[Any]] = [columns[name] for name in whole]
    parts.append((columns["mode"] >> 12).astype(np.uint8))
    parts += [columns["size"][n_dirs:], columns["mtime_ns"][n_dirs:]]
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
