"""Messages between the peer processes: a header, and records of one kind or a piece of news. Bytes of samples travel
apart, each under the tag that was asked with.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

MAGIC = 0x6E6F7066
_HEAD = struct.Struct("<IHHQ")  # magic, kind, records, job
RECORDS_MOST = 256
NEWS_MAX = 60_000  # bytes of one piece of news
TAGS = 16_384  # tags of bytes are 1 .. TAGS; the standard promises 32,767
Record = tuple[int, ...]


class PeerKind(IntEnum):
    """What a message holds."""

    WANT = 1  # tag, row, length, mtime_ns, urgent: send this file, of this version, under this tag
    HURRY = 2  # tag: a reader waits for it
    DROP = 3  # tag: it is not wanted any more; answered with NO, or with the bytes that are on their way
    ANSWER = 4  # tag, check, status: OK (the bytes follow under the tag), COMING, NO (of `fetch.peerwire.Status`)
    NEWS = 5  # of a supervisor to another, not looked at here
    LEAVE = 6  # ask no more; I ask no more


_RECORDS = {
    PeerKind.WANT: struct.Struct("<HqqqB"),
    PeerKind.HURRY: struct.Struct("<H"),
    PeerKind.DROP: struct.Struct("<H"),
    PeerKind.ANSWER: struct.Struct("<HQB"),
    PeerKind.LEAVE: struct.Struct(""),
}
MESSAGE_MAX = _HEAD.size + max(NEWS_MAX, RECORDS_MOST * _RECORDS[PeerKind.WANT].size)


def pack(kind: PeerKind, job: int, records: list[Record]) -> list[bytes]:
    """Messages that carry these records. `job`: a number that all ranks of the job have in common, and no other has."""
    one = _RECORDS[kind]
    messages = []
    for first in range(0, max(1, len(records)), RECORDS_MOST):
        some = records[first : first + RECORDS_MOST]
        messages.append(_HEAD.pack(MAGIC, kind, len(some), job) + b"".join([one.pack(*record) for record in some]))
    return messages


def pack_news(job: int, body: bytes) -> bytes:
    """Raises ValueError: longer than NEWS_MAX."""
    if len(body) > NEWS_MAX:
        raise ValueError(f"news of {len(body)} bytes")
    return _HEAD.pack(MAGIC, PeerKind.NEWS, 0, job) + body


def unpack(message: bytes, job: int) -> tuple[PeerKind, list[Any]]:
    """(kind, records), of news the body alone. Raises ValueError for garbage, and for a message of another job."""
    if len(message) < _HEAD.size:
        raise ValueError("message too short")
    magic, number, count, whose = _HEAD.unpack_from(message)
    if magic != MAGIC:
        raise ValueError("no message of nopfsfs")
    if whose != job:
        raise ValueError("message of another job")
    kind = PeerKind(number)
    if kind == PeerKind.NEWS:
        return kind, [message[_HEAD.size :]]
    one = _RECORDS[kind]
    if count > RECORDS_MOST or len(message) != _HEAD.size + count * one.size:
        raise ValueError("message of wrong length")
    return kind, list(one.iter_unpack(memoryview(message)[_HEAD.size :])) if one.size else []
