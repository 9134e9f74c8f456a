"""Where the ranks of an epoch begin, and how far apart their readers are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nopfsfs.plan.epoch_order import DataSet, FileOrder, Hypothesis, build
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.tracking.epoch_places import EpochPlaces
from nopfsfs.plan.tracking.track import Track

FILES, WORLD, RANKS = 4000, 7, (0, 2, 4, 6)
BATCH, WORKERS, SKIPPED = 32, 8, 288
DATA = [DataSet(0, "train", (FileOrder(("image_folder",), np.arange(FILES)),))]
PLAN = Hypothesis(0, 0, Spec("distributed", 42), 0, WORLD, RANKS)


def opened(plan: Hypothesis, missing: tuple[int, int]) -> list[int]:
    """The rows of the first three files of each worker's batch in mid-epoch, but for one worker's of one rank, which
    is slow: `missing` (lane, worker)."""
    order, lanes = build(plan, DATA), len(plan.ranks)
    starts = [(lane, worker) for lane in range(lanes) for worker in range(WORKERS) if (lane, worker) != missing]
    places = [(lane, SKIPPED + BATCH * worker + nth) for nth in range(3) for lane, worker in starts]
    return [int(order.rows[place * lanes + lane]) for lane, place in places]


def test_a_rank_whose_first_worker_is_slow_begins_where_the_others_do() -> None:
    places = EpochPlaces(build(PLAN, DATA), None, None, closes=True)
    rows = opened(PLAN, missing=(3, 0))
    places.already(rows)
    places.begin(rows)
    assert [cursor.lo for cursor in places.cursors] == [SKIPPED + 3] * 3 + [SKIPPED]
    assert places.expects(int(places.now.rows[SKIPPED * 4 + 3]))


def test_a_rank_that_is_elsewhere_begins_elsewhere() -> None:
    places = EpochPlaces(build(PLAN, DATA), 32, None, closes=True)
    begins = (200, 290, 290, 290)
    rows = [int(places.now.rows[(first + nth) * 4 + lane]) for nth in range(8) for lane, first in enumerate(begins)]
    places.already(rows)
    places.begin(rows)
    assert [cursor.lo for cursor in places.cursors] == [208, 298, 298, 298]


def test_readers_are_as_far_apart_when_they_turn_out_to_be_of_fewer_ranks() -> None:
    """What was opened before is known without its order then."""
    every = replace(PLAN, ranks=tuple(range(WORLD)))
    track = Track(build(every, DATA), lambda one: build(one, DATA))
    rows = opened(PLAN, missing=(0, 1))
    track.places.begin(rows)
    for row in rows:
        track.observe(row)
    wide = track.places.k
    assert wide >= WORKERS * BATCH
    again = track.places.rows_opened()
    track.switch_epoch(build(PLAN, DATA))
    track.places.already(again)
    track.places.begin(again)
    assert track.places.k == wide
    assert [cursor.lo for cursor in track.places.cursors] == [SKIPPED + 3] * 4
