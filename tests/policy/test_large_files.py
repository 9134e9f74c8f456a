"""Files that are too large to be staged whole: which the policy has copied to disk, in which order and within which
room, and what of it goes again."""

from __future__ import annotations

import numpy as np
import pytest

from nopfsfs.placement.methods import NOWHERE
from nopfsfs.policy.copy_flags import ON_DISK, WRITING
from nopfsfs.policy.drop_queue import DropRequest
from nopfsfs.policy.homes import Home
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.policy.warm_queue import WarmRequest
from nopfsfs.protocol.supervisor_stager import StagerCommand
from tests.policy.splits import split

LARGE, SMALL = 100, 10
SIZES = [LARGE, SMALL, LARGE, LARGE, SMALL]
Commands = list[tuple[StagerCommand, list[int], int]]


class Node:
    """A policy of five files, of which those of LARGE bytes are never staged whole."""

    def __init__(self, *disk: int, keeps_large: bool = True) -> None:
        self.policy = NodePolicy(
            np.array(SIZES, np.int64), np.zeros(len(SIZES), np.uint8), split(0, 40, 100, whole_limit=50), list(disk),
            keeps_large=keeps_large,
        )  # fmt: skip

    def look(self, *stream: int) -> Commands:
        """One look of the event loop at this stream; the commands."""
        if stream:
            self.policy.advance(0, len(stream), lambda start, count: np.array(stream[start : start + count]))
        self.policy.serve_requests(stream=bool(stream))
        return self.policy.take_commands()

    def copies(self, *stream: int) -> list[tuple[int, int]]:
        """The rows that it has copied, in this order, and their tiers."""
        return [(row, tier) for do, rows, tier in self.look(*stream) if do == StagerCommand.COPY_LARGE for row in rows]

    def home(self, row: int) -> int:
        return self.policy.residency.home_of[row]


def test_large_files_are_copied_in_the_order_of_the_stream_each_once() -> None:
    node = Node(1000)
    assert node.copies(2, 1, 0, 3, 2) == [(2, 1), (0, 1), (3, 1)]
    assert node.copies(2, 1, 0, 3, 2) == []
    assert [node.home(row) for row in (0, 2, 3)] == [Home.DISK] * 3


def test_small_files_are_fetched_beside_them() -> None:
    fetched = [rows for do, rows, _ in Node(1000).look(2, 1, 0) if do == StagerCommand.FETCH]
    assert fetched == [[1]]


def test_there_are_no_more_copies_than_there_is_room() -> None:
    node = Node(150, 120)
    assert node.copies(2, 3, 0) == [(2, 1), (3, 2)]
    assert node.home(0) == Home.STREAM


@pytest.mark.parametrize("node", [Node(), Node(1000, keeps_large=False)])
def test_without_a_disk_or_where_nodes_agree_there_are_none(node: Node) -> None:
    assert node.copies(0, 2, 3) == []
    node.policy.copying(0, 1)
    assert (StagerCommand.OFF_DISK, [0], 1) in node.look()


def test_another_plan_has_its_own_order() -> None:
    node = Node(1000)
    assert [row for row, _ in node.copies(0, 2, 3)] == [0, 2, 3]
    node.policy.on_disk(2, 1)
    node.policy.kernel_reads(2)
    node.policy.restart(0)
    assert [row for row, _ in node.copies(3, 2, 0)] == [3, 0]


def test_a_copy_that_a_reader_has_begun_takes_room() -> None:
    node = Node(150)
    node.policy.copying(3, 1)
    assert node.home(3) == Home.DISK
    assert node.policy.residency.holds_of[3] & WRITING
    assert node.copies(0, 3) == [(3, 1)], "the rest of it is to come, and for the other there is no room"
    node.policy.on_disk(3, 1)
    assert node.policy.residency.state_of[3] & ON_DISK
    assert not node.policy.residency.holds_of[3] & WRITING


def test_a_copy_that_a_reader_has_begun_goes_where_there_is_no_room() -> None:
    node = Node(150)
    node.copies(0)
    node.policy.copying(3, 1)
    assert node.look() == [(StagerCommand.OFF_DISK, [3], 1)]
    assert node.home(3) != Home.DISK


def test_the_copy_counts_on_the_tier_where_it_was_begun() -> None:
    node = Node(150, 150)
    node.copies(0)
    node.policy.copying(0, 2)
    assert node.policy.residency.homes.tier(0) == 2
    assert node.copies(0, 2) == [(2, 1)]


def test_while_a_disk_does_not_pay_no_more_copies_are_begun() -> None:
    node = Node(1000)
    node.policy.use_disk(False)
    assert node.copies(0, 2) == []
    node.policy.copying(3, 1)
    assert node.look() == [(StagerCommand.OFF_DISK, [3], 1)]


def test_a_placement_that_says_elsewhere_holds() -> None:
    node = Node(1000)
    node.policy.apply_placement(np.full(len(SIZES), NOWHERE, np.int8), node.policy.held())
    node.policy.copying(0, 1)
    assert (StagerCommand.OFF_DISK, [0], 1) in node.look()


def test_a_copy_that_is_lost_is_asked_for_again() -> None:
    """At its next use; at once where the kernel was to read it."""
    node = Node(1000)
    node.copies(0, 2)
    node.policy.off_disk(0, again=True)
    assert node.copies(0, 2) == []
    node.policy.restart(0)
    assert [row for row, _ in node.copies(2, 0)] == [2, 0]
    node.policy.on_disk(0, 1)
    node.policy.kernel_reads(0)
    node.policy.off_disk(0, again=True)
    assert node.copies(2, 0) == [(0, 1)]


def test_a_copy_that_found_no_room_is_not_asked_for_again() -> None:
    node = Node(1000)
    node.copies(0)
    node.policy.off_disk(0)
    node.policy.restart(0)
    assert node.copies(0) == []


def test_after_the_death_of_the_stager_all_begin_anew() -> None:
    node = Node(1000)
    node.copies(0, 2)
    node.policy.on_disk(0, 1)
    node.policy.stager_restarted()
    node.policy.restart(0)
    assert [row for row, _ in node.copies(0, 2)] == [0, 2]


def test_a_file_that_has_grown_keeps_its_room_or_leaves() -> None:
    node = Node(250)
    node.copies(0, 2)
    node.policy.changed(0, LARGE + 40)
    assert node.home(0) == Home.DISK
    node.policy.changed(0, LARGE + 60)
    assert node.home(0) == Home.UNPLACED


def test_warm_has_a_large_file_copied() -> None:
    node = Node(150)
    request = WarmRequest(np.array(SIZES, np.int64))
    request.add(np.array([0, 2]))
    request.complete = True
    node.policy.warm.add(request)
    assert node.copies() == [(0, 1)]
    assert request.unfit.files == 1
    node.policy.on_disk(0, 1)
    node.look()
    assert request.done
    assert request.staged.files == 1


@pytest.mark.parametrize("whole", [False, True])
def test_drop_takes_a_copy_away_that_may_never_be_whole(whole: bool) -> None:
    node = Node(1000)
    node.policy.copying(0, 1)
    if whole:
        node.policy.on_disk(0, 1)
    request = DropRequest(np.array(SIZES, np.int64))
    request.add(np.array([0]))
    request.complete = True
    node.policy.drops.add(request)
    assert (StagerCommand.OFF_DISK, [0], 0) in node.look()
    node.policy.off_disk(0)
    node.policy.dropped(0)
    assert request.done
    assert request.dropped.files == 1
    assert node.home(0) == Home.UNPLACED
