"""The supervisor's end of the socket over which the stager gives signs of life."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from nopfsfs.supervisor.processes.supervised import sequenced_pair

_MESSAGE = 1 << 16


class Pulse:
    """Owns the socket to one stager."""

    def __init__(self) -> None:
        self._socket, self._theirs = sequenced_pair()
        self._socket.setblocking(False)
        self.said: dict[str, Any] = {}  # last, by the stager: `holds` the mount's copy, and what is `off`
        self.heard = False  # it has answered at least once

    def give(self) -> int:
        """The stager's end, to be passed on; `given` closes it here."""
        return self._theirs.fileno()

    def given(self) -> None:
        """The stager has its end, or will not be started."""
        self._theirs.close()

    async def listen(self, answered: Callable[[], None]) -> None:
        """Take what the stager says, until it ends; call `answered` for each message."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                message = self._socket.recv(_MESSAGE)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not message:
                return
            self.heard = True
            with suppress(ValueError):
                said = json.loads(message)
                self.said = said if isinstance(said, dict) else {}
            answered()

    def ping(self) -> bool:
        """Ask for a sign of life. False: the stager could not be asked."""
        with suppress(OSError):
            self._socket.send(b"ping")
            return True
        return False

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()
