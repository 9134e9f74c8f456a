"""What is believed, without any search."""

from __future__ import annotations

import numpy as np
import pytest

from nopfsfs.plan.epoch_order import DataSet, FileOrder, Hypothesis, Proof, build
from nopfsfs.plan.following import beliefs as module
from nopfsfs.plan.following.assumed import PlanHints
from nopfsfs.plan.following.beliefs import Beliefs
from nopfsfs.plan.following.reader_binding import ReaderBinding
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.search.cohort import Cohort
from nopfsfs.plan.search.cohorts import Cohorts
from nopfsfs.plan.search.row_owners import RowOwners
from nopfsfs.plan.tracking.agreement import PlanState
from nopfsfs.plan.tracking.track import OpenVerdict
from nopfsfs.plan.tracking.unread import Unread

FILES = 1000
ROWS = np.arange(20, 20 + FILES)
TRAIN = [DataSet(0, "train", (FileOrder(("image_folder",), ROWS),))]
PLAN, OTHER = (Hypothesis(0, 0, Spec("distributed", seed)) for seed in (42, 7))


class Bench:
    """Beliefs, and what they are built on."""

    def __init__(self, seed: int | None = None) -> None:
        owners = RowOwners(TRAIN)
        self.cohorts, self.binding = Cohorts(owners), ReaderBinding(owners, len(TRAIN))
        hints = PlanHints(seed, "auto", ((1, (0,)),), None)
        self.beliefs = Beliefs(TRAIN, self.cohorts, self.binding, hints, None, [])

    def unexplained(self, plan: Hypothesis, count: int, reader: int = 5) -> Cohort:
        """A cohort that opens the first files of a plan, which proves it."""
        for row in build(plan, TRAIN).rows[:count].tolist():
            self.beliefs.opens += 1
            cohort = self.cohorts.join(reader, self.beliefs.opens)
            cohort.add(row, reader, self.beliefs.opens)
        cohort.proof = Proof(count, 50.0, plan)
        return cohort


def test_a_plan_is_assumed_where_a_seed_was_said() -> None:
    assert Bench().beliefs.primary is None
    (track,) = Bench(42).beliefs.tracks()
    assert (track.hypothesis, track.agreement.state) == (PLAN, PlanState.WATCHING)


def test_a_plan_that_its_opens_prove_is_confirmed() -> None:
    bench = Bench(42)
    (track,) = bench.beliefs.tracks()
    cohort = bench.unexplained(PLAN, 30)
    for row, reader, _ in cohort.opens:
        track.observe(row, reader)
    bench.beliefs.confirm(track, cohort)
    assert track.locked
    assert not bench.cohorts, "all of its opens are explained"
    assert bench.beliefs.streams() == [track]


def test_a_plan_that_is_adopted_repeats_the_opens_that_showed_it() -> None:
    bench = Bench(42)
    (assumed,) = bench.beliefs.tracks()
    bench.beliefs.adopt(OTHER, bench.unexplained(OTHER, 30), assumed)
    assert bench.beliefs.tracks() == [assumed]
    assert (assumed.hypothesis, assumed.locked, assumed.position) == (OTHER, True, 30)
    bench.beliefs.adopt(PLAN, bench.unexplained(PLAN, 20, reader=6), None)
    assert {track.hypothesis for track in bench.beliefs.tracks()} == {PLAN, OTHER}


def test_a_new_reader_is_shown_to_the_plan_that_is_read_not_to_one_whose_readers_have_ended() -> None:
    bench = Bench()
    bench.beliefs.adopt(PLAN, bench.unexplained(PLAN, 30), None)
    bench.beliefs.adopt(OTHER, bench.unexplained(OTHER, 30, reader=6), None)
    ended, read = bench.beliefs.tracks()  # what was found last comes first
    assert (ended.hypothesis, read.hypothesis) == (OTHER, PLAN)
    for row in read.upcoming(read.position, 300).tolist():
        bench.beliefs.opens += 1
        read.observe(row, 5)
        bench.beliefs.foreseen(read, 5)
    both = [row for row in ROWS.tolist() if ended.places.expects(row) and read.places.expects(row)]
    assert both
    assert {bench.beliefs.track_for(0, row, reader=9) for row in both} == {read}


def test_tables_of_many_files_are_made_by_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INLINE", FILES - 1)
    bench = Bench()
    bench.beliefs.adopt(PLAN, bench.unexplained(PLAN, 30), None)
    assert bench.beliefs.tracks() == []
    job = next(bench.beliefs.jobs())
    job.run()
    job.deliver()
    (track,) = bench.beliefs.tracks()
    assert (track.locked, track.position) == (True, 30)
    job.deliver()
    assert bench.beliefs.tracks() == [track], "what was adopted once is done"


def test_a_locked_plan_is_given_up_after_contradictions() -> None:
    bench = Bench()
    bench.beliefs.adopt(PLAN, bench.unexplained(PLAN, 30), None)
    (track,) = bench.beliefs.tracks()
    for _ in range(23):
        bench.beliefs.contradicted(track)
    assert track.locked
    bench.beliefs.contradicted(track)
    assert (track.locked, track.agreement.was_locked) == (False, True)


def test_of_an_unknown_order_what_is_left_unread_is_handed_out() -> None:
    bench = Bench(42)
    (track,) = bench.beliefs.tracks()
    opens = np.random.default_rng(987).permutation(ROWS)[:100]
    for row in opens.tolist():
        bench.beliefs.opens += 1
        cohort = bench.cohorts.join(5, bench.beliefs.opens)
        cohort.add(row, 5, bench.beliefs.opens)
    bench.beliefs.give_up_search(cohort)
    assert track.agreement.state is PlanState.MISMATCH
    (stream,) = bench.beliefs.streams()
    assert isinstance(stream, Unread)
    coming = stream.upcoming(0, FILES)
    assert not np.isin(coming[coming >= 0], opens).any()


def test_of_an_unknown_order_what_is_left_unread_is_handed_out_after_a_job_whose_order_was_known() -> None:
    """The dead plan still foresees an open now and then, by chance."""
    bench = Bench()
    bench.beliefs.adopt(PLAN, bench.unexplained(PLAN, 30), None)
    (ended,) = bench.beliefs.tracks()
    for row in ended.upcoming(ended.position, 200).tolist():
        bench.beliefs.opens += 1
        ended.observe(row, 5)
        bench.beliefs.foreseen(ended, 5)
    assert bench.beliefs.streams() == [ended]
    opens = np.random.default_rng(987).permutation(ROWS)[:700].tolist()
    cohort, by_chance = None, 0
    for row in opens:
        bench.beliefs.opens += 1
        if ended.observe(row, 9) is OpenVerdict.FORESEEN:
            bench.beliefs.foreseen(ended, 9)
            by_chance += 1
        else:
            bench.binding.contradicted(ended, 9)
            bench.beliefs.read_on(row)
            cohort = bench.cohorts.join(9, bench.beliefs.opens)
            cohort.add(row, 9, bench.beliefs.opens)
    assert cohort is not None
    assert by_chance
    bench.beliefs.give_up_search(cohort)
    (stream,) = bench.beliefs.streams()
    assert isinstance(stream, Unread)
    assert bench.beliefs.unknown_lately


def test_what_a_user_says_is_followed_until_it_is_forgotten() -> None:
    bench = Bench()
    bench.beliefs.register([(build(PLAN, TRAIN), 64)], replace_said=True)
    (track,) = bench.beliefs.tracks()
    assert (track.given, track.said, track.places.k) == (True, PLAN, 64)
    bench.beliefs.register([(build(PLAN, TRAIN), 64)], replace_said=True)
    assert bench.beliefs.tracks() == [track], "it is said again, and goes on"
    bench.beliefs.register([(build(OTHER, TRAIN), None)], replace_said=True)
    assert [one.said for one in bench.beliefs.tracks()] == [OTHER]
    bench.beliefs.forget()
    assert (bench.beliefs.tracks(), bench.beliefs.primary) == ([], None)
