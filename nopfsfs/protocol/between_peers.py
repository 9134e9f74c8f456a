"""Messages between the peer processes. Bytes of samples travel apart, each under the tag of their request.

Records of one node about one file arrive in the sequence in which they were sent.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from nopfsfs.protocol.codec import Decoder, Int64, Message, ProtocolError, Row, UInt, encode
from nopfsfs.protocol.stager_peer import LeaseStatus

RECORDS_MOST = 256
NEWS_MAX = 60_000  # bytes of one piece of news
MESSAGE_MAX = NEWS_MAX + 64  # far more than RECORDS_MOST records
TAGS = 16_384  # tags of bytes are 1 .. TAGS; the standard promises 32,767
Tag = Annotated[int, Meta(ge=1, le=TAGS)]
NewsBody = Annotated[bytes, Meta(max_length=NEWS_MAX)]


class Want(Message, frozen=True, tag=1, gc=False):
    """Request to send a file, of this version, under this tag. `urgent`: a reader waits for it."""

    tag: Tag
    row: Row
    length: Annotated[int, Meta(gt=0, le=(1 << 63) - 1)]
    mtime_ns: Int64
    urgent: bool


class Hurry(Message, frozen=True, tag=2, gc=False):
    """A reader waits for the file of this request."""

    tag: Tag


class Drop(Message, frozen=True, tag=3, gc=False):
    """The file of this request is not wanted any more. The answer is NO, or the bytes that are on their way."""

    tag: Tag


class NodeAnswer(Message, frozen=True, tag=4, gc=False):
    """Answer to a request: OK (the bytes follow under the tag, `check` is their xxh3), COMING or NO."""

    tag: Tag
    check: UInt
    status: LeaseStatus


Record = Want | Hurry | Drop | NodeAnswer


class Records(Message, frozen=True, tag=1):
    """Records in the sequence in which they were made. `job`: a number that all ranks of the job have in common, and no
    other job has."""

    job: UInt
    records: Annotated[list[Record], Meta(max_length=RECORDS_MOST)]


class News(Message, frozen=True, tag=2):
    """Message of a supervisor to another, not looked at here."""

    job: UInt
    body: NewsBody


class Leave(Message, frozen=True, tag=3):
    """The sender answers no more requests, and sends none."""

    job: UInt


FromNode = Records | News | Leave
_decoder: Decoder[FromNode] = Decoder(FromNode)


def encode_records(job: int, records: list[Record]) -> list[bytes]:
    """Encode any number of records as messages of at most RECORDS_MOST records."""
    return [encode(Records(job, records[i : i + RECORDS_MOST])) for i in range(0, len(records), RECORDS_MOST)]


def decode(data: bytes, job: int) -> FromNode:
    """Decode a message of another node. Raises ProtocolError for garbage, and for a message of another job."""
    message = _decoder.decode(data)
    if message.job != job:
        raise ProtocolError("message of another job")
    return message
