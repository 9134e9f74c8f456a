"""Servers whose supervisor died: they serve on, and hold what another supervisor needs to take over the mount.

The listening socket lies in the mount's state directory, which only its owner may enter. Any server without a
supervisor answers there, with its handoff and the descriptors, in the handoff's sequence.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import replace

import trio

from nopfsfs.control.client import socket_address
from nopfsfs.system.process_setup import Handoff

SOCKET_NAME = "adopt.sock"
GIVEN = ("fuse", "index", "columns", "arena", "gauges", "modes", "taken", "init")
_MESSAGE = 1 << 20
_FDS = 16
_LIMIT_S = 5.0


def listen(state_dir: str) -> socket.socket:
    """Make the listening socket, to be passed to the servers. Raises OSError."""
    with contextlib.ExitStack() as failed, socket_address(state_dir, SOCKET_NAME) as address:
        sock = failed.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC))
        if os.path.lexists(address):
            os.unlink(address)
        sock.bind(address)
        sock.listen(8)
        failed.pop_all()
    return sock


async def answer(handoff: Handoff) -> None:
    """Send what a supervisor needs to each process that connects. Never returns."""
    names = [name for name in GIVEN if name in handoff.fds]
    fds = [handoff.fds[name] for name in names]
    given = replace(handoff, fds=dict(zip(names, fds, strict=True)))
    with trio.socket.from_stdlib_socket(socket.socket(fileno=handoff.fds["adopt"])) as listening:
        while True:
            caller, _ = await listening.accept()
            # A caller that has hung up, perhaps while a supervisor still lived, must not disturb the next.
            with trio.move_on_after(_LIMIT_S), contextlib.suppress(OSError), caller:
                await trio.to_thread.run_sync(_give, caller.fileno(), given.encode(), fds)


def _give(fd: int, message: bytes, fds: list[int]) -> None:
    with socket.socket(fileno=os.dup(fd)) as sock:
        sock.settimeout(_LIMIT_S)
        socket.send_fds(sock, [message], fds)


def ask(state_dir: str) -> Handoff | None:
    """Ask one of the servers for the handoff of the next supervisor; None when none answers.

    Raises ValueError for the handoff of another release of nopfsfs, whose settings may differ."""
    with socket_address(state_dir, SOCKET_NAME) as address:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(_LIMIT_S)
                sock.connect(address)
                message, fds, _, _ = socket.recv_fds(sock, _MESSAGE, _FDS)
        except OSError:
            return None
    if not message:
        return None
    for fd in fds:
        os.set_inheritable(fd, False)
    try:
        given = Handoff.decode(message)
        return replace(given, role="super", fds=dict(zip(given.fds, fds, strict=True)))
    except ValueError as error:
        for fd in fds:
            os.close(fd)
        raise ValueError(f"not understood: {error}") from error
