"""Messages between server and stager: one datagram each on socket pairs (SOCK_SEQPACKET).

Server to stager: a demand, or young reads. Stager to server: its answer, or a grace request. Orders of the supervisor
are in `supervisor_stager`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

_DEMAND = struct.Struct("<QQqI")
_ANSWER = struct.Struct("<QiqII")
_YOUNG = struct.Struct("<QQqQQ")  # a message of these has another length than a demand
YOUNG_PER_MESSAGE = 100
YOUNG_S = 100.0  # bytes of a file that was written longer ago change with a trace, on any file system
DEMAND_MAX = YOUNG_PER_MESSAGE * _YOUNG.size  # bytes of a message to the stager


class Origin(IntEnum):
    """The place that the bytes of an answer came from."""

    RAM = 0
    DISK = 1
    PEER = 2
    SOURCE = 3


class Demand(NamedTuple):
    """A READ that the server cannot answer from a tier. With id 0 it is news. `offset` < 0: grace -offset has passed;
    `length` > 0: see PING. Else the row's file was seen to have changed at the source."""

    id: int
    row: int
    offset: int
    length: int


class YoungRead(NamedTuple):
    """Bytes that a server has read from the source by itself, of a file that was young then. `checksum`: xxh3."""

    row: int
    version: int
    start: int
    length: int
    checksum: int


class Answer(NamedTuple):
    """`length` bytes of the demand's range lie at `arena`, or `errno` says why not. There are fewer bytes than asked
    where a block ends, and 0 at the end of file. An answer with id 0 asks for grace number `arena`. Number 0, which
    comes first, says that the server is known here. From then on the server may read the arena, and is asked before any
    of it is used again. See PONG."""

    id: int
    errno: int
    arena: int
    length: int
    origin: int = 0


# A server asks for a sign of life, and the stager's loop gives it. Both have id 0.
PING = Demand(0, 0, 0, 1)
PONG = Answer(0, 0, -1, 0)


def pack_demand(demand: Demand) -> bytes:
    return _DEMAND.pack(*demand)


def unpack_demand(message: bytes) -> Demand:
    """Raises ValueError for garbage."""
    if len(message) != _DEMAND.size:
        raise ValueError("demand of wrong length")
    return Demand(*_DEMAND.unpack(message))


def pack_young(reads: Sequence[YoungRead]) -> bytes:
    """A message of up to YOUNG_PER_MESSAGE reads."""
    return b"".join(_YOUNG.pack(*read) for read in reads)


def has_young(message: bytes) -> bool:
    """True for a message of young reads."""
    return len(message) > 0 and len(message) % _YOUNG.size == 0


def unpack_young(message: bytes) -> list[YoungRead]:
    """Raises ValueError for garbage."""
    if not has_young(message):
        raise ValueError("young reads of wrong length")
    return [YoungRead(*fields) for fields in _YOUNG.iter_unpack(message)]


def is_news(message: bytes) -> bool:
    """True for a message to the stager that asks for no bytes."""
    return has_young(message) or unpack_demand(message).id == 0


def pack_answer(answer: Answer) -> bytes:
    return _ANSWER.pack(*answer)


def unpack_answer(message: bytes) -> Answer:
    """Raises ValueError for garbage."""
    if len(message) != _ANSWER.size:
        raise ValueError("answer of wrong length")
    return Answer(*_ANSWER.unpack(message))
