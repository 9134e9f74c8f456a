"""The supervisor's end of the socket over which the stager takes commands."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import trio

from nopfsfs.protocol.supervisor_stager import StagerCommand, pack_commands

log = logging.getLogger(__name__)
COMMAND_LIMIT_S = 2.0  # an end of the mount must not wait for a stager that hangs
_NO_ROWS = np.zeros(0, np.int64)


class StagerSocket:
    """Sends to the stager that there is, if any; introduces servers and the peer process to it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._sending = trio.StrictFIFOLock()  # only one task may wait for room in a socket
        self._fetch_sent = trio.Event()

    @property
    def attached(self) -> bool:
        """True where there is a stager."""
        return self._socket is not None

    def attach(self, stager: socket.socket) -> None:
        """Send commands to this stager from now on."""
        stager.setblocking(False)
        self._socket = stager

    def detach(self) -> None:
        """Let go of the stager's socket: the stager is gone."""
        gone, self._socket = self._socket, None
        if gone is not None:
            trio.lowlevel.notify_closing(gone)
            gone.close()

    async def send(
        self, command: StagerCommand, rows: npt.NDArray[np.int64] = _NO_ROWS, value: int = 0, fds: Sequence[int] = ()
    ) -> bool:
        """Send one command, as soon as there is room. True: there is a stager that will take it."""
        if command == StagerCommand.FETCH:
            self._fetch_sent.set()
            self._fetch_sent = trio.Event()
        taken = [await self._send_one(message, fds) for message in pack_commands(command, rows, value)]
        return all(taken)

    async def command(self, command: StagerCommand, rows: npt.NDArray[np.int64] = _NO_ROWS, value: int = 0) -> None:
        """Send one command of the supervisor's own; given up when the stager takes none for too long."""
        with trio.move_on_after(COMMAND_LIMIT_S) as limit:
            await self.send(command, rows, value)
        if limit.cancelled_caught:
            log.error("the stager takes no commands; %s was given up", command.name)

    async def fetch_sent(self) -> None:
        """Return when the stager is next ordered to fetch."""
        await self._fetch_sent.wait()

    async def introduce(self, other: socket.socket, command: StagerCommand = StagerCommand.SERVER) -> bool:
        """Make the stager know of a further server, or of the peer process, by an end of a socket. True: there is a
        stager."""
        with trio.move_on_after(COMMAND_LIMIT_S):
            return await self.send(command, fds=[other.fileno()])
        return False

    async def _send_one(self, message: bytes, fds: Sequence[int]) -> bool:
        async with self._sending:
            while self._socket is not None:
                try:
                    if fds:
                        socket.send_fds(self._socket, [message], fds)
                    else:
                        self._socket.send(message)
                    return True
                except BlockingIOError:
                    with contextlib.suppress(trio.ClosedResourceError):
                        await trio.lowlevel.wait_writable(self._socket)
                except OSError:
                    break  # the stager is gone; its end is noticed where it is watched
        return False
