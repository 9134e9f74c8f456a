"""Messages between supervisor and server: one datagram each on a socket pair (SOCK_SEQPACKET)."""

from __future__ import annotations

from nopfsfs.protocol.codec import Decoder, Message, UInt

MESSAGE_MAX = 64


class Interrupt(Message, frozen=True, tag=1):
    """Request `unique` was interrupted. A server that does not have that request sends this to the supervisor, which
    sends it to all other servers."""

    unique: UInt


class MeetStager(Message, frozen=True, tag=2):
    """With one or two descriptors: the socket of a new stager, and its arena where that is another one, with number
    `arena`. `serial` counts these messages to a server. The answer is `Drained`."""

    serial: UInt
    arena: UInt


class Ping(Message, frozen=True, tag=3):
    """The answer is `Pong`."""


class End(Message, frozen=True, tag=4):
    """The server is to answer what it has taken, and end."""


class TakeOver(Message, frozen=True, tag=5):
    """The server is the heir of a block (`fuse/taken_requests.py`), whose process is gone. The answer is
    `TookOver`."""

    block: UInt


ToServer = Interrupt | MeetStager | Ping | End | TakeOver


class Ready(Message, frozen=True, tag=11):
    """The server answers requests."""


class ConnectionEnded(Message, frozen=True, tag=12):
    """The connection has ended. The server waits for End, for a while."""


class Drained(Message, frozen=True, tag=13):
    """Answer to the MeetStager of that number: the server reads nothing any more that the stager before had named."""

    serial: UInt


class StagerKnown(Message, frozen=True, tag=14):
    """The stager has welcomed the server, which may read the arena from now on."""


class Pong(Message, frozen=True, tag=15):
    """Answer to Ping."""


class TookOver(Message, frozen=True, tag=16):
    """Answer to TakeOver: each request in that block is answered, or is in the server's own."""

    block: UInt


FromServer = Interrupt | Ready | ConnectionEnded | Drained | StagerKnown | Pong | TookOver
to_server: Decoder[ToServer] = Decoder(ToServer)
from_server: Decoder[FromServer] = Decoder(FromServer)
