"""Messages between the supervisors of a cluster's nodes. Subjects: where files live, what earlier mounts have left,
copies that are handed to their homes, and what the source's idle requests take. The messages travel as news between the
peer processes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from nopfsfs.protocol.codec import Decoder, Message, Row, UInt

TIERS_MOST = 16
ROWS_MOST = 4000  # of one message
BITS_MOST = 1 << 13  # bytes of one message
RoomBytes = Annotated[int, Meta(ge=0, le=1 << 60)]
NUMBER_MOST = 1 << 53
SIZES_MOST = 32  # size classes of requests, and readings
PlacementNumber = Annotated[int, Meta(ge=1, le=NUMBER_MOST)]
EPOCHS_MOST = 1024
Value = bool | int | float | Annotated[str, Meta(max_length=4096)]  # of an option; a text may be a generator's state


class NodeRoom(Message, frozen=True, tag=1):
    """Room of a node for files that stay, in bytes. No file of more than `whole_limit` bytes is kept whole."""

    ram: RoomBytes
    disks: Annotated[tuple[RoomBytes, ...], Meta(max_length=TIERS_MOST)]
    whole_limit: RoomBytes


class NamedSpec(Message, frozen=True):
    """Sampler or subset, with its seed and options."""

    name: str
    seed: int
    options: Annotated[dict[str, Value], Meta(max_length=64)]


class NamedOrder(Message, frozen=True):
    """Order of one epoch, of the whole world."""

    sampler: NamedSpec
    epoch: Annotated[int, Meta(ge=0, le=1 << 31)]
    world: Annotated[int, Meta(ge=1, le=1 << 20)]
    subset: NamedSpec | None = None


class NamedFiles(Message, frozen=True):
    """Files of the enumeration `files` below the directory `root`. Without an order they are dealt out by a hash."""

    root: Row
    files: str
    order: NamedOrder | None = None


class ProposedPlacement(Message, frozen=True, tag=2):
    """Placement that the leader proposes. `rooms`: of each node those of all classes; `limit`: the largest file that
    all nodes keep whole; `method`: of `placement.cluster_homes`; `what`: None for all files."""

    number: PlacementNumber
    rooms: list[Annotated[list[RoomBytes], Meta(min_length=1, max_length=1 + TIERS_MOST)]]
    limit: RoomBytes
    method: str
    epochs: Annotated[int, Meta(ge=1, le=EPOCHS_MOST)]
    what: NamedFiles | None


class PlacementComputed(Message, frozen=True, tag=3):
    """The sender has computed this placement. For the leader."""

    number: PlacementNumber


class PlacementBegins(Message, frozen=True, tag=4):
    """All nodes ask each other by this placement from now on. Of the leader."""

    number: PlacementNumber


class CopiesOffered(Message, frozen=True, tag=5):
    """Rows that are staged at the sender, and live at the receiver by this placement."""

    rows: Annotated[list[Row], Meta(max_length=ROWS_MOST)]
    number: UInt


class CopiesTaken(Message, frozen=True, tag=6):
    """The receiver need not keep these rows, which it has offered, any longer."""

    rows: Annotated[list[Row], Meta(max_length=ROWS_MOST)]
    number: UInt


class FoundOfSource(Message, frozen=True):
    """Idle durations of requests at the source, base-2 logarithms of nanoseconds by size class; requests that prove
    each; readings of the knee."""

    log2_ns: Annotated[tuple[Annotated[float, Meta(ge=0, le=64)] | None, ...], Meta(max_length=SIZES_MOST)]
    evidence: Annotated[tuple[Annotated[float, Meta(ge=0, le=1e6)], ...], Meta(max_length=SIZES_MOST)]
    knees: Annotated[tuple[Annotated[float, Meta(ge=0, le=100)], ...], Meta(max_length=SIZES_MOST)]


class SourceSeen(Message, frozen=True, tag=7):
    """Base that the drains of the sender have shown. For the leader."""

    found: FoundOfSource


class SourceAgreed(Message, frozen=True, tag=8):
    """Base that the drains of all nodes have shown together. Of the leader."""

    found: FoundOfSource


class CopiesKept(Message, frozen=True, tag=9):
    """Rows of which an earlier mount has left a copy on disk tier `tier` of the sender. Bit i of `bits` stands for row
    `first` + i; the highest bit of a byte comes first. All of these messages come before the sender's `NodeRoom`."""

    tier: Annotated[int, Meta(ge=1, le=TIERS_MOST)]
    first: Row
    bits: Annotated[bytes, Meta(max_length=BITS_MOST)]


FromCluster = (
    NodeRoom | ProposedPlacement | PlacementComputed | PlacementBegins | CopiesOffered | CopiesTaken | SourceSeen
    | SourceAgreed | CopiesKept
)  # fmt: skip
from_cluster: Decoder[FromCluster] = Decoder(FromCluster)
