"""Files that commands want compared: few at once, each counted once, and told truly."""

from __future__ import annotations

import errno

import numpy as np

from nopfsfs.policy.check_queue import OUTSTANDING, CheckRequest
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.protocol.ring import IN_MEMORY, NOT_HELD, ON_TIER
from nopfsfs.protocol.supervisor_stager import StagerCommand
from tests.policy.splits import split


def policy_of(n: int, staged: int) -> NodePolicy:
    policy = NodePolicy(np.full(n, 10, np.int64), np.zeros(n, np.uint8), split(10 * n, 0, 100), [])
    for row in range(staged):
        policy.staged(row)
    policy.take_commands()
    return policy


def request_of(policy: NodePolicy, *rows: int) -> CheckRequest:
    request = CheckRequest(np.full(len(policy.residency.charges), 10, np.int64))
    request.add(np.array(rows, np.int64))
    request.complete = True
    policy.checks.add(request)
    return request


def commanded(policy: NodePolicy) -> list[int]:
    policy.serve_requests(stream=False)
    commands = policy.take_commands()
    return [row for command, rows, value in commands if (command, value) == (StagerCommand.CHECK, 0) for row in rows]


def counts(request: CheckRequest) -> dict[str, int]:
    figures = request.figures()
    return {name: one["files"] for name, one in figures.items() if one["files"] and name != "asked"}


def test_what_is_held_is_compared_some_at_a_time() -> None:
    policy = policy_of(200, 150)
    request = request_of(policy, *range(200))
    done: list[int] = []
    while rows := commanded(policy):
        assert len(rows) <= OUTSTANDING
        for row in rows:
            policy.checks.ended(row, 0, 0)
        done += rows
    assert done == list(range(150))
    assert request.done
    assert counts(request) == {"same": 150, "nothing": 50}


def test_what_is_found_is_told() -> None:
    policy = policy_of(6, 6)
    request = request_of(policy, *range(6))
    assert commanded(policy) == [*range(6)]
    for row, (found, error) in enumerate(
        [(0, 0), (IN_MEMORY, 0), (ON_TIER, 0), (IN_MEMORY | ON_TIER, 0), (NOT_HELD, 0), (errno.EIO, errno.EIO)]
    ):
        policy.checks.ended(row, found, error)
    assert request.done
    assert counts(request) == {"same": 1, "differ": 3, "nothing": 1, "failed": 1}
    assert [(row, request.reason(code)) for row, code in request.failures] == [
        (1, "the copy in memory differs"),
        (2, "the copy on disk differs"),
        (3, "the copies in memory and on disk differ"),
        (5, "Input/output error"),
    ]


def test_when_the_stager_dies_or_another_request_ends_the_others_go_on() -> None:
    policy = policy_of(10, 10)
    first, second = request_of(policy, 0, 1), request_of(policy, 1, 2)
    assert commanded(policy) == [0, 1, 1, 2]
    policy.stager_restarted()
    assert sorted(commanded(policy)) == [0, 1, 1, 2]
    policy.checks.remove(first)
    assert (StagerCommand.CHECK, [], 1) in policy.take_commands()
    assert sorted(commanded(policy)) == [1, 2]
    policy.checks.ended(1, 0, 0)
    policy.checks.ended(2, 0, 0)
    policy.checks.ended(2, 0, 0)
    assert second.done
    assert counts(second) == {"same": 2}
    assert counts(first) == {}


def test_what_is_given_up_is_left() -> None:
    policy = policy_of(10, 10)
    request = request_of(policy, *range(10))
    commanded(policy)
    request.give_up()
    assert request.done
    assert counts(request) == {"left": 10}
