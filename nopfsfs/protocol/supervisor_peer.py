"""Messages between supervisor and peer process: one datagram each on a socket pair (SOCK_SEQPACKET). No MPI in here."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from nopfsfs.protocol.between_peers import NewsBody
from nopfsfs.protocol.codec import Decoder, Message, UInt

MESSAGE_MAX = 1 << 16
ALL_OTHERS = -1  # in place of a node


class UseArena(Message, frozen=True, tag=1):
    """With a descriptor: the arena."""


class UseStager(Message, frozen=True, tag=2):
    """With a descriptor: a stager's end of a socket pair."""


class NoStager(Message, frozen=True, tag=3):
    """The stager is gone. The answer is `ArenaQuiet`, when nothing will write the arena any more."""


class SendNews(Message, frozen=True, tag=4):
    """`body` is for the supervisor of `node`, or for those of ALL_OTHERS."""

    node: Annotated[int, Meta(ge=ALL_OTHERS, lt=1 << 31)]
    body: NewsBody


class MountEnds(Message, frozen=True, tag=5):
    """The mount ends."""


FromSupervisor = UseArena | UseStager | NoStager | SendNews | MountEnds


class NewsOf(Message, frozen=True, tag=11):
    """`body` is of the supervisor of `node`."""

    node: UInt
    body: NewsBody


class NodeOver(Message, frozen=True, tag=12):
    """`node` gets no more requests."""

    node: UInt
    why: str


class ArenaQuiet(Message, frozen=True, tag=13):
    """Nothing will write the arena any more for the stager that is gone."""


class PeerStatus(Message, frozen=True, tag=14):
    """Counters of the peer process; nodes that get no more requests, by their number in digits, and why; nodes that get
    none for a while."""

    fetched_files: int
    fetched_bytes: int
    refused: int
    late: int
    corrupt: int
    lent_files: int
    lent_bytes: int
    garbage: int
    over: dict[str, str]
    resting: list[int]


class AllMounted(Message, frozen=True, tag=15):
    """The mounts of all ranks answer: from now on this one stays, whatever becomes of MPI."""


FromPeer = NewsOf | NodeOver | ArenaQuiet | PeerStatus | AllMounted
from_supervisor: Decoder[FromSupervisor] = Decoder(FromSupervisor)
from_peer: Decoder[FromPeer] = Decoder(FromPeer)
