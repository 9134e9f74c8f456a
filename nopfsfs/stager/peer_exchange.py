"""The exchange with other nodes, as the stager's loop drives it: one peer process at a time, at the end of a socket.

`StagerState` takes the messages. A peer process that has ended, or that another takes the place of, leaves nothing
behind. Rows that it was to bring are read from the source, and its leases end.
"""

from __future__ import annotations

import logging
import selectors
import socket

from nopfsfs.protocol import stager_peer
from nopfsfs.protocol.stager_peer import RecordKind
from nopfsfs.stager.peer_link import PeerLink
from nopfsfs.stager.state import StagerState

log = logging.getLogger(__name__)
_FROM_PEER = (RecordKind.GOT, RecordKind.FREED, RecordKind.LEND, RecordKind.BACK)


class PeerExchange:
    """Passes messages between the peer process and `StagerState`. The loop calls all methods."""

    def __init__(self, state: StagerState) -> None:
        self._state = state
        self._link: PeerLink | None = None
        self.invalid = 0  # messages that could not be read

    def attach(self, sock: socket.socket) -> None:
        """Use the peer process at the other end; the one before, if there was one, has ended."""
        self._detach()
        self._link = PeerLink(sock)
        self._state.attach_peer(self._link)

    def wants(self) -> tuple[PeerLink | None, int, float | None]:
        """The socket, the events, and the seconds that the loop is to wait for."""
        link, events = self._link, selectors.EVENT_READ
        if link is not None and link.behind:
            events |= selectors.EVENT_WRITE
        return link, events, self._state.peer_pause()

    def attend(self, link: PeerLink) -> None:
        """Receive from the socket, and send what waits for room in it."""
        if link is not self._link:
            return  # another has taken its place
        messages, goes_on = link.receive()
        self._state.flush_peer(link)
        for message in messages:  # the lock is free in between: others wait for it, too
            self._take(message)
        if not goes_on:
            log.warning("the peer process has ended: other nodes are asked for nothing more")
            self._detach()

    def _take(self, message: bytes) -> None:
        try:
            kind, records = stager_peer.unpack(message)
            if kind not in _FROM_PEER:
                raise ValueError(f"a message of kind {kind.name}")
        except ValueError as e:
            self.invalid += 1
            if self.invalid == 1:
                log.error("the peer process sends what is no message: %s", e)
            return
        self._state.peer_message(kind, records)

    def _detach(self) -> None:
        if self._link is not None:
            self._link = None
            self._state.detach_peer()
