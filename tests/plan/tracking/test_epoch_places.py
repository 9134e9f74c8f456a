"""Where the ranks of an epoch begin, and how far apart their readers are."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

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


def test_opens_that_were_noted_before_tell_as_much_when_they_come_in_order() -> None:
    """A plan that takes over the same order knows what was opened, too, but without its order."""
    order = build(replace(PLAN, world=1, ranks=(0,)), DATA)
    rows = [int(order.rows[place]) for place in np.random.default_rng(1).permutation(300)[:128]]
    reach = []
    for before in ([], sorted(rows, key=order.find)):
        places = EpochPlaces(order, None, None, closes=True)
        places.already(rows)
        places.begin([*before, *rows])
        reach.append(places.k)
    assert reach[0] == reach[1] > 100


def certain_track(k: int) -> Track:
    """A track that is certain of its plan, and takes K to be `k` places."""
    track = Track(build(replace(PLAN, ranks=(2,)), DATA), lambda one: build(one, DATA), inflight=k)
    track.agreement.lock(track.hypothesis)
    return track


@pytest.mark.parametrize("faster", [1, 2, 3])
def test_k_grows_where_two_workers_are_further_apart_than_the_first_opens_showed(faster: int) -> None:
    """The second worker opens its batch beyond the window, `faster` files for each one of the first worker."""
    track = certain_track(BATCH // 2)
    order = track.places.now
    ahead = iter(range(BATCH, 2 * BATCH))
    for place in range(BATCH // faster):
        track.observe(int(order.rows[place]), 1)
        for other in islice(ahead, faster):
            track.observe(int(order.rows[other]), 2)
    assert track.places.k > BATCH // 2
    assert track.locked


def test_k_stays_where_every_second_batch_is_not_read_here() -> None:
    """The places between are those of another process: a wider window would only wait for more of them."""
    track = certain_track(BATCH // 2)
    order = track.places.now
    for first in range(0, FILES // WORLD - 2 * BATCH, 2 * BATCH):
        for place in range(first, first + BATCH):
            track.observe(int(order.rows[place]), 1)
    assert track.places.k == BATCH // 2


def test_k_stays_where_another_order_is_read_beside() -> None:
    track = certain_track(BATCH // 2)
    order = track.places.now
    strays = np.random.default_rng(1).permutation(FILES)
    for place in range(order.length):
        track.observe(int(order.rows[place]), 1)
        track.observe(int(strays[place]), 2)
    assert track.places.k == BATCH // 2
