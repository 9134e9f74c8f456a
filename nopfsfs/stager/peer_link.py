"""The stager's socket to the peer process. Nothing here waits: messages that the peer process does not take now are
kept, up to a bound, and sent when it takes them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence

from nopfsfs.protocol import stager_peer
from nopfsfs.protocol.outbox import Outbox
from nopfsfs.protocol.stager_peer import Record, RecordKind

# Messages. Requests and leases are bounded, so only a peer process that asks on and on and takes no answer lets so many
# come together. Requests in messages that are lost run out at their limits, as with a peer process that hangs.
BEHIND_MOST = 1 << 14
AT_ONCE = 8  # messages that are taken before other sockets have their turn


class PeerLink:
    """The socket to one peer process. `send`, `flush` and `end` are called with the lock of `StagerState` held,
    `receive` by the loop."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket, self.box = sock, Outbox(sock, BEHIND_MOST)

    @property
    def behind(self) -> bool:
        """True while messages wait for room in the socket."""
        return len(self.box) > 0

    def send(self, kind: RecordKind, records: Sequence[Record]) -> None:
        """Send records now, or when the socket takes them."""
        with contextlib.suppress(OSError):  # it has ended, which the loop notices when it receives
            for message in stager_peer.pack(kind, records):
                self.box.send(message)

    def flush(self) -> None:
        """Send the messages that wait, as far as the socket takes them."""
        with contextlib.suppress(OSError):  # as in `send`
            self.box.flush()

    def receive(self) -> tuple[list[bytes], bool]:
        """(messages that came, False when there will be no others)."""
        messages: list[bytes] = []
        try:
            while len(messages) < AT_ONCE:
                message = self.socket.recv(stager_peer.MESSAGE_MAX + 1)  # a longer one shows as too long
                if not message:
                    return messages, False
                messages.append(message)
        except BlockingIOError:
            pass
        except OSError:
            return messages, False  # killed with messages unread
        return messages, True

    def end(self) -> None:
        """Send and receive nothing more. The loop closes the socket when it waits for it no longer."""
        self.box.clear()
        with contextlib.suppress(OSError):  # the other side may have ended before
            self.socket.shutdown(socket.SHUT_RDWR)


class PeerOutbox:
    """Sends to the peer process that is attached; without one, nowhere. `poke` makes the loop wait for room in a full
    socket. The caller holds the lock of `StagerState`."""

    def __init__(self, poke: Callable[[], None]) -> None:
        self._poke = poke
        self._link: PeerLink | None = None

    def attach(self, link: PeerLink) -> None:
        """Send there from now on."""
        self._link = link

    def detach(self) -> None:
        """Send nowhere; the link ends."""
        if self._link is not None:
            self._link.end()
            self._link = None

    def send(self, kind: RecordKind, records: Sequence[Record]) -> None:
        """Send records, now or later."""
        if self._link is not None:
            self._link.send(kind, records)
            if self._link.behind:
                self._poke()
