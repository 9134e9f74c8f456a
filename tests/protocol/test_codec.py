"""Messages arrive as they were sent; whatever else arrives is a ProtocolError."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.protocol.codec import Decoder, Int64, Message, ProtocolError, Row, UInt, encode


class Named(Message, frozen=True, tag=1):
    name: str
    rows: list[Row]


class Counted(Message, frozen=True, tag=2):
    count: UInt
    time: Int64


class Nested(Message, frozen=True, tag=3):
    deeper: Nested | None


decoder: Decoder[Named | Counted | Nested] = Decoder(Named | Counted | Nested)
MESSAGES = [Named("a", [0, (1 << 40) - 1]), Counted(2**64 - 1, -(2**63)), Nested(Nested(None))]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_arrives(message: Any) -> None:
    assert decoder.decode(encode(message)) == message
    assert decoder.decode(memoryview(encode(message))) == message


def test_numbers_of_numpy_are_numbers() -> None:
    """A column gives such numbers, and a message that cannot be encoded would leave somebody waiting."""
    sent = Counted(np.uint64(2**64 - 1), np.int32(-5))  # type: ignore[arg-type]
    assert decoder.decode(encode(sent)) == Counted(2**64 - 1, -5)
    assert decoder.decode(encode(Named("a", list(np.arange(3))))) == Named("a", [0, 1, 2])
    with pytest.raises(TypeError):
        encode(Counted(object(), 0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        Named("a", [-1]), Named("a", [1 << 40]), Named(5, []), Named("a", [True]), Counted(-1, 0), Counted(0, 1 << 63),  # type: ignore[arg-type]
        Counted(0.0, 0), Counted(None, 0), Counted("1", 0),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_value_out_of_its_range_is_refused(wrong: Message) -> None:
    with pytest.raises(ProtocolError):
        decoder.decode(encode(wrong))


LONG = b"\xdd\xff\xff\xff\xff"
GARBAGE = {
    "nothing": b"",
    "a type that is none": b"\x93\x09\x00\x00",
    "a field too few": encode(MESSAGES[1])[:-9].replace(b"\x93", b"\x92"),
    "a field too many": b"\x94\x02\x00\x00\x00",
    "bytes behind it": encode(MESSAGES[0]) + b"\0",
    "a list longer than memory": b"\x93\x01\xa1a" + LONG,
    "a text longer than memory": b"\x93\x01\xdb\xff\xff\xff\xff",
    "a text that is no text": b"\x93\x01\xa1\xff\x90",
    "too deep": b"\x92\x03" * 100_000 + b"\xc0",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_refused(name: str) -> None:
    with pytest.raises(ProtocolError):
        decoder.decode(GARBAGE[name])


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_or_mean_something(data: bytes) -> None:
    try:
        assert isinstance(decoder.decode(data), Message)
    except ProtocolError:
        pass


@given(st.sampled_from(MESSAGES), st.data())
def test_so_are_those_of_a_message_with_one_byte_changed(message: Message, data: st.DataObject) -> None:
    changed = bytearray(encode(message))
    changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(decoder.decode(changed), Message)
    except ProtocolError:
        pass
