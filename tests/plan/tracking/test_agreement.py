"""How opens change what a plan is worth."""

from __future__ import annotations

import pytest

from nopfsfs.plan.epoch_order import Hypothesis, Proof
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.tracking.agreement import LOST, Agreement, PlanState

PLAN = Hypothesis(0, 0, Spec("distributed", 42))
NEXT_EPOCH = Hypothesis(0, 0, Spec("distributed", 42), epoch=1)
OTHER = Hypothesis(0, 0, Spec("distributed", 7))


def locked() -> Agreement:
    agreement = Agreement()
    agreement.lock(PLAN)
    return agreement


@pytest.mark.parametrize(("agreeing", "left"), [(0, 23), (2, 22), (10, 18), (100, 0)])
def test_two_agreeing_opens_cancel_a_contradiction(agreeing: int, left: int) -> None:
    """So a plan that explains only half of the opens is given up."""
    half = locked()
    assert not any(half.contradicted() for _ in range(LOST - 1))
    for _ in range(agreeing):
        half.agreed()
    assert half.against == left
    assert half.contradicted() is (left == LOST - 1)


def test_a_plan_that_was_given_up_fits_again() -> None:
    agreement = Agreement()
    assert not agreement.revived(telling=True), "it was never locked"
    agreement = locked()
    agreement.give_up(PlanState.WATCHING)
    for _ in range(23):
        agreement.agreed()
    agreement.disagreed()
    agreement.agreed()
    assert not agreement.revived(telling=True)
    agreement.agreed()
    assert agreement.revived(telling=True)
    assert not agreement.revived(telling=False)
    agreement.lock(PLAN)
    assert not agreement.revived(telling=True)
    assert (agreement.state, agreement.was_locked, agreement.against) == (PlanState.LOCKED, True, 0)


def test_a_mismatch_changes_the_stream_when_it_begins_and_when_it_ends() -> None:
    agreement, turns = locked(), []
    for state in (PlanState.WATCHING, PlanState.MISMATCH, PlanState.MISMATCH):
        agreement.give_up(state)
        turns.append(agreement.turns)
    agreement.lock(PLAN)
    agreement.lock(PLAN)
    assert [*turns, agreement.turns] == [0, 1, 1, 2]


def test_the_first_proof_of_a_plan_stays_over_its_epochs() -> None:
    agreement = Agreement()
    first, later, other = Proof(5, 41.0, PLAN), Proof(9, 60.0, NEXT_EPOCH), Proof(6, 44.0, OTHER)
    agreement.lock(PLAN, first)
    agreement.lock(NEXT_EPOCH, later)
    assert agreement.proof is first
    agreement.lock(OTHER)
    assert agreement.proof is first, "nothing better is known"
    agreement.lock(OTHER, other)
    assert agreement.proof is other


def test_figures_of_the_last_hits() -> None:
    agreement = Agreement()
    assert (agreement.last_hit, agreement.hits, agreement.hits_since(0), agreement.rate(5)) == (0, 0, 0, 0.0)
    for now in range(2, 400, 2):  # every second open of the mount
        agreement.hit(now, own=now <= 200)
    assert (agreement.last_hit, agreement.last_own, agreement.hits) == (398, 200, 199)
    assert (agreement.hits_since(390), agreement.hits_since(0)) == (4, 64)
    assert (agreement.own_since(190), agreement.own_since(200)) == (5, 0)
    assert agreement.rate(398) == pytest.approx(0.5, abs=0.01)


def test_a_plan_is_rated_from_its_first_hit_on() -> None:
    agreement = Agreement()
    for now in range(1_000_000, 1_000_030):
        agreement.hit(now, own=True)
    assert agreement.rate(1_000_029) == 1.0


def test_a_plan_whose_readers_have_ended_is_not_read_whatever_is_foreseen_by_chance() -> None:
    agreement = Agreement()
    for now in range(1000):
        agreement.hit(now, own=True)
    assert agreement.read_now(1000, spacing=1)
    for now in range(1010, 3000, 10):
        agreement.hit(now, own=False)
    assert not agreement.read_now(3000, spacing=1)


def test_a_plan_is_read_as_soon_as_new_readers_open_what_it_foresees() -> None:
    agreement = Agreement()
    for now in range(3000, 3016):
        agreement.hit(now, own=False)
    assert agreement.read_now(3015, spacing=1)


def test_a_plan_is_steady_when_it_is_locked_and_has_held() -> None:
    agreement = locked()
    for now in range(512):
        assert not agreement.steady(k_known=True)
        agreement.hit(now, own=True)
    assert agreement.steady(k_known=True)
    assert not agreement.steady(k_known=False)
    agreement.give_up(PlanState.WATCHING)
    assert not agreement.steady(k_known=True)
