"""Servers come and go; each gets the answers to its own demands, and a grace waits for all that were asked."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from nopfsfs.protocol.server_stager import (
    TO_SERVER_MAX,
    Answer,
    AskGrace,
    Demand,
    FileChanged,
    GracePassed,
    Origin,
    StagerPing,
    StagerPong,
    ToServer,
    Welcome,
    YoungFilesRead,
    YoungRead,
    to_server,
)
from nopfsfs.stager import server_links as module
from nopfsfs.stager.server_links import ServerLinks
from nopfsfs.supervisor.processes.supervised import sequenced_pair
from tests.examples import examples

some = st.integers(0, 100)  # picks one of what there is


class Servers:
    """Links, and the servers at their other ends."""

    def __init__(self) -> None:
        self._passed: list[int] = []
        self.links = ServerLinks()
        self.ends: dict[int, socket.socket] = {}  # by link

    @property
    def passed(self) -> list[int]:
        """The graces that have passed."""
        if number := self.links.take_passed():
            self._passed.append(number)
        return self._passed

    def add(self) -> int:
        ours, theirs = sequenced_pair()
        theirs.setblocking(False)
        link = self.links.add(ours)
        assert link not in self.ends
        self.ends[link] = theirs
        return link

    def remove(self, link: int) -> None:
        self.ends.pop(link).close()
        self.links.remove(link)

    def received(self, link: int) -> list[ToServer]:
        found: list[ToServer] = []
        while True:
            try:
                found.append(to_server.decode(self.ends[link].recv(TO_SERVER_MAX)))
            except BlockingIOError:
                return found

    def passes(self, link: int, number: int) -> None:
        assert self.links.take(link, GracePassed(number)) is None, "dealt with"

    def knows(self, link: int, asked: Demand) -> Demand:
        """A demand as the stager knows it."""
        known = self.links.take(link, asked)
        assert isinstance(known, Demand)
        return known

    def close(self) -> None:
        for link in list(self.ends):
            self.remove(link)


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()


class AnyOrder(RuleBasedStateMachine):
    """Everything that can happen to the links, one grace at a time, as the stager asks for them."""

    def __init__(self) -> None:
        super().__init__()
        self.s = Servers()
        self.number = 0
        self.waited_for: set[int] = set()  # links that were asked for grace `number`, and have not passed it
        self.expected: list[int] = []  # graces that have passed
        self.demands: list[tuple[int, Demand, Demand]] = []  # link, as it was asked, and as the stager knows it

    def teardown(self) -> None:
        self.s.close()

    def pick(self, at: int) -> int:
        return sorted(self.s.ends)[at % len(self.s.ends)]

    def end_wait(self, link: int) -> None:
        if link in self.waited_for:
            self.waited_for.discard(link)
            if not self.waited_for:
                self.expected.append(self.number)

    @precondition(lambda self: len(self.s.ends) < 6)
    @rule()
    def comes(self) -> None:
        link = self.s.add()
        assert self.s.received(link) == [Welcome()]

    @precondition(lambda self: self.s.ends)
    @rule(at=some)
    def goes(self, at: int) -> None:
        link = self.pick(at)
        self.s.remove(link)
        self.end_wait(link)

    @precondition(lambda self: not self.waited_for)
    @rule()
    def ask(self) -> None:
        self.number += 1
        self.waited_for = set(self.s.ends)
        assert self.s.links.ask(self.number) == (not self.s.ends)
        assert all(self.s.received(link) == [AskGrace(self.number)] for link in self.s.ends)

    @precondition(lambda self: self.s.ends)
    @rule(at=some, back=st.sampled_from([0, 0, 0, 1, -1]))
    def passes(self, at: int, back: int) -> None:
        """The grace that is asked for; or one that is over, or never was."""
        link = self.pick(at)
        if self.number - back > 0:
            self.s.passes(link, self.number - back)
        if back == 0:
            self.end_wait(link)

    @precondition(lambda self: self.s.ends)
    @rule(at=some, number=st.one_of(st.integers(1, 3), st.integers(1, 2**48 - 1)))
    def demands_bytes(self, at: int, number: int) -> None:
        link = self.pick(at)
        asked = Demand(number, at, 7, 8)
        known = self.s.knows(link, asked)
        assert replace(known, id=number) == asked
        assert all((known.id == other.id) == ((link, number) == (of, before.id)) for of, before, other in self.demands)
        self.demands.append((link, asked, known))

    @precondition(lambda self: self.demands)
    @rule(at=some)
    def is_answered(self, at: int) -> None:
        """Also what somebody asked who is gone."""
        link, asked, known = self.demands[at % len(self.demands)]
        self.s.links.answer(Answer(known.id, 0, 5, 6, Origin.SOURCE))
        if link in self.s.ends:
            assert self.s.received(link) == [Answer(asked.id, 0, 5, 6, Origin.SOURCE)]

    @precondition(lambda self: self.s.ends)
    @rule(at=some)
    def says_that_a_file_changed_or_is_young(self, at: int) -> None:
        for news in (FileChanged(at), YoungFilesRead([YoungRead(at, 0, 0, 8, 7)])):
            assert self.s.links.take(self.pick(at), news) == news

    @invariant()
    def a_grace_has_passed_when_all_that_live_have_passed_it(self) -> None:
        assert self.s.passed == self.expected
        assert len(self.s.links) == len(self.s.ends)

    @invariant()
    def nobody_got_anything_else(self) -> None:
        assert not any(self.s.received(link) for link in self.s.ends)


AnyOrder.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40)
test_in_any_order = AnyOrder.TestCase


def test_without_servers_there_is_nothing_to_wait_for(servers: Servers) -> None:
    assert servers.links.ask(1)
    assert servers.passed == [], "who asked knows"


def test_a_server_that_comes_after_a_grace_was_asked_for_is_not_waited_for(servers: Servers) -> None:
    """It reads what is published since, and nothing that was withdrawn before."""
    first = servers.add()
    assert not servers.links.ask(1)
    second = servers.add()
    assert servers.received(second) == [Welcome()]
    servers.passes(second, 1)
    assert servers.passed == []
    servers.passes(first, 1)
    assert servers.passed == [1]


def test_a_grace_may_ask_for_the_next_as_soon_as_it_has_passed(servers: Servers) -> None:
    """As the stager does."""
    link = servers.add()
    servers.links.ask(1)
    servers.passes(link, 1)
    assert servers.passed == [1]
    servers.links.ask(2)
    servers.passes(link, 1)
    assert servers.passed == [1]
    servers.passes(link, 2)
    assert servers.passed == [1, 2]
    assert servers.received(link) == [Welcome(), AskGrace(1), AskGrace(2)]


def test_links_that_live_keep_their_numbers_when_all_have_been_used(servers: Servers) -> None:
    first = servers.add()
    servers.links._next = module._LINKS_MASK
    others = [servers.add() for _ in range(3)]
    assert len({first, *others}) == 4
    assert all(0 < link <= module._LINKS_MASK for link in others)


def test_a_server_that_takes_nothing_holds_up_nobody_and_gets_all_in_the_end(servers: Servers) -> None:
    """It is stopped: its socket is full, the others get theirs at once, and when it goes on nothing is missing."""
    stopped, other = servers.add(), servers.add()
    known = servers.knows(stopped, Demand(1, 0, 0, 1))
    for number in range(3000):
        servers.links.answer(Answer(known.id, 0, number, 1))
    servers.links.ask(1)
    assert servers.received(other) == [Welcome(), AskGrace(1)]
    servers.passes(other, 1)
    assert [(link, full) for _, link, full in servers.links.turned()] == [(stopped, True)]
    assert servers.links.turned() == []
    got: list[ToServer] = []
    while len(got) < 3002:
        got += servers.received(stopped)
        servers.links.flush(stopped)
    assert got == [Welcome(), *(Answer(1, 0, number, 1) for number in range(3000)), AskGrace(1)]
    assert [(link, full) for _, link, full in servers.links.turned()] == [(stopped, False)]
    servers.passes(stopped, 1)
    assert servers.passed == [1]


def test_a_ping_is_answered_here(servers: Servers) -> None:
    link = servers.add()
    assert servers.links.take(link, StagerPing()) is None
    assert servers.received(link) == [Welcome(), StagerPong()]


def test_a_server_that_takes_nothing_and_dies_is_waited_for_no_more(servers: Servers) -> None:
    stopped = servers.add()
    for _ in range(1000):
        servers.links.answer(Answer(stopped << 48 | 1, 0, 0, 1))
    servers.links.ask(1)
    servers.remove(stopped)
    assert servers.passed == [1]
    assert servers.links.turned() == []


def test_what_is_sent_to_a_server_that_has_just_died_is_lost(servers: Servers) -> None:
    link = servers.add()
    known = servers.knows(link, Demand(1, 0, 0, 1))
    servers.ends[link].close()
    servers.links.answer(Answer(known.id, 0, 0, 1))
    assert not servers.links.ask(1)
    servers.remove(link)
    assert servers.passed == [1]
