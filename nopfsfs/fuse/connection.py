"""The first request of a connection, INIT, answered before there is any server; what is agreed upon with the kernel.

So no server is special: each has a pyfuse3 of its own behind its fast path. It is given the same INIT again, and its
answer is dropped.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

from nopfsfs.config import MountConfig
from nopfsfs.fuse import kernel
from nopfsfs.fuse.kernel import IN_HEADER, INIT_IN, OUT_HEADER

_HIGH_FLAGS = slice(IN_HEADER.size + INIT_IN.size, IN_HEADER.size + INIT_IN.size + 4)  # of INIT; since 7.36
REQUEST_BYTES = (1 << 20) + (1 << 16)  # the kernel refuses a reader whose buffer is smaller than max_write and headers
_MINORS = (31, 40)  # of protocol 7: the oldest kernel that is known to do, and the newest that is known here

_WANTED = (
    kernel.ASYNC_READ | kernel.EXPORT_SUPPORT | kernel.BIG_WRITES | kernel.AUTO_INVAL_DATA | kernel.DO_READDIRPLUS
    | kernel.ASYNC_DIO | kernel.PARALLEL_DIROPS | kernel.MAX_PAGES | kernel.CACHE_SYMLINKS | kernel.INIT_EXT
    | kernel.HAS_RESEND
)  # fmt: skip
_MAX_WRITE = 1 << 20
# READs ahead of readers that the kernel lets wait for answers: so many may be stuck at a source before others wait in
# the kernel, hits among them. Above the second number it reads less ahead. The kernel's own are 12 and 9; they take no
# memory. Without CAP_SYS_ADMIN it grants one for 3 MiB of the node's memory at most (fs/fuse/inode.c, max_user_bgreq).
BACKGROUND, CONGESTION = 4096, 3072
# Files of this size or more are passed through, unless an option says otherwise; measured in
# docs/decisions/0007-passthrough.md.
PASSES_FROM = 1 << 20
_STACK_DEPTH = 1  # files that are passed through lie on a file system that is no stack itself
WITHOUT = "NOPFS_WITHOUT"  # environment: abilities of the kernel that are not used; for tests, and to find a cause


class Redelivery(IntEnum):
    """The way in which requests that a dead server had taken come to another one."""

    NONE = 0  # not at all: the death of a server ends the mount
    KERNEL = 1  # the kernel delivers them again (FUSE_NOTIFY_RESEND, Linux 6.9)
    RECORDS = 2  # servers keep them in shared memory (`fuse/taken_requests.py`)


@dataclass(frozen=True, slots=True)
class KernelSession:
    """Results of INIT. `request`: the kernel's INIT, to be repeated to each pyfuse3."""

    request: bytes
    redelivery: Redelivery
    passthrough: bool = False  # an open may be answered with a file that the kernel reads by itself
    acl: bool = False  # the kernel checks rights by ACLs, too


def passes_from(config: MountConfig) -> int:
    """The size in bytes from which on files are to be passed through; 0: none are. Passing through takes OPENs that the
    fast path answers."""
    possible = config.disks and config.fast_path and config.signal != "tripwire"
    if not possible or config.passthrough == "off":
        return 0
    return 1 if config.passthrough == "on" else PASSES_FROM


def negotiate(fuse_fd: int, *, acl: bool, limit_s: float, passthrough: bool = False) -> KernelSession:
    """Take the kernel's INIT and answer it. Raises OSError (ETIMEDOUT, EPROTO)."""
    poll = select.poll()
    poll.register(fuse_fd, select.POLLIN)
    if not poll.poll(limit_s * 1000):
        raise OSError(errno.ETIMEDOUT, "the kernel sends nothing on /dev/fuse")
    request = os.read(fuse_fd, REQUEST_BYTES)
    if len(request) < IN_HEADER.size + INIT_IN.size:
        raise OSError(errno.EPROTO, f"the first request has {len(request)} bytes")
    _, opcode, unique, *_ = IN_HEADER.unpack_from(request)
    major, minor, readahead, flags = INIT_IN.unpack_from(request, IN_HEADER.size)
    if opcode != kernel.INIT or major != 7 or minor < _MINORS[0]:
        too_old = "; this kernel's FUSE is too old: it takes Linux 5.4, or RHEL 8" if (major, minor) < (7, 31) else ""
        raise OSError(errno.EPROTO, f"the first request is {opcode}, of protocol {major}.{minor}{too_old}")
    offered = flags | int.from_bytes(request[_HIGH_FLAGS], "little") << 32 if flags & kernel.INIT_EXT else flags
    wanted = _WANTED | (kernel.POSIX_ACL if acl else 0) | (kernel.PASSTHROUGH if passthrough else 0)
    without = os.environ.get(WITHOUT, "").split(",")
    for name, flag in (("resend", kernel.HAS_RESEND), ("passthrough", kernel.PASSTHROUGH), ("acl", kernel.POSIX_ACL)):
        if name in without:
            wanted &= ~flag
    agreed = offered & wanted
    os.write(fuse_fd, _answer(unique, min(minor, _MINORS[1]), readahead, agreed))
    return KernelSession(
        request, redelivery(agreed, without), passthrough=bool(agreed & kernel.PASSTHROUGH),
        acl=bool(agreed & kernel.POSIX_ACL),
    )  # fmt: skip


def redelivery(agreed: int, without: Collection[str]) -> Redelivery:
    """Return how requests come to another server, with a fast path. `agreed`: flags of INIT; `without`: what is not to
    be used."""
    if agreed & kernel.HAS_RESEND:
        return Redelivery.KERNEL
    return Redelivery.NONE if "records" in without else Redelivery.RECORDS


def _answer(unique: int, minor: int, readahead: int, flags: int) -> bytes:
    body = kernel.INIT_OUT.pack(
        7, minor, readahead, flags & 0xFFFFFFFF, BACKGROUND, CONGESTION, _MAX_WRITE, 1, _MAX_WRITE >> 12, 0,
        flags >> 32, _STACK_DEPTH if flags & kernel.PASSTHROUGH else 0,
    )  # fmt: skip
    return OUT_HEADER.pack(OUT_HEADER.size + len(body), 0, unique) + body


def resend(fuse_fd: int) -> None:
    """Make the kernel deliver again all requests that were taken and not answered. Living servers get theirs again,
    too: their answers to the first delivery then fail with ENOENT. Raises OSError."""
    os.write(fuse_fd, kernel.notification(kernel.NOTIFY_RESEND))
