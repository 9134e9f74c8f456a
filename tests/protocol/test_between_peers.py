"""Messages of the peers arrive as they were sent, all three sorts; garbage is a ValueError and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.protocol import between_peers, stager_peer, supervisor_peer
from nopfsfs.protocol.between_peers import PeerKind
from nopfsfs.protocol.stager_peer import COMING_S, PREFETCH_S, SILENT_S, SLOWEST, limit_s
from nopfsfs.protocol.supervisor_peer import SupervisorPeerKind

u8, u16, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 64))
i32, i64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (32, 64))
FIELDS: dict[PeerKind, tuple[st.SearchStrategy[int], ...]] = {
    PeerKind.WANT: (u16, i64, i64, i64, u8),
    PeerKind.HURRY: (u16,),
    PeerKind.DROP: (u16,),
    PeerKind.ANSWER: (u16, u64, u8),
}
OF_CODES = {"B": u8, "H": u16, "Q": u64, "q": i64}
JOB = 2**64 - 1


def peer_fields(kind: stager_peer.Kind) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*(OF_CODES[code] for code in stager_peer.RECORDS[kind].format.lstrip("<")))


# ---- between nodes ----------------------------------------------------------------------------------------


@given(st.sampled_from(list(FIELDS)), st.data(), st.integers(1, 3))
def test_records_between_nodes_arrive(kind: PeerKind, data: st.DataObject, times: int) -> None:
    some = data.draw(st.lists(st.tuples(*FIELDS[kind]), min_size=1, max_size=5))
    records = some * (100 * times)
    messages = between_peers.pack(kind, JOB, records)
    assert all(len(message) <= between_peers.MESSAGE_MAX for message in messages)
    arrived: list[Any] = []
    for message in messages:
        what, part = between_peers.unpack(message, JOB)
        assert what is kind
        arrived += part
    assert arrived == records


def test_to_leave_is_said_in_one_message_without_records() -> None:
    (message,) = between_peers.pack(PeerKind.LEAVE, JOB, [])
    assert between_peers.unpack(message, JOB) == (PeerKind.LEAVE, [])


@given(st.binary(max_size=300))
def test_news_between_nodes_arrive(body: bytes) -> None:
    assert between_peers.unpack(between_peers.pack_news(5, body), 5) == (PeerKind.NEWS, [body])


def test_news_have_a_greatest_length() -> None:
    assert len(between_peers.pack_news(5, bytes(between_peers.NEWS_MAX))) <= between_peers.MESSAGE_MAX
    with pytest.raises(ValueError):
        between_peers.pack_news(5, bytes(between_peers.NEWS_MAX + 1))


@pytest.mark.parametrize("kind", list(PeerKind))
def test_a_message_of_another_job_is_refused(kind: PeerKind) -> None:
    message = between_peers.pack_news(5, b"") if kind is PeerKind.NEWS else between_peers.pack(kind, 5, [])[0]
    between_peers.unpack(message, 5)
    with pytest.raises(ValueError, match="job"):
        between_peers.unpack(message, 6)


@given(st.integers(0, 65535), st.integers(0, 65535), st.binary(max_size=100))
def test_a_right_head_before_garbage_is_refused_or_means_something(kind: int, count: int, body: bytes) -> None:
    message = struct.pack("<IHHQ", between_peers.MAGIC, kind, count, JOB) + body
    try:
        what, records = between_peers.unpack(message, JOB)
    except ValueError:
        return
    assert what == kind
    assert what in (PeerKind.NEWS, PeerKind.LEAVE) or len(records) == count


def test_more_records_than_a_message_holds_are_refused() -> None:
    message = struct.pack("<IHHQ", between_peers.MAGIC, PeerKind.DROP, 257, JOB) + bytes(2 * 257)
    with pytest.raises(ValueError, match="length"):
        between_peers.unpack(message, JOB)


def test_tags_are_those_that_the_standard_promises() -> None:
    assert between_peers.TAGS + 1 <= 32767


# ---- between stager and peer process ----------------------------------------------------------------------


@given(st.sampled_from(list(stager_peer.Kind)), st.data(), st.integers(1, 3))
def test_records_between_stager_and_peer_process_arrive(
    kind: stager_peer.Kind, data: st.DataObject, times: int
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


@given(st.sampled_from(list(stager_peer.Kind)), st.data())
def test_so_does_one(kind: stager_peer.Kind, data: st.DataObject) -> None:
    record = data.draw(peer_fields(kind))
    what, records = stager_peer.unpack(stager_peer.pack_one(kind, *record))
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


@given(st.sampled_from(list(SupervisorPeerKind)), i32, st.binary(max_size=200))
def test_messages_between_supervisor_and_peer_process_arrive(
    kind: SupervisorPeerKind, node: int, body: bytes
) -> None:
    assert supervisor_peer.unpack(supervisor_peer.pack(kind, node, body)) == (kind, node, body)


def test_the_longest_news_of_another_node_fit() -> None:
    longest = supervisor_peer.pack(SupervisorPeerKind.HEAR, 1, bytes(between_peers.NEWS_MAX))
    assert len(longest) <= supervisor_peer.MESSAGE_MAX


# ---- all --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "unpack", [lambda message: between_peers.unpack(message, JOB), stager_peer.unpack, supervisor_peer.unpack]
)
@given(message=st.binary(max_size=120))
def test_garbage_is_refused_or_means_something(unpack: Callable[[bytes], object], message: bytes) -> None:
    try:
        assert unpack(message) is not None
    except ValueError:
        pass
