"""The exchange with other nodes, as the stager's loop drives it: one peer process at a time, at the end of a socket.

What is said there goes to `RemoteFetches` (rows that are asked for here) and `Leases` (rows that are lent) under the
lock of `StagerState`. A peer process that is gone, or that another takes the place of, leaves nothing behind: what it
was to bring is read from the source, and what it had been lent is free.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from nopfsfs.dataset.index import Index
from nopfsfs.protocol import stager_peer
from nopfsfs.protocol.columns import Columns
from nopfsfs.protocol.stager_peer import Kind, Record
from nopfsfs.stager import leases, remote_fetches
from nopfsfs.stager.leases import Leases
from nopfsfs.stager.peer_link import PeerLink
from nopfsfs.stager.pins import Pins
from nopfsfs.stager.remote_fetches import LOOK_S, RemoteFetches
from nopfsfs.tiers.source import Source

log = logging.getLogger(__name__)
ROOM_LOOK_S = 0.02  # how often there may be room for what is to be lent


class Loads(remote_fetches.Loads, leases.Loads, Protocol):
    """What is needed of whoever loads files; the desk's lock is held."""


class Exchange:
    """See the module. `lock` is the desk's; `peering` and `lending` are used with it held, all else takes it. `poke`
    makes the loop ask anew what is to be waited for, and until when."""

    def __init__(
        self, loads: Loads, *, lock: threading.Lock, index: Index, columns: Columns, source: Source,
        gauge: memoryview, pins: Pins, poke: Callable[[], None], clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._lock, self._poke = lock, poke
        self._link: PeerLink | None = None
        self.strange = 0  # messages that were none
        self.peering = RemoteFetches(
            loads, columns=columns, source=source, gauge=gauge, send=self._send, poke=poke, clock=clock
        )
        self.lending = Leases(
            loads, index=index, columns=columns, source=source, gauge=gauge, pins=pins, send=self._send, poke=poke,
            clock=clock,
        )  # fmt: skip

    def attach(self, sock: socket.socket) -> None:
        """There is a peer process at the other end; the one before, if there was one, is no more."""
        with self._lock:
            self._detach()
            self._link = PeerLink(sock)
            self.peering.attach()

    def wants(self) -> tuple[PeerLink | None, int, float | None]:
        """What the loop is to wait for: at which socket, which events, and how long."""
        with self._lock:
            link = self._link
            events = selectors.EVENT_READ
            if link is not None and link.behind:
                events |= selectors.EVENT_WRITE
            if self.lending.without_room:
                return link, events, ROOM_LOOK_S
            return link, events, LOOK_S if self.peering.asking else None

    def attend(self, link: PeerLink) -> None:
        """Something can be read from the socket, or written to it."""
        if link is not self._link:
            return  # another has taken its place
        messages, goes_on = link.receive()
        with self._lock:
            link.flush()
        for message in messages:
            with self._lock:  # for each: others are waiting for it, too
                self.peering.heard()
                self._take(message)
        if not goes_on:
            log.warning("the peer process has ended: other nodes are asked for nothing more")
            with self._lock:
                self._detach()

    def look(self) -> None:
        """See to the limits."""
        with self._lock:
            self.peering.look()
            if self.lending.without_room:
                self.lending.look()

    def _take(self, message: bytes) -> None:
        try:
            kind, records = stager_peer.unpack(message)
        except ValueError as e:
            self._ignore(str(e))
            return
        if kind == Kind.GOT:
            self.peering.got(records)
        elif kind == Kind.FREED:
            self.peering.freed(records)
        elif kind == Kind.LEND:
            self.lending.lend(records)
        elif kind == Kind.BACK:
            self.lending.back(records)
        else:
            self._ignore(f"a message of kind {kind.name}")

    def _ignore(self, why: str) -> None:
        self.strange += 1
        if self.strange == 1:
            log.error("the peer process sends what is no message: %s", why)

    def _detach(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.end()
            self.lending.detach()
            self.peering.detach()

    def _send(self, kind: Kind, records: Sequence[Record]) -> None:
        if self._link is not None:
            self._link.send(kind, records)
            if self._link.behind:
                self._poke()
