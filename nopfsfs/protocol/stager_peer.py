"""Messages between stager and peer process: one datagram each on a socket pair (SOCK_SEQPACKET), a kind and records.

The stager asks for rows that other nodes hold (`ASK` ... `GOT`), and lends rows that other nodes ask for (`LEND` ...
`LENT` ... `BACK`). Ids are of who asks: those of `ASK` are the stager's, those of `LEND` the peer process's. Both sides
may send many records in a message. Neither side waits when the other takes nothing, and both go on taking.

Messages cross. A `LEND` of a known number, with `urgent`, says that a reader has come to wait for the row. If it
crosses a refusal, the stager takes it as a new request. So the peer process gives `BACK` a row that is lent under a
number that it no longer knows; this also ends what was cancelled. A `BACK`, `FREED` or `HURRY` of an unknown number
does nothing; a `GIVE_UP` of one is answered with `FREED`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum

Record = tuple[int, ...]
_HEAD = struct.Struct("<II")
RECORDS_MOST = 256  # in a message
PREFETCHES_A_PAIR = 48  # asked for by a node of another and not answered
UNDER_WAY_BYTES = 64 << 20  # asked for by a node, and lent by it; one larger file goes alone
LENGTH_MOST = (1 << 31) - 1  # bytes of a file: some MPIs count no further
SILENT_S = 2.0  # without a sign of life a request is given up after this
COMING_S = 10.0  # one that is being loaded at its home, with a reader that waits
PREFETCH_S = 60.0  # and without
SLOWEST = 10e6  # bytes per second: bytes that are under way slower than that do not arrive
MARGIN_S = 1.0  # by which the stager's limits are longer than the peer process's


class RecordKind(IntEnum):
    """Kind of a message's records."""

    # stager to peer process: `stager/remote_fetches.py` sends the first three, `stager/leases.py` the last
    ASK = 1  # bring these rows from those nodes into these extents
    HURRY = 2  # a reader waits for what was asked for
    GIVE_UP = 3  # no longer wait for these: they are to be answered (FREED) when nothing will write their extents
    LENT = 4  # these rows lie there until BACK, or will not be lent
    # peer process to stager
    GOT = 5  # how it ended, or that it is coming or being sent
    FREED = 6  # nothing will write the extents of these, which were given up or answered with `held`
    LEND = 7  # another node asks for these rows
    BACK = 8  # what was lent under these ids is not needed any more, or never will be


class LeaseStatus(IntEnum):
    """The outcome of a request, or its state while it has not ended."""

    OK = 0
    COMING = 1  # not ended: the holder is loading it
    NO = 2  # the holder does not have it, and will not
    LATE = 3  # no answer in time
    CORRUPT = 4  # other bytes than the holder said, or not as many
    LOST = 5  # the node is gone, or asked no more
    SENDING = 6  # not ended: the holder sends a file so long that its bytes may take longer than SILENT_S


_ID = struct.Struct("<Q")
RECORDS: dict[RecordKind, struct.Struct] = {
    # id, row, extent, length, mtime_ns, node, urgent. extent: offset in the arena; length: the whole file; mtime_ns
    # with length: of which version; urgent: 1 where a reader waits
    RecordKind.ASK: struct.Struct("<QqqqqHB"),
    RecordKind.HURRY: _ID,
    RecordKind.GIVE_UP: _ID,
    RecordKind.LENT: struct.Struct("<QqqQB"),  # id, extent, length, check, status
    # id, check, status, held. check: xxh3 of the bytes, verified; held: 1 where the extent may still be written to
    RecordKind.GOT: struct.Struct("<QQBB"),
    RecordKind.FREED: _ID,
    RecordKind.LEND: struct.Struct("<QqqqB"),  # id, row, length, mtime_ns, urgent
    RecordKind.BACK: _ID,
}
MESSAGE_MAX = _HEAD.size + RECORDS_MOST * max(one.size for one in RECORDS.values())


def pack(kind: RecordKind, records: Sequence[Record]) -> list[bytes]:
    """Messages that carry `records` (any number, of RECORDS[kind]), each small enough for one datagram."""
    one = RECORDS[kind].pack
    parts = [records[i : i + RECORDS_MOST] for i in range(0, len(records), RECORDS_MOST)]
    return [_HEAD.pack(kind, len(part)) + b"".join([one(*record) for record in part]) for part in parts]


def unpack(message: bytes) -> tuple[RecordKind, list[Record]]:
    """(kind, records). Raises ValueError for garbage."""
    if len(message) < _HEAD.size:
        raise ValueError("message too short")
    number, count = _HEAD.unpack_from(message)
    kind = RecordKind(number)
    one = RECORDS[kind]
    if not count or len(message) != _HEAD.size + count * one.size:
        raise ValueError("message of wrong length")
    return kind, list(one.iter_unpack(memoryview(message)[_HEAD.size :]))


def limit_s(*, coming: bool, urgent: bool, length: int) -> float:
    """After how many seconds a request for so many bytes is given up."""
    if not coming:
        return SILENT_S
    return (COMING_S if urgent else PREFETCH_S) + length / SLOWEST
