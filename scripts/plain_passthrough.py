#!/usr/bin/env python3
"""A plain read-only pass-through by pyfuse3, as its examples do it: what a benchmark of nopfsfs compares
with.

    python scripts/plain_passthrough.py SOURCE MOUNTPOINT

Entries and attributes are cached for long, pages are kept over opens; each open and release, and each read
that the kernel has not cached, is answered here.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import pyfuse3
import trio
from pyfuse3 import FileInfo, FUSEError

TIMEOUT_S = 3600.0


class Passthrough(pyfuse3.Operations):
    """Just enough to list and read."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, root: str) -> None:
        super().__init__()
        self._paths = {int(pyfuse3.ROOT_INODE): os.fsencode(root)}

    def _attributes(self, inode: int, path: bytes) -> pyfuse3.EntryAttributes:
        try:
            found = os.lstat(path)
        except OSError as error:
            raise FUSEError(error.errno or errno.EIO) from None
        entry = pyfuse3.EntryAttributes()
        for name in ("mode", "nlink", "uid", "gid", "size", "blocks", "atime_ns", "mtime_ns", "ctime_ns"):
            setattr(entry, f"st_{name}", getattr(found, f"st_{name}"))
        number = inode or found.st_ino
        entry.st_ino = number
        self._paths[number] = path
        entry.entry_timeout = entry.attr_timeout = TIMEOUT_S
        return entry

    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        return self._attributes(0, os.path.join(self._paths[parent_inode], name))

    async def getattr(self, inode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        return self._attributes(inode, self._paths[inode])

    async def open(self, inode: int, flags: int, ctx: Any) -> FileInfo:
        try:
            fd = os.open(self._paths[inode], os.O_RDONLY)
        except OSError as error:
            raise FUSEError(error.errno or errno.EIO) from None
        return FileInfo(fh=fd, keep_cache=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        return os.pread(fh, size, off)

    async def release(self, fh: int) -> None:
        os.close(fh)

    async def opendir(self, inode: int, ctx: Any) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        names = sorted(os.listdir(self._paths[fh]))
        for position in range(start_id, len(names)):
            entry = self._attributes(0, os.path.join(self._paths[fh], names[position]))
            if not pyfuse3.readdir_reply(token, names[position], entry, position + 1):
                return


def main() -> None:
    source, mountpoint = sys.argv[1:]
    pyfuse3.init(Passthrough(os.path.abspath(source)), mountpoint, {"fsname=plain", "ro"})
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main()
