"""Who may be asked: rests that double, strikes, and nodes that are over."""

from __future__ import annotations

import pytest

from nopfsfs.peer.node_health import REST_MOST_S, REST_S, STRIKES, NodeEnd, NodeHealth


@pytest.fixture
def nodes() -> NodeHealth:
    return NodeHealth(0, 4)


def strike(nodes: NodeHealth, node: int, now: float) -> None:
    for _ in range(STRIKES):
        nodes.silent(node, now)


def test_all_others_may_be_asked(nodes: NodeHealth) -> None:
    assert [nodes.usable(node, 5.0) for node in (-1, 0, 1, 2, 3, 4)] == [False, False, True, True, True, False]
    assert nodes.others() == [1, 2, 3]
    assert not nodes.alone


def test_a_node_that_is_silent_three_times_in_a_row_rests(nodes: NodeHealth) -> None:
    for _ in range(2 * STRIKES):
        nodes.silent(1, 5.0)
        nodes.heard(1)
    assert nodes.usable(1, 5.0)
    for _ in range(STRIKES):
        assert nodes.usable(1, 5.0)
        nodes.silent(1, 5.0)
    assert not nodes.usable(1, 5.0)
    assert nodes.resting(5.0) == [1]
    assert not nodes.usable(1, 5.0 + REST_S - 0.1)
    assert nodes.usable(1, 5.0 + REST_S)
    assert nodes.usable(2, 5.0)


def test_rests_double_up_to_a_bound_until_it_sends_what_was_asked_for(nodes: NodeHealth) -> None:
    now, rests = 0.0, []
    for _ in range(9):
        strike(nodes, 1, now)
        began = now
        while not nodes.usable(1, now):
            now += 1.0
        rests.append(now - began)
    assert rests == [min(REST_MOST_S, REST_S * 2**i) for i in range(9)]
    nodes.answered(1)
    strike(nodes, 1, now)
    assert nodes.usable(1, now + REST_S)


def test_requests_that_run_out_during_a_rest_do_not_prolong_it(nodes: NodeHealth) -> None:
    for _ in range(100):
        nodes.silent(1, 5.0)
    assert nodes.usable(1, 5.0 + REST_S)


def test_wrong_bytes_are_counted_in_a_row(nodes: NodeHealth) -> None:
    for _ in range(STRIKES):
        assert not nodes.corrupt(1)
        nodes.answered(1)
    assert [nodes.corrupt(1) for _ in range(STRIKES)] == [False] * (STRIKES - 1) + [True]


@pytest.mark.parametrize("why", list(NodeEnd))
def test_a_node_that_is_over_is_not_asked_and_that_is_news_once(nodes: NodeHealth, why: NodeEnd) -> None:
    assert nodes.end(2, why)
    assert not nodes.end(2, NodeEnd.LEFT)
    assert nodes.over == {2: why}
    assert not nodes.usable(2, 1e9)
    assert nodes.others() == [1, 3], "now it has left"


def test_who_is_over_rests_no_more(nodes: NodeHealth) -> None:
    strike(nodes, 1, 5.0)
    nodes.end(1, NodeEnd.LEFT)
    assert nodes.resting(5.0) == []


def test_this_one_is_alone_when_all_others_have_left_or_are_lost(nodes: NodeHealth) -> None:
    nodes.end(1, NodeEnd.LEFT)
    nodes.end(2, NodeEnd.GARBAGE)
    nodes.end(3, NodeEnd.LOST)
    assert not nodes.alone
    assert nodes.lost == {3}
    nodes.end(2, NodeEnd.LEFT)
    assert nodes.alone
    assert NodeHealth(0, 1).alone
