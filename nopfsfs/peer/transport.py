"""`Transport`: the network as the router uses it. `mpi_transport.py` carries it out; tests have one in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class NodeMessage(NamedTuple):
    """Message of another node. `body` is None where the node sent more than any node may."""

    node: int
    body: bytes | None


CANCELLED, FAILED = -1, -2  # in place of a length
# A transfer that has ended: its key, and the number of bytes that came, or CANCELLED, or FAILED. A number above the
# view's length means that there were more. No class of its own: to make an object takes as long as the rest.
Done = tuple[int, int]


class Transport(Protocol):
    """Messages and bytes between the nodes 0 .. size - 1. No method waits. Messages of one node arrive in the sequence
    in which they were sent; bytes are matched by node and tag. A message that cannot be sent is lost: every wait for an
    answer has a limit."""

    rank: int
    size: int

    def send(self, node: int, message: bytes) -> bool:
        """Send a message; False where the node cannot be reached any more."""

    def receive(self) -> Sequence[NodeMessage]:
        """Return some of the messages that have come."""

    def start_send(self, node: int, tag: int, view: memoryview) -> int:
        """Begin to send bytes, which must stay as they are until the transfer is done; return the transfer's key."""

    def start_receive(self, node: int, tag: int, view: memoryview) -> int:
        """Begin to receive bytes; return the transfer's key."""

    def cancel(self, key: int) -> None:
        """Cancel a receive for which nothing has come yet: `done` reports that soon. Any other receive goes on."""

    def done(self) -> Iterable[Done]:
        """Yield some of the transfers that have ended since the last call. The caller takes all of them, one by one.
        Bytes that were copied just now are in the processor's cache, where to compare their checksum is fastest."""

    @property
    def has_more(self) -> bool:
        """True when `done` has something to do at once."""

    @property
    def busy(self) -> bool:
        """True when transfers are under way."""
