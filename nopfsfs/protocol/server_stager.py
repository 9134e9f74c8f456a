"""Messages between supervisor, server and stager: one datagram each on socket pairs (SOCK_SEQPACKET).

Supervisor to stager: an `Order` and rows. Server to stager: a demand, or young reads. Stager to server: its answer, or
a grace request.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

ROWS_PER_MESSAGE = 4096
_ORDER = struct.Struct("<IIq")
_DEMAND = struct.Struct("<QQqI")
_ANSWER = struct.Struct("<QiqII")
_YOUNG = struct.Struct("<QQqQQ")  # a message of these has another length than a demand
YOUNG_PER_MESSAGE = 100
YOUNG_S = 100.0  # bytes of a file that was written longer ago change with a trace, on any file system
DEMAND_MAX = YOUNG_PER_MESSAGE * _YOUNG.size  # bytes of a message to the stager
MESSAGE_MAX = _ORDER.size + 8 * ROWS_PER_MESSAGE


class Order(IntEnum):
    """Command of the supervisor to the stager. `value` is the command's number where it has one."""

    FETCH = 1  # stage these rows, in this order, after what was asked before; value: 1 for after all others
    PUSH = 2  # put these staged rows into the page cache
    DROP = 3  # drop these rows' pages from the page cache; value: up to which byte, 0 for all
    EVICT = 4  # free these rows' bytes in the arena; value: 1 for blocks of files read by ranges only, without an event
    TO_DISK = 5  # copy these staged rows to disk tier `value`
    OFF_DISK = 6  # remove these rows' copies on disk; value: 1 to begin none by itself, if they are large
    CANCEL = 7  # forget the FETCH orders of the same value not begun
    BUDGET = 8  # the arena's budget is now `value` bytes
    QUIESCE = 9  # stop touching the mount; let go of it
    STOP = 10
    SERVER = 11  # with a descriptor: the demands of one more server
    LOOK = 12  # say what the page cache holds of these rows, when nothing else is to be done; forget the LOOK before
    PEER = 13  # with a descriptor: the peer process, in the place of the one before, which is gone
    # of reads of the source: value: requests under way; rows: 1 to count only requests as young that begin from now on,
    # or 0; bytes a second, 0: no bound
    LIMITS = 14
    COPY_LARGE = 22  # copy these rows, which are too large to be staged whole, to disk tier `value`, by blocks
    CHECK = 21  # compare what is held of these rows with the source; value: 1 to forget the CHECK orders before
    RECHECK = 20  # look at all files and directories once, as soon as that is possible; value: the request's number


class Origin(IntEnum):
    """Where the bytes of an answer came from."""

    RAM = 0
    DISK = 1
    PEER = 2
    SOURCE = 3


class Demand(NamedTuple):
    """A READ that the server cannot answer from a tier. With id 0 it is news: offset < 0, grace -offset has
    passed; length > 0, see PING; else the row's file was seen to have changed at the source."""

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
    """`length` bytes of the demand's range lie at `arena` (shorter than asked where a block ends; 0 at the end of
    file), or `errno` says why not. id 0 asks for grace number `arena`; number 0, which comes first, says that the
    server is known here: from then on it may read the arena, and is asked before any of it is used again. See PONG."""

    id: int
    errno: int
    arena: int
    length: int
    origin: int = 0


# A server asks for a sign of life, and the stager's loop gives it. Both have id 0.
PING = Demand(0, 0, 0, 1)
PONG = Answer(0, 0, -1, 0)


def pack_orders(order: Order, rows: npt.NDArray[Any], value: int = 0) -> list[bytes]:
    """Messages that carry `rows` (i64[k], any k), each small enough for one datagram."""
    parts = [rows[i : i + ROWS_PER_MESSAGE] for i in range(0, len(rows), ROWS_PER_MESSAGE)] or [rows]
    return [_ORDER.pack(order, len(part), value) + part.astype("<i8").tobytes() for part in parts]


def unpack_order(message: bytes) -> tuple[Order, npt.NDArray[np.int64], int]:
    """(order, rows i64[k], value). Raises ValueError for garbage."""
    if len(message) < _ORDER.size:
        raise ValueError("order too short")
    order, count, value = _ORDER.unpack_from(message)
    if len(message) != _ORDER.size + 8 * count:
        raise ValueError("order of wrong length")
    return Order(order), np.frombuffer(message, dtype="<i8", offset=_ORDER.size), value


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
