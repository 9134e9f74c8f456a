"""The stager's sockets to the servers: which answer goes where, and when all servers have passed a grace.

A server comes with a socket, and is gone when that ends: with its process, so that it reads nothing any more.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from nopfsfs.fetch import wire
from nopfsfs.fetch.wire import Answer, Demand

# A demand is known here by its link and its own number; a server's own numbers stay below.
_LINK_SHIFT = 48
_NUMBER_MASK = (1 << _LINK_SHIFT) - 1
_LINKS_MASK = 0xFFFF
# A socket takes hundreds of answers, more than a server has requests under way: only one that is stopped lets it fill.
_SEND_LIMIT_S = 2.0
log = logging.getLogger(__name__)


class Links:
    """The servers that are known. `passed(number)` is called, with no lock of this class held, when all of them have
    passed grace `number`. Thread-safe."""

    def __init__(self, passed: Callable[[int], None]) -> None:
        self._passed = passed
        self._lock = threading.Lock()
        self._sockets: dict[int, socket.socket] = {}
        self._next = 1
        self._grace = 0
        self._asked: set[int] = set()  # links that have not passed it
        self._untold: set[int] = set()  # those of them that did not take the request

    def add(self, sock: socket.socket) -> int:
        """One more server; its link. From now on it is asked, and it is told so."""
        sock.settimeout(_SEND_LIMIT_S)
        with self._lock:
            while self._next in self._sockets:
                self._next = self._next % _LINKS_MASK + 1
            link, self._next = self._next, self._next % _LINKS_MASK + 1
            self._sockets[link] = sock
        self._send(sock, Answer(0, 0, 0, 0))
        return link

    def gone(self, link: int) -> None:
        """The server's process has ended."""
        with self._lock:
            sock = self._sockets.pop(link)
            sock.close()
            self._untold.discard(link)
            done = self._pass(link)
        if done:
            self._passed(self._grace)

    def __len__(self) -> int:
        return len(self._sockets)

    def take(self, link: int, demand: Demand) -> Demand | None:
        """A demand as the desk is to know it; None for news of a grace that has been passed, dealt with here."""
        if link in self._untold:  # it was stopped, and goes on
            self._tell(link, self._sockets[link], self._grace)
        if demand.id:
            return demand._replace(id=link << _LINK_SHIFT | demand.id & _NUMBER_MASK)
        if demand.offset >= 0:
            return demand
        with self._lock:
            done = -demand.offset == self._grace and self._pass(link)
        if done:
            self._passed(self._grace)
        return None

    def _pass(self, link: int) -> bool:
        """Whether that was the last one asked (lock held)."""
        if link not in self._asked:
            return False
        self._asked.discard(link)
        return not self._asked

    def answer(self, answer: Answer) -> None:
        """Send an answer to the server that asked; one that is gone needs none."""
        sock = self._sockets.get(answer.id >> _LINK_SHIFT)
        if sock is not None:
            self._send(sock, answer._replace(id=answer.id & _NUMBER_MASK))

    def ask(self, number: int) -> bool:
        """Ask all servers to pass grace `number`. Whether there is none to be waited for."""
        with self._lock:
            self._grace = number
            self._asked = set(self._sockets)
            asked = list(self._sockets.items())
        for link, sock in asked:
            self._tell(link, sock, number)
        return not asked

    def _tell(self, link: int, sock: socket.socket, number: int) -> None:
        if self._send(sock, Answer(0, 0, number, 0)):
            self._untold.discard(link)
        else:
            self._untold.add(link)

    def _send(self, sock: socket.socket, answer: Answer) -> bool:
        """False: the server takes nothing, now."""
        try:
            sock.send(wire.pack_answer(answer))
        except TimeoutError:
            log.error("a server takes no answers")  # its reader gets EIO in the end; others go on
            return False
        except OSError:
            pass  # it is gone; its end is noticed where it is waited for
        return True
