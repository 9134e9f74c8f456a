"""Messages between server and stager arrive, in one datagram each, and only in their direction; garbage is a
ProtocolError and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from nopfsfs.protocol.codec import Decoder, Message, ProtocolError, encode
from nopfsfs.protocol.server_stager import (
    TO_SERVER_MAX,
    TO_STAGER_MAX,
    YOUNG_PER_MESSAGE,
    Answer,
    AskGrace,
    Demand,
    FileChanged,
    GracePassed,
    Origin,
    StagerPing,
    StagerPong,
    ToServer,
    ToStager,
    Welcome,
    YoungFilesRead,
    YoungRead,
    to_server,
    to_stager,
)

U64, ROW = (1 << 64) - 1, (1 << 40) - 1  # the last of each
u64, row = st.integers(0, U64), st.integers(0, ROW)
young = st.builds(YoungRead, row, u64, u64, u64, u64)
messages_to_stager = st.one_of(
    st.builds(Demand, st.integers(1, U64), row, u64, u64),
    st.builds(FileChanged, row),
    st.builds(GracePassed, u64),
    st.builds(StagerPing),
    st.builds(YoungFilesRead, st.lists(young, max_size=5)),
)
messages_to_server = st.one_of(
    st.builds(Answer, u64, u64, u64, u64, st.sampled_from(Origin)),
    st.builds(Welcome),
    st.builds(AskGrace, u64),
    st.builds(StagerPong),
)
LARGEST_TO_STAGER: list[ToStager] = [
    Demand(U64, ROW, U64, U64), FileChanged(ROW), GracePassed(U64), StagerPing(),
    YoungFilesRead([YoungRead(ROW, U64, U64, U64, U64)] * YOUNG_PER_MESSAGE),
]  # fmt: skip
LARGEST_TO_SERVER: list[ToServer] = [
    Answer(U64, U64, U64, U64, Origin.SOURCE), Welcome(), AskGrace(U64), StagerPong()
]  # fmt: skip


@given(messages_to_stager)
def test_messages_to_the_stager_arrive_there_only(message: ToStager) -> None:
    assert to_stager.decode(encode(message)) == message
    with pytest.raises(ProtocolError):
        to_server.decode(encode(message))


@given(messages_to_server)
def test_messages_to_the_server_arrive_there_only(message: ToServer) -> None:
    assert to_server.decode(encode(message)) == message
    with pytest.raises(ProtocolError):
        to_stager.decode(encode(message))


def test_the_origin_of_an_answer_is_an_origin() -> None:
    for origin in Origin:
        assert to_server.decode(encode(Answer(1, 0, 2, 3, origin))).origin is origin  # type: ignore[union-attr]


@pytest.mark.parametrize("message", LARGEST_TO_STAGER)
def test_the_largest_messages_to_the_stager_fit(message: ToStager) -> None:
    assert to_stager.decode(encode(message)[:TO_STAGER_MAX]) == message


@pytest.mark.parametrize("message", LARGEST_TO_SERVER)
def test_the_largest_messages_to_the_server_fit(message: ToServer) -> None:
    assert to_server.decode(encode(message)[:TO_SERVER_MAX]) == message


GOOD = (7, 0, 4096, 100, 5)  # a young read


@pytest.mark.parametrize(
    "fields",
    [
        (1, 0, 2, 3, 4), (1, -1, 2, 3, 4), (1, 1, -1, 3, 4), (1, 1, 1 << 40, 3, 4), (1, 1, 2, -1, 4), (1, 1, 2, 3, -1),
        (1, 1, 2, 3), (1, 1, 2, 3, 4, 5), (1, 1.0, 2, 3, 4), (2, -1), (2, 1 << 40), (2,), (3, -1), (3, None), (4, 0),
        (5, [GOOD, (-1, *GOOD[1:])]), (5, [(1 << 40, *GOOD[1:])]), (5, [(*GOOD[:2], -1, *GOOD[3:])]), (5, [GOOD[:4]]),
        (5, [(*GOOD, 0)]), (5, [GOOD] * (YOUNG_PER_MESSAGE + 1)), (5, GOOD), (0, 1), (6,), (11, 1, 0, 0, 0, 0),
    ],
)  # fmt: skip
def test_the_stager_refuses_what_is_out_of_its_range(fields: tuple[Any, ...]) -> None:
    with pytest.raises(ProtocolError):
        to_stager.decode(msgpack.encode(fields))


@pytest.mark.parametrize(
    "fields",
    [
        (11, -1, 0, 0, 0, 0), (11, 1, -1, 0, 0, 0), (11, 1, 0, -1, 0, 0), (11, 1, 0, 0, -1, 0), (11, 1, 0, 0, 0, 4),
        (11, 1, 0, 0, 0, -1), (11, 1, 0, 0), (11, 1, 0, 0, 0, 0, 0), (12, 0), (13, -1), (13,), (14, 0), (1, 1, 0, 0, 0),
    ],
)  # fmt: skip
def test_the_server_refuses_what_is_out_of_its_range(fields: tuple[Any, ...]) -> None:
    with pytest.raises(ProtocolError):
        to_server.decode(msgpack.encode(fields))


def means_something(decoder: Decoder[Any], data: bytes) -> None:
    try:
        assert isinstance(decoder.decode(data), Message)
    except ProtocolError:
        pass


decoders = pytest.mark.parametrize("decoder", [to_stager, to_server])


@decoders
@given(data=st.binary(max_size=80))
def test_garbage_is_refused_or_means_something(decoder: Decoder[Any], data: bytes) -> None:
    means_something(decoder, data)


@decoders
@given(message=st.one_of(messages_to_stager, messages_to_server), draw=st.data())
def test_so_is_a_message_with_one_byte_changed(decoder: Decoder[Any], message: Message, draw: st.DataObject) -> None:
    changed = bytearray(encode(message))
    changed[draw.draw(st.integers(0, len(changed) - 1))] = draw.draw(st.integers(0, 255))
    means_something(decoder, bytes(changed))


@given(st.one_of(messages_to_stager, messages_to_server), st.data())
def test_a_message_that_is_cut_short_is_refused(message: Message, draw: st.DataObject) -> None:
    data = encode(message)[: draw.draw(st.integers(0, len(encode(message)) - 1))]
    for decoder in (to_stager, to_server):
        with pytest.raises(ProtocolError):
            decoder.decode(data)
