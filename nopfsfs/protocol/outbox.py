"""A socket that never blocks its sender."""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable

log = logging.getLogger(__name__)


class Outbox:
    """Sends messages over one end of a socket pair. Messages that the socket does not take wait here, in order, at most
    `most` of them. A message beyond that is dropped, unless it is always to be sent. Not thread-safe."""

    def __init__(self, sock: socket.socket, most: int) -> None:
        sock.setblocking(False)
        self._socket, self._most = sock, most
        self._waiting: deque[bytes] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        """The number of messages that wait."""
        return len(self._waiting)

    def send(self, message: bytes, *, always: bool = False) -> bool:
        """Send `message`, now or later. False when it was dropped. Raises OSError when the other end is gone."""
        if len(self._waiting) >= self._most and not always:
            self.dropped += 1
            if self.dropped == 1:
                log.error("a process of this mount takes no messages; they are dropped")
            return False
        self._waiting.append(message)
        self.flush()
        return True

    def flush(self) -> bool:
        """Send the messages that wait, as far as the socket takes them; whether none is left. Raises OSError."""
        while self._waiting:
            try:
                self._socket.send(self._waiting[0])
            except BlockingIOError:
                return False
            except OSError:
                self._waiting.clear()
                raise
            self._waiting.popleft()
        return True

    def clear(self) -> None:
        """Drop the waiting messages."""
        self._waiting.clear()

    def keep(self, wanted: Callable[[bytes], bool]) -> None:
        """Drop the waiting messages that are not wanted any more."""
        self._waiting = deque(message for message in self._waiting if wanted(message))
