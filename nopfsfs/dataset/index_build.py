"""The build of an Index from listings of directories. Pure, vectorised over files: Python objects exist per directory
only."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.index import NO_ENTRY, Index, fingerprint

# One lstat, packed as struct "<IIIIqqqQQBI" does it. `acl`: the number in an `Acls`, 0 for none.
RECORD = np.dtype(
    [
        ("mode", "<u4"),
        ("uid", "<u4"),
        ("gid", "<u4"),
        ("nlink", "<u4"),
        ("size", "<i8"),
        ("mtime_ns", "<i8"),
        ("ctime_ns", "<i8"),
        ("src_ino", "<u8"),
        ("dev", "<u8"),
        ("flags", "u1"),
        ("acl", "<u4"),
    ]
)
COPIED = ("mode", "uid", "gid", "nlink", "size", "mtime_ns", "ctime_ns", "src_ino", "flags")
DIRECTORY = 0o4  # S_IFDIR >> 12
LINK = 0o12  # S_IFLNK >> 12


class Acls:
    """The different POSIX ACLs of a tree, numbered from 1 as the scan meets them. Several threads may use it."""

    def __init__(self, values: Iterable[bytes] = ()) -> None:
        self._numbers: dict[bytes, int] = {}
        self._lock = threading.Lock()
        for value in values:
            self.number(value)

    def number(self, value: bytes) -> int:
        """The number of an ACL, which a new one is given; 0 for b""."""
        if not value:
            return 0
        number = self._numbers.get(value)
        if number is None:
            with self._lock:
                number = self._numbers.setdefault(value, len(self._numbers) + 1)
        return number

    def values(self) -> list[bytes]:
        """The ACLs; the one with number k is at k - 1."""
        return list(self._numbers)


@dataclass(frozen=True, slots=True)
class Listing:
    """A directory as the scan found it."""

    path: bytes  # relative to the source; b"" for the root
    own: NDArray[Any]  # (1,) RECORD of the directory itself
    names: bytes  # all names, sorted, one after the other
    lengths: NDArray[np.uint32]  # (k,) of each name
    records: NDArray[Any]  # (k,) RECORD of each entry
    targets: dict[int, bytes] = field(default_factory=dict)  # of symbolic links, by position
    led: dict[int, bytes] = field(default_factory=dict)  # absolute paths that followed links led to, by position


def build(listings: Iterable[Listing], acls: Sequence[bytes] = ()) -> Index:
    """The index of a tree. `acls`: the ACLs whose numbers the records have. One listing must have the path b"". Entries
    of directories without a listing are left out. The sequence of `listings` does not matter."""
    dirs = sorted(listings, key=lambda d: d.path + b"/" if d.path else b"")
    counts = np.array([len(d.lengths) for d in dirs], np.int64)
    mode = np.concatenate([d.records["mode"] for d in dirs])
    lengths = np.concatenate([d.lengths for d in dirs]).astype(np.uint64)
    names = np.frombuffer(b"".join([d.names for d in dirs]), np.uint8)
    entry_parent = np.repeat(np.arange(len(dirs), dtype=np.uint32), counts)
    entry_row, kept = _directory_rows(dirs, mode, lengths, names, entry_parent)
    if not kept.all():
        names = names[np.repeat(kept, lengths.astype(np.int64))]
        lengths, entry_parent = lengths[kept], entry_parent[kept]
    first_of_row = _file_rows(dirs, mode, entry_row, len(dirs))
    columns: dict[str, NDArray[Any]] = {
        "entry_parent": entry_parent,
        "entry_row": entry_row[kept],
        "names": names,
        "name_start": _offsets(lengths),
        "first_entry": np.searchsorted(entry_parent, np.arange(len(dirs) + 1)).astype(np.uint32),
    }
    columns["primary"] = _primary(columns["entry_row"], len(dirs) + len(first_of_row))
    columns.update(_attributes(dirs, first_of_row))
    columns.update(_links(dirs, counts, entry_row))
    columns.update(_acls(columns.pop("acl"), acls))
    columns.update(_led(dirs, counts, entry_row, kept, first_of_row))
    return Index(**columns, fingerprint=fingerprint(columns))


def _offsets(lengths: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The offset at which each item begins, and the end of the last; uint64[k+1]."""
    offsets = np.zeros(len(lengths) + 1, np.uint64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _directory_rows(
    dirs: list[Listing],
    mode: NDArray[np.uint32],
    lengths: NDArray[np.uint64],
    names: NDArray[np.uint8],
    entry_parent: NDArray[np.uint32],
) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Rows of the entries that are directories (0 for others), and which entries are kept."""
    row_of = {d.path: row for row, d in enumerate(dirs)}
    starts = _offsets(lengths)
    entry_row = np.zeros(len(mode), np.uint32)
    kept = np.ones(len(mode), np.bool_)
    for entry in np.flatnonzero(mode >> 12 == DIRECTORY).tolist():
        parent = dirs[entry_parent[entry]].path
        name = names[int(starts[entry]) : int(starts[entry + 1])].tobytes()
        row = row_of.get(parent + b"/" + name if parent else name)
        if row is None:
            kept[entry] = False
        else:
            entry_row[entry] = row
    return entry_row, kept


def _file_rows(
    dirs: list[Listing], mode: NDArray[np.uint32], entry_row: NDArray[np.uint32], n_dirs: int
) -> NDArray[np.int64]:
    """Fill in the rows of entries that are no directories; hard links share one. Return, for each of these rows, the
    entry that its attributes come from, numbered before any entry is left out."""
    is_file = mode >> 12 != DIRECTORY
    linked = np.flatnonzero(is_file & (np.concatenate([d.records["nlink"] for d in dirs]) > 1))
    first_link = linked  # for each of `linked`, the first entry of the same inode
    if len(linked):
        inode = np.concatenate([d.records["src_ino"] for d in dirs])[linked]
        device = np.concatenate([d.records["dev"] for d in dirs])[linked]
        order = np.lexsort((linked, inode, device))
        i, d = inode[order], device[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (i[1:] != i[:-1]) | (d[1:] != d[:-1])
        first_link = np.empty_like(linked)
        first_link[order] = linked[order][new][np.cumsum(new) - 1]
    own_row = is_file.copy()
    own_row[linked[first_link != linked]] = False
    first_of_row = np.flatnonzero(own_row)
    entry_row[first_of_row] = np.arange(n_dirs, n_dirs + len(first_of_row), dtype=np.uint32)
    entry_row[linked] = entry_row[first_link]
    return first_of_row


def _primary(entry_row: NDArray[np.uint32], n: int) -> NDArray[np.uint32]:
    """The first entry of each row."""
    primary = np.full(n, NO_ENTRY, np.uint32)
    primary[entry_row[::-1]] = np.arange(len(entry_row), dtype=np.uint32)[::-1]
    return primary


def _attributes(dirs: list[Listing], first_of_row: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """The columns that are copied from the records: directories first, then the other rows."""

    def column(name: str) -> NDArray[Any]:
        own = np.concatenate([d.own[name] for d in dirs])
        others = np.concatenate([d.records[name] for d in dirs])[first_of_row]
        return np.concatenate([own, others])

    columns = {name: column(name) for name in (*COPIED, "acl")}
    devices, src_dev = np.unique(column("dev"), return_inverse=True)
    if len(devices) > 1 << 16:
        raise ValueError(f"{len(devices)} file systems below one source")
    return {**columns, "devices": devices, "src_dev": src_dev.astype(np.uint16)}


def _links(dirs: list[Listing], counts: NDArray[np.int64], entry_row: NDArray[np.uint32]) -> dict[str, NDArray[Any]]:
    """The side table of symbolic links."""
    first = np.cumsum(counts) - counts
    targets: dict[int, bytes] = {}
    for start, directory in zip(first.tolist(), dirs, strict=True):
        for position, target in directory.targets.items():
            targets.setdefault(int(entry_row[start + position]), target)
    return _table("link_row", "link_start", "link_targets", targets)


def _led(
    dirs: list[Listing],
    counts: NDArray[np.int64],
    entry_row: NDArray[np.uint32],
    kept: NDArray[np.bool_],
    first_of_row: NDArray[np.int64],
) -> dict[str, NDArray[Any]]:
    """The side table of followed links. A row of several names is reached by the first name."""
    first = np.cumsum(counts) - counts
    places: dict[int, bytes] = {}
    for start, directory in zip(first.tolist(), dirs, strict=True):
        for position, place in directory.led.items():
            entry = start + position
            row = int(entry_row[entry])
            if kept[entry] and (row < len(dirs) or first_of_row[row - len(dirs)] == entry):
                places[row] = place
    return _table("led_row", "led_start", "led_places", places)


def _table(rows: str, starts: str, texts: str, by_row: dict[int, bytes]) -> dict[str, NDArray[Any]]:
    """Three columns that hold a text for some rows: rows, offsets and texts."""
    in_order = sorted(by_row)
    found = [by_row[row] for row in in_order]
    return {
        rows: np.array(in_order, np.uint32),
        starts: _offsets(np.array([len(text) for text in found], np.uint64)),
        texts: np.frombuffer(b"".join(found), np.uint8),
    }


def _acls(numbers: NDArray[np.uint32], values: Sequence[bytes]) -> dict[str, NDArray[Any]]:
    """The side table of ACLs, from the number of each row. ACLs are numbered anew by row, so that the columns do not
    depend on the threads of the scan."""
    rows = np.flatnonzero(numbers)
    different, first, which = np.unique(numbers[rows], return_index=True, return_inverse=True)
    in_order = np.argsort(first)
    place = np.empty_like(in_order)
    place[in_order] = np.arange(len(in_order))
    used = [values[number - 1] for number in different[in_order].tolist()]
    return {
        "acl_row": rows.astype(np.uint32),
        "acl_number": place[which].astype(np.uint32),
        "acl_start": _offsets(np.array([len(value) for value in used], np.uint64)),
        "acls": np.frombuffer(b"".join(used), np.uint8),
    }
