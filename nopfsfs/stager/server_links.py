"""The stager's sockets to the servers: which answer goes where, and when all servers have passed a grace.

A server comes with a socket, and is gone when that ends: with its process, so that it reads nothing any more. Nothing
here waits for a server: messages that its socket does not take are sent when it takes them.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.outbox import Outbox
from nopfsfs.protocol.server_stager import (
    Answer,
    AskGrace,
    Demand,
    FileChanged,
    GracePassed,
    StagerPing,
    StagerPong,
    ToServer,
    ToStager,
    Welcome,
    YoungFilesRead,
)

# A demand is known here by its link and its own number; a server's own numbers stay below.
_LINK_SHIFT = 48
_NUMBER_MASK = (1 << _LINK_SHIFT) - 1
_LINKS_MASK = 0xFFFF
# A server has some thousand requests under way at most, and each is answered once.
_BEHIND_MOST = 1 << 14


class ServerLinks:
    """The servers that are known. `poke` is called, with the lock held, when `turned` has more. Thread-safe."""

    def __init__(self, poke: Callable[[], None] = lambda: None) -> None:
        self._poke = poke
        self._lock = threading.Lock()
        self._sockets: dict[int, socket.socket] = {}
        self._boxes: dict[int, Outbox] = {}
        self._behind: set[int] = set()  # links whose sockets are full
        self._turned: set[int] = set()  # links that came to be full, or are no longer, since `turned`
        self._next = 1
        self._grace = 0
        self._asked: set[int] = set()  # links that have not passed it
        self._passed = 0  # for `take_passed`

    def add(self, sock: socket.socket) -> int:
        """Add a server and return its link. From now on the server is asked to pass graces, and knows that."""
        with self._lock:
            while self._next in self._sockets:
                self._next = self._next % _LINKS_MASK + 1
            link, self._next = self._next, self._next % _LINKS_MASK + 1
            self._sockets[link], self._boxes[link] = sock, Outbox(sock, _BEHIND_MOST)
            self._send(link, Welcome())
        return link

    def remove(self, link: int) -> None:
        """Remove a server whose process has ended."""
        with self._lock:
            sock = self._sockets.pop(link)
            del self._boxes[link]
            sock.close()
            self._behind.discard(link)
            self._turned.discard(link)
            self._pass(link)

    def __len__(self) -> int:
        return len(self._sockets)

    def take(self, link: int, message: ToStager) -> Demand | FileChanged | YoungFilesRead | None:
        """A message for the stager to act on; a demand under the number that `StagerState` is to know it by. None for a
        grace that was passed, and for a ping, which are dealt with here."""
        match message:
            case Demand():
                return replace(message, id=link << _LINK_SHIFT | message.id & _NUMBER_MASK)
            case StagerPing():
                with self._lock:
                    self._send(link, StagerPong())
            case GracePassed(number):
                with self._lock:
                    if number == self._grace:
                        self._pass(link)
            case FileChanged() | YoungFilesRead():
                return message
        return None

    def _pass(self, link: int) -> None:
        """Note that the server has passed the grace, or is gone (lock held)."""
        if link in self._asked:
            self._asked.remove(link)
            if not self._asked:
                self._passed = self._grace

    def take_passed(self) -> int:
        """The number of the grace that all servers have passed since the last call; 0 for none."""
        with self._lock:
            passed, self._passed = self._passed, 0
            return passed

    def answer(self, answer: Answer) -> None:
        """Send an answer to the server that asked, unless it is gone."""
        with self._lock:
            self._send(answer.id >> _LINK_SHIFT, replace(answer, id=answer.id & _NUMBER_MASK))

    def ask(self, number: int) -> bool:
        """Ask all servers to pass grace `number`; True when there is no server."""
        with self._lock:
            self._grace = number
            self._asked = set(self._sockets)
            for link in self._sockets:
                self._send(link, AskGrace(number))
            return not self._asked

    def _send(self, link: int, message: ToServer) -> None:
        """Send now, or when the server takes it (lock held)."""
        box = self._boxes.get(link)
        if box is None:
            return
        with suppress(OSError):  # it has ended, which the loop notices when it receives
            box.send(encode(message))
        self._note(link, box)

    def _note(self, link: int, box: Outbox) -> None:
        full = len(box) > 0
        if full == (link in self._behind):
            return
        self._behind ^= {link}
        self._turned.add(link)
        self._poke()

    # ---- sockets that are full ----------------------------------------------------------------------------

    def turned(self) -> list[tuple[socket.socket, int, bool]]:
        """The links that came to be full, or are no longer, since the last call: socket, link, True when full."""
        if not self._turned:
            return []
        with self._lock:
            found = [(self._sockets[link], link, link in self._behind) for link in self._turned]
            self._turned.clear()
        return found

    def flush(self, link: int) -> None:
        """Send the messages that wait for room in the socket of a server."""
        with self._lock:
            box = self._boxes.get(link)
            if box is not None:
                with suppress(OSError):
                    box.flush()
                self._note(link, box)
