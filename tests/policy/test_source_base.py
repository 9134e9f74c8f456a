"""The base: what drains teach of the idle source, and half drains of its knee."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.policy.source_base import (
    CREPT,
    EVIDENCE_MOST,
    KNEE_READINGS,
    LEAP,
    BaseRise,
    Ended,
    SourceBase,
    SourceMemory,
    knee_of,
    together,
)
from nopfsfs.protocol.columns import SIZE_CLASSES
from tests.examples import examples


def ended(seconds: float, count: int, size_class: int = 2) -> Ended:
    """So many requests of one class that all took as long."""
    counts, log2_ns = [0] * SIZE_CLASSES, [0.0] * SIZE_CLASSES
    counts[size_class], log2_ns[size_class] = count, count * math.log2(seconds * 1e9)
    return Ended(counts, log2_ns)


NOTHING = Ended([0] * SIZE_CLASSES, [0.0] * SIZE_CLASSES)


def found(base: SourceBase, size_class: int = 2) -> float:
    """The base of a class, in seconds."""
    log2_ns = base.memory.log2_ns[size_class]
    return math.nan if log2_ns is None else 2.0**log2_ns * 1e-9


def test_the_first_requests_are_taken_for_idle_until_a_drain() -> None:
    base = SourceBase()
    assert base.slowdown(ended(0.1, 8), 1.0) == pytest.approx(1.0)
    assert not base.proven
    assert base.drained(ended(0.02, 10), NOTHING) == pytest.approx(0.2)
    assert base.proven
    assert found(base) == pytest.approx(0.02)


def test_a_drain_moves_the_base_by_the_weight_of_its_requests() -> None:
    base = SourceBase()
    base.drained(ended(0.02, 30), NOTHING)
    assert base.drained(ended(0.03, 30), NOTHING) == pytest.approx(math.sqrt(1.5))
    assert found(base) == pytest.approx(0.02 * math.sqrt(1.5))


def test_old_evidence_counts_for_no_more_than_so_much() -> None:
    base = SourceBase()
    for _ in range(100):
        base.drained(ended(0.02, 100), NOTHING)
    base.drained(ended(0.03, int(EVIDENCE_MOST)), NOTHING)
    assert found(base) == pytest.approx(0.02 * math.sqrt(1.5))


@pytest.mark.parametrize("times", [3.0, 1 / 3])
def test_a_source_that_is_another_is_believed_at_once(times: float) -> None:
    base = SourceBase()
    for _ in range(10):
        base.drained(ended(0.02, 50), NOTHING)
    base.drained(ended(0.02 * times, 20), NOTHING)
    assert found(base) == pytest.approx(0.02 * times)


def test_a_few_odd_requests_do_not_make_another_source() -> None:
    base = SourceBase()
    base.drained(ended(0.02, 100), NOTHING)
    base.drained(ended(0.06, 2), NOTHING)
    assert found(base) < 0.021


def test_the_half_of_a_drain_in_which_others_were_not_quiet_does_not_count() -> None:
    base = SourceBase()
    base.drained(ended(0.02, 100), NOTHING)
    base.drained(ended(0.021, 20), ended(0.09, 20))
    base.drained(ended(0.09, 20), ended(0.021, 20))
    assert found(base) == pytest.approx(0.02, rel=0.03)


def test_halves_that_differ_by_chance_count_both() -> None:
    base = SourceBase()
    base.drained(ended(0.02, 20), NOTHING)
    base.drained(ended(0.02, 10), ended(0.024, 10))
    assert found(base) == pytest.approx(0.02 * 1.2**0.25)


def test_size_classes_have_bases_of_their_own() -> None:
    base = SourceBase()
    base.drained(ended(0.01, 20, 0) + ended(0.5, 20, 6), NOTHING)
    assert (found(base, 0), found(base, 6)) == (pytest.approx(0.01), pytest.approx(0.5))
    assert base.slowdown(ended(1.0, 5, 6), 1.0) == pytest.approx(2.0)
    assert base.slowdown(ended(0.02, 5, 0), 1.0) == pytest.approx(2.0)


def test_a_new_size_class_agrees_with_the_others_on_the_slowdown() -> None:
    base = SourceBase()
    base.drained(ended(0.01, 20, 0), NOTHING)
    slowdown = base.slowdown(ended(0.03, 10, 0) + ended(0.9, 10, 6), 1.0)
    assert slowdown == pytest.approx(3.0)
    assert found(base, 6) == pytest.approx(0.3)
    assert base.slowdown(ended(0.08, 10, 3), 2.0) == pytest.approx(2.0), "nothing known in this tick: as before"


def test_where_all_is_another_classes_that_were_not_seen_move_too() -> None:
    base = SourceBase()
    base.drained(ended(0.01, 20, 0) + ended(0.5, 20, 6), NOTHING)
    base.drained(ended(0.05, 20, 0), NOTHING)
    assert found(base, 6) == pytest.approx(2.5)


@settings(max_examples=examples(200))
@given(st.floats(0.6, 5.5), st.floats(0.5, 6.0), st.floats(0.0, 0.3))
def test_the_knee_is_found_from_three_durations(bend: float, under_way: float, drained: float) -> None:
    def took(n: float) -> float:
        return (1.0 + (under_way * n) ** bend) ** (1.0 / bend)

    idle = took(drained)
    slowdown, half = took(1.0) / idle, took(0.5) / idle
    if half > 1.01:
        assert knee_of(slowdown, half, drained) == pytest.approx(bend, abs=0.1)


def test_a_source_is_as_idle_at_half_as_in_a_drain_if_its_knee_is_sharp() -> None:
    assert knee_of(1.5, 0.98) == 6.0


def test_the_knee_is_the_median_of_the_last_readings() -> None:
    base = SourceBase(SourceMemory((None,) * SIZE_CLASSES, (0.0,) * SIZE_CLASSES, (1.0, 1.1, 1.2)))
    base.halved(1.5, 0.9, 0.06)
    assert base.knee == pytest.approx(1.15)
    for _ in range(20):
        base.halved(3.0, 2.0, 0.0)
    assert base.knee == pytest.approx(1.0, abs=0.01)
    assert len(base.memory.knees) == 9


# ---- the mounts of a job ------------------------------------------------------------------------------------


def memory(seconds: float, evidence: float, size_class: int = 2, knees: tuple[float, ...] = ()) -> SourceMemory:
    """What a mount has found of one class."""
    classes = range(SIZE_CLASSES)
    return SourceMemory(
        tuple(math.log2(seconds * 1e9) if at == size_class else None for at in classes),
        tuple(evidence if at == size_class else 0.0 for at in classes), knees,
    )  # fmt: skip


def test_a_job_goes_by_the_median_by_evidence_of_each_class() -> None:
    job = together([memory(0.02, 30), memory(0.03, 100), memory(0.9, 40), memory(0.5, 5, size_class=3)])
    base = SourceBase(job)
    assert found(base) == pytest.approx(0.03)
    assert found(base, 3) == pytest.approx(0.5)
    assert (job.evidence[2], job.evidence[3], job.evidence[0]) == (EVIDENCE_MOST, 5, 0)
    assert job.log2_ns[0] is None


def test_a_guess_counts_for_nothing_in_a_job() -> None:
    assert together([memory(9.0, 0), memory(0.02, 1)]).log2_ns[2] == pytest.approx(math.log2(0.02e9))
    assert together([memory(9.0, 0)]).log2_ns[2] is None


def test_the_knee_of_a_job_is_the_median_of_all_readings() -> None:
    job = together([memory(0.02, 50, knees=knees) for knees in ((1.0,) * 9, (3.0,) * 9, (2.0,))])
    assert len(job.knees) == KNEE_READINGS
    assert SourceBase(job).knee == pytest.approx(2.0)
    assert together([memory(0.02, 50)]).knees == ()


def test_who_agrees_moves_by_what_the_others_have_proven_and_keeps_what_they_have_not() -> None:
    base = SourceBase(memory(0.04, 10))
    base.slowdown(ended(0.3, 8, size_class=4), 1.0)  # a guess
    assert base.agree(memory(0.02, 90, knees=(2.0,))) == pytest.approx(0.5)
    assert found(base) == pytest.approx(0.02)
    assert found(base, 4) == pytest.approx(0.3)
    assert base.memory.evidence[2] == 90
    assert base.knee == 2.0
    assert base.agree(memory(9.0, 0)) == 1.0
    assert found(base) == pytest.approx(0.02)


@given(
    st.lists(
        st.builds(
            memory, st.floats(1e-6, 1e3), st.floats(0, 500), st.integers(0, SIZE_CLASSES - 1),
            st.lists(st.floats(0.5, 6), max_size=9).map(tuple),
        ),
        min_size=1, max_size=6,
    )
)  # fmt: skip
@settings(max_examples=examples(100))
def test_what_a_job_agrees_upon_lies_between_what_its_mounts_say(memories: list[SourceMemory]) -> None:
    job = together(memories)
    for at in range(SIZE_CLASSES):
        said = [one.log2_ns[at] for one in memories if one.evidence[at]]
        assert (job.log2_ns[at] is None) == (not said)
        assert not said or min(said) <= job.log2_ns[at] <= max(said)
    readings = [knee for one in memories for knee in one.knees]
    assert set(job.knees) <= set(readings)
    assert len(job.knees) == min(KNEE_READINGS, len(readings))
    SourceBase(job)


def rises(*grew: float, room: bool = False) -> list[float]:
    """The rise after each of these drains."""
    rise, found = BaseRise(), []
    for each in grew:
        rise.drained(each, room)
        found.append(rise.times)
    return found


def test_a_rise_is_forgotten_where_the_base_stays_and_sooner_where_there_is_room() -> None:
    slow, fast = rises(10.0, *[1.0] * 20), rises(10.0, *[1.0] * 20, room=True)
    assert slow[0] == fast[0] == 10.0
    assert slow == sorted(slow, reverse=True)
    assert slow[3] > 5.0
    assert slow[-1] == fast[2] == 1.0


def test_a_rise_on_which_the_base_creeps_up_stays() -> None:
    found = rises(10.0, *[1.05] * 20)
    crept = 1 + math.ceil(math.log(CREPT) / math.log(1.05))
    assert found[-1] > found[crept] > 5.0
    assert found[crept:] == sorted(found[crept:])


def test_what_crept_up_in_steps_is_forgotten_when_the_steps_have_ended() -> None:
    assert rises(*[1.1] * 20, *[1.0] * 80)[19::80] == [pytest.approx(1.1**20, rel=0.2), 1.0]


def test_a_base_that_falls_back_takes_the_rise_with_it() -> None:
    assert rises(10.0, 0.1) == [10.0, 1.0]
    assert rises(0.5, 3.0) == [1.0, 3.0]


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.floats(0.05, 20.0), st.booleans()), max_size=50))
def test_a_rise_is_never_more_than_the_base_grew(drains: list[tuple[float, bool]]) -> None:
    rise, level, least = BaseRise(), 1.0, 1.0
    for grew, room in drains:
        rise.drained(grew, room)
        level *= grew
        least = min(least, level)
        assert 1.0 <= rise.times <= level / least * (1 + 1e-9)
        assert grew < LEAP or rise.times >= grew
