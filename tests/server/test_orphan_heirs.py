"""Without a supervisor, the living server with the lowest block takes over what is left."""

from __future__ import annotations

import os
import subprocess

from nopfsfs.fuse import taken_requests
from nopfsfs.fuse.taken_requests import OwnBlock
from nopfsfs.server.orphan_heirs import OrphanHeir, Owner, left_to
from nopfsfs.system.proc import start_time

HERE = (os.getpid(), start_time(os.getpid()) or 0)


def ended() -> tuple[int, int]:
    with subprocess.Popen(["true"]) as process:
        started = start_time(process.pid) or 1
    return process.pid, started


def test_the_lowest_of_the_living_takes_over_what_the_ended_had() -> None:
    owners: dict[int, Owner] = {0: (*ended(), 7), 2: (*HERE, 8), 3: (*HERE, 9), 5: (*ended(), 9)}
    assert left_to(2, owners, owners.__getitem__, ()) == [(0, owners[0]), (5, owners[5])]
    assert left_to(3, owners, owners.__getitem__, ()) == []


def test_one_that_is_known_to_have_ended_is_not_waited_for() -> None:
    """Its pipe has ended, and /proc still shows it."""
    owners: dict[int, Owner] = {2: (*HERE, 8), 3: (*HERE, 9)}
    assert left_to(3, owners, owners.__getitem__, {8}) == [(2, owners[2])]


def test_a_block_that_nobody_has_had_holds_nobody_up() -> None:
    owners: dict[int, Owner] = {0: (0, 0, 0), 1: (*HERE, 8)}
    assert left_to(1, owners, owners.__getitem__, ()) == [(0, (0, 0, 0))]
    assert left_to(1, [], owners.__getitem__, ()) == [], "the supervisor's column cannot be believed"


def test_a_block_is_taken_over_once_for_each_owner() -> None:
    fd = taken_requests.create()
    try:
        given = taken_requests.given_blocks(fd, writable=True)
        given[1] = given[4] = 1
        OwnBlock(fd, 1, 7)
        OwnBlock(fd, 4, 8)
        heir = OrphanHeir(fd, 4)
        assert heir.next_left() == []
        heir.saw_end(7)
        assert [heir.next_left(), heir.next_left()] == [[1], []]
        assert OrphanHeir(fd, -1).next_left() == []
    finally:
        os.close(fd)
