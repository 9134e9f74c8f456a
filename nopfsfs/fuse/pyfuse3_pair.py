"""The pair of sockets over which the fast path of a server passes requests on to pyfuse3."""

from __future__ import annotations

import contextlib
import socket

from nopfsfs.fuse.connection import REQUEST_BYTES

_SO_SNDBUFFORCE = 32  # asm-generic/socket.h; elsewhere it fails, and the fast path is left out
LISTING_BYTES = 1 << 16  # of a directory at a time, so that any system's sockets take the longest reply of pyfuse3


def make_pair() -> tuple[socket.socket, socket.socket] | None:
    """Return (our end, pyfuse3's end); None where the system allows no messages as long as the longest reply."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    for end in pair:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, REQUEST_BYTES)
        if end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 2 * LISTING_BYTES:
            pair[0].close()
            pair[1].close()
            return None
    return pair


def is_possible() -> bool:
    """Return True where the system allows for the fast path."""
    pair = make_pair()
    for end in pair or ():
        end.close()
    return pair is not None
