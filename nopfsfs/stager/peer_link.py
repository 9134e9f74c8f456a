"""The stager's socket to the peer process. Nothing here ever waits: what the peer process does not take now is kept, up
to a bound, and sent when it does."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections import deque
from collections.abc import Sequence

from nopfsfs.protocol import stager_peer
from nopfsfs.protocol.stager_peer import Kind, Record

log = logging.getLogger(__name__)
# Messages. What is asked and lent is bounded, so only a peer process that asks on and on and takes no answer lets so
# many come together. What is lost then runs out at its limit, as with a peer process that hangs.
BEHIND_MOST = 1 << 14
AT_ONCE = 8  # messages, taken before others have their turn


class PeerLink:
    """See the module. `send` and `flush` are called with the desk's lock held, `receive` by the stager's loop."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self._behind: deque[bytes] = deque()
        self.lost = 0

    @property
    def behind(self) -> bool:
        """Whether there is something to be sent once the socket takes it."""
        return bool(self._behind)

    def send(self, kind: Kind, records: Sequence[Record]) -> None:
        for message in stager_peer.pack(kind, records):
            if len(self._behind) < BEHIND_MOST:
                self._behind.append(message)
            else:
                self.lost += 1
                if self.lost == 1:
                    log.error("the peer process takes no messages")
        self.flush()

    def flush(self) -> None:
        """Send what is kept, as far as that goes."""
        while self._behind:
            try:
                self.socket.send(self._behind[0])
            except BlockingIOError:
                return
            except OSError:
                self._behind.clear()  # it is gone; its end is noticed where it is waited for
                return
            self._behind.popleft()

    def receive(self) -> tuple[list[bytes], bool]:
        """Messages that came, and whether there will be others."""
        messages: list[bytes] = []
        try:
            while len(messages) < AT_ONCE:
                message = self.socket.recv(stager_peer.MESSAGE_MAX + 1)  # a longer one is seen to be too long
                if not message:
                    return messages, False
                messages.append(message)
        except BlockingIOError:
            pass
        except OSError:
            return messages, False  # killed with messages unread
        return messages, True

    def end(self) -> None:
        """Say and hear no more. The loop closes the socket when it waits for it no longer."""
        self._behind.clear()
        with contextlib.suppress(OSError):  # the other side may have ended before
            self.socket.shutdown(socket.SHUT_RDWR)
