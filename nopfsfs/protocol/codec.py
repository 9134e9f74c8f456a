"""Encoding of the messages between the processes of a mount, and between nodes: MessagePack.

A message is an array of its fields, behind the number of its type where a socket carries several types. Ranges stand in
the types of the fields, so that a message which was decoded needs no further check of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

UInt = Annotated[int, Meta(ge=0)]  # MessagePack holds no number of more than 64 bits
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Row = Annotated[int, Meta(ge=0, lt=1 << 40)]
M = TypeVar("M")


class ProtocolError(ValueError):
    """Bytes that are no message of the expected types."""


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages."""


# The hook takes numbers of numpy for what they are: a message that cannot be encoded would leave a reader waiting.
encode: Callable[[Message], bytes] = msgspec.msgpack.Encoder(enc_hook=operator.index).encode


class Decoder(Generic[M]):
    """Decoder of messages of one type, or of a union of types."""

    def __init__(self, messages: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(messages).decode

    def decode(self, data: bytes | bytearray | memoryview) -> M:
        """Decode a whole message. Raises ProtocolError, and nothing else, whatever the bytes."""
        try:
            message: M = self._decode(data)
        except (ValueError, RecursionError, MemoryError) as error:
            raise ProtocolError(str(error)) from error
        return message
