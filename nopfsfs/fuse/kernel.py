"""Message layouts, opcodes and flags of linux/fuse.h, protocol 7.31 to 7.40, in the kernel's words without `FUSE_`.

Layouts are little-endian, their fields naturally aligned. Fields at the end of a layout that nobody reads are padding.
"""

from __future__ import annotations

import errno
from struct import Struct

# Requests.
LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, GETXATTR, INIT = 1, 2, 3, 14, 15, 18, 22, 26
READDIR, INTERRUPT, IOCTL, BATCH_FORGET, READDIRPLUS = 28, 36, 39, 42, 44
IN_HEADER = Struct("<IIQQIIIHH")  # length, opcode, request, inode, uid, gid, pid, 8-byte words of extensions, padding
INIT_IN = Struct("<IIII")  # major, minor, readahead, flags; with INIT_EXT the high flags follow
GETATTR_IN = Struct("<I12x")  # flags
OPEN_IN = Struct("<I4x")  # flags of open(2)
READ_IN = Struct("<QQI20x")  # handle, offset, size; READDIR has it, too
READ_IN_SIZE_AT = 16
RELEASE_IN = Struct("<Q16x")  # handle
GETXATTR_IN = Struct("<I4x")  # bytes of room for the value; the name follows
ACL_NAME = b"system.posix_acl_access"
INTERRUPT_IN = Struct("<Q")  # the request that is interrupted
GETATTR_FH = 1 << 0  # GETATTR is about an open file

# Answers.
_ATTR = "QQQqqqIIIIIIIIII"  # inode, size, blocks, three times in s, in ns, mode, nlink, uid, gid, rdev, blksize, flags
OUT_HEADER = Struct("<IiQ")  # length, errno below 0, request
INIT_OUT = Struct("<IIIIHHIIHHII24x")
ENTRY_OUT = Struct("<QQQQII" + _ATTR)  # inode, generation, seconds to know name and attributes, the same in ns
ATTR_OUT = Struct("<QII" + _ATTR)  # seconds to know the attributes, ns, padding
OPEN_OUT = Struct("<IiQQIi")  # OUT_HEADER, so that an open is packed at once; handle, flags, registered file
GETXATTR_OUT = Struct("<I4x")  # bytes of the value
FOPEN_KEEP_CACHE, FOPEN_PASSTHROUGH = 1 << 1, 1 << 7

# Notifications: OUT_HEADER with their number in the place of the errno.
NOTIFY_INVAL_INODE, NOTIFY_INVAL_ENTRY, NOTIFY_STORE, NOTIFY_RESEND = 2, 3, 4, 7
NOTIFY_INVAL_INODE_OUT = Struct("<Qqq")  # inode, offset, length
NOTIFY_INVAL_ENTRY_OUT = Struct("<QII")  # directory, bytes of the name, flags; the name follows, and a zero
NOTIFY_STORE_OUT = Struct("<QQII")  # inode, offset, size, padding; the bytes follow

# Flags of INIT.
ASYNC_READ, EXPORT_SUPPORT, BIG_WRITES, AUTO_INVAL_DATA = 1 << 0, 1 << 4, 1 << 5, 1 << 12
DO_READDIRPLUS, ASYNC_DIO, PARALLEL_DIROPS, POSIX_ACL = 1 << 13, 1 << 15, 1 << 18, 1 << 20
MAX_PAGES, CACHE_SYMLINKS, INIT_EXT = 1 << 22, 1 << 23, 1 << 30
PASSTHROUGH, HAS_RESEND = 1 << 37, 1 << 39

# ioctl(2) of /dev/fuse.
DEV_IOC_CLONE = 0x8004E500  # _IOR(229, 0, uint32_t)
DEV_IOC_BACKING_OPEN = 0x4010E501  # _IOW(229, 1, struct fuse_backing_map)
DEV_IOC_BACKING_CLOSE = 0x4004E502  # _IOW(229, 2, uint32_t)
BACKING_MAP = Struct("<iIQ")  # descriptor, flags, padding

_ERRNO_END = 512  # errnos from here on are the kernel's own


def valid_errno(code: int | None) -> int:
    """Return `code` where an answer may carry it, else EIO.

    The kernel refuses an answer with an errno that is not for programs, and the request would wait for ever. Some file
    systems return such errnos.
    """
    return code if code is not None and 0 < code < _ERRNO_END else errno.EIO


def notification(number: int, body: bytes = b"", following: int = 0) -> bytes:
    """Return a notification; `following` is the number of bytes that are written to the kernel after it."""
    return OUT_HEADER.pack(OUT_HEADER.size + len(body) + following, number, 0) + body
