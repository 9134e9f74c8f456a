"""Messages between supervisor and peer process: one datagram each on a socket pair (SOCK_SEQPACKET). No MPI in here."""

from __future__ import annotations

import struct
from enum import IntEnum

_HEAD = struct.Struct("<Bi")
MESSAGE_MAX = 1 << 16


class SupervisorPeerKind(IntEnum):
    """What a message holds, beside a node and a body."""

    # supervisor to peer process
    ARENA = 1  # with a descriptor: the arena
    STAGER = 2  # with a descriptor: a stager's end of a socket pair
    NO_STAGER = 3  # the stager is gone: answer QUIET when nothing will write the arena any more
    SAY = 4  # body: to the supervisor of `node`, below 0 to all others
    BYE = 9  # the mount ends
    # peer process to supervisor
    HEAR = 5  # body: of the supervisor of `node`
    OVER = 6  # `node` is asked no more; body: why
    QUIET = 7
    STATUS = 8  # body: JSON, counters
    AGREED = 10  # the mounts of all ranks answer: from now on this one stays, whatever becomes of MPI


def pack(kind: SupervisorPeerKind, node: int = -1, body: bytes = b"") -> bytes:
    return _HEAD.pack(kind, node) + body


def unpack(message: bytes) -> tuple[SupervisorPeerKind, int, bytes]:
    """(kind, node, body). Raises ValueError for garbage."""
    if len(message) < _HEAD.size:
        raise ValueError("message too short")
    number, node = _HEAD.unpack_from(message)
    return SupervisorPeerKind(number), node, message[_HEAD.size :]
