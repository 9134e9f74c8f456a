"""The supervisor's end of the socket over which the stager gives signs of life."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from typing import Any

from nopfsfs.supervisor.processes.children import sequenced_pair

log = logging.getLogger(__name__)
_MESSAGE = 1 << 16


class Pulse:
    """Owns the socket. Nothing here waits."""

    def __init__(self) -> None:
        self._socket, self._theirs = sequenced_pair()
        self._socket.setblocking(False)
        self._unanswered = False
        self.said: dict[str, Any] = {}  # last, by the stager: `holds` the mount's copy, and what is `off`
        self.heard = False  # it has answered at least once

    def give(self) -> int:
        """The stager's end, to be passed on; `given` closes it here."""
        return self._theirs.fileno()

    def given(self) -> None:
        """The stager has its end, or will not be started."""
        self._theirs.close()

    def take(self) -> bool:
        """Whether the stager has answered since the last call."""
        answered = False
        with suppress(OSError, ValueError):
            while message := self._socket.recv(_MESSAGE):
                answered, self._unanswered, self.heard = True, False, True
                said = json.loads(message)
                self.said = said if isinstance(said, dict) else {}
        return answered

    def ping(self) -> None:
        """Ask for a sign of life, unless the last one is still to come."""
        if not self._unanswered:
            with suppress(OSError):
                self._socket.send(b"ping")
                self._unanswered = True

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()
