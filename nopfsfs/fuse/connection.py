"""The first request of a connection, INIT, answered before there is any server.

So no server is special: each has a pyfuse3 of its own behind its fast path, which is given the same INIT again and
whose answer to it goes nowhere. What is agreed upon with the kernel is decided here.
Message layouts and flags: linux/fuse.h, protocol 7.31 to 7.40.
"""

from __future__ import annotations

import errno
import os
import select
import struct
from dataclasses import dataclass

from nopfsfs.config import MountConfig

_INIT = 26
_IN_HEADER = struct.Struct("<IIQQIIIHH")
_INIT_IN = struct.Struct("<IIII")  # since 7.36, which has INIT_EXT, the high flags follow
_HIGH_FLAGS = slice(_IN_HEADER.size + _INIT_IN.size, _IN_HEADER.size + _INIT_IN.size + 4)
_OUT_HEADER = struct.Struct("<IiQ")
_INIT_OUT = struct.Struct("<IIIIHHIIHHII")
_INIT_OUT_BYTES = 64
REQUEST_BYTES = (1 << 20) + (1 << 16)  # the kernel refuses a reader whose buffer is smaller than max_write and headers
_MINORS = (31, 40)  # of protocol 7: the oldest kernel that is known to do, and the newest that is known here

_ASYNC_READ, _EXPORT, _BIG_WRITES, _AUTO_INVAL = 1 << 0, 1 << 4, 1 << 5, 1 << 12
_READDIRPLUS, _ASYNC_DIO, _PARALLEL_DIROPS, _ACL = 1 << 13, 1 << 15, 1 << 18, 1 << 20
_MAX_PAGES, _CACHE_SYMLINKS, _EXT = 1 << 22, 1 << 23, 1 << 30
_PASSTHROUGH, _RESEND = 1 << 37, 1 << 39
_WANTED = (
    _ASYNC_READ | _EXPORT | _BIG_WRITES | _AUTO_INVAL | _READDIRPLUS | _ASYNC_DIO | _PARALLEL_DIROPS | _MAX_PAGES
    | _CACHE_SYMLINKS | _EXT | _RESEND
)  # fmt: skip
_MAX_WRITE = 1 << 20
# READs ahead of readers that the kernel lets wait for answers: so many may be stuck at a source before others wait in
# the kernel, hits among them. Above the second number it reads less ahead. The kernel's own are 12 and 9; they take no
# memory. Without CAP_SYS_ADMIN it grants one for 3 MiB of the node's memory at most (fs/fuse/inode.c, max_user_bgreq).
BACKGROUND, CONGESTION = 4096, 3072
_NOTIFY_RESEND = 7
# Files of this size or more, where it is for us to choose; what was measured: docs/decisions/0007-passthrough.md.
PASSES_FROM = 1 << 20
_STACK_DEPTH = 1  # what is passed through lies on a file system that is no stack itself
WITHOUT = "NOPFS_WITHOUT"  # environment: what a kernel could do is left alone; for tests, and to look for a cause


@dataclass(frozen=True, slots=True)
class KernelSession:
    """What was agreed upon. `request`: the kernel's INIT, to be repeated to each pyfuse3."""

    request: bytes
    resend: bool  # what a dead server had taken can be had again
    passthrough: bool = False  # an open may be answered with a file that the kernel reads by itself
    acl: bool = False  # rights are checked by ACLs, too


def passes_from(config: MountConfig) -> int:
    """The size in bytes from which on files are to be passed through; 0: none. The kernel must be asked for opens, and
    be answered by the fast path."""
    possible = config.disks and config.fast_path and config.signal != "tripwire"
    if not possible or config.passthrough == "off":
        return 0
    return 1 if config.passthrough == "on" else PASSES_FROM


def negotiate(fuse_fd: int, *, acl: bool, limit_s: float, passthrough: bool = False) -> KernelSession:
    """Take the kernel's INIT and answer it. Raises OSError (ETIMEDOUT, EPROTO)."""
    poll = select.poll()
    poll.register(fuse_fd, select.POLLIN)
    if not poll.poll(limit_s * 1000):
        raise OSError(errno.ETIMEDOUT, "the kernel says nothing on /dev/fuse")
    request = os.read(fuse_fd, REQUEST_BYTES)
    if len(request) < _IN_HEADER.size + _INIT_IN.size:
        raise OSError(errno.EPROTO, f"the first request has {len(request)} bytes")
    _, opcode, unique, *_ = _IN_HEADER.unpack_from(request)
    major, minor, readahead, flags = _INIT_IN.unpack_from(request, _IN_HEADER.size)
    if opcode != _INIT or major != 7 or minor < _MINORS[0]:
        raise OSError(errno.EPROTO, f"the first request is {opcode}, of protocol {major}.{minor}")
    offered = flags | int.from_bytes(request[_HIGH_FLAGS], "little") << 32 if flags & _EXT else flags
    wanted = _WANTED | (_ACL if acl else 0) | (_PASSTHROUGH if passthrough else 0)
    for name, flag in (("resend", _RESEND), ("passthrough", _PASSTHROUGH), ("acl", _ACL)):
        if name in os.environ.get(WITHOUT, "").split(","):
            wanted &= ~flag
    agreed = offered & wanted
    os.write(fuse_fd, _answer(unique, min(minor, _MINORS[1]), readahead, agreed))
    return KernelSession(request, bool(agreed & _RESEND), bool(agreed & _PASSTHROUGH), bool(agreed & _ACL))


def _answer(unique: int, minor: int, readahead: int, flags: int) -> bytes:
    body = _INIT_OUT.pack(
        7, minor, readahead, flags & 0xFFFFFFFF, BACKGROUND, CONGESTION, _MAX_WRITE, 1, _MAX_WRITE >> 12, 0,
        flags >> 32, _STACK_DEPTH if flags & _PASSTHROUGH else 0,
    )  # fmt: skip
    return _OUT_HEADER.pack(_OUT_HEADER.size + _INIT_OUT_BYTES, 0, unique) + body.ljust(_INIT_OUT_BYTES, b"\0")


def resend(fuse_fd: int) -> None:
    """Have the kernel deliver again all that was taken and not answered, also what living servers hold: their answers
    to the first delivery then fail with ENOENT. Raises OSError."""
    os.write(fuse_fd, _OUT_HEADER.pack(_OUT_HEADER.size, _NOTIFY_RESEND, 0))
