"""The stager and a peer process that brings rows, refuses them, is late, keeps extents, scribbles into what it may
still write to, asks for rows, gives them back or not, and dies; in any order, beside all else that can happen to it.

The rig compares every answer with what the file held. Here is checked after every step that no extent that may be
written to is free or anybody else's, and that budgets hold; and in the end that everything was answered and ended, and
that nothing is pinned or taken but what is staged.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings

from nopfsfs.policy.fetch_lane import FetchLane
from nopfsfs.protocol import stager_peer
from nopfsfs.protocol.columns import HOME_HERE, Metric
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.stager_peer import COMING_S, LeaseStatus, RecordKind
from nopfsfs.stager import leases, remote_fetches
from tests.examples import examples
from tests.stager.peer import Ask, FakePeer
from tests.stager.random_steps import SIZES, Player, steps_of
from tests.stager.rig import PAGE, Rig, write_files
from tests.stager.rig import rig as new_rig

BUDGET = 40 * PAGE
OURS = ("demand", "demand", "fetch", "fetch", "evict", "cancel", "budget", "work", "work", "take", "pin", "home")
ASKED = ("bring", "bring", "bring", "refuse", "refuse_held", "coming", "scribble", "wait", "free", "stray")
LENT = ("lend", "lend", "hurry", "back", "back", "check_lent")
ENDS = ("overwrite", "refresh", "fail", "end_peer", "replace_peer")


class PeerPlayer(Player):
    """Does one step after the other, for both sides."""

    def __init__(self, r: Rig) -> None:
        super().__init__(r)
        self.peers = [FakePeer(r)]
        self.fetched = 0  # rows
        self.lent: dict[int, int] = {}  # those not given back, and their rows

    @property
    def peer(self) -> FakePeer:
        return self.peers[-1]

    def fetch(self, row: int, value: int) -> None:
        super().fetch(row, value)
        self.fetched += 2

    def home(self, row: int, value: int) -> None:
        self.r.columns.holder[row] = (0, HOME_HERE, 1, 2)[value % 4]

    def _open(self, value: int) -> Ask | None:
        """A request that has not been answered for good."""
        self.peer.take()
        asks = list(self.peer.writes.values())
        return asks[value % len(asks)] if asks else None

    def bring(self, row: int, value: int) -> None:
        ask = self._open(value)
        if ask is not None:
            self.peer.bring(ask)

    def refuse(self, row: int, value: int) -> None:
        ask = self._open(value)
        if ask is not None:
            self.peer.refuse(ask, (LeaseStatus.NO, LeaseStatus.LATE, LeaseStatus.CORRUPT, LeaseStatus.LOST)[value % 4])

    def refuse_held(self, row: int, value: int) -> None:
        ask = self._open(value)
        if ask is not None:
            refusals = (LeaseStatus.NO, LeaseStatus.LATE, LeaseStatus.CORRUPT, LeaseStatus.OK)
            self.peer.refuse(ask, refusals[value % 4], held=1)

    def coming(self, row: int, value: int) -> None:
        ask = self._open(value)
        if ask is not None:
            self.peer.refuse(ask, (LeaseStatus.COMING, LeaseStatus.SENDING)[value % 2])

    def scribble(self, row: int, value: int) -> None:
        self.peer.take()
        for ask in self.peer.writes.values():
            self.peer.write(ask, bytes([value + 1]) * ask.length)

    def wait(self, row: int, value: int) -> None:
        self.r.now += (0.5, 2.0, 3.5, COMING_S + 2.0)[value % 4]
        self.r.state.check_limits()

    def free(self, row: int, value: int) -> None:
        """As the real one: what was given up, or answered with `held`."""
        self.peer.take()
        held = [number for number in self.peer.writes if number in self.r.state._remote._held]
        if held:
            self.peer.free(self.peer.writes[held[value % len(held)]])

    def stray(self, row: int, value: int) -> None:
        """Answers to what was answered long ago, and to nothing."""
        self.peer.take()
        done = [number for number in self.peer.asks if number not in self.peer.writes] or [10**6]
        number = done[value % len(done)]
        self.peer.say(RecordKind.GOT, (number, value, value % 7, value % 2))
        self.peer.say(RecordKind.FREED, (number,))
        self.peer.send(bytes([value]) * (value + 1))

    # ---- the other way ------------------------------------------------------------------------------------

    def lend(self, row: int, value: int) -> None:
        for number in self.peer.lend(row, urgent=value % 2):
            self.lent[number] = row

    def _lent(self, value: int) -> int:
        return list(self.lent)[value % len(self.lent)] if self.lent else 0

    def hurry(self, row: int, value: int) -> None:
        if (number := self._lent(value)) and LeaseStatus.NO not in self.peer.answers(number):
            self.peer.hurry(number, self.lent[number])

    def back(self, row: int, value: int) -> None:
        if number := self._lent(value):
            self._check_bytes(number)
            del self.lent[number]
            self.peer.back(number)

    def check_lent(self, row: int, value: int) -> None:
        """What is lent is there, unchanged, whatever happened to the row."""
        for number in self.lent:
            self._check_bytes(number)

    def _check_bytes(self, number: int) -> None:
        answers = self.peer.answers(number)
        ok, no, coming = LeaseStatus.OK, LeaseStatus.NO, LeaseStatus.COMING
        assert answers in ([], [ok], [no], [coming], [coming, ok], [coming, no])
        if LeaseStatus.OK in answers:
            assert self.peer.bytes_of(number) in [
                data for (row, _), data in self.r.contents.items() if row == self.lent[number]
            ]

    # ---- ends ---------------------------------------------------------------------------------------------

    def end_peer(self, row: int, value: int) -> None:
        self.peer.end()
        self.lent.clear()
        if value % 2:
            self.peers.append(FakePeer(self.r))

    def replace_peer(self, row: int, value: int) -> None:
        self.peer.writes.clear()
        self.lent.clear()
        self.peers.append(FakePeer(self.r))

    def play(self, step: tuple[str, int, int]) -> None:
        if self.peer.socket.fileno() < 0 and step[0] in (*ASKED, *LENT, "end_peer"):
            return
        super().play(step)
        if self.peer.socket.fileno() >= 0:
            self.peer.hear()
            self.peer.check()

    def close(self) -> None:
        for peer in self.peers:
            peer.close()

    def settle(self) -> None:
        """The peer process answers all that is asked of it, gives back all that it was lent; or dies."""
        if self.peer.socket.fileno() < 0:
            return self.end()
        self.end()
        while self._open(0) is not None:
            for ask in list(self.peer.writes.values()):
                self.peer.bring(ask)
            self.end()
        self.peer.back(*self.lent) if self.lent else None
        return self.end()


def play(steps: list[tuple[str, int, int]]) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        write_files(root, SIZES)
        with new_rig(root, budget=BUDGET, whole_limit=13 * PAGE, range_budget=6 * PAGE) as r:
            r.columns.holder[r.files] = [1, 2, 2, HOME_HERE, 1, 2, 1]
            with closing(PeerPlayer(r)) as player:
                used = 0
                for step in steps:
                    player.play(step)
                    assert r.arena.used <= max(r.arena.budget, used), "grew above the budget"
                    assert r.metric(Metric.ARENA_USED) == r.arena.used
                    used = r.arena.used
                player.settle()
                check_end(r, player)
    finally:
        shutil.rmtree(root)


def lanes_of(r: Rig) -> list[FetchLane]:
    choice = r.state._loads._lanes._choice
    return [choice.source, *choice._disks.values(), *choice._peers.values()]


def check_end(r: Rig, player: PeerPlayer) -> None:
    assert set(r.results) == set(r.asked), "not answered"
    assert r.state._loads._loads == {}, "never ended"
    assert len(r.state._pool._pins) == 0, "pinned for ever"
    assert r.metric(Metric.UNDER_WAY) == r.metric(Metric.DEMANDS_UNDER_WAY) == 0, "a slot is lost"
    assert r.state._slots.free == r.state._slots.limit
    assert r.state._remote.pause is None
    assert r.state._remote._hedged == {}
    assert all(lane._requests == 0 for lane in lanes_of(r)), "a load is under way for ever"
    assert r.state._remote._held == {}
    assert r.state._remote._prefetch_bytes == r.state._remote._held_bytes == r.state._leases._bytes == 0
    assert not any(r.state._remote._prefetches.values())
    assert r.state._remote._waiting == {}
    assert r.state._leases._leases == {}
    assert r.state._leases._waiting == ({}, {})
    assert r.metric(Metric.FETCHES_DONE) == player.fetched
    for row in r.files:
        if r.staged(row) is not None and not r.columns.stale[row]:
            assert r.staged(row) == r.contents[row, int(r.columns.version[row])]
    r.state.set_budget(BUDGET, 13 * PAGE, 6 * PAGE)
    r.state.evict(r.files)
    r.state.set_budget(BUDGET, 0, 0)
    r.run()
    assert r.arena.taken == 0, "a leak"


options = settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])


@options
@given(steps_of(*OURS, *ASKED))
def test_what_is_asked_for_ends_once_and_well(steps: list[tuple[str, int, int]]) -> None:
    play(steps)


@options
@given(steps_of(*OURS, *LENT))
def test_what_is_lent_stays_what_it_is(steps: list[tuple[str, int, int]]) -> None:
    play(steps)


@options
@given(steps_of(*OURS, *ASKED, *LENT, *ENDS))
def test_so_it_is_whatever_changes_and_ends(steps: list[tuple[str, int, int]]) -> None:
    play(steps)


@options
@given(steps_of(*OURS, *ASKED, *LENT, "end_peer"))
def test_so_it_is_with_narrow_bounds(steps: list[tuple[str, int, int]]) -> None:
    with (
        mock.patch.object(remote_fetches, "UNDER_WAY_BYTES", 6 * PAGE),
        mock.patch.object(remote_fetches, "PREFETCHES_A_PAIR", 1),
        mock.patch.object(leases, "UNDER_WAY_BYTES", 6 * PAGE),
        mock.patch.object(leases, "WAITING_MOST", 2),
    ):
        play(steps)


def test_the_steps_reach_what_they_are_for() -> None:
    """That the random ones could find anything: one of each, told one by one."""
    root = Path(tempfile.mkdtemp())
    try:
        write_files(root, SIZES)
        with (
            new_rig(root, budget=BUDGET, whole_limit=13 * PAGE, range_budget=6 * PAGE) as r,
            closing(PeerPlayer(r)) as player,
        ):
            r.columns.holder[r.files] = 1
            player.fetch(r.files[0], 1)
            player.refuse_held(0, 1)
            player.wait(0, 2)
            assert (r.metric(Metric.PEER_LATE), len(r.state._remote._held)) == (2, 2)
            player.scribble(0, 0)
            player.free(0, 0)
            player.bring(0, 0)
            player.end()
            assert sorted(r.told()) == [(Event.STAGED, row) for row in r.files[:2]]
            player.lend(r.files[0], 0)
            assert player.peer.answers(1) == [LeaseStatus.OK]
            player.back(0, 0)
            with pytest.raises(ValueError):
                stager_peer.unpack(bytes([5]) * 5)
            player.settle()
            check_end(r, player)
    finally:
        shutil.rmtree(root)
