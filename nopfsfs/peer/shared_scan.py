"""Shared scan of the source: each directory is listed, and the attributes of its entries read, by one rank. All ranks
build the same index of what all found. Uses a `RankGroup` only, no MPI.

A hash of its path assigns each directory to a rank. In each round a rank looks at its own directories, and at its own
below these; the others that it met go to all ranks. There are at most as many rounds as the tree is deep. A directory's
attributes are read by the rank that listed its parent, and by the one that opens it. A lone scan reads them twice too.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from nopfsfs.dataset.below import BelowSource
from nopfsfs.dataset.directory_scan import DirectoryContents, DirectoryScan, DirectoryTask
from nopfsfs.dataset.index import COLUMNS, Index
from nopfsfs.dataset.index_build import Acls
from nopfsfs.dataset.tree_scan import THREADS, Failure, ScanPool, ScanResult, result_of
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.peer.scan_messages import Devices, pack_found, pack_tasks, unpack_found, unpack_tasks
from nopfsfs.peer.startup_agreement import RankGroup, refuse, together

LOOKED_AT = 64  # directories that each rank compares with what all found
_OF_THE_MACHINE = ("devices", "src_dev")


def owner(path: bytes, size: int) -> int:
    """The rank that looks at the directory `path`, relative to the source."""
    return xxhash.xxh3_64_intdigest(path) % size


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Options of a shared scan."""

    source: str
    follow_symlinks: bool = False
    idle_s: float = 300.0  # after which a rank whose source answers nothing sends no signs of life
    threads: int = THREADS
    clock_ns: Callable[[], int] = time.time_ns


def scan_together(
    group: RankGroup, how: ScanOptions, previous: Index | None = None, progress: Callable[[int], None] | None = None
) -> ScanResult:
    """Scan as `dataset.tree_scan.scan` does; the index is the same on every rank. `previous` is used where all ranks
    have the same one. `progress` receives the number of entries that this rank found. Collective.

    Raises NopfsError on every rank: Exit.SOURCE where the source cannot be read."""
    root = os.path.abspath(os.fsencode(how.source))
    devices, before = _begin(group, root, previous)
    look = DirectoryScan(root, os.path.realpath(root), how.follow_symlinks, before, how.clock_ns)
    report = _reporting(group, how.idle_s, progress)
    found, failures = _rounds(group, look, how, devices, report)
    failures += [failure for f in found for failure in f.vanished]
    parts = group.gather(pack_found(found, failures, devices, look.acls), "sending what the scan found")
    all_found: list[DirectoryContents] = []
    all_failures: list[Failure] = []
    acls = Acls(before.acl_values() if before is not None else ())
    for part in parts:
        some, failed = unpack_found(part, devices, before, acls)
        all_found += some
        all_failures += failed
    result = result_of(all_found, all_failures, before, acls)
    return result if group.rank == 0 else replace(result, warnings=())  # rank 0 reports for all


def _rounds(
    group: RankGroup, look: DirectoryScan, how: ScanOptions, devices: Devices, report: Callable[[int], None]
) -> tuple[list[DirectoryContents], list[Failure]]:
    """Look at this rank's directories, round by round, until none is left on any rank. Returns what was found, and the
    failures."""

    def mine(task: DirectoryTask) -> bool:
        return owner(task.path, group.size) == group.rank

    def look_at(tasks: Sequence[DirectoryTask]) -> bytes:
        share = ScanPool(look, mine).run([task for task in tasks if mine(task)], how.threads, report)
        found.extend(share.found)
        failures.extend(share.failures)
        return pack_tasks(share.left, devices)

    found: list[DirectoryContents] = []
    failures: list[Failure] = []
    tasks = [DirectoryTask(b"", -1 if look.previous is None else 0)]
    while tasks:
        parts = together(group, "scanning the source", lambda: look_at(tasks))  # noqa: B023
        tasks = [task for part in parts for task in unpack_tasks(part, devices)]
    return found, failures


def _begin(group: RankGroup, root: bytes, previous: Index | None) -> tuple[Devices, Index | None]:
    """The devices of this machine, and `previous` if all ranks have the same one, else None."""
    devices: Devices | None = None

    def look() -> bytes:
        nonlocal devices
        try:
            devices = Devices.here(root)
        except OSError as error:
            why = f"cannot read the source {os.fsdecode(root)}: {error.strerror}"
            raise NopfsError(Exit.SOURCE, why) from error
        return b"" if previous is None else _digest(previous)

    digests = {bytes(part) for part in together(group, "looking at the source and the index that was kept", look)}
    assert devices is not None
    return devices, previous if len(digests) == 1 else None


def _digest(index: Index) -> bytes:
    """Digest of all that a scan takes over from an index, except device numbers, which differ between machines."""
    digest = xxhash.xxh3_128()
    for name, _, _ in COLUMNS:
        if name not in _OF_THE_MACHINE:
            digest.update(np.ascontiguousarray(getattr(index, name)).data)
    return digest.digest()


def _reporting(group: RankGroup, idle_s: float, progress: Callable[[int], None] | None) -> Callable[[int], None]:
    """Make the function that the scan calls with its number of entries: it reports progress and sends signs of life.
    Signs of life stop when the number has not changed for `idle_s` seconds."""
    last = (-1, time.monotonic())

    def report(entries: int) -> None:
        nonlocal last
        now = time.monotonic()
        if entries != last[0]:
            last = (entries, now)
        if now - last[1] < idle_s:
            group.beat()
        if progress is not None:
            progress(entries)

    return report


def check_same(group: RankGroup, index: Index) -> None:
    """Check that all ranks have the same index. Raises NopfsError, on every rank, that names the first directory that
    differs. Collective."""
    prints = [bytes(part).decode() for part in together(group, "the index", index.fingerprint.encode)]
    other = next((rank for rank, print_ in enumerate(prints) if print_ != prints[0]), None)
    if other is None:
        return
    mine = _directories(index)
    parts = group.gather(b"".join(digest for _, digest in mine), "comparing indexes")
    first, second = (bytes(parts[rank]) for rank in (0, other))
    places = (at for at in range(0, max(len(first), len(second)), 8) if first[at : at + 8] != second[at : at + 8])
    place = next(places, 0) // 8
    where = os.fsdecode(mine[place][0]) or "." if place < len(mine) else "their last directory"
    raise refuse(
        group, Exit.SOURCE,
        f"ranks 0 and {other} have different indexes of the source, first at {where}; mount the same file system on "
        "all nodes, and try again",
    )  # fmt: skip


def _directories(index: Index) -> list[tuple[bytes, bytes]]:
    """The path of each directory, with a digest of the path and the directory's content."""
    found = []
    for row in range(index.n_dirs):
        first, last = int(index.first_entry[row]), int(index.first_entry[row + 1])
        rows = index.entry_row[first:last]
        digest = xxhash.xxh3_64(index.path(row))
        digest.update(index.names[int(index.name_start[first]) : int(index.name_start[last])].tobytes())
        files = rows[rows >= index.n_dirs]
        for column in (index.size, index.mtime_ns):
            digest.update(column[files].tobytes())
        found.append((index.path(row), digest.digest()))
    return found


def check_view(group: RankGroup, source: str, index: Index) -> None:
    """Compare the source as this rank sees it with what all found: the root and LOOKED_AT other directories at most,
    different ones on each rank. Raises NopfsError, on every rank, where a rank sees another tree. Collective."""
    parts = together(group, "comparing the source with the others", lambda: _look(group, os.fsencode(source), index))
    for rank, part in enumerate(parts):
        if part:
            row, why = json.loads(bytes(part))
            path = index.path(row)
            shown = os.path.join(source, os.fsdecode(path)) if path else source
            raise refuse(
                group, Exit.SOURCE,
                f"rank {rank} sees another tree than rank {owner(path, group.size)}: {shown} {why}; mount the same "
                "file system on all nodes (or it was changed just now: try again)",
            )  # fmt: skip


def _look(group: RankGroup, source: bytes, index: Index) -> bytes:
    """The first row that this rank sees otherwise than the rank that looked at it, and the difference, as JSON; empty
    if there is none."""
    below = BelowSource(os.path.realpath(source), index, any_root=True)
    for row in sample(index, group.rank):
        if owner(index.path(row), group.size) != group.rank:
            why = _difference(below, index, row)
            if why:
                return json.dumps([row, why]).encode()
    return b""


def sample(index: Index, rank: int) -> list[int]:
    """Rows of the directories that a rank compares, the root first. Chosen by a hash: numpy's generators would be
    imported now, by a user who may have no right to read them."""
    if index.n_dirs == 1:
        return [0]
    texts = (f"{index.fingerprint} {rank} {i}" for i in range(LOOKED_AT))
    return [0, *sorted({1 + xxhash.xxh3_64_intdigest(text.encode()) % (index.n_dirs - 1) for text in texts})]


def _difference(below: BelowSource, index: Index, row: int) -> str:
    """Describe how the directory in the row's place differs from the row; "" where it does not. Inode numbers count,
    because a file read on one node must be the same file on another."""
    try:
        st = below.stat(row)
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    if st.st_mode >> 12 != int(index.mode[row]) >> 12:
        return "is no directory"
    if st.st_ino != int(index.src_ino[row]):
        return "is another directory (another inode number)"
    return "" if st.st_mtime_ns == int(index.mtime_ns[row]) else "was changed at another time"
