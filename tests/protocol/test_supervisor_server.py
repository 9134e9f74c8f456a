"""Messages between supervisor and server arrive, in one datagram each, and only in their direction."""

from __future__ import annotations

import pytest

from nopfsfs.protocol.codec import Message, ProtocolError, encode
from nopfsfs.protocol.supervisor_server import (
    MESSAGE_MAX,
    ConnectionEnded,
    Drained,
    End,
    Interrupt,
    MeetStager,
    Ping,
    Pong,
    Ready,
    StagerKnown,
    TakeOver,
    TookOver,
    from_server,
    to_server,
)

UNIQUE = (1 << 64) - 1  # of a request; the kernel counts in 64 bits
TO_SERVER: list[Message] = [MeetStager(UNIQUE, 3), Ping(), End(), TakeOver(127), Interrupt(UNIQUE)]
TO_SUPERVISOR: list[Message] = [
    Ready(), ConnectionEnded(), Drained(UNIQUE), StagerKnown(), Pong(), TookOver(127), Interrupt(UNIQUE),
]  # fmt: skip


def test_messages_arrive() -> None:
    assert [to_server.decode(encode(message)) for message in TO_SERVER] == TO_SERVER
    assert [from_server.decode(encode(message)) for message in TO_SUPERVISOR] == TO_SUPERVISOR
    assert max(len(encode(message)) for message in (*TO_SERVER, *TO_SUPERVISOR)) <= MESSAGE_MAX


def test_who_gets_a_message_that_is_not_for_it_refuses_it() -> None:
    for message in TO_SERVER[:-1]:
        with pytest.raises(ProtocolError):
            from_server.decode(encode(message))
    for message in TO_SUPERVISOR[:-1]:
        with pytest.raises(ProtocolError):
            to_server.decode(encode(message))
