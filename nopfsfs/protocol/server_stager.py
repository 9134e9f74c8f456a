"""Messages between server and stager: one datagram each on socket pairs (SOCK_SEQPACKET).

Commands of the supervisor to the stager are in `supervisor_stager`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

from msgspec import Meta

from nopfsfs.protocol.codec import Decoder, Message, Row, UInt

YOUNG_PER_MESSAGE = 100
YOUNG_S = 100.0  # bytes of a file that was written longer ago change with a trace, on any file system
TO_STAGER_MAX = 8 + 46 * YOUNG_PER_MESSAGE  # bytes: a read is 5 numbers of 9 bytes at most, behind 1 byte
TO_SERVER_MAX = 64  # bytes


class Origin(IntEnum):
    """The place that the bytes of an answer came from."""

    RAM = 0
    DISK = 1
    PEER = 2
    SOURCE = 3


class Demand(Message, frozen=True, tag=1, gc=False):
    """A READ that the server cannot answer from a tier. The reply is an `Answer` with the same `id`."""

    id: Annotated[int, Meta(ge=1)]
    row: Row
    offset: UInt
    length: UInt


class FileChanged(Message, frozen=True, tag=2, gc=False):
    """The row's file was seen to have changed at the source."""

    row: Row


class GracePassed(Message, frozen=True, tag=3, gc=False):
    """Reply to the `AskGrace` of that number: the server reads nothing any more that was withdrawn before that."""

    number: UInt


class StagerPing(Message, frozen=True, tag=4, gc=False):
    """A server asks for a sign of life. The stager's loop replies with `StagerPong`."""


class YoungRead(Message, frozen=True, gc=False):
    """Bytes that a server has read from the source by itself, of a file that was young then. `checksum`: xxh3."""

    row: Row
    version: UInt
    start: UInt
    length: UInt
    checksum: UInt


class YoungFilesRead(Message, frozen=True, tag=5):
    """Reads of young files, up to YOUNG_PER_MESSAGE."""

    reads: Annotated[list[YoungRead], Meta(max_length=YOUNG_PER_MESSAGE)]


ToStager = Demand | FileChanged | GracePassed | StagerPing | YoungFilesRead


class Answer(Message, frozen=True, tag=11, gc=False):
    """Reply to the demand of that `id`: `length` bytes of its range lie at `arena`, or `errno` says why not. There are
    fewer bytes than asked where a block ends, and 0 at the end of file."""

    id: UInt
    errno: UInt
    arena: UInt
    length: UInt
    origin: Origin = Origin.RAM


class Welcome(Message, frozen=True, tag=12, gc=False):
    """The stager knows this server. The message comes first. From then on the server may read the arena, and is asked
    before any of it is used again."""


class AskGrace(Message, frozen=True, tag=13, gc=False):
    """Grace request: the server is to reply with `GracePassed` when it reads nothing any more that was withdrawn
    before."""

    number: UInt


class StagerPong(Message, frozen=True, tag=14, gc=False):
    """Reply to StagerPing."""


ToServer = Answer | Welcome | AskGrace | StagerPong
to_stager: Decoder[ToStager] = Decoder(ToStager)
to_server: Decoder[ToServer] = Decoder(ToServer)
