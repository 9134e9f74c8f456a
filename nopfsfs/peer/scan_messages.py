"""Messages of a shared scan between ranks: directories still to be looked at, and what was found. Bytes are packed by
column, with no object for a file. Pure, but for a look at what is mounted.

Device numbers differ between machines, so each travels with the name of what is mounted there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.directory_scan import DirectoryContents, DirectoryTask
from nopfsfs.dataset.index import Index
from nopfsfs.dataset.index_build import RECORD, Acls, Listing
from nopfsfs.dataset.tree_scan import Failure
from nopfsfs.fuse.mount_table import Mount, read_mounts

Buffer = bytes | bytearray | memoryview
_HEAD = 8  # bytes that hold the length of the JSON in front
_ROOT = "source"


@dataclass(frozen=True, slots=True)
class Devices:
    """Device numbers of this machine: that of the source, and those of all mounts."""

    source: int
    mounts: tuple[Mount, ...]

    @staticmethod
    def here(source: bytes) -> Devices:
        """Read the source's device number and the mount table. Raises OSError."""
        return Devices(os.stat(source).st_dev, read_mounts())

    def names(self, numbers: Iterable[int]) -> dict[str, int]:
        """The numbers by name: a name that other machines know too, where there is one."""
        return {self._name(number): number for number in numbers}

    def _name(self, number: int) -> str:
        if number == self.source:
            return _ROOT
        places = [m.mountpoint for m in self.mounts if os.makedev(m.major, m.minor) == number]
        return f"at {min(places)}" if places else f"number {number}"

    def moves(self, names: Mapping[str, int]) -> dict[int, int]:
        """Map the device numbers of another machine that differ here to this machine's. `names`: that machine's numbers
        by name."""
        known = {f"at {m.mountpoint}": os.makedev(m.major, m.minor) for m in self.mounts}
        known[_ROOT] = self.source
        return {theirs: known[name] for name, theirs in names.items() if known.get(name, theirs) != theirs}


def pack_tasks(tasks: Sequence[DirectoryTask], devices: Devices) -> bytes:
    """Pack directories that other ranks are to look at. The subdirectories of one directory share one chain."""
    groups: dict[tuple[tuple[int, int], ...], list[list[Any]]] = {}
    for task in tasks:
        groups.setdefault(task.chain, []).append([_text(task.path), task.was, _text(task.at)])
    numbers = {device for chain in groups for device, _ in chain}
    return json.dumps({"devices": devices.names(numbers), "groups": list(groups.items())}).encode()


def unpack_tasks(data: Buffer, devices: Devices) -> list[DirectoryTask]:
    """Unpack a message of `pack_tasks`, with the device numbers of this machine."""
    head = json.loads(bytes(data))
    moves = devices.moves(head["devices"])
    tasks = []
    for chain, group in head["groups"]:
        ours = tuple((moves.get(device, device), inode) for device, inode in chain)
        tasks += [DirectoryTask(_bytes(path), was, _bytes(at), ours) for path, was, at in group]
    return tasks


def pack_found(
    found: Sequence[DirectoryContents], failures: Sequence[Failure], devices: Devices, acls: Acls | None = None
) -> bytes:
    """Pack what one rank has found. `failures` include what vanished from directories; `acls`: those that the records
    number."""
    listings = [f.listing for f in found if f.listing is not None]
    reused = [f for f in found if f.listing is None]
    records = _joined([part for d in listings for part in (d.own, d.records)], RECORD)
    owns = np.frombuffer(b"".join([f.own for f in reused]), RECORD)
    numbers = np.unique(np.concatenate([records["dev"], owns["dev"]]))
    links = [(place, at, target) for place, d in enumerate(listings) for at, target in d.targets.items()]
    led = [(place, at, target) for place, d in enumerate(listings) for at, target in d.led.items()]
    columns: list[NDArray[Any]] = [
        np.array([len(d.path) for d in listings], np.uint32),
        np.frombuffer(b"".join([d.path for d in listings]), np.uint8),
        np.array([len(d.lengths) for d in listings], np.uint32),
        _joined([d.lengths for d in listings], np.dtype(np.uint32)),
        np.frombuffer(b"".join([d.names for d in listings]), np.uint8),
        records,
        np.array([(place, at, len(target)) for place, at, target in links], np.uint32),
        np.frombuffer(b"".join([target for _, _, target in links]), np.uint8),
        np.array([(place, at, len(target)) for place, at, target in led], np.uint32),
        np.frombuffer(b"".join([target for _, _, target in led]), np.uint8),
        np.array([f.leaving for f in found if f.listing is not None] + [f.leaving for f in reused], np.uint32),
        np.array([f.task.was for f in reused], np.uint32),
        owns,
    ]
    head = {
        "devices": devices.names(numbers.tolist()),
        "failures": [(_text(path), why) for path, why in failures],
        "acls": [_text(acl) for acl in acls.values()] if acls is not None else [],
        "bytes": [column.nbytes for column in columns],
    }
    text = json.dumps(head).encode()
    return b"".join([len(text).to_bytes(_HEAD, "little"), text, *(column.tobytes() for column in columns)])


_U1, _U4 = np.dtype(np.uint8), np.dtype(np.uint32)
_COLUMNS: tuple[np.dtype[Any], ...] = (_U4, _U1, _U4, _U4, _U1, RECORD, _U4, _U1, _U4, _U1, _U4, _U4, RECORD)


def unpack_found(
    data: Buffer, devices: Devices, previous: Index | None, acls: Acls | None = None
) -> tuple[list[DirectoryContents], list[Failure]]:
    """Unpack a message of `pack_found`, with the device numbers of this machine and the ACL numbers of `acls`. The
    result keeps views of `data`, so the caller gives `data` up."""
    view = memoryview(data)
    start = _HEAD + int.from_bytes(view[:_HEAD], "little")
    head = json.loads(bytes(view[_HEAD:start]))
    columns: list[NDArray[Any]] = []
    for nbytes, dtype in zip(head["bytes"], _COLUMNS, strict=True):
        columns.append(np.frombuffer(view[start : start + nbytes], dtype))
        start += nbytes
    path_lengths, paths, counts, lengths, names, records, links, targets, led, led_to, leaving, was, owns = columns
    records, owns = (_moved(column, devices.moves(head["devices"])) for column in (records, owns))
    if acls is not None and head["acls"]:
        numbers = np.array([0, *(acls.number(_bytes(acl)) for acl in head["acls"])], np.uint32)
        records, owns = (_numbered(column, numbers) for column in (records, owns))
    by_place, led_by_place = _links(links.reshape(-1, 3), targets), _links(led.reshape(-1, 3), led_to)
    path_at, entry_at = _places(path_lengths), _places(counts)
    name_at = _places(lengths)
    found = []
    for place in range(len(counts)):
        first, last = entry_at[place], entry_at[place + 1]
        path = paths[path_at[place] : path_at[place + 1]].tobytes()
        record = first + place  # each directory's own record is before those of its entries
        listing = Listing(
            path,
            records[record : record + 1],
            names[name_at[first] : name_at[last]].tobytes(),
            lengths[first:last],
            records[record + 1 : record + 1 + last - first],
            by_place.get(place, {}),
            led_by_place.get(place, {}),
        )
        found.append(DirectoryContents(DirectoryTask(path), b"", listing, [], int(leaving[place])))
    found += _reused(was, owns, leaving[len(counts) :], previous)
    return found, [(_bytes(path), why) for path, why in head["failures"]]


def _reused(
    was: NDArray[np.uint32], owns: NDArray[Any], leaving: NDArray[np.uint32], previous: Index | None
) -> list[DirectoryContents]:
    if not len(was):
        return []
    assert previous is not None
    found = []
    for row, own, links in zip(was.tolist(), owns, leaving.tolist(), strict=True):
        moved = int(previous.devices[previous.src_dev[row]]) != int(own["dev"])
        task = DirectoryTask(previous.path(row), row)
        found.append(DirectoryContents(task, own.tobytes(), None, [], links, moved=moved))
    return found


def _links(links: NDArray[np.uint32], targets: NDArray[np.uint8]) -> dict[int, dict[int, bytes]]:
    """Targets of links, by directory and position in the directory."""
    ends = _places(links[:, 2])
    found: dict[int, dict[int, bytes]] = {}
    for i, (place, at, _) in enumerate(links.tolist()):
        found.setdefault(place, {})[at] = targets[ends[i] : ends[i + 1]].tobytes()
    return found


def _moved(records: NDArray[Any], moves: Mapping[int, int]) -> NDArray[Any]:
    """Records with the device numbers of this machine."""
    if not moves:
        return records
    records = records.copy()
    devices = records["dev"]
    where = [(devices == theirs, ours) for theirs, ours in moves.items()]
    for mask, ours in where:
        devices[mask] = ours
    return records


def _numbered(records: NDArray[Any], numbers: NDArray[np.uint32]) -> NDArray[Any]:
    """Records with each ACL number `n` replaced by `numbers[n]`."""
    records = records.copy()
    records["acl"] = numbers[records["acl"]]
    return records


def _places(lengths: NDArray[np.uint32]) -> list[int]:
    """Offsets at which each item begins, and the end of the last."""
    places = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=places[1:])
    found: list[int] = places.tolist()
    return found


def _joined(parts: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _text(path: bytes) -> str:
    return path.decode("latin-1")  # JSON holds no bytes; latin-1 loses none


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
