"""What the exchange needs of a network. `mpi_transport.py` carries it out; tests have one in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class NodeMessage(NamedTuple):
    """A message that came. `body` None: it was longer than any message is."""

    node: int
    body: bytes | None


CANCELLED, FAILED = -1, -2  # in place of a length
# A transfer that has ended: its key, and bytes that came, or CANCELLED, or FAILED; above those of the view: there were
# more. No class of its own: it takes as long to make as the rest.
Done = tuple[int, int]


class Transport(Protocol):
    """Messages and bytes between the nodes 0 .. size - 1. Nothing here waits. Messages of one node come in order; bytes
    are matched by node and tag. What cannot be sent is lost: whoever waits for it has a limit."""

    rank: int
    size: int

    def send(self, node: int, message: bytes) -> bool:
        """Send a message; False where the node cannot be reached any more."""

    def receive(self) -> Sequence[NodeMessage]:
        """What has come, some of it."""

    def start_send(self, node: int, tag: int, view: memoryview) -> int:
        """Begin to send bytes, which must stay as they are until it is done; its key."""

    def start_receive(self, node: int, tag: int, view: memoryview) -> int:
        """Begin to receive bytes; its key."""

    def cancel(self, key: int) -> None:
        """Give up a receive, if nothing has come for it yet; then it is done soon. Else it goes on."""

    def done(self) -> Iterable[Done]:
        """Transfers that have ended since the last call, some of them. To be taken to the end, one by one: bytes that
        were copied just now are in the processor's cache, where to compare their checksum is fastest."""

    @property
    def has_more(self) -> bool:
        """Whether `done` has something to do at once."""

    @property
    def busy(self) -> bool:
        """Whether transfers are under way."""
