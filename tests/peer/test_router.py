"""The exchange, node by node: what it does when something goes wrong, and what always holds, in any order of all that
can happen to it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nopfsfs.peer import requester
from nopfsfs.peer.node_health import REST_S, NodeEnd
from nopfsfs.peer.router import GOTS_MOST
from nopfsfs.protocol.between_peers import TAGS, Drop, Hurry, Leave, NodeAnswer, Record, Want, encode_records
from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.stager_peer import COMING_S, PREFETCH_S, SILENT_S, LeaseStatus, RecordKind
from tests.examples import examples
from tests.peer.network import BROKEN, HOWS, LONG, RIGHT, SHORT, WRONG
from tests.peer.stagers import (
    JOB,
    ROWS,
    SLOT,
    Ask,
    Cluster,
    Loan,
    Node,
    Stager,
    content,
    length_of,
    mtime_of,
    types_of,
)  # fmt: skip


def the_ask(ask: Ask | None) -> Ask:
    assert ask is not None
    return ask


def lend_all(node: Node) -> None:
    if node.stager is not None:
        for loan in node.stager.pending():
            node.stager.lend(loan)


def fetched(cluster: Cluster, row: int = 3, by: int = 0, home: int = 1) -> Ask:
    """A request, until its bytes are under way."""
    ask = the_ask(cluster.nodes[by].st.ask(home, row))
    cluster.settle()
    lend_all(cluster.nodes[home])
    cluster.settle()
    return ask


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(3)


# ---- as it should be --------------------------------------------------------------------------------------


def test_a_row_of_another_node_is_brought(cluster: Cluster) -> None:
    ask = fetched(cluster)
    assert ask.final is None
    cluster.network.finish()
    cluster.settle()
    assert ask.final == LeaseStatus.OK
    assert cluster.nodes[1].st.backs == 1
    assert (cluster.nodes[0].exchange.requester.files, cluster.nodes[1].exchange.responder.files) == (1, 1)
    assert cluster.nodes[0].exchange.requester.bytes == cluster.nodes[1].exchange.responder.bytes == length_of(3)
    cluster.check_at_rest()


def test_a_row_that_is_being_loaded_is_coming_and_comes(cluster: Cluster) -> None:
    ask = the_ask(cluster.nodes[0].st.ask(1, 3))
    cluster.settle()
    (loan,) = cluster.nodes[1].st.pending()
    cluster.nodes[1].st.coming(loan)
    cluster.settle()
    assert ask.goes_on == [LeaseStatus.COMING]
    cluster.wait(PREFETCH_S - 1)
    assert ask.final is None
    cluster.drain()
    assert ask.final == LeaseStatus.OK
    cluster.check_at_rest()


def test_who_does_not_have_it_says_no(cluster: Cluster) -> None:
    ask = the_ask(cluster.nodes[0].st.ask(1, 3))
    cluster.settle()
    cluster.nodes[1].st.refuse(cluster.nodes[1].st.pending()[0])
    cluster.settle()
    assert ask.final == LeaseStatus.NO
    assert cluster.nodes[0].exchange.requester.refused == 1
    cluster.check_at_rest()


def test_a_hurry_that_crosses_a_refusal_leaves_nothing_lent(cluster: Cluster) -> None:
    """To the stager it is a request anew, which nobody waits for."""
    node, home = cluster.nodes[:2]
    ask = the_ask(node.st.ask(1, 3))
    cluster.settle()
    node.st.hurry(ask)
    node.step()
    cluster.network.deliver_all()
    home.step()
    home.st.refuse(home.st.pending()[0])
    cluster.settle()
    assert ask.final == LeaseStatus.NO
    assert len(home.st.pending()) == 1
    cluster.drain()
    cluster.check_at_rest()


def test_many_are_asked_for_in_one_message(cluster: Cluster) -> None:
    sent: list[list[type]] = []
    cluster.network.on_send = lambda node, to, message: sent.append(types_of(message))
    asks = [cluster.nodes[0].st.ask(1, row) for row in range(30)]
    cluster.drain()
    assert {the_ask(ask).final for ask in asks} == {LeaseStatus.OK}
    assert sent == [[Want] * 30, [NodeAnswer] * 30]
    cluster.check_at_rest()


def test_what_was_fetched_ahead_is_told_together_while_more_bytes_are_announced(cluster: Cluster) -> None:
    first = [fetched(cluster, row) for row in range(GOTS_MOST - 1)]
    cluster.network.ends[0].has_more = True
    cluster.network.finish_all()
    cluster.settle()
    assert {ask.final for ask in first} == {None}
    last = fetched(cluster, GOTS_MOST)
    cluster.network.finish_all()
    cluster.settle()
    assert {ask.final for ask in (*first, last)} == {LeaseStatus.OK}
    cluster.drain()
    cluster.check_at_rest()


@pytest.mark.parametrize("what", ["no more bytes", "a reader waits", "given up"])
def test_what_is_told_together_does_not_wait_for_long(cluster: Cluster, what: str) -> None:
    kept, other = fetched(cluster), the_ask(cluster.nodes[0].st.ask(2, 4, urgent=True))
    cluster.network.ends[0].has_more = True
    cluster.network.finish_all()
    cluster.turn()
    cluster.turn()
    assert kept.final is None
    if what == "no more bytes":
        cluster.network.ends[0].has_more = False
        cluster.turn()
    elif what == "given up":
        cluster.nodes[0].st.give_up(kept)
        cluster.turn()
    else:
        lend_all(cluster.nodes[2])
        cluster.settle()
        cluster.network.finish_all()
        cluster.settle()
        assert other.final == LeaseStatus.OK
    assert kept.final == LeaseStatus.OK
    cluster.drain()
    cluster.check_at_rest()


def test_what_is_given_back_does_not_go_with_each_request(cluster: Cluster) -> None:
    home = cluster.nodes[1]
    for row in range(3):
        fetched(cluster, row)
    cluster.network.finish_all()
    home.exchange.step()
    the_ask(cluster.nodes[0].st.ask(1, 3))
    cluster.nodes[0].step()
    cluster.network.deliver(0, 1)
    home.exchange.step()
    kinds = [kind for kind, _ in home.st.inbox]
    assert kinds == [RecordKind.LEND]
    cluster.drain()
    assert home.st.backs == 4
    cluster.check_at_rest()


def test_a_hurry_reaches_the_stager_once(cluster: Cluster) -> None:
    ask = the_ask(cluster.nodes[0].st.ask(1, 3))
    cluster.settle()
    (loan,) = cluster.nodes[1].st.pending()
    assert not loan.urgent
    cluster.nodes[0].st.hurry(ask)
    cluster.nodes[0].st.hurry(ask)
    cluster.settle()
    assert loan.urgent
    cluster.drain()
    cluster.check_at_rest()


def test_a_hurry_in_the_same_breath_as_its_request_comes_after_it(cluster: Cluster) -> None:
    first = the_ask(cluster.nodes[0].st.ask(1, 3))
    cluster.settle()
    cluster.nodes[0].st.hurry(first)
    second = the_ask(cluster.nodes[0].st.ask(1, 4))
    cluster.nodes[0].st.hurry(second)
    cluster.settle()
    assert all(loan.urgent for loan in cluster.nodes[1].st.pending())
    assert len(cluster.nodes[1].st.pending()) == 2


def test_giving_up_in_the_same_breath_as_asking_leaves_nothing_at_the_home(cluster: Cluster) -> None:
    st = cluster.nodes[0].st
    first = the_ask(st.ask(1, 3))
    cluster.settle()
    st.give_up(first)
    second = the_ask(st.ask(1, 4))
    st.give_up(second)
    cluster.settle()
    assert not cluster.nodes[1].st.pending()
    cluster.check_at_rest()


def test_what_is_given_up_before_its_answer_is_freed_at_once(cluster: Cluster) -> None:
    ask = the_ask(cluster.nodes[0].st.ask(1, 3))
    cluster.settle()
    cluster.nodes[0].st.give_up(ask)
    cluster.settle(0)
    assert (ask.final, ask.freed) == (None, 1)
    lend_all(cluster.nodes[1])  # before it hears of it
    cluster.nodes[1].step()
    cluster.settle()
    assert len(cluster.network.matched) == 1, "the bytes must go somewhere"
    cluster.drain()
    cluster.check_at_rest()


@pytest.mark.parametrize("how", HOWS)
def test_what_is_given_up_while_bytes_are_under_way_is_freed_after_them(cluster: Cluster, how: str) -> None:
    ask = fetched(cluster)
    cluster.nodes[0].st.give_up(ask)
    cluster.settle()
    assert not ask.freed
    assert cluster.nodes[0].exchange.requester.writes()
    cluster.network.finish(0, how)
    cluster.settle()
    assert (ask.final, ask.freed) == (None, 1)
    cluster.check_at_rest()


def test_what_is_given_up_before_its_bytes_come_is_freed_when_that_is_certain(cluster: Cluster) -> None:
    """The answer is there, the bytes are not: the receive is cancelled, and the bytes go elsewhere."""
    cluster.network.late_cancels = cluster.network.slow_bytes = True
    ask = fetched(cluster)
    cluster.nodes[0].st.give_up(ask)
    cluster.settle()
    assert not ask.freed
    cluster.network.decide()
    cluster.settle()
    assert ask.freed == 1
    assert not cluster.nodes[0].exchange.requester.writes()
    cluster.network.set_out()
    cluster.drain()
    cluster.check_at_rest()


def test_a_cancel_may_come_too_late(cluster: Cluster) -> None:
    cluster.network.late_cancels = cluster.network.slow_bytes = True
    ask = fetched(cluster)
    cluster.nodes[0].st.give_up(ask)
    cluster.settle()
    cluster.network.set_out()
    cluster.network.decide()
    cluster.settle()
    assert not ask.freed
    cluster.network.finish()
    cluster.settle()
    assert ask.freed == 1
    cluster.check_at_rest()


def test_what_has_ended_and_is_given_up_is_freed(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    ask = fetched(cluster)
    node.st.give_up(ask)
    cluster.network.finish()
    node.exchange.step()  # before it hears of it
    cluster.settle()
    assert (ask.final, ask.freed) == (LeaseStatus.OK, 1)
    cluster.check_at_rest()


def test_news_arrive_at_one_or_at_all(cluster: Cluster) -> None:
    first, second, third = cluster.nodes
    first.exchange.send_news(-1, b"all")
    first.exchange.send_news(2, b"you")
    first.exchange.send_news(0, b"me")
    first.exchange.send_news(77, b"nobody")
    cluster.settle()
    assert (first.heard, second.heard, third.heard) == ([], [(0, b"all")], [(0, b"all"), (0, b"you")])


# ---- what goes wrong --------------------------------------------------------------------------------------


def test_requests_to_a_node_that_hangs_run_out_and_it_is_left_alone_for_a_while(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    asks = [the_ask(node.st.ask(1, row)) for row in range(5)]
    cluster.wait(SILENT_S - 0.2, 0, 2)
    assert not any(ask.final for ask in asks)
    cluster.wait(0.5, 0, 2)
    assert {ask.final for ask in asks} == {LeaseStatus.LATE}
    assert not any(ask.held for ask in asks)
    assert node.exchange.nodes.resting(cluster.now) == [1]
    other = the_ask(node.st.ask(1, 7))
    node.step()
    node.st.take()
    assert other.final == LeaseStatus.LOST
    cluster.wait(REST_S, 0, 2)
    again = the_ask(node.st.ask(1, 8))
    cluster.drain()
    assert again.final == LeaseStatus.OK
    cluster.check_at_rest()


def test_one_hiccup_is_one_rest_however_many_requests_it_cost(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    for row in range(30):
        node.st.ask(1, row)
    cluster.wait(SILENT_S + 0.5, 0, 2)
    cluster.wait(REST_S, 0, 2)
    assert node.exchange.nodes.usable(1, cluster.now)


@pytest.mark.parametrize(("urgent", "limit"), [(True, COMING_S), (False, PREFETCH_S)])
def test_what_is_coming_runs_out_too_however_often_that_is_said(cluster: Cluster, urgent: bool, limit: float) -> None:
    node = cluster.nodes[0]
    ask = the_ask(node.st.ask(1, 3, urgent=urgent))
    cluster.settle()
    (loan,) = cluster.nodes[1].st.pending()
    for _ in range(int(limit) - 1):
        cluster.nodes[1].st.coming(loan)
        cluster.wait(1.0)
    assert ask.final is None
    cluster.wait(1.5)
    assert ask.final == LeaseStatus.LATE
    assert not cluster.nodes[1].st.pending(), "the home was not told"
    cluster.drain()
    cluster.check_at_rest()


def test_of_bytes_that_may_take_long_it_is_said_that_they_are_being_sent(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requester, "TAKES_LONG", length_of(3))
    stager = cluster.nodes[0].st
    ask = the_ask(stager.ask(1, 3))
    cluster.settle()
    cluster.nodes[1].st.lend(cluster.nodes[1].st.pending()[0])
    cluster.drain()
    assert ask.final == LeaseStatus.OK
    assert ask.goes_on == [LeaseStatus.SENDING]
    cluster.check_at_rest()


def test_a_reader_that_comes_makes_the_limit_shorter(cluster: Cluster) -> None:
    ask = the_ask(cluster.nodes[0].st.ask(1, 3))
    cluster.settle()
    cluster.nodes[1].st.coming(cluster.nodes[1].st.pending()[0])
    cluster.wait(30.0)
    cluster.nodes[0].st.hurry(ask)
    cluster.wait(COMING_S - 1)
    assert ask.final is None
    cluster.wait(1.5)
    assert ask.final == LeaseStatus.LATE


def test_bytes_that_do_not_arrive_run_out_and_their_extent_stays_held(cluster: Cluster) -> None:
    ask = the_ask(cluster.nodes[0].st.ask(1, 3, urgent=True))
    cluster.settle()
    lend_all(cluster.nodes[1])
    cluster.settle()
    cluster.wait(COMING_S + 0.5)
    assert ask.final == LeaseStatus.LATE
    assert ask.held
    assert not ask.freed
    cluster.network.finish()
    cluster.settle()
    assert ask.freed == 1
    cluster.check_at_rest()


def test_a_stager_that_is_gone_answers_no_and_the_next_begins_anew(cluster: Cluster) -> None:
    node, home = cluster.nodes[:2]
    waits, under_way = the_ask(node.st.ask(1, 3)), fetched(cluster, 4)
    home.stager_goes()
    cluster.settle()
    assert waits.final is None, "it is not known yet whether it will come"
    late = the_ask(node.st.ask(1, 5))
    cluster.settle()
    assert late.final == LeaseStatus.NO
    cluster.network.finish_all()
    cluster.settle()
    assert under_way.final == LeaseStatus.OK
    home.stager_comes()
    anew = the_ask(node.st.ask(1, 6))
    cluster.drain()
    assert anew.final == LeaseStatus.OK
    assert waits.final == LeaseStatus.OK, "of the new one"
    cluster.check_at_rest()


def test_a_new_stager_may_number_its_requests_as_the_one_before(cluster: Cluster) -> None:
    """What the one before left under way must not be taken for what this one asked."""
    node = cluster.nodes[0]
    old = fetched(cluster)
    node.stager_goes()
    assert node.exchange.requester.writes()
    node.network.finish(0, WRONG)
    node.exchange.step()
    node.stager_comes()
    new = the_ask(node.st.ask(1, 4))
    assert new.id == old.id
    cluster.drain()
    assert (new.final, new.freed) == (LeaseStatus.OK, 0)
    cluster.check_at_rest()


def test_so_it_may_where_what_was_left_ends_later(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    cluster.network.late_cancels = cluster.network.slow_bytes = True
    old = fetched(cluster)
    node.stager_goes()
    node.stager = Stager(node.arena)  # sooner than the supervisor would
    node.exchange.stager_came()
    new = the_ask(node.st.ask(2, 4))
    cluster.settle(0, 2)
    cluster.network.decide()
    cluster.settle(0, 2)
    assert (new.id, new.freed) == (old.id, 0)
    lend_all(cluster.nodes[2])
    cluster.drain()
    assert new.final == LeaseStatus.OK


@pytest.mark.parametrize("how", [WRONG, SHORT, LONG])
def test_wrong_bytes_are_refused_and_whoever_sends_them_thrice_is_asked_no_more(cluster: Cluster, how: str) -> None:
    node = cluster.nodes[0]
    for number in range(3):
        assert not node.over
        ask = fetched(cluster, number)
        cluster.network.finish(0, how)
        cluster.settle()
        assert ask.final == LeaseStatus.CORRUPT
    assert node.over == [(1, NodeEnd.CORRUPT)]
    assert node.exchange.requester.corrupt == 3
    assert fetched(cluster, 9).final == LeaseStatus.LOST
    theirs = fetched(cluster, 9, by=1, home=0)
    cluster.drain()
    assert theirs.final == LeaseStatus.OK, "it may ask all the same"
    cluster.check_at_rest()


def test_a_wrong_checksum_is_as_bad(cluster: Cluster) -> None:
    ask = the_ask(cluster.nodes[0].st.ask(1, 3))
    cluster.settle()
    cluster.nodes[1].st.lend(cluster.nodes[1].st.pending()[0], check=1)
    cluster.drain()
    assert ask.final == LeaseStatus.CORRUPT
    cluster.check_at_rest()


@pytest.mark.parametrize(("extent", "length"), [(-64, 30), (1 << 40, 30), (0, 1), (64 * 96 - 5, 30), (0, -1)])
def test_a_stager_that_lends_what_cannot_be_lends_nothing(cluster: Cluster, extent: int, length: int) -> None:
    assert length_of(1) == 30
    ask = the_ask(cluster.nodes[0].st.ask(1, 1))
    cluster.settle()
    home = cluster.nodes[1].st
    home.lend_wrong(home.pending()[0], extent, length)
    cluster.drain()
    assert ask.final == LeaseStatus.NO
    assert home.backs == 1
    cluster.check_at_rest()


def test_a_node_whose_transfers_fail_is_lost(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    under_way, another = fetched(cluster, 3), fetched(cluster, 4)
    waits = the_ask(node.st.ask(1, 5))
    node.step()
    cluster.network.finish(0, BROKEN)
    node.step()
    node.st.take()
    assert under_way.final == waits.final == another.final == LeaseStatus.LOST
    assert (under_way.held, waits.held, another.held) == (False, False, True)
    assert node.over == [(1, NodeEnd.LOST)]
    cluster.network.finish(0, BROKEN)
    node.step()
    node.st.take()
    assert another.freed == 1
    node.check_at_rest()


def test_a_node_that_cannot_be_reached_is_lost(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    cluster.network.cut.add((0, 1))
    asks = [the_ask(node.st.ask(1, row)) for row in range(3)]
    cluster.settle()
    assert {ask.final for ask in asks} == {LeaseStatus.LOST}
    assert node.over == [(1, NodeEnd.LOST)]
    node.check_at_rest()
    assert not node.exchange.nodes.alone
    cluster.nodes[2].leave()
    cluster.settle()
    assert node.exchange.nodes.alone


def test_a_node_that_is_taken_for_lost_and_lives_hears_that_this_one_has_left(cluster: Cluster) -> None:
    """It would wait for it for ever."""
    node = cluster.nodes[0]
    cluster.network.cut.add((0, 1))
    the_ask(node.st.ask(1, 3))
    cluster.settle()
    assert node.over == [(1, NodeEnd.LOST)]
    cluster.network.cut.clear()
    node.leave()
    cluster.nodes[2].leave()
    cluster.drain()
    assert cluster.nodes[1].exchange.nodes.alone


def said(*records: Record) -> bytes:
    """The message of a node with these records."""
    (message,) = encode_records(JOB, list(records))
    return message


GARBAGE = {
    "nothing": b"",
    "noise": b"\xff" * 40,
    "too long": None,
    "another job": encode(Leave(JOB + 1)),
    "a type that is none": encode(Leave(JOB)).replace(b"\x92\x03", b"\x92\x63"),
    "cut short": said(Want(1, 2, 3, 4, False))[:-1],
    "longer than it is": said(Want(1, 2, 3, 4, False)) + b"\0",
    "tag 0": said(Want(0, 2, 3, 4, False)),
    "a tag too high": said(Want(TAGS + 1, 2, 3, 4, False)),
    "a row below 0": said(Want(1, -2, 3, 4, False)),
    "a length of 0": said(Want(1, 2, 0, 4, False)),
    "a time that no file has": said(Want(1, 2, 3, 1 << 63, False)),
    "a tag twice": said(Want(1, 2, 3, 4, False), Want(1, 2, 3, 4, False)),
    "urgency of 2": said(Want(1, 2, 3, 4, 2)),  # type: ignore[arg-type]
    "an answer to nothing": said(NodeAnswer(9, 0, LeaseStatus.OK)),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_counted_and_its_sender_asked_no_more(cluster: Cluster, name: str) -> None:
    node = cluster.nodes[0]
    cluster.network.inject(1, 0, GARBAGE[name])
    cluster.settle()
    assert node.exchange.garbage == 1
    assert node.over == [(1, NodeEnd.GARBAGE)]
    assert fetched(cluster).final == LeaseStatus.LOST
    from_another = fetched(cluster, home=2)
    cluster.drain()
    assert from_another.final == LeaseStatus.OK


def test_what_was_asked_of_a_node_that_sends_garbage_is_lost_and_nothing_leaks(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    under_way = fetched(cluster, 3)
    waits = the_ask(node.st.ask(1, 4))
    cluster.settle()
    cluster.network.inject(1, 0, b"?")
    node.step()
    node.st.take()
    assert waits.final == under_way.final == LeaseStatus.LOST
    assert under_way.held
    cluster.drain()
    assert under_way.freed == 1
    cluster.check_at_rest()


def test_a_node_that_sent_garbage_may_leave(cluster: Cluster) -> None:
    """Or this one would wait for it for ever."""
    cluster.network.inject(1, 0, b"?")
    cluster.settle()
    for node in cluster.nodes:
        node.leave()
    cluster.settle()
    assert all(node.exchange.nodes.alone for node in cluster.nodes)


def test_orders_that_cannot_be_are_refused_and_the_others_done(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    good = the_ask(node.st.ask(1, 3))
    kind, records = node.st.outbox.pop()
    bad = [
        (100, -1, 0, 10, 0, 1, 0), (101, 1, -64, 10, 0, 1, 0), (102, 1, 0, 0, 0, 1, 0), (103, 1, 1 << 40, 10, 0, 1, 0),
        (104, 1, 0, 10, 0, 1, 2), (105, 1, 0, 1 << 40, 0, 1, 0),
    ]  # fmt: skip
    with pytest.raises(ValueError):
        node.exchange.from_stager(kind, [*bad, *records, records[0]])
    for other in (RecordKind.GOT, RecordKind.FREED, RecordKind.LEND, RecordKind.BACK):
        with pytest.raises(ValueError):
            node.exchange.from_stager(other, [(1,)])
    cluster.drain()
    assert good.final == LeaseStatus.OK
    assert not cluster.nodes[1].over
    cluster.check_at_rest()


def test_nodes_that_do_not_exist_are_lost_and_so_is_this_one(cluster: Cluster) -> None:
    asks = [the_ask(cluster.nodes[0].st.ask(node, 3)) for node in (0, 3, 65535)]
    cluster.settle()
    assert {ask.final for ask in asks} == {LeaseStatus.LOST}
    cluster.check_at_rest()


def test_a_node_that_left_is_not_asked_and_gets_what_it_had_asked_for_nowhere(cluster: Cluster) -> None:
    node, home = cluster.nodes[:2]
    waits, theirs = the_ask(node.st.ask(1, 3)), fetched(cluster, 4, by=1, home=0)
    home.leave()
    cluster.settle()
    assert waits.final == LeaseStatus.NO
    assert theirs.final is None
    assert node.over == [(1, NodeEnd.LEFT)]
    assert fetched(cluster, 5).final == LeaseStatus.LOST
    cluster.drain()
    cluster.check_at_rest()


def test_a_mount_that_ends_is_announced_once(cluster: Cluster) -> None:
    sent: list[tuple[int, int, list[type]]] = []
    cluster.network.on_send = lambda node, to, message: sent.append((node, to, types_of(message)))
    cluster.nodes[0].leave()
    cluster.nodes[0].exchange.leave()
    assert sent == [(0, 1, [Leave]), (0, 2, [Leave])]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_all_that_leave_are_alone_at_last(cluster: Cluster, order: tuple[int, ...]) -> None:
    for number in order:
        assert not cluster.nodes[number].exchange.nodes.alone or number == order[-1]
        cluster.nodes[number].leave()
        cluster.drain()
    assert all(node.exchange.nodes.alone for node in cluster.nodes)
    cluster.check_at_rest()


def test_a_node_alone_in_the_job_has_nobody_to_wait_for() -> None:
    cluster = Cluster(1)
    assert cluster.nodes[0].exchange.nodes.alone
    cluster.nodes[0].exchange.send_news(-1, b"hello")
    cluster.nodes[0].leave()


def test_who_asks_for_too_much_at_once_is_not_one_of_us(cluster: Cluster) -> None:
    records: list[Record] = [Want(tag, 1, 30, mtime_of(1), False) for tag in range(1, 1100)]
    for message in encode_records(JOB, records):
        cluster.network.inject(1, 0, message)
    cluster.nodes[0].step()
    assert len(cluster.nodes[0].exchange.responder) == 1024
    assert cluster.nodes[0].over == [(1, NodeEnd.GARBAGE)]


def test_a_stager_that_asks_for_too_much_at_once_is_refused_some_of_it(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    record = (3, 0, length_of(3), mtime_of(3), 1, 0)
    node.exchange.from_stager(RecordKind.ASK, [(number, *record) for number in range(1, 2001)])
    node.step()
    status = [record[2] for _, record in node.st.inbox]
    assert status == [LeaseStatus.LOST] * (2000 - 512)
    node.st.inbox.clear()
    cluster.turn(1, 2)
    assert not cluster.nodes[1].over
    assert len(cluster.nodes[1].exchange.responder) == 512


def test_a_tag_may_be_used_again_before_the_home_has_seen_its_bytes_go(cluster: Cluster) -> None:
    node, home = cluster.nodes[:2]
    node.exchange.requester._tags.clear()
    node.exchange.requester._tags.append(7)
    first = fetched(cluster)
    cluster.network.finish()
    node.step()
    node.st.take()
    assert first.final == LeaseStatus.OK
    second = the_ask(node.st.ask(1, 4))
    node.step()
    cluster.network.deliver_all()
    home.step()  # takes what has come before it looks what has gone
    cluster.drain()
    assert not home.over
    assert second.final == LeaseStatus.OK


def test_without_a_tag_nothing_is_asked(cluster: Cluster) -> None:
    cluster.nodes[0].exchange.requester._tags.clear()
    assert fetched(cluster).final == LeaseStatus.LOST


# ---- in any order -----------------------------------------------------------------------------------------

N = 3
nodes = st.integers(0, N - 1)
some = st.integers(0, 40)
rows = st.integers(0, ROWS - 1)
seldom = st.sampled_from([*[False] * 11, True])


class Exchanges(RuleBasedStateMachine):
    """Nodes that are slow, late, replaced and gone, over a network that is slow and hands over wrong bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(N)
        self.cluster.network.late_cancels = self.cluster.network.slow_bytes = True

    def node(self, number: int) -> Node:
        return self.cluster.nodes[number]

    def an_ask(self, number: int, which: int) -> Ask | None:
        stager = self.node(number).stager
        asks = stager.open() if stager else []
        return asks[which % len(asks)] if asks else None

    def a_loan(self, number: int, which: int) -> Loan | None:
        stager = self.node(number).stager
        loans = stager.pending() if stager else []
        return loans[which % len(loans)] if loans else None

    @rule(number=nodes, away=st.sampled_from([1, 2, 1, 2, 0]), row=rows, urgent=st.booleans(), count=st.integers(1, 4))
    def ask(self, number: int, away: int, row: int, urgent: bool, count: int) -> None:
        stager = self.node(number).stager
        if stager is not None and len(stager.free) > 40:
            for more in range(count):
                stager.ask((number + away) % N, (row + more) % ROWS, urgent=urgent)

    @rule(number=nodes, which=some)
    def hurry(self, number: int, which: int) -> None:
        if (ask := self.an_ask(number, which)) is not None:
            self.node(number).st.hurry(ask)

    @rule(number=nodes, which=some)
    def give_up(self, number: int, which: int) -> None:
        if (ask := self.an_ask(number, which)) is not None:
            self.node(number).st.give_up(ask)

    @rule(number=nodes, which=some, what=st.sampled_from(["lend", "lend", "lend", "coming", "refuse", "mad"]))
    def answer(self, number: int, which: int, what: str) -> None:
        loan = self.a_loan(number, which)
        if loan is None:
            return
        stager = self.node(number).st
        if what == "mad" and stager.free:
            stager.lend_wrong(loan, which * 1000 - 64, loan.length + which % 3)
        elif what == "lend":
            stager.lend(loan)
        elif what == "coming":
            stager.coming(loan)
        else:
            stager.refuse(loan)

    @rule(number=nodes)
    def step(self, number: int) -> None:
        self.node(number).step()

    @rule(number=nodes, most=st.integers(1, 5))
    def take(self, number: int, most: int) -> None:
        stager = self.node(number).stager
        if stager is not None:
            stager.take(most)

    @rule(source=nodes, to=nodes, most=st.integers(1, 5))
    def deliver(self, source: int, to: int, most: int) -> None:
        self.cluster.network.deliver(source, to, most)

    @rule()
    def turn(self) -> None:
        self.cluster.turn()

    @rule(number=nodes, away=st.integers(1, N - 1), row=rows,
          what=st.sampled_from(["lend", "coming", "given up meanwhile", "refused meanwhile"]))  # fmt: skip
    def begin_to_fetch(self, number: int, away: int, row: int, what: str) -> None:
        self.ask(number, away, row, urgent=False, count=3)
        self.cluster.turn()
        self.cluster.turn()
        home = (number + away) % N
        if what == "coming":
            self.answer(home, row, "coming")
            self.cluster.turn()
            self.cluster.turn()
        elif what == "refused meanwhile":
            self.hurry(number, row)
            self.cluster.turn(number)
            self.cluster.network.deliver(number, home)
            self.step(home)
            self.answer(home, row, "refuse")
            self.step(home)
        elif what == "given up meanwhile":
            self.give_up(number, row)
            self.step(number)
            self.lend_all(home)
            self.step(home)
        else:
            self.lend_all(home)
        self.cluster.turn()
        self.cluster.turn()

    @rule(most=st.integers(1, 5))
    def bytes_set_out(self, most: int) -> None:
        self.cluster.network.set_out(most)

    @rule(number=nodes)
    def lend_all(self, number: int) -> None:
        lend_all(self.node(number))

    @precondition(lambda self: self.cluster.network.matched)
    @rule(which=some, how=st.sampled_from([RIGHT, RIGHT, RIGHT, WRONG, SHORT, LONG]))
    def finish(self, which: int, how: str) -> None:
        self.cluster.network.finish(which % len(self.cluster.network.matched), how)

    @rule()
    def decide(self) -> None:
        self.cluster.network.decide()

    @rule(seconds=st.sampled_from([0.01, 0.05, 0.1, 0.3, 0.7, 1.1, 2.5, 11.0, 75.0]))
    def time_passes(self, seconds: float) -> None:
        self.cluster.now += seconds

    @rule(number=nodes)
    def stager_dies(self, number: int) -> None:
        if self.node(number).stager is not None:
            self.node(number).stager_goes()

    @rule(number=nodes)
    def stager_comes(self, number: int) -> None:
        node = self.node(number)
        if node.stager is None and not node.has_left and not node.exchange.requester.writes():
            node.stager_comes()

    @rule(number=nodes, really=seldom)
    def leave(self, number: int, really: bool) -> None:
        if really and not self.node(number).has_left:
            self.node(number).leave()

    @rule(number=nodes, more=st.booleans())
    def more_bytes_are_announced(self, number: int, more: bool) -> None:
        self.cluster.network.ends[number].has_more = more

    @rule(number=nodes, to=st.integers(-1, N))
    def say(self, number: int, to: int) -> None:
        self.node(number).exchange.send_news(to, b"news")

    @invariant()
    def nobody_writes_where_nobody_may(self) -> None:
        for node in self.cluster.nodes:
            if node.stager is not None:
                node.stager.check()

    @invariant()
    def what_is_counted_is_so(self) -> None:
        for node in self.cluster.nodes:
            requester = node.exchange.requester
            assert len(requester._wants) + len(requester._tags) == TAGS

    def teardown(self) -> None:
        self.cluster.drain()
        self.cluster.check_at_rest()
        for node in self.cluster.nodes:
            assert node.exchange.garbage == 0, "one of us was taken for a stranger"
            if not node.has_left:
                node.leave()
        self.cluster.drain()
        assert all(node.exchange.nodes.alone for node in self.cluster.nodes)
        self.cluster.check_at_rest()


bytes_of_a_message = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.builds(
        lambda tag, row, length, urgent: said(Want(tag, row, length, 5, urgent)),
        st.integers(0, 12), st.integers(-2, ROWS), st.integers(-1, SLOT), st.booleans() | st.just(2),
    ),
    st.builds(lambda of, tag: said(of(tag)), st.sampled_from([Hurry, Drop]), st.integers(0, 12)),
    st.just(encode(Leave(JOB))),
    st.builds(
        lambda tag, check, status: said(NodeAnswer(tag, check, status)),
        st.integers(0, 12), st.integers(0, 5), st.integers(0, 7),
    ),
)  # fmt: skip


class WorseExchanges(Exchanges):
    """So they do among strangers, and over a network that fails. What was begun need not end at the other side then;
    but nobody is told wrong bytes, or waits for ever."""

    @initialize()
    def begin(self) -> None:
        self.cluster.network.on_send = lambda node, to, message: None

    @rule(source=nodes, to=nodes, message=bytes_of_a_message, really=seldom)
    def garbage(self, source: int, to: int, message: bytes | None, really: bool) -> None:
        if really and source != to:
            self.cluster.network.inject(source, to, message)

    @rule(source=nodes, to=nodes, really=seldom)
    def cut(self, source: int, to: int, really: bool) -> None:
        if really:
            self.cluster.network.cut.add((source, to))

    @precondition(lambda self: self.cluster.network.matched)
    @rule(which=some, really=seldom)
    def fail(self, which: int, really: bool) -> None:
        if really:
            self.cluster.network.finish(which % len(self.cluster.network.matched), BROKEN)

    def teardown(self) -> None:
        first = self.node(0)  # all others hang
        self.cluster.network.ends[0].has_more = False
        first.step()
        self.cluster.wait(80.0, 0)
        self.cluster.network.decide()
        first.step()
        if first.stager is not None:
            first.stager.take()
            first.stager.check()
            matched = {half.match[2] for _, half in self.cluster.network.matched if half.node == 0}
            may_wait = {want.ask for tag, want in first.exchange.requester._wants.items() if tag in matched}
            for ask in first.stager.asks.values():
                assert ask.final is not None or ask.given_up, "waits for ever"
                assert ask.is_over or ask.id in may_wait, "its extent is held for ever"
        for node in self.cluster.nodes:
            if not node.has_left:
                node.leave()


often = settings(
    max_examples=examples(120), stateful_step_count=60, suppress_health_check=list(HealthCheck)
)  # fmt: skip
TestExchanges = Exchanges.TestCase
TestExchanges.settings = often
TestWorseExchanges = WorseExchanges.TestCase
TestWorseExchanges.settings = often


@pytest.fixture(autouse=True)
def contents_differ() -> Iterator[None]:
    assert len({content(row) for row in range(ROWS)}) == ROWS
    return
