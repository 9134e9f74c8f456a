"""When files are read next: the same that the stream foretells."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_model import Loader

from nopfsfs.plan.epoch_order import DataSet, Hypothesis, build
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.tracking.unread import Unread
from tests.examples import examples
from tests.plan.following_jobs import HEADS, IN_ORDER, SEED, SHUFFLED, epoch_opens, feed, tree

pytestmark = pytest.mark.usefixtures("small_budget")

IN_TURN = Loader(0, 1, 1)  # reads in the order of the sampler


def check(follower: Follower, opened: set[int], rows: np.ndarray) -> None:
    """`opened`: rows opened in this epoch."""
    uses = follower.next_uses(rows)
    position = follower.position
    stream = follower.upcoming(position, 1 << 16)
    for row, use in zip(rows.tolist(), uses.tolist(), strict=True):
        places = position + np.flatnonzero(stream == row)
        if use < 0:
            assert len(places) == 0 or (len(places) == 1 and row in opened), row
            continue
        # or a position that never decreases has left it behind, or the stream of another reader is known less far
        assert use in places or use == position or use >= position + len(stream)
        passed = places[places < use]
        assert len(passed) == 0 or (len(passed) == 1 and row in opened), "one place is left out: it was opened"


@settings(max_examples=examples(20))
@given(
    st.integers(0, 2**32), st.sampled_from([(1, (0,)), (2, (0, 1)), (4, (1, 2)), (5, (2,))]),
    st.sampled_from([SHUFFLED, IN_ORDER]), st.booleans(),
)  # fmt: skip
def test_the_next_use_of_each_file_is_where_the_stream_has_it(seed: int, world, spec: Spec, in_turn: bool) -> None:
    if spec is IN_ORDER:
        world = (1, (0,))
    rng = np.random.default_rng(seed)
    parts = tree(2003, 0)
    follower = Follower(parts, SEED, heads=HEADS, worlds=[world])
    every = parts[0].orders[0].rows
    for epoch in range(2):
        loader = IN_TURN if in_turn else Loader(3, 2, 8)
        opens = epoch_opens(parts[0], spec, epoch, loader, rng, *world)
        opened: set[int] = set()
        for start in range(0, len(opens), 97):
            feed(follower, opens[start : start + 97])
            opened |= set(opens[start : start + 97].tolist())
            check(follower, opened, rng.choice(every, 40))
    assert (follower.next_uses(np.array([3, 10**6])) == -1).all(), "no file of the plan"


def test_what_is_read_again_in_the_next_epoch_only() -> None:
    parts = tree(1000, 0)
    rng = np.random.default_rng(7)
    follower = Follower(parts, SEED, heads=HEADS)
    first, second = (epoch_opens(parts[0], SHUFFLED, epoch, IN_TURN, rng) for epoch in range(2))
    feed(follower, first[:400])
    place = {row: at for at, row in enumerate(second.tolist())}
    uses = follower.next_uses(first)
    assert uses[:400].tolist() == [1000 + place[row] for row in first[:400].tolist()]
    assert uses[400:].tolist() == list(range(400, 1000))


def test_files_that_one_epoch_reads_twice() -> None:
    """Padding: the last place of the second rank reads the first file again."""
    parts = tree(1001, 0)
    follower = Follower(parts, SEED, heads=HEADS, worlds=[(2, (0, 1))])
    rng = np.random.default_rng(1)
    opens = epoch_opens(parts[0], SHUFFLED, 0, IN_TURN, rng, 2, (0, 1))
    feed(follower, opens[:200], chunk=2)
    twice = follower.upcoming(0, 1)
    assert follower.next_uses(twice).tolist() == [1001]


@pytest.mark.long
def test_of_readers_at_once_the_one_that_comes_first() -> None:
    parts = tree(2000, 2000)
    follower = Follower(parts, SEED, heads=HEADS)
    rng = np.random.default_rng(3)
    train = epoch_opens(parts[0], SHUFFLED, 0, IN_TURN, rng)
    val = epoch_opens(parts[1], IN_ORDER, 0, IN_TURN, rng)
    both = np.stack([train[:1000], val[:1000]], axis=1).reshape(-1)
    feed(follower, both)
    uses = follower.next_uses(np.concatenate([train[1000:1100], val[1000:1100]]))
    known = uses[uses >= 0]
    assert len(known) >= 100
    found = [follower.upcoming(use, 1)[0] for use in known.tolist()]
    assert found == np.concatenate([train[1000:1100], val[1000:1100]])[uses >= 0].tolist()


def test_where_the_order_is_not_known_what_was_read_is_not_read_again() -> None:
    (part,) = tree(50, 0)
    unread = Unread(build(Hypothesis(0, 0, Spec("sequential")), [part]))
    rows = part.orders[0].rows
    for row in rows[[0, 1, 5]].tolist():
        unread.observe(row, 0)
    assert unread.next_uses(rows[:7]).tolist() == [-1, -1, 2, 3, 4, -1, 6]
    assert unread.next_uses(np.array([1])).tolist() == [-1]


@pytest.mark.parametrize("parts", [[], tree(0, 0)])
def test_without_a_plan_nothing_is_known(parts: list[DataSet]) -> None:
    follower = Follower(parts, SEED, heads=HEADS)
    assert follower.next_uses(np.arange(5)).tolist() == [-1] * 5
    assert len(follower.next_uses(np.zeros(0, np.int64))) == 0
