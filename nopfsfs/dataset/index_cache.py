"""The index on disk, so that a restarted job does not scan a million files again.

There is one file for each source and set of options. It is replaced in one step, so that simultaneous mounts of one
source do not disturb each other. A mount needs the file only while it starts: it has a copy in sealed memory. A file
that is damaged, of another version or of another owner is ignored.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from nopfsfs.dataset import index_file
from nopfsfs.dataset.index import Index
from nopfsfs.dataset.index_check import IndexDamaged
from nopfsfs.dataset.tree_scan import ScanResult, scan
from nopfsfs.system.atomic_file import TEMPORARY
from nopfsfs.system.descriptors import closed_on_error, closing_fd
from nopfsfs.system.trusted_path import make_directories, trusted_parent

LEFTOVER_S = 86_400.0  # a temporary file this old belongs to a scan that was killed
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedIndex:
    """An index in memory that other processes can map too."""

    index: Index
    fd: int  # of the sealed memory that `index` maps; the caller closes it, and `index` stays valid
    path: str | None  # of the file that keeps the index for the next mount; None without such a file
    result: ScanResult


def open_or_scan(
    source: str | bytes,
    index_dir: str,
    *,
    rescan: bool = False,
    follow_symlinks: bool = False,
    progress: Callable[[int], None] | None = None,
) -> OpenedIndex:
    """The index of the source. Directories that did not change come from the index kept in `index_dir`, the rest from a
    scan, and the new index is kept there. `rescan` lists every directory. An empty `index_dir` keeps nothing;
    a directory that cannot be written adds a warning to the result.

    Raises NopfsError (Exit.SOURCE) as `scan` does."""

    def scanned(previous: Index | None) -> ScanResult:
        return scan(source, follow_symlinks=follow_symlinks, previous=previous, progress=progress)

    return open_or(scanned, source, index_dir, rescan=rescan, follow_symlinks=follow_symlinks)


def open_or(
    scanned: Callable[[Index | None], ScanResult],
    source: str | bytes,
    index_dir: str,
    *,
    rescan: bool = False,
    follow_symlinks: bool = False,
) -> OpenedIndex:
    """The index of the source as from `open_or_scan`, with `scanned` as the scan. `scanned` takes the kept index, or
    None, and returns that index where nothing changed."""
    path = _place(source, index_dir, follow_symlinks)
    fd, previous = (-1, None) if rescan or path is None else _kept(path)
    try:
        result = scanned(previous)
        if previous is not None and result.index is previous:
            return OpenedIndex(previous, os.dup(fd), path, result)
        return _keep(path, result)
    finally:
        if fd >= 0:
            os.close(fd)


def _place(source: str | bytes, index_dir: str, follow_symlinks: bool) -> str | None:
    """The path of the file that keeps the index of this source. The path does not depend on the device number, which
    changes with every mount of a network file system. An index of another tree that was here before agrees with no
    directory's times."""
    if not index_dir:
        return None
    real = os.path.realpath(os.fsencode(source))
    try:
        inode = os.stat(real).st_ino
    except OSError:
        return None  # the scan reports the error
    key = xxhash.xxh3_128_hexdigest(b"%s\0%d\0%d" % (real, inode, follow_symlinks))
    return os.path.join(index_dir, key + ".index")


def _kept(path: str) -> tuple[int, Index | None]:
    """A descriptor of a sealed copy of the kept file, and its index; (-1, None) without a usable file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return -1, None
    try:
        with closing_fd(file):
            st = os.fstat(file)
            if st.st_uid != os.geteuid() or not stat.S_ISREG(st.st_mode):
                raise IndexDamaged("not a file of this user")
            with closed_on_error(index_file.copy_sealed(file)) as fd:
                return fd, index_file.load_fd(fd, verify=True)
    except (OSError, IndexDamaged) as error:
        log.info("index %s is not used: %s", path, error)
        return -1, None


def _keep(path: str | None, result: ScanResult) -> OpenedIndex:
    """Write the scanned index to its file, and copy it into sealed memory, which all processes of the mount share."""
    if path is not None:
        try:
            make_directories(os.path.dirname(path), 0o700)
            _sweep(path)
            index_file.save(result.index, path)
        except OSError as error:
            path = None
            why = f"the index is not kept, the next mount scans again: {error}"
            result = dataclasses.replace(result, warnings=(*result.warnings, why))
    return _mapped(index_file.to_memfd(result.index), path, result)


def _mapped(fd: int, path: str | None, result: ScanResult) -> OpenedIndex:
    with closed_on_error(fd):
        index = index_file.load_fd(fd)
    return OpenedIndex(index, fd, path, dataclasses.replace(result, index=index))


def _sweep(path: str) -> None:
    """Remove the temporary files of killed scans beside the index at `path`. Raises OSError."""
    before = time.time() - LEFTOVER_S
    prefix, suffix = TEMPORARY
    with trusted_parent(path) as (directory, _), os.scandir(f"/proc/self/fd/{directory}") as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and entry.name.endswith(suffix):
                try:
                    if entry.stat(follow_symlinks=False).st_mtime < before:
                        os.unlink(entry.name, dir_fd=directory)
                except OSError:
                    pass  # another mount has removed it
