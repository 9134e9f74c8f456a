"""A peer process of the test's, at the other end of a stager's exchange.

It writes into the arena as the real one does: into the extents that it was asked to bring rows into, until it has said
that it does no more. `check` compares those with what the arena believes to be taken.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from nopfsfs.protocol import stager_peer
from nopfsfs.protocol.columns import HOME_HERE
from nopfsfs.protocol.stager_peer import LeaseStatus, RecordKind
from nopfsfs.stager.peer_link import PeerLink
from nopfsfs.supervisor.processes.supervised import sequenced_pair
from tests.stager.rig import PAGE, Rig, write_files


def pack_one(kind: RecordKind, *values: int) -> bytes:
    """A message with one record, its fields in order."""
    return stager_peer.pack(kind, [values])[0]


class Ask(NamedTuple):
    id: int
    row: int
    extent: int
    length: int
    mtime_ns: int
    node: int
    urgent: int


class Lent(NamedTuple):
    id: int
    extent: int
    length: int
    check: int
    status: int


class FakePeer:
    """Everything that the stager said, by kind, and in `messages` how many records came at once."""

    def __init__(self, r: Rig) -> None:
        self.r = r
        self.socket, end = sequenced_pair()
        self.socket.setblocking(False)
        self.asks: dict[int, Ask] = {}
        self.hurried: list[int] = []
        self.given_up: list[int] = []
        self.lent: list[Lent] = []
        self.messages: list[tuple[RecordKind, int]] = []
        self.writes: dict[int, Ask] = {}  # extents that may be written to
        self.lends = 0
        r.exchange.attach(end)
        link = r.exchange.wants()[0]
        assert link is not None
        self.link: PeerLink = link

    # ---- what it is told ------------------------------------------------------------------------------------

    def take(self) -> None:
        """All that was sent up to now."""
        while True:
            try:
                message = self.socket.recv(1 << 16)
            except BlockingIOError:
                return
            if not message:
                return
            kind, records = stager_peer.unpack(message)
            self.messages.append((kind, len(records)))
            for record in records:
                if kind == RecordKind.ASK:
                    ask = Ask(*record)
                    assert ask.id not in self.asks, "a number is used twice"
                    self.asks[ask.id] = self.writes[ask.id] = ask
                elif kind == RecordKind.HURRY:
                    self.hurried.append(record[0])
                elif kind == RecordKind.GIVE_UP:
                    self.given_up.append(record[0])
                else:
                    assert kind == RecordKind.LENT
                    self.lent.append(Lent(*record))

    def ask_of(self, row: int) -> Ask:
        """The one request for the row that has not been answered."""
        self.take()
        (ask,) = (ask for ask in self.writes.values() if ask.row == row)
        return ask

    # ---- what it says ---------------------------------------------------------------------------------------

    def say(self, kind: RecordKind, *records: tuple[int, ...]) -> None:
        """One message; the stager takes it."""
        for message in stager_peer.pack(kind, records):
            self.send(message)

    def send(self, message: bytes) -> None:
        self.socket.send(message)
        self.hear()

    def hear(self) -> None:
        """The stager's loop finds that it can read, or write."""
        self.r.exchange.attend(self.link)

    def bring(self, *asks: Ask) -> None:
        """The bytes come, and are right."""
        for ask in asks:
            self.write(ask)
        for ask in asks:
            del self.writes[ask.id]
        self.say(RecordKind.GOT, *((ask.id, self.checksum(ask), LeaseStatus.OK, 0) for ask in asks))

    def write(self, ask: Ask, data: bytes | None = None) -> None:
        """Into the extent of the request, as long as that is permitted."""
        assert ask.id in self.writes
        self.r.arena.view[ask.extent : ask.extent + ask.length] = self._content(ask) if data is None else data

    def checksum(self, ask: Ask) -> int:
        return xxhash.xxh3_64_intdigest(self._content(ask))

    def _content(self, ask: Ask) -> bytes:
        """What the version that was asked for holds."""
        for (row, _), data in self.r.contents.items():
            if row == ask.row and len(data) == ask.length:
                return data
        raise AssertionError("asked for what never was")

    def refuse(self, ask: Ask, status: LeaseStatus, *, held: int = 0) -> None:
        if not held and status not in (LeaseStatus.COMING, LeaseStatus.SENDING):
            del self.writes[ask.id]
        self.say(RecordKind.GOT, (ask.id, 0, status, held))

    def free(self, *asks: Ask) -> None:
        """It will not write there."""
        for ask in asks:
            del self.writes[ask.id]
        self.say(RecordKind.FREED, *((ask.id,) for ask in asks))

    def lend(self, *rows: int, urgent: int = 0, **changed: int) -> list[int]:
        """Ask for rows, each in its present version; the numbers."""
        records = []
        for row in rows:
            self.lends += 1
            identity = self.r.source.identity(row)
            record: dict[str, Any] = {
                "id": self.lends, "row": row, "length": identity.size, "mtime_ns": identity.mtime_ns, "urgent": urgent,
            }  # fmt: skip
            records.append(tuple((record | changed).values()))
        self.say(RecordKind.LEND, *records)
        return [record[0] for record in records]

    def hurry(self, number: int, row: int) -> None:
        """A reader came to wait for what was asked for."""
        identity = self.r.source.identity(row)
        self.say(RecordKind.LEND, (number, row, identity.size, identity.mtime_ns, 1))

    def back(self, *numbers: int) -> None:
        self.say(RecordKind.BACK, *((number,) for number in numbers))

    def answers(self, number: int) -> list[LeaseStatus]:
        """What was said of a request for a row."""
        self.take()
        return [LeaseStatus(lent.status) for lent in self.lent if lent.id == number]

    def bytes_of(self, number: int) -> bytes:
        """What lies where the stager says that the row lies."""
        self.take()
        (lent,) = (lent for lent in self.lent if lent.id == number and lent.status == LeaseStatus.OK)
        data = bytes(self.r.arena.view[lent.extent : lent.extent + lent.length])
        assert xxhash.xxh3_64_intdigest(data) == lent.check
        return data

    def end(self) -> None:
        """It dies: it writes and reads nothing any more."""
        self.writes.clear()
        self.socket.close()
        self.hear()

    # ---- what must hold -------------------------------------------------------------------------------------

    def check(self) -> None:
        """No extent that may be written to is free, or anybody else's."""
        self.take()
        taken = {page * PAGE for page in self.r.arena._lengths}
        held = [ask.extent for ask in self.writes.values()]
        assert len(set(held)) == len(held)
        for ask in self.writes.values():
            assert ask.extent in taken
        for row in self.r.files:
            if self.r.staged(row) is not None:
                assert int(self.r.columns.slot[row]) not in held

    def close(self) -> None:
        self.socket.close()
        self.link.socket.close()


def homes(r: Rig, **of: list[int]) -> None:
    """Say where rows live: `here`, or `node0`, `node1`, ..."""
    for name, rows in of.items():
        r.columns.holder[rows] = HOME_HERE if name == "here" else 1 + int(name.removeprefix("node"))


def full(sock: socket.socket) -> bool:
    """Whether the socket takes no more."""
    try:
        sock.send(b"x")
    except BlockingIOError:
        return True
    return False


Make = Callable[..., tuple[Rig, FakePeer]]


@contextmanager
def rigs(root: Path, home: str) -> Iterator[Make]:
    """Return a function that makes a rig over files of the sizes given; all homes are there, as `homes` names it."""
    made: list[tuple[Rig, FakePeer]] = []

    def build(*sizes: int, budget: int = 256 * PAGE, **options: object) -> tuple[Rig, FakePeer]:
        write_files(root, list(sizes))
        r = Rig(root, budget=budget, **options)  # type: ignore[arg-type]
        homes(r, **{home: r.files})
        made.append((r, FakePeer(r)))
        return made[-1]

    yield build
    for r, peer in made:
        peer.close()
        r.close()
