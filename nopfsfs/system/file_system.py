"""File system of a descriptor (statfs): its type, and an id that outlives a remount where there is one."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import NamedTuple

from nopfsfs.system.beneath import open_absolute
from nopfsfs.system.descriptors import closing_fd

_libc = ctypes.CDLL(None, use_errno=True)
_WORDS = 32  # of 8 bytes: more than struct statfs has on 64-bit machines
# include/uapi/linux/magic.h and the file systems' own: those that other machines may write while this one caches.
_NETWORK = frozenset({
    0x6969,  # NFS
    0xFF534D42, 0xFE534D42, 0x517B,  # CIFS, SMB2, SMB
    0x0BD00BD0,  # Lustre
    0x47504653,  # GPFS, IBM Storage Scale
    0x19830326,  # BeeGFS
    0x00C36400,  # Ceph
    0x013111A8, 0x5346414F, 0x6B414653,  # IBRIX, AFS, kAFS
    0x01021997,  # 9p
    0x01161970, 0x7461636F,  # GFS2, OCFS2
    0x65735546,  # FUSE: GlusterFS, JuiceFS, sshfs, s3fs and many more
    0x786F4256,  # VirtualBox shared folders
    0x20030528,  # OrangeFS
    0xAAD7AAEA,  # PanFS
    0x73757245,  # Coda
})  # fmt: skip


_WITHOUT_CHANGE_TIMES = frozenset({0x4D44, 0x2011BAB0})  # FAT, exFAT


class FileSystem(NamedTuple):
    """`kind`: f_type; `id`: f_fsid, 0 where there is none that outlives a remount."""

    kind: int
    id: int

    def may_be(self, other: FileSystem) -> bool:
        """True when nothing tells the two apart."""
        return self.kind == other.kind and (self.id == other.id or not self.id or not other.id)

    @property
    def is_network(self) -> bool:
        """True when other machines may write there, so that attributes that are seen here may be old."""
        return self.kind in _NETWORK

    @property
    def has_change_times(self) -> bool:
        """False where who sets the mtime of a file back hides that it has changed. Some FUSE file systems have no
        change times either; nothing tells them apart."""
        return self.kind not in _WITHOUT_CHANGE_TIMES


def file_system_at(path: bytes) -> FileSystem | None:
    """The file system of an absolute path free of links; None where that cannot be found out now."""
    with suppress(OSError), closing_fd(open_absolute(path, os.O_PATH)) as fd:
        return file_system(fd, os.fstat(fd).st_dev)
    return None


def file_system(fd: int, device: int) -> FileSystem:
    """The file system of a descriptor; `device` is its st_dev. May ask a server. Raises OSError."""
    found = (ctypes.c_long * _WORDS)()
    if _libc.fstatfs(fd, found) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    number = found[7] & 0xFFFF_FFFF_FFFF_FFFF  # f_fsid
    # Many use the block device's number as the id (huge_encode_dev): a remount may change it.
    major, minor = os.major(device), os.minor(device)
    encoded = (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)
    return FileSystem(found[0] & 0xFFFF_FFFF, 0 if number == encoded else number)
