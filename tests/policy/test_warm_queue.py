"""Files that commands ask for: after the stream, in the room that is free, and told truly what became of them."""

from __future__ import annotations

import errno
import random

import numpy as np
import pytest

from nopfsfs.placement.methods import NOWHERE, UNCOVERED
from nopfsfs.policy import file_request, warm_queue
from nopfsfs.policy.fetch_scheduler import FETCHES_OUTSTANDING
from nopfsfs.policy.file_request import FAILURES_KEPT
from nopfsfs.policy.homes import Home
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.policy.warm_queue import LATE_AT_ONCE, WarmRequest
from nopfsfs.protocol.supervisor_stager import StagerCommand
from tests.policy.splits import split

SIZE = 10


class Node:
    """A policy with a stager that does at once what it is ordered to. `sent`: all commands."""

    def __init__(self, n: int, homes: int = 0, stream: int = 0, disk: list[int] | None = None) -> None:
        self.n = n
        self.policy = NodePolicy(
            np.full(n, SIZE, np.int64), np.zeros(n, np.uint8), split(homes, stream, 100), disk or []
        )  # fmt: skip
        self.staged: set[int] = set()
        self.on_disk: set[int] = set()
        self.sent: list[tuple[StagerCommand, list[int], int]] = []
        self.stream: list[int] | None = None
        self.position = 0

    def request(self, *rows: int, complete: bool = True) -> WarmRequest:
        request = WarmRequest(np.full(self.n, SIZE, np.int64))
        request.add(np.array(rows, np.int64))
        request.complete = complete
        self.policy.warm.add(request)
        return request

    def look(self) -> list[tuple[StagerCommand, list[int], int]]:
        """One look of the event loop; the commands."""
        if self.stream is not None:
            left = len(self.stream) - self.position
            self.policy.advance(self.position, left, lambda start, count: np.array(self.stream[start : start + count]))  # type: ignore[index]
        self.policy.warm.serve(stream=self.stream is not None)
        commands = self.policy.take_commands()
        self.sent += commands
        return commands

    def carry_out(self, commands: list[tuple[StagerCommand, list[int], int]]) -> None:
        for do, rows, value in commands:
            for row in rows:
                if do == StagerCommand.FETCH and row not in self.staged:
                    self.staged.add(row)
                    self.policy.staged(row)
                elif do == StagerCommand.EVICT:
                    self.staged.discard(row)
                    self.policy.evicted(row)
                elif do == StagerCommand.TO_DISK:
                    self.on_disk.add(row)
                    self.policy.on_disk(row, value)

    def settle(self) -> None:
        for _ in range(200):
            if not (commands := self.look()):
                return
            self.carry_out(commands)
        raise AssertionError("no end")

    def fetched(self, value: int | None = None) -> list[int]:
        fetches = [(rows, said) for command, rows, said in self.sent if command == StagerCommand.FETCH]
        return [row for rows, said in fetches if value in (None, said) for row in rows]


def counts(request: WarmRequest) -> dict[str, int]:
    """Files by result, those of 0 left out; their bytes agree."""
    figures = request.figures()
    assert all(one["bytes"] == SIZE * one["files"] for one in figures.values())
    return {name: one["files"] for name, one in figures.items() if one["files"] and name != "asked"}


def test_all_that_fits_is_staged_after_all_others_and_once() -> None:
    node = Node(30, homes=300)
    request = node.request(*range(20), 3, 3)
    node.settle()
    assert request.done
    assert counts(request) == {"staged": 20}
    assert node.fetched(1) == list(range(20))
    again = node.request(*range(25))
    node.settle()
    assert counts(again) == {"there": 20, "staged": 5}
    assert sorted(node.fetched()) == list(range(25))


def test_what_finds_no_room_is_left_and_nothing_leaves_for_it() -> None:
    node = Node(30, homes=55)
    request = node.request(*range(30))
    node.settle()
    assert counts(request) == {"staged": 5, "unfit": 25}
    assert {do for do, _, _ in node.sent} == {StagerCommand.FETCH}
    assert node.staged == set(range(5))


def test_room_that_has_become_free_is_used_by_the_next_order() -> None:
    node = Node(10, homes=20)
    assert counts_after(node, *range(10)) == {"staged": 2, "unfit": 8}
    node.policy.resize(split(50, 0, 100), np.zeros(0, np.int64))
    assert counts_after(node, *range(10)) == {"there": 2, "staged": 3, "unfit": 5}


def counts_after(node: Node, *rows: int) -> dict[str, int]:
    request = node.request(*rows)
    node.settle()
    assert request.done
    return counts(request)


@pytest.mark.parametrize("belady", [False, True])
def test_what_does_not_fit_into_memory_goes_to_disk(belady: bool) -> None:
    node = Node(30, homes=50, stream=20, disk=[40, 60])
    node.policy.use_belady(belady)
    assert counts_after(node, *range(30)) == {"staged": 15, "unfit": 15}
    assert node.on_disk == set(range(5, 15))
    assert node.staged == set(range(5)), "what is on disk has left the arena"
    assert counts_after(node, *range(15)) == {"there": 15}


def test_a_disk_that_fails_leaves_its_files() -> None:
    node = Node(4, homes=0, stream=40, disk=[100])
    request = node.request(*range(4))
    for do, rows, _ in node.look():
        assert do == StagerCommand.FETCH
        for row in rows:
            node.policy.staged(row)
    for do, rows, _ in node.look():
        if do == StagerCommand.TO_DISK:
            for row in rows:
                node.policy.off_disk(row, again=True)
    for row in [row for do, rows, _ in node.look() if do == StagerCommand.EVICT for row in rows]:
        node.policy.evicted(row)
    node.settle()
    assert request.done
    assert counts(request) == {"unfit": 4}


def test_a_file_that_is_never_staged_whole_is_left() -> None:
    node = Node(4, homes=100)
    node.policy.residency.split = split(100, 0, 100, whole_limit=SIZE - 1)
    assert counts_after(node, *range(4)) == {"unfit": 4}


def test_files_of_other_nodes_are_left_to_them() -> None:
    node = Node(4, homes=100)
    local = np.array([0, 0, NOWHERE, UNCOVERED], np.int8)
    node.policy.apply_placement(local, np.zeros(0, np.int64))
    assert counts_after(node, *range(4)) == {"staged": 3, "elsewhere": 1}


def test_the_stream_comes_first() -> None:
    """Nothing is commanded for a request while the stream has fetches to command, and its files take the room."""
    n = 3 * FETCHES_OUTSTANDING
    node = Node(n, homes=SIZE * (n // 2))
    node.stream = list(range(n // 2, n))
    request = node.request(*range(n))
    first = node.look()
    assert [(do, value) for do, _, value in first] == [(StagerCommand.FETCH, 0)]
    node.carry_out(first)
    node.settle()
    assert node.staged == set(node.stream), "the stream took all room"
    assert request.there.files + request.staged.files == request.unfit.files == n // 2
    assert node.fetched(1) == []


def test_a_file_that_the_stream_needs_too_is_hurried() -> None:
    node = Node(20, homes=200)
    request = node.request(*range(10))
    warm = node.look()
    assert [(rows, value) for _, rows, value in warm] == [([*range(10)], 1)]
    assert (node.policy.fetches.outstanding, node.policy.fetches.under_way) == (0, 10)
    node.stream = [7, 3, 15]
    stream = node.look()
    assert [(do, rows, value) for do, rows, value in stream] == [(StagerCommand.FETCH, [7, 3, 15], 0)]
    assert (node.policy.fetches.outstanding, node.policy.fetches.under_way) == (3, 11)
    node.carry_out(stream)
    node.carry_out(warm)
    node.settle()
    assert counts(request) == {"staged": 10}
    assert node.policy.fetches.under_way == 0


def test_few_are_under_way_at_once() -> None:
    node = Node(3000, homes=30_000)
    node.request(*range(3000))
    assert sum(len(rows) for _, rows, _ in node.look()) == FETCHES_OUTSTANDING
    assert node.look() == []


def test_files_on_their_way_to_disk_leave_the_stream_half_of_its_room() -> None:
    node = Node(20, homes=0, stream=80, disk=[1000])
    node.stream = []
    node.request(*range(20))
    assert sum(len(rows) for _, rows, _ in node.look()) == 4


def test_what_fails_is_told() -> None:
    node = Node(6, homes=60)
    request = node.request(*range(6))
    node.look()
    node.policy.fetch_failed(0, error=errno.EIO)
    node.policy.fetch_failed(1, error=errno.ENOSPC)
    node.policy.fetch_stuck(2)
    node.policy.staged(3)
    node.policy.fetch_failed(4, cancelled=True, error=errno.ECANCELED)
    node.policy.fetch_failed(5)  # there was no stager
    again = node.look()
    assert [sorted(rows) for _, rows, _ in again] == [[4, 5]]
    node.carry_out(again)
    node.settle()
    assert not request.done, "a file that hangs is waited for"
    request.give_up()
    assert request.done
    assert counts(request) == {"staged": 3, "unfit": 1, "failed": 2}
    assert list(request.failures) == [(0, errno.EIO), (2, errno.ETIMEDOUT)]
    assert [request.reason(code) for _, code in request.failures] == [
        "Input/output error", "the source does not answer",
    ]  # fmt: skip


def test_a_file_that_hung_and_came_is_staged() -> None:
    node = Node(5, homes=50)
    request = node.request(*range(5))
    first = node.look()
    node.policy.fetch_stuck(2)
    node.carry_out([(do, [row for row in rows if row != 2], value) for do, rows, value in first])
    node.settle()
    assert not request.done
    request.retry()
    assert node.look() == [], "it is still on its way"
    node.policy.staged(2)
    node.settle()
    assert request.done
    assert counts(request) == {"staged": 5}


def test_a_file_that_hung_and_came_before_it_is_asked_for_again_counts_as_staged() -> None:
    node = Node(2, homes=20)
    request = node.request(0, 1)
    node.look()
    node.policy.fetch_stuck(0)
    node.policy.staged(1)
    node.policy.staged(0)
    request.retry()
    node.settle()
    assert request.done
    assert counts(request) == {"staged": 2}


def test_files_that_were_not_tried_come_last_and_again_and_again() -> None:
    """Two thirds of the files are at a server that does not answer for some time."""
    n = 300
    node = Node(n, homes=SIZE * n)
    request = node.request(*range(n))
    hung = {row for row in range(n) if row % 3}

    def carry_out(commands: list[tuple[StagerCommand, list[int], int]]) -> int:
        tried = 0
        for do, rows, value in commands:
            for row in rows:
                if do == StagerCommand.FETCH and row in hung:
                    node.policy.fetch_failed(row, error=errno.EAGAIN)
                    tried += 1
                else:
                    node.carry_out([(do, [row], value)])
        return tried

    while commands := node.look():
        carry_out(commands)
    assert counts(request) == {"staged": n - len(hung)}
    assert node.look() == []
    for _ in range(3):
        request.retry()
        tried = 0
        while commands := node.look():
            tried += carry_out(commands)
        assert tried == LATE_AT_ONCE
    hung.clear()
    for staged in (100 + 64, 100 + 64 + 128, n):
        request.retry()
        node.settle()
        assert request.staged.files == staged
    assert request.done
    assert counts(request) == {"staged": n}
    assert not request.failures


def test_a_source_that_hangs_as_a_whole_is_not_asked_for_all_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_request, "COUNTED_AT_ONCE", 50)
    monkeypatch.setattr(warm_queue, "LATE_MOST", 100)
    node = Node(1000, homes=10_000)
    request = node.request(*range(1000))
    tried = 0
    while commands := node.look():
        for row in (row for _, rows, _ in commands for row in rows):
            node.policy.fetch_failed(row, error=errno.EAGAIN)
            tried += 1
    assert 100 <= tried <= 100 + FETCHES_OUTSTANDING
    request.give_up()
    assert request.done
    assert counts(request) == {"failed": tried, "unfit": 1000 - tried}


def test_failures_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    n = FAILURES_KEPT + 5
    monkeypatch.setattr("nopfsfs.policy.fetch_scheduler.FETCHES_OUTSTANDING", n)
    node = Node(n, homes=SIZE * n)
    node.policy.fetches.set_source_limit(n)
    request = node.request(*range(n))
    node.look()
    for row in range(n):
        node.policy.fetch_failed(row, error=errno.EIO)
    node.settle()
    assert (request.failed.files, len(request.failures)) == (n, FAILURES_KEPT)


def test_when_the_stager_dies_its_successor_goes_on() -> None:
    node = Node(10, homes=100)
    request = node.request(*range(10))
    node.look()
    node.policy.staged(0)
    node.policy.stager_restarted()
    node.settle()
    assert request.done
    assert counts(request) == {"staged": 10}
    assert node.policy.fetches.under_way == 0


def test_an_order_that_is_removed_is_cancelled_and_others_go_on() -> None:
    node = Node(20, homes=200)
    first, second = node.request(*range(10)), node.request(*range(5, 15))
    node.look()
    node.policy.warm.remove(first)
    assert node.policy.take_commands() == [(StagerCommand.CANCEL, [], 1)]
    for row in range(15):
        node.policy.fetch_failed(row, cancelled=True, error=errno.ECANCELED)
    node.settle()
    assert second.done
    assert counts(second) == {"staged": 10}
    assert node.staged == set(range(5, 15))


def test_two_orders_of_the_same_files_fetch_them_once() -> None:
    node = Node(10, homes=100)
    requests = node.request(*range(10)), node.request(*range(10))
    node.settle()
    assert [request.staged.files + request.there.files for request in requests] == [10, 10]
    assert len(node.fetched()) == 10


def test_an_order_may_grow_while_it_is_served() -> None:
    node = Node(10, homes=100)
    request = node.request(0, 1, complete=False)
    node.settle()
    assert not request.done
    request.add(np.array([1, 2]))
    request.complete = True
    node.settle()
    assert request.done
    assert counts(request) == {"staged": 3}


def test_what_is_given_up_counts_as_not_fitting() -> None:
    node = Node(10, homes=100)
    request = node.request(*range(10))
    node.look()
    node.policy.staged(0)
    node.look()
    request.give_up()
    assert request.done
    assert counts(request) == {"staged": 1, "unfit": 9}


def test_a_file_staged_for_a_reader_stays_if_there_is_room() -> None:
    """It had no home, as there was no room when it was first read."""
    node = Node(3, homes=0, stream=20)
    node.policy.staged(0)
    node.policy.opened(0)
    node.policy.read(0, 5)
    node.policy.resize(split(10, 20, 100), np.zeros(0, np.int64))
    node.policy.residency.home[0] = Home.STREAM
    assert counts_after(node, 0) == {"there": 1}
    assert node.policy.residency.stream_used == 0
    node.policy.released(0)
    node.settle()
    assert node.policy.residency.is_staged(0)


@pytest.mark.parametrize("seed", range(20))
def test_the_counts_are_what_is_there(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random rooms, streams, failures and requests: all ends, all is counted once, and what is said to be staged is."""
    monkeypatch.setattr(file_request, "COUNTED_AT_ONCE", 7)
    monkeypatch.setattr(warm_queue, "DEALT_AT_ONCE", 5)
    chance = random.Random(seed)
    n = 60
    node = Node(n, homes=chance.randrange(700), stream=chance.randrange(20, 100), disk=[chance.randrange(300)])
    if chance.random() < 0.7:
        node.stream = chance.sample(range(n), chance.randrange(n))
    requests = [node.request(*chance.choices(range(n), k=chance.randrange(1, n))) for _ in range(3)]
    waiting: list[tuple[StagerCommand, list[int], int]] = []
    for _ in range(3000):
        waiting += node.look()
        if chance.random() < 0.2:
            chance.choice(requests).retry()
        while waiting and chance.random() < 0.7:
            do, rows, value = waiting.pop(0)
            row = rows[0]
            if rows[1:]:
                waiting.insert(0, (do, rows[1:], value))
            if do == StagerCommand.FETCH and row not in node.staged and chance.random() < 0.1:
                node.policy.fetch_failed(row, error=chance.choice([errno.EIO, errno.ENOSPC, errno.EAGAIN, 0]))
            else:
                node.carry_out([(do, [row], value)])
        if node.stream is not None and node.position < len(node.stream) and chance.random() < 0.3:
            row = node.stream[node.position]
            node.policy.opened(row)
            node.policy.read(row, SIZE)
            node.policy.released(row)
            node.position += 1
        if not waiting and all(request.done for request in requests):
            break
    for request in requests:
        if not request.done:  # the stream still holds the room for what was read before it was staged
            assert node.policy.residency.stream_used > 0
            request.give_up()
    kept = {row for row in node.staged if node.policy.residency.home_of[row] == Home.RAM} | node.on_disk
    for request in requests:
        found = counts(request)
        assert sum(found.values()) == request.asked.files
        assert found.get("there", 0) + found.get("staged", 0) <= len(kept)
    assert SIZE * len(kept - node.on_disk) <= node.policy.split.homes
    assert node.policy.fetches.under_way == int(np.count_nonzero(node.policy.residency.state & 1))
