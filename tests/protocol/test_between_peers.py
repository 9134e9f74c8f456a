"""Messages of the peers arrive as they were sent, all three sorts; garbage is a ValueError and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.protocol import between_peers, stager_peer, supervisor_peer
from nopfsfs.protocol.between_peers import (
    MESSAGE_MAX,
    NEWS_MAX,
    RECORDS_MOST,
    TAGS,
    Drop,
    FromNode,
    Hurry,
    Leave,
    News,
    NodeAnswer,
    Record,
    Records,
    Want,
    encode_records,
)  # fmt: skip
from nopfsfs.protocol.codec import Decoder, Message, ProtocolError, encode
from nopfsfs.protocol.stager_peer import COMING_S, PREFETCH_S, SILENT_S, SLOWEST, limit_s
from nopfsfs.protocol.supervisor_peer import (
    ALL_OTHERS,
    AllMounted,
    ArenaQuiet,
    FromPeer,
    FromSupervisor,
    MountEnds,
    NewsOf,
    NodeOver,
    NoStager,
    PeerStatus,
    SendNews,
    UseArena,
    UseStager,
    from_peer,
    from_supervisor,
)
from tests.stager.peer import pack_one

u8, u16, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 64))
i32, i64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (32, 64))
tags = st.integers(1, TAGS)
records = st.one_of(
    st.builds(Want, tags, st.integers(0, 2**40 - 1), st.integers(1, 2**63 - 1), i64, st.booleans()),
    st.builds(Hurry, tags),
    st.builds(Drop, tags),
    st.builds(NodeAnswer, tags, u64, st.sampled_from(stager_peer.LeaseStatus)),
)
OF_CODES = {"B": u8, "H": u16, "Q": u64, "q": i64}
JOB = 2**64 - 1


def peer_fields(kind: stager_peer.RecordKind) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*(OF_CODES[code] for code in stager_peer.RECORDS[kind].format.lstrip("<")))


# ---- between nodes ----------------------------------------------------------------------------------------


@given(st.lists(records, min_size=1, max_size=5), st.integers(1, 300))
def test_records_between_nodes_arrive(some: list[Record], times: int) -> None:
    messages = encode_records(JOB, some * times)
    assert all(len(message) <= MESSAGE_MAX for message in messages)
    arrived: list[Record] = []
    for message in messages:
        part = between_peers.decode(message, JOB)
        assert isinstance(part, Records)
        arrived += part.records
    assert arrived == some * times


def test_the_largest_message_is_not_too_large() -> None:
    largest = Want(TAGS, (1 << 40) - 1, (1 << 63) - 1, -(1 << 63), True)
    (message,) = encode_records(JOB, [largest] * RECORDS_MOST)
    assert len(message) <= MESSAGE_MAX
    assert len(encode(News(JOB, bytes(NEWS_MAX)))) <= MESSAGE_MAX


@pytest.mark.parametrize(
    "message", [News(JOB, bytes(NEWS_MAX + 1)), Records(JOB, [Drop(1)] * (RECORDS_MOST + 1)), Records(JOB, [Drop(0)])]
)
def test_more_than_a_message_holds_is_refused(message: Message) -> None:
    with pytest.raises(ProtocolError):
        between_peers.decode(encode(message), JOB)


@pytest.mark.parametrize("message", [News(5, b"news"), Leave(5), Records(5, []), Records(5, [Hurry(TAGS)])])
def test_a_message_of_another_job_is_refused(message: FromNode) -> None:
    assert between_peers.decode(encode(message), 5) == message
    with pytest.raises(ProtocolError, match="job"):
        between_peers.decode(encode(message), 6)


def test_tags_are_those_that_the_standard_promises() -> None:
    assert TAGS + 1 <= 32767


# ---- between stager and peer process ----------------------------------------------------------------------


@given(st.sampled_from(list(stager_peer.RecordKind)), st.data(), st.integers(1, 3))
def test_records_between_stager_and_peer_process_arrive(
    kind: stager_peer.RecordKind, data: st.DataObject, times: int
) -> None:
    records = data.draw(st.lists(peer_fields(kind), min_size=1, max_size=5)) * (100 * times)
    messages = stager_peer.pack(kind, records)
    assert all(len(message) <= stager_peer.MESSAGE_MAX for message in messages)
    arrived: list[tuple[int, ...]] = []
    for message in messages:
        what, part = stager_peer.unpack(message)
        assert what is kind
        arrived += part
    assert arrived == records


@given(st.sampled_from(list(stager_peer.RecordKind)), st.data())
def test_so_does_one(kind: stager_peer.RecordKind, data: st.DataObject) -> None:
    record = data.draw(peer_fields(kind))
    what, records = stager_peer.unpack(pack_one(kind, *record))
    assert (what, records) == (kind, [record])


@given(st.integers(0, 12), st.integers(0, 4), st.binary(max_size=200))
def test_a_right_kind_before_garbage_is_refused_or_means_something(kind: int, count: int, body: bytes) -> None:
    try:
        _, records = stager_peer.unpack(struct.pack("<II", kind, count) + body)
    except ValueError:
        return
    assert len(records) == count > 0


def test_limits_are_longer_for_what_is_coming_and_for_what_is_long() -> None:
    assert limit_s(coming=False, urgent=True, length=1 << 40) == SILENT_S
    assert limit_s(coming=True, urgent=True, length=0) == COMING_S
    assert limit_s(coming=True, urgent=False, length=int(5 * SLOWEST)) == PREFETCH_S + 5


# ---- between supervisor and peer process ------------------------------------------------------------------


TO_PEER: list[FromSupervisor] = [UseArena(), UseStager(), NoStager(), SendNews(ALL_OTHERS, b"news"), MountEnds()]
TO_SUPERVISOR: list[FromPeer] = [
    NewsOf(3, b"news"), NodeOver(3, "left"), ArenaQuiet(), PeerStatus(1, 2, 3, 4, 5, 6, 7, 8, {"1": "lost"}, [2]),
    AllMounted(),
]  # fmt: skip


def test_messages_between_supervisor_and_peer_process_arrive() -> None:
    assert [from_supervisor.decode(encode(message)) for message in TO_PEER] == TO_PEER
    assert [from_peer.decode(encode(message)) for message in TO_SUPERVISOR] == TO_SUPERVISOR


@pytest.mark.parametrize(("decoder", "messages"), [(from_peer, TO_PEER), (from_supervisor, TO_SUPERVISOR)])
def test_who_gets_a_message_that_is_not_for_it_refuses_it(decoder: Decoder[Message], messages: list[Message]) -> None:
    for message in messages:
        with pytest.raises(ProtocolError):
            decoder.decode(encode(message))


def test_the_longest_news_of_another_node_fit() -> None:
    assert len(encode(NewsOf(1 << 31, bytes(NEWS_MAX)))) <= supervisor_peer.MESSAGE_MAX
    assert len(encode(SendNews(1, bytes(NEWS_MAX)))) <= supervisor_peer.MESSAGE_MAX


# ---- all --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "unpack",
    [
        lambda message: between_peers.decode(message, JOB),
        stager_peer.unpack,
        from_supervisor.decode,
        from_peer.decode,
    ],
)
@given(message=st.binary(max_size=120))
def test_garbage_is_refused_or_means_something(unpack: Callable[[bytes], object], message: bytes) -> None:
    try:
        assert unpack(message) is not None
    except ValueError:
        pass
