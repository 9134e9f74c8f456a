"""The scan of one directory of the source: its entries, or the result that those of the previous index still hold.

A user who renames files in the source during the scan cannot lead the scan elsewhere. Directories are opened below the
root without following links, and entries below their directory. Attributes and ACL of a file are those of one inode.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.index import FOLLOWED, HAS_ACL, LEAVES, UNSURE, Index
from nopfsfs.dataset.index_build import COPIED, LINK, RECORD, Acls, Listing
from nopfsfs.dataset.symlinks import is_inside, presented
from nopfsfs.system.beneath import by_descriptor, open_absolute, open_beneath, open_followed, place_of
from nopfsfs.system.descriptors import closing_fd

# A directory that changed less than this time before it was listed may change again within one tick of the source's
# clock and then look unchanged. A tick is 4 ms on ext4, 1 s on ext3 and HFS+, 2 s on FAT; the rest is for clocks that
# disagree.
RACY_NS = 3_000_000_000
ACL_NAME = "system.posix_acl_access"
PACK = struct.Struct("<IIIIqqqQQBI").pack  # index_build.RECORD


@dataclass(frozen=True, slots=True)
class DirectoryTask:
    """A directory to scan."""

    path: bytes
    was: int = -1  # its row in the previous index
    at: bytes = b""  # its absolute path, free of links, where it is reached through a followed link
    chain: tuple[tuple[int, int], ...] = ()  # (st_dev, st_ino) of the directories above, nearest last

    @property
    def followed(self) -> bool:
        """True when the directory is reached through a followed link."""
        return bool(self.at)


@dataclass(frozen=True, slots=True)
class DirectoryContents:
    """The contents of a scanned directory; `listing` is None where those of the previous index still hold."""

    task: DirectoryTask
    own: bytes  # packed RECORD
    listing: Listing | None
    children: list[DirectoryTask]
    leaving: int = 0  # links out of the source that stay links
    vanished: tuple[tuple[bytes, str], ...] = ()  # path of each entry that could not be read, and the reason
    moved: bool = False  # reused, but the device number of the source changed


def listing_of(found: DirectoryContents, previous: Index | None) -> Listing:
    """The listing of a directory, taken from the previous index if it was not listed again."""
    if found.listing is not None:
        return found.listing
    assert previous is not None
    was = found.task.was
    first, last = int(previous.first_entry[was]), int(previous.first_entry[was + 1])
    rows = previous.entry_row[first:last]
    starts = previous.name_start[first : last + 1]
    records = np.empty(last - first, RECORD)
    for name in COPIED:
        records[name] = getattr(previous, name)[rows]
    records["acl"] = acl_numbers(previous, rows)
    own = np.frombuffer(found.own, RECORD).copy()
    device = previous.devices[previous.src_dev[rows]]
    # The file system may have a new device number since, for example by a reboot.
    device[device == previous.devices[previous.src_dev[was]]] = own["dev"][0]
    records["dev"] = device
    # A row of several names has the flags of its first name, so FOLLOWED is set anew. Directories that hold followed
    # links are always listed again.
    records["flags"] &= 0xFF ^ FOLLOWED
    if found.task.followed:
        records["flags"][records["mode"] >> 12 != LINK] |= FOLLOWED
    links = np.flatnonzero(records["mode"] >> 12 == LINK).tolist()
    return Listing(
        found.task.path,
        own,
        previous.names[int(starts[0]) : int(starts[-1])].tobytes(),
        np.diff(starts).astype(np.uint32),
        records,
        {position: previous.readlink(int(rows[position])) for position in links},
    )


def acl_numbers(previous: Index, rows: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The numbers that the ACLs of rows of an index have in `Acls(previous.acl_values())`, 0 for none; uint32."""
    numbers = np.zeros(len(rows), np.uint32)
    have = np.flatnonzero(previous.flags[rows] & HAS_ACL)
    numbers[have] = previous.acl_number[np.searchsorted(previous.acl_row, rows[have])] + 1
    return numbers


class DirectoryScan:
    """A function that scans one directory; many threads may call it at a time."""

    def __init__(
        self, root: bytes, real_root: bytes, follow: bool, previous: Index | None, clock_ns: Callable[[], int]
    ) -> None:
        self.root = root
        self.real_root = real_root
        self.follow = follow
        self.previous = previous
        self.clock_ns = clock_ns
        self.acls = Acls(previous.acl_values() if previous is not None else ())
        self.no_acl: set[int] = set()  # device numbers of file systems without ACLs
        self.entries = 0  # for progress only: a lost update does no harm

    def __call__(self, task: DirectoryTask) -> DirectoryContents:
        """Scan the directory of a task. Raises OSError if the directory cannot be listed."""
        with closing_fd(self._open(task)) as fd:
            if self.previous is not None and task.was >= 0:
                st = os.fstat(fd)
                if self._unchanged(st, task.was):
                    return self._reuse(task, st, self.previous)
            listed = os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
        with closing_fd(listed):
            return self._list(task, listed)

    def _open(self, task: DirectoryTask) -> int:
        """An O_PATH descriptor of the directory. Raises OSError."""
        flags = os.O_PATH | os.O_DIRECTORY
        if task.at:
            return open_absolute(task.at, flags)
        with closing_fd(open_absolute(self.real_root, flags)) as root:
            return open_beneath(root, task.path, flags) if task.path else os.dup(root)

    def _unchanged(self, st: os.stat_result, was: int) -> bool:
        assert self.previous is not None
        at = self.previous.at
        return (
            not at.flags[was] & UNSURE
            and st.st_mtime_ns == at.mtime_ns[was]
            and st.st_ctime_ns == at.ctime_ns[was]
            and st.st_ino == at.src_ino[was]
        )

    def _reuse(self, task: DirectoryTask, st: os.stat_result, previous: Index) -> DirectoryContents:
        was = task.was
        first, last = int(previous.first_entry[was]), int(previous.first_entry[was + 1])
        rows = previous.entry_row[first:last]
        here = (*task.chain, (st.st_dev, st.st_ino))
        children = []
        for position in np.flatnonzero(rows < previous.n_dirs).tolist():
            row, name = int(rows[position]), previous.name(first + position)
            children.append(DirectoryTask(_join(task.path, name), row, _join(task.at, name) if task.at else b"", here))
        self.entries += last - first
        leaving = int(np.count_nonzero(previous.flags[rows] & LEAVES))
        moved = int(previous.devices[previous.src_dev[was]]) != st.st_dev
        own = self._pack(st, previous.at.flags[was], self.acls.number(previous.acl(was)))
        return DirectoryContents(task, own, None, children, leaving, moved=moved)

    def _list(self, task: DirectoryTask, fd: int) -> DirectoryContents:
        st = os.fstat(fd)
        here = (st.st_dev, st.st_ino)
        if here in task.chain:
            raise OSError(errno.ELOOP, "a loop of followed links")
        acl = self._acl(fd, st)
        flags = FOLLOWED if task.followed else 0
        if st.st_ctime_ns > self.clock_ns() - RACY_NS:
            flags |= UNSURE
        into = _Entries(task, fd, st.st_dev, (*task.chain, here))
        with os.scandir(fd) as entries:
            for entry in entries:
                self._entry(into, entry)
        self.entries += len(into.packed)
        if into.unsure:
            flags |= UNSURE
        own = self._pack(st, flags, acl)
        return DirectoryContents(task, own, into.listing(own), into.children, into.leaving, tuple(into.vanished))

    def _entry(self, into: _Entries, entry: os.DirEntry[str]) -> None:
        name = os.fsencode(entry.name)
        try:
            if entry.is_file(follow_symlinks=False) and into.device not in self.no_acl:
                st, acl = self._file(into, name)
            else:
                st, acl = entry.stat(follow_symlinks=False), 0
            if stat.S_ISLNK(st.st_mode):
                self._link(into, name, st)
                return
        except OSError as error:
            into.vanished.append((_join(into.task.path, name), error.strerror or "error"))
            return
        flags = FOLLOWED if into.task.followed else 0
        if stat.S_ISDIR(st.st_mode):
            into.child(name, self._was(into, name))
        into.packed.append((name, self._pack(st, flags, acl)))

    def _file(self, into: _Entries, name: bytes) -> tuple[os.stat_result, int]:
        """Attributes and the number of the ACL of one inode, even if files are renamed meanwhile. Raises OSError."""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=into.fd)
        try:
            st = os.fstat(fd)
            return st, self._acl(fd, st) if stat.S_ISREG(st.st_mode) else 0
        finally:
            os.close(fd)

    def _was(self, into: _Entries, name: bytes) -> int:
        """The row that a subdirectory had in the previous index, or -1."""
        if self.previous is None or into.task.was < 0:
            return -1
        row = self.previous.lookup(into.task.was, name)
        return row if row < self.previous.n_dirs else -1

    def _link(self, into: _Entries, name: bytes, st: os.stat_result) -> None:
        """Add a symbolic link, or with `follow` what it leads to. Raises OSError if the link vanished."""
        target = os.readlink(name, dir_fd=into.fd)
        # The resolved path only decides how the link is presented; no file is opened by it.
        above = into.task.at or self.real_root.rstrip(b"/") + b"/" + into.task.path
        real = os.path.realpath(above.rstrip(b"/") + b"/" + name)
        inside = is_inside(real, self.real_root)
        if inside:
            target = presented(target, real, self.real_root, into.task.path, into.task.followed)
        elif self.follow:
            into.unsure = True  # the target may change without a change of any directory of the source
            try:
                self._follow(into, name)
                return
            except OSError:
                into.leaving += 1  # the link leads to nothing now
        else:
            into.leaving += 1
        into.packed.append((name, self._pack(st, 0 if inside else LEAVES)))
        into.targets[name] = target

    def _follow(self, into: _Entries, name: bytes) -> None:
        """Add the target of a link in the place of the link. Raises OSError if the link leads to nothing."""
        with closing_fd(open_followed(into.fd, name)) as fd:
            st, place = os.fstat(fd), place_of(fd)
            acl = self._acl(fd, st) if stat.S_ISREG(st.st_mode) else 0
        if stat.S_ISDIR(st.st_mode):
            into.child(name, self._was(into, name), place)
        into.packed.append((name, self._pack(st, FOLLOWED, acl)))
        into.led[name] = place

    def _acl(self, fd: int, st: os.stat_result) -> int:
        """The number of the ACL of a descriptor's file, 0 for none. A file system without ACLs is asked only once."""
        if st.st_dev in self.no_acl:
            return 0
        try:
            return self.acls.number(os.getxattr(by_descriptor(fd), ACL_NAME))
        except OSError as error:
            if error.errno in (errno.ENOTSUP, errno.ENOSYS):
                self.no_acl.add(st.st_dev)
            return 0

    def _pack(self, st: os.stat_result, flags: int, acl: int = 0) -> bytes:
        flags |= HAS_ACL if acl else 0
        special = stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode)
        return PACK(
            st.st_mode,
            st.st_uid,
            st.st_gid,
            st.st_nlink,
            st.st_rdev if special else st.st_size,
            st.st_mtime_ns,
            st.st_ctime_ns,
            st.st_ino,
            st.st_dev,
            flags,
            acl,
        )


class _Entries:
    """The entries of a directory that have been found so far."""

    def __init__(self, task: DirectoryTask, fd: int, device: int, chain: tuple[tuple[int, int], ...]) -> None:
        self.task = task
        self.fd = fd  # of the directory
        self.device = device
        self.chain = chain
        self.packed: list[tuple[bytes, bytes]] = []  # name, RECORD
        self.targets: dict[bytes, bytes] = {}
        self.led: dict[bytes, bytes] = {}  # absolute path of the target of each followed link, by name
        self.children: list[DirectoryTask] = []
        self.vanished: list[tuple[bytes, str]] = []
        self.leaving = 0
        self.unsure = False

    def child(self, name: bytes, was: int, place: bytes = b"") -> None:
        """Add a child directory. `place`: the absolute path of the target where a followed link leads to it."""
        at = place or (_join(self.task.at, name) if self.task.at else b"")
        self.children.append(DirectoryTask(_join(self.task.path, name), was, at, self.chain))

    def listing(self, own: bytes) -> Listing:
        self.packed.sort()
        names = [name for name, _ in self.packed]
        positions = {name: i for i, name in enumerate(names)} if self.targets or self.led else {}
        return Listing(
            self.task.path,
            np.frombuffer(own, RECORD).copy(),
            b"".join(names),
            np.fromiter(map(len, names), np.uint32, len(names)),
            np.frombuffer(b"".join([record for _, record in self.packed]), RECORD),
            {positions[name]: target for name, target in self.targets.items()},
            {positions[name]: place for name, place in self.led.items()},
        )


def _join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name
