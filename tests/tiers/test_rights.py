"""Rights in shared memory: read whole or not at all, whoever writes meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from nopfsfs.protocol.columns import ACL_BYTES, Columns
from nopfsfs.tiers.rights import ACL_MAX, RenewedRights, Rights


@pytest.fixture
def columns() -> Iterator[Columns]:
    fd = Columns.create(4)
    yield Columns(fd, 4, writable=True)
    os.close(fd)


def test_what_was_renewed_is_read_by_others(columns: Columns) -> None:
    stager, server = RenewedRights(columns), RenewedRights(columns)
    assert server.get(1) is None
    for number in range(5):
        rights = Rights(0o100600 + number, number, 7, b"acl" * number)
        stager.renew(1, rights)
        assert server.get(1) == rights
    assert server.get(0) is None
    assert server.get(2) is None


def test_each_acl_is_kept_once_also_by_the_next_stager(columns: Columns) -> None:
    RenewedRights(columns).renew(0, Rights(1, 2, 3, b"one"))
    RenewedRights(columns).renew(1, Rights(1, 2, 3, b"another"))
    used = int(columns.acls_used[0])
    third = RenewedRights(columns)
    for row, acl in ((0, b"another"), (1, b"one"), (2, b"one"), (3, b"another")):
        third.renew(row, Rights(1, 2, 3, acl))
    assert int(columns.acls_used[0]) == used
    assert [third.get(row) for row in range(4)] == [
        Rights(1, 2, 3, acl) for acl in (b"another", b"one", b"one", b"another")
    ]


def test_an_acl_that_there_is_no_room_for_is_one_that_is_not_known(columns: Columns) -> None:
    rights = RenewedRights(columns)
    rights.renew(0, Rights(1, 2, 3, b"x" * (ACL_MAX + 1)))
    assert rights.get(0) == Rights(1, 2, 3, None)
    columns.acls_used[0] = ACL_BYTES - 10
    other = RenewedRights(columns)
    other._known = {}
    other.renew(1, Rights(1, 2, 3, b"7 bytes"))
    assert other.get(1) == Rights(1, 2, 3, None)
    other.renew(1, Rights(1, 2, 3, b"6bytes"))
    assert other.get(1) == Rights(1, 2, 3, b"6bytes")


def test_no_mixture_is_ever_read(columns: Columns) -> None:
    """Of two states that are written in turn."""
    states = [Rights(number, number, number, bytes([number]) * number) for number in (1, 2, 3)]
    stager, server = RenewedRights(columns), RenewedRights(columns)
    stager.renew(3, states[0])
    ended = threading.Event()

    def write() -> None:
        for turn in range(20_000):
            stager.renew(3, states[turn % 3])
        ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    read = {server.get(3)}
    while not ended.is_set():
        read.add(server.get(3))
    thread.join()
    assert read <= set(states)
