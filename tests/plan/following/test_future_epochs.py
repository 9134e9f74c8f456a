"""Epochs further ahead than the tables of a track: one rank of several reads another part of the files in each."""

from __future__ import annotations

import numpy as np
import pytest

from nopfsfs.plan.epoch_order import DataSet, FileOrder, Hypothesis, build
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.following.foresight import HORIZON, EpochRows
from nopfsfs.plan.following.future_epochs import TABLES
from nopfsfs.plan.samplers.sampler import Spec

pytestmark = pytest.mark.usefixtures("small_budget")

FILES, WORLD, FIRST = 4000, 8, 5
LENGTH = FILES // WORLD


def data_sets() -> list[DataSet]:
    return [DataSet(0, ".", (FileOrder(("image_folder",), np.arange(FIRST, FIRST + FILES)),))]


def epoch(number: int, world: int = WORLD, ranks: tuple[int, ...] = (3,)) -> Hypothesis:
    return Hypothesis(0, 0, Spec("distributed", 42), number, world, ranks)


class Reading:
    def __init__(self, world: int = WORLD, ranks: tuple[int, ...] = (3,)) -> None:
        self.datasets = data_sets()
        orders = [build(epoch(e, world, ranks), self.datasets).rows for e in range(HORIZON + 12)]
        self.stream = np.concatenate(orders).astype(np.int64)
        self.follower = Follower(self.datasets, 42, "distributed", [(world, ranks)])
        self.at = 0

    def read(self, count: int) -> None:
        for row in self.stream[self.at : self.at + count].tolist():
            self.follower.observe(np.array([row]), np.array([1]))
            self.follower.settle()
        self.at += count

    def look_far(self, most: int = 1000) -> int:
        done = 0
        while done < most and (job := self.follower.work_far()) is not None:
            job.run()
            job.deliver()
            done += 1
        return done

    def next_epochs(self) -> tuple[np.ndarray, np.ndarray]:
        """In which epoch from now each file is read next: as foreseen (-1: not known), and in truth."""
        rows = np.arange(FIRST, FIRST + FILES)
        uses = self.follower.next_uses(rows)
        later: dict[int, int] = {}
        for at in range(len(self.stream) - 1, self.follower.position - 1, -1):
            later[int(self.stream[at])] = at
        truth = np.array([later.get(row, -1) for row in rows.tolist()])
        assert np.all((uses < 0) | (uses >= self.follower.position))
        here = self.follower.position // LENGTH
        return np.where(uses >= 0, uses // LENGTH - here, -1), np.where(truth >= 0, truth // LENGTH - here, -1)


def test_it_sees_as_far_as_a_word_has_bits() -> None:
    reading = Reading()
    reading.read(300)
    assert not reading.follower.knows_future
    assert reading.look_far() == HORIZON - 1
    assert reading.follower.knows_future
    foreseen, truth = reading.next_epochs()
    assert np.array_equal(foreseen, np.where(truth < HORIZON, truth, -1))


def test_it_goes_on_with_the_reader() -> None:
    reading = Reading()
    reading.read(300)
    reading.look_far(20)
    for count in (LENGTH, 2 * LENGTH, 3 * LENGTH):
        reading.read(count)
        foreseen, truth = reading.next_epochs()
        known = foreseen >= 0
        assert known.mean() > 0.7
        assert np.array_equal(foreseen[known], truth[known])
    assert reading.look_far() == HORIZON - 21 + 6


def test_who_reads_further_than_was_foreseen_begins_anew() -> None:
    reading = Reading()
    reading.read(300)
    reading.look_far(TABLES + 1)
    reading.read(6 * LENGTH)
    foreseen, truth = reading.next_epochs()
    assert np.array_equal(foreseen[foreseen >= 0], truth[foreseen >= 0]), "by the tables alone"
    assert reading.look_far() == HORIZON - 1
    assert np.array_equal(*map(np.sort, (reading.next_epochs()[0] >= 0, reading.next_epochs()[1] < HORIZON)))


@pytest.mark.parametrize(("world", "ranks"), [(1, (0,)), (4, (0, 1, 2, 3))])
def test_where_an_epoch_reads_everything_there_is_no_need(world: int, ranks: tuple[int, ...]) -> None:
    reading = Reading(world, ranks)
    reading.read(300)
    assert reading.look_far() == 0
    assert not reading.follower.knows_future


def test_bits() -> None:
    foresight = EpochRows(FIRST + FILES, epoch(0))
    read = []
    for number in range(HORIZON):
        assert foresight.wants
        order = build(epoch(number), data_sets())
        foresight.write(order)
        foresight.add(epoch(number))
        read.append(set(order.rows.tolist()))
    assert not foresight.wants
    rows = np.arange(FIRST + FILES)
    for gone in range(HORIZON - 1):
        if gone % 9 == 0:
            for after in (0, TABLES, 7):
                expected = [
                    next((at - gone for at in range(gone + after, HORIZON) if row in read[at]), -1) for row in rows
                ]  # fmt: skip
                assert foresight.next_epochs(rows, after).tolist() == expected
        assert foresight.known == HORIZON - gone
        foresight.advance()
    with pytest.raises(ValueError, match="next epoch"):
        foresight.advance()


def test_more_epochs_follow_while_some_are_over() -> None:
    foresight, seen = EpochRows(FIRST + FILES, epoch(0)), []
    rows = np.arange(FIRST + FILES)
    for number in range(3 * HORIZON):
        while len(seen) >= HORIZON - number % 3:
            foresight.advance()
            seen.pop(0)
        order = build(epoch(number), data_sets())
        foresight.write(order)
        foresight.add(epoch(number))
        seen.append(set(order.rows.tolist()))
        if number % 40 == 39:
            expected = [next((at for at, one in enumerate(seen) if row in one), -1) for row in rows.tolist()]
            assert foresight.next_epochs(rows, 0).tolist() == expected


def test_rows_that_it_is_not_about_are_not_read() -> None:
    foresight = EpochRows(FIRST + 10, epoch(0))
    foresight.write(build(epoch(0, 1, (0,)), data_sets()))
    foresight.add(epoch(0, 1, (0,)))
    assert foresight.next_epochs(np.array([FIRST, FIRST + 10, FIRST + FILES + 7]), 0).tolist() == [0, -1, -1]


def test_while_another_data_set_is_read_what_was_foreseen_is_kept() -> None:
    """A validation: of other files, all of them."""
    reading = Reading()
    val = np.arange(FIRST + FILES, FIRST + FILES + 600)
    reading.follower = Follower(
        [*data_sets(), DataSet(1, "val", (FileOrder(("image_folder",), val),))], 42, "distributed", [(WORLD, (3,))]
    )
    reading.read(300)
    reading.look_far()
    for row in val.tolist():
        reading.follower.observe(np.array([row]), np.array([2]))
        reading.follower.settle()
        assert reading.follower.knows_future
    assert reading.look_far() == 0
    uses = reading.follower.next_uses(np.arange(FIRST, FIRST + FILES + 600))
    order = np.argsort(uses[:FILES][uses[:FILES] >= 0], kind="stable")
    left = reading.stream[300 : HORIZON * LENGTH]
    first: dict[int, int] = {}
    for at, row in enumerate(left.tolist()):
        first.setdefault(row, (at + 300) // LENGTH)
    epochs = np.array([first[row] for row in (FIRST + np.flatnonzero(uses[:FILES] >= 0)[order]).tolist()])
    assert np.array_equal(np.flatnonzero(uses[:FILES] >= 0) + FIRST, sorted(first))
    assert np.array_equal(epochs, np.sort(epochs)), "in the order of their epochs"


def test_where_the_next_epoch_is_not_computed_it_is_foreseen_by_its_files() -> None:
    reading = Reading()
    reading.read(300)
    reading.look_far()
    (track,) = reading.follower._beliefs.tracks()
    track.places.ahead = None
    foreseen, truth = reading.next_epochs()
    assert np.array_equal(foreseen, np.where(truth < HORIZON, truth, -1))


def test_epochs_that_are_all_the_same_need_no_foresight() -> None:
    reading = Reading()
    reading.read(300)
    reading.look_far()
    (track,) = reading.follower._beliefs.tracks()
    track.repeats = True
    assert reading.look_far() == 0
    assert not reading.follower.knows_future


def test_a_plan_that_was_given_up_foresees_nothing() -> None:
    reading = Reading()
    reading.read(300)
    reading.look_far(8)
    assert reading.follower.knows_future
    for row in np.random.default_rng(1).integers(FIRST, FIRST + FILES, 3000).tolist():
        reading.follower.observe(np.array([row]), np.array([1]))
        reading.follower.settle()
    assert reading.follower.status().state == "mismatch"
    assert not reading.follower.knows_future
    rows = np.arange(FIRST, FIRST + FILES)
    assert np.array_equal(reading.follower.next_uses(rows), reading.follower._stream.next_uses(rows))


def test_the_future_of_a_job_that_has_ended_is_not_that_of_the_job_that_reads_now() -> None:
    reading = Reading()
    follower, rows = Follower(reading.datasets, None, worlds=[(WORLD, (3,))]), np.arange(FIRST, FIRST + FILES)
    for seed, reader in ((0, 5), (42, 9), (1, 11)):
        for number in range(2):
            plan = Hypothesis(0, 0, Spec("distributed", seed), number, WORLD, (3,))
            opens = build(plan, reading.datasets).rows
            for at in range(0, LENGTH, 50):
                follower.observe(opens[at : at + 50], np.full(len(opens[at : at + 50]), reader))
                follower.settle()
        while (job := follower.work_far()) is not None:
            job.run()
            job.deliver()
        coming = [
            build(Hypothesis(0, 0, Spec("distributed", seed), number, WORLD, (3,)), reading.datasets).rows
            for number in range(2, 12)
        ]
        truth = np.full(FILES, -1)
        for ahead, later in reversed(list(enumerate(coming))):
            truth[later - FIRST] = ahead
        # Its place is between the epochs 1 and 2.
        foreseen = (follower.next_uses(rows) - follower.position) // LENGTH
        told = (truth >= TABLES) & (truth < 8)
        assert np.array_equal(foreseen[told], truth[told]), seed
