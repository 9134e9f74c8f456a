"""Several readers of one mount: two jobs, training and validation at once, a reader whose order is not known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from loader_model import Loader

from nopfsfs.plan.epoch_order import Hypothesis, build
from nopfsfs.plan.following import search_budget
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import GivenOrders, Spec
from nopfsfs.plan.search.candidates import Candidate, OrderHeads
from tests.conftest import long, slow
from tests.plan.following_jobs import HEADS, SEED, SHUFFLED, epoch_opens, feed, read, tree
from tests.plan.jobs import mixed as mixed_up
from tests.plan.jobs import workers_of

pytestmark = pytest.mark.usefixtures("small_budget")

LOADER = Loader(2, 2, 16)


def mixed(rng: np.random.Generator, *jobs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Opens (row, reader) of several jobs at the same speed."""
    left = [list(job) for job in jobs]
    taken = []
    while any(left):
        busy = [job for job in left if job]
        taken.append(busy[rng.integers(len(busy))].pop(0))
    return taken


def job(part, spec: Spec, epochs: range, rng: np.random.Generator, pid: int, loader: Loader = LOADER):
    """Opens of a job, new processes in each epoch: batch b of 16 by worker b mod 2."""
    taken = []
    for epoch in epochs:
        rows = part.orders[0].rows
        order = rows[registry.order(spec, len(rows), epoch)]
        whose = {int(row): pid + 10 * epoch + (i // loader.batch) % loader.workers for i, row in enumerate(order)}
        taken += [(int(row), whose[int(row)]) for row in epoch_opens(part, spec, epoch, loader, rng)]
    return taken


@pytest.mark.parametrize("later", [long(False), True])
def test_two_jobs_on_one_data_set(later: bool) -> None:
    rng = np.random.default_rng(1)
    parts = tree(8000, 0)
    follower = Follower(parts, SEED, heads=HEADS, inflight=LOADER.inflight)
    first = job(parts[0], SHUFFLED, range(3), rng, 1000)
    second = job(parts[0], Spec("distributed", 1234), range(3), rng, 5000)
    begun = 2000 if later else 0
    flags = read(follower, first[:begun]) if later else np.zeros(0, np.uint8)
    both = mixed(rng, first[begun:], second)
    flags = np.concatenate([flags, read(follower, both)])
    assert flags.mean() >= 0.98
    seeds = {status.seed for status, _ in follower.plans(10)}
    assert {SEED, 1234} <= seeds


def test_both_jobs_are_foreseen() -> None:
    rng = np.random.default_rng(2)
    parts = tree(8000, 0)
    follower = Follower(parts, SEED, heads=HEADS, inflight=LOADER.inflight)
    first = job(parts[0], SHUFFLED, range(1), rng, 1000)
    second = job(parts[0], Spec("distributed", 1234), range(1), rng, 5000)
    both = mixed(rng, first, second)
    read(follower, both[:4000])
    soon = set(follower.upcoming(follower.position, 1000).tolist())
    coming = [row for row, _ in both[4000:4200]]
    assert np.mean([row in soon for row in coming]) >= 0.95
    before = follower.generation
    read(follower, both[4000:6000])
    assert follower.generation - before <= 1


def test_training_and_validation_at_once() -> None:
    rng = np.random.default_rng(3)
    parts = tree(8000, 2000)
    follower = Follower(parts, SEED, heads=HEADS, inflight=LOADER.inflight)
    training = job(parts[0], SHUFFLED, range(2), rng, 1000)
    validation = job(parts[1], Spec("sequential"), range(6), rng, 5000)
    flags = read(follower, mixed(rng, training, validation))
    assert flags.mean() >= 0.98


@pytest.mark.long
@pytest.mark.usefixtures("whole_budget")
def test_two_parts_of_one_directory_in_turn() -> None:
    """random_split: training and validation files lie in one directory; the same process reads both."""
    rng = np.random.default_rng(4)
    parts = tree(6000, 0)
    rule = registry.subset("random_split")
    follower = Follower(parts, SEED, heads=HEADS, inflight=LOADER.inflight)
    rows = parts[0].orders[0].rows
    flags = []
    split = [spec for spec in rule.variants(SEED) if spec.get("lengths", "0.8,0.2") == "0.8,0.2"][:2]
    train, val = (rule.samples(spec, len(rows)) for spec in split)
    for epoch in range(4):
        order = rows[train[registry.order(SHUFFLED, len(train), epoch)]].tolist()
        opens = list(LOADER.opens(order, rng)) + list(LOADER.opens(rows[val].tolist(), rng))
        flags.append(read(follower, [(row, 77) for row in opens]))
    assert np.concatenate(flags[2:]).mean() >= 0.97
    assert np.concatenate(flags).mean() >= 0.9


@pytest.mark.long
def test_a_stray_reader_does_not_disturb() -> None:
    rng = np.random.default_rng(5)
    parts = tree(8000, 0)
    follower = Follower(parts, SEED, heads=HEADS, inflight=LOADER.inflight)
    training = job(parts[0], SHUFFLED, range(2), rng, 1000)
    stray = [
        (int(row), 9) for row in np.random.default_rng(987_654_321_013).permutation(parts[0].orders[0].rows)[:1500]
    ]
    opens = mixed(rng, training, stray)
    flags = read(follower, opens)
    trained = np.array([reader != 9 for _, reader in opens])
    assert flags[trained].mean() >= 0.98
    assert follower.status().state == "locked"


@pytest.mark.parametrize("drawn", [0, slow(1_200_003)])
def test_the_place_in_the_global_generator_is_found(drawn: int) -> None:
    rng = np.random.default_rng(6)
    parts = tree(20_000, 0)
    spec = Spec("global", SEED, (("offset", drawn),) if drawn else ())
    follower = Follower(parts, SEED, heads=HEADS, inflight=LOADER.inflight)
    opens = job(parts[0], spec, range(3), rng, 1000)
    read(follower, opens[:64])
    follower.settle(apart=True)
    status = follower.status()
    assert (status.state, status.sampler, dict(status.options).get("offset", 0)) == ("locked", "global", drawn)
    assert read(follower, opens[64:]).mean() >= 0.999


@pytest.mark.parametrize(("seed", "drawn"), [slow(SEED, 700_001), (None, 300_001)])
def test_the_beginning_of_the_global_generator_needs_no_process_of_its_own(seed: int | None, drawn: int) -> None:
    rng = np.random.default_rng(6)
    parts = tree(20_000, 0)
    spec = Spec("global", SEED, (("offset", drawn),))
    follower = Follower(parts, seed, heads=HEADS, inflight=LOADER.inflight)
    opens = job(parts[0], spec, range(2), rng, 1000)
    read(follower, opens[:64])
    follower.settle()
    status = follower.status()
    assert (status.state, status.sampler, dict(status.options).get("offset")) == ("locked", "global", drawn)
    assert read(follower, opens[64:]).mean() >= 0.999


@pytest.mark.parametrize("options", [{"every": 2}, {}, {"offset": 300_000}], ids=str)
def test_a_loader_that_keeps_a_generator_is_found(options: dict[str, int]) -> None:
    """torchdata's, also on from the middle of an epoch."""
    rng = np.random.default_rng(8)
    parts = tree(6000, 0)
    spec = Spec("torchdata", SEED, tuple(options.items()))
    opens = job(parts[0], spec, range(3), rng, 1000)
    for begin in (0,) if "offset" in options else (0, 2400):
        follower = Follower(parts, SEED, heads=HEADS, inflight=LOADER.inflight)
        flags = read(follower, opens[begin:])
        assert follower.status().state == "locked"
        if options:
            assert follower.status().sampler == "torchdata"
        assert flags[64:].mean() >= 0.995


@pytest.mark.usefixtures("whole_budget")
@pytest.mark.parametrize(("world", "ranks"), [(8, (3,)), long(8, (3, 4)), slow(16, (0, 1, 2, 3)), (64, (63,))])
def test_the_world_of_samples_that_are_repeated_is_found(world: int, ranks: tuple[int, ...]) -> None:
    """Of timm's RepeatAugSampler, when nobody has said it."""
    rng, parts = np.random.default_rng(9), tree(20_000, 0)
    rows = parts[0].orders[0].rows
    follower = Follower(parts, SEED, heads=HEADS, inflight=LOADER.inflight)
    flags = []
    for epoch in range(2):
        dealt = [registry.order(Spec("repeat_aug"), len(rows), epoch, world, rank) for rank in ranks]
        readers = [one for rank in dealt for one in workers_of(rank, 2, 16)]
        opens = mixed_up(readers, rng)
        flags.append(read(follower, [(int(rows[sample]), 100 * (epoch + 1) + reader) for sample, reader in opens]))
    status = follower.status()
    assert (status.state, status.sampler, status.world) == ("locked", "repeat_aug", world)
    # neighbouring ranks read many of the same files
    assert np.concatenate(flags)[128 * len(ranks) :].mean() >= (0.98 if len(ranks) == 1 else 0.9)


@pytest.mark.long
def test_an_unknown_buffer_is_found() -> None:
    rng = np.random.default_rng(7)
    parts = tree(20_000, 0)
    spec = Spec("tf_shuffle", SEED, (("buffer", 1357),))
    follower = Follower(parts, SEED, heads=HEADS)
    opens = job(parts[0], spec, range(3), rng, 1000, Loader(1, 1, 1))
    read(follower, opens[:64])
    follower.settle(apart=True)
    status = follower.status()
    assert (status.state, status.sampler, dict(status.options).get("buffer")) == ("locked", "tf_shuffle", 1357)
    assert read(follower, opens[64:]).mean() >= 0.999


def tables(parts, spec: Spec, **how) -> tuple:
    return build(Hypothesis(0, 0, spec, **how), parts), None


def test_what_a_user_says_is_followed_at_once() -> None:
    rng = np.random.default_rng(8)
    parts = tree(6000, 0)
    order = rng.permutation(6000)
    spec = Spec("explicit", data=GivenOrders((order,)))
    follower = Follower(parts, None, heads=HEADS, inflight=LOADER.inflight)
    follower.register([tables(parts, spec)])
    np.testing.assert_array_equal(follower.upcoming(0, 100), parts[0].orders[0].rows[order[:100]])
    assert read(follower, job(parts[0], spec, range(2), rng, 100)).mean() >= 0.999
    assert follower.status().sampler == "explicit"


def test_a_plan_that_is_said_again_goes_on_and_another_replaces_it() -> None:
    rng = np.random.default_rng(9)
    parts = tree(6000, 0)
    follower = Follower(parts, None, heads=HEADS, inflight=LOADER.inflight)
    follower.register([tables(parts, SHUFFLED)])
    opens = job(parts[0], SHUFFLED, range(1), rng, 100)
    read(follower, opens[:3000])
    generation, position = follower.generation, follower.position
    follower.register([tables(parts, SHUFFLED)])
    assert (follower.generation, follower.position) == (generation, position)
    other = Spec("distributed", 7)
    follower.register([tables(parts, other)])
    assert [status.seed for status, _ in follower.plans(1)] == [7]
    assert read(follower, job(parts[0], other, range(1), rng, 300)).mean() >= 0.99
    follower.forget()
    assert follower.plans(1) == []


def test_what_is_only_assumed_and_foresees_nothing_is_not_fetched() -> None:
    rng = np.random.default_rng(987_654_321)  # of a common seed it would be found
    parts = tree(4000, 0)
    follower = Follower(parts, 1234567, heads=HEADS)
    assert len(follower.upcoming(0, 100)) == 100
    opens = rng.permutation(parts[0].orders[0].rows)
    feed(follower, opens[:40], chunk=4)
    assert follower.status().state == "watching"
    assert len(follower.upcoming(follower.position, 100)) == 0


def test_what_is_assumed_and_is_read_by_a_rank_of_two_is_fetched_on() -> None:
    parts = tree(4000, 0)
    follower = Follower(parts, SEED, heads=HEADS)
    order = parts[0].orders[0].rows[registry.order(SHUFFLED, 4000, 0, 2, 1)]
    for at in range(0, 40, 4):  # without a search
        follower.observe(order[at : at + 4])
        assert len(follower.upcoming(follower.position, 100)) == 100


class Counted(OrderHeads):
    """Beginnings of orders, and how often they were asked for."""

    asked = 0

    def first(self, candidate: Candidate, n: int, largest_world: int) -> np.ndarray:
        self.asked += 1
        return super().first(candidate, n, largest_world)


def test_what_searches_compare_with_first_is_computed_before_anything_is_opened() -> None:
    parts = tree(4000, 0)
    heads, none = Counted(), Counted()
    follower = Follower(parts, SEED, heads=heads)
    follower.settle()
    assert heads.asked > 100
    feed(follower, np.array(registry.order(SHUFFLED, 4000, 0) + parts[0].orders[0].rows[0])[:64])
    assert follower.status().state == "locked"
    opened = Follower(parts, SEED, heads=none)
    opened.observe(parts[0].orders[0].rows[:1])
    opened.settle()
    assert none.asked == 0


@pytest.mark.long
def test_what_is_left_unread_comes_first_where_the_order_is_not_known() -> None:
    rng = np.random.default_rng(987_654_321_012)
    parts = tree(3000, 0)
    follower = Follower(parts, None, heads=HEADS)
    rows = parts[0].orders[0].rows
    opens = rng.permutation(rows)
    feed(follower, opens[:200], chunk=20)
    assert follower.status().state == "unknown"
    coming = follower.upcoming(follower.position, 3000)
    known = coming[coming >= 0]
    assert 500 <= len(known) <= 1100  # no more than four files for each that was wanted
    assert not np.isin(known, opens[:200]).any()
    feed(follower, opens[200:], chunk=100)
    # the next epoch: all of it is foretold, but for what was read
    again = rng.permutation(rows)
    feed(follower, again[:100], chunk=20)
    coming = follower.upcoming(follower.position, 3000)
    known = coming[coming >= 0]
    assert set(known.tolist()) == set(again[100:].tolist()) - set(rows[: follower.position].tolist()) | (
        set(known.tolist()) & set(again[100:].tolist())
    )
    assert len(known) >= 2700


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("buffer", [300, 0])
def test_the_rhythm_of_seeds_is_learned(step: int, buffer: int) -> None:
    """model.fit takes every second pair of seeds; epochs of a small buffer are all alike but for details."""
    rng = np.random.default_rng(11)
    parts = tree(6000, 0)
    said = Spec("tf_shuffle", SEED, (("buffer", buffer),) if buffer else ())
    follower = Follower(parts, SEED, heads=HEADS)
    follower.register([tables(parts, said)])
    flags = []
    for epoch in range(4):
        rows = parts[0].orders[0].rows[registry.order(said, 6000, step * epoch)].tolist()
        opens = [(row, 50) for row in Loader(1, 1, 4).opens(rows, rng)]
        flags.append(read(follower, opens))
    assert follower.status().epoch in (3, 4)
    assert dict(follower.status().options).get("step", 1) == step
    assert np.concatenate(flags).mean() >= 0.99


@pytest.mark.long
def test_a_place_that_is_found_after_its_epoch_leads_to_that_of_this_one() -> None:
    rng = np.random.default_rng(12)
    parts = tree(3000, 0)
    spec = Spec("global", SEED, (("offset", 1_500_001),))
    follower = Follower(parts, None, heads=HEADS, inflight=LOADER.inflight)
    opens = job(parts[0], spec, range(3), rng, 1000)
    read(follower, opens[:3000])
    slow = follower.work_apart()
    assert slow is not None
    slow.run()
    read(follower, opens[3000:3200])
    assert slow.wanted()
    follower.finish(slow)
    follower.settle(apart=True)
    status = follower.status()
    assert (status.state, status.sampler) == ("locked", "global")
    assert read(follower, opens[3200:]).mean() >= 0.99
    assert not slow.wanted()


def test_ranks_that_a_plan_says_are_believed_though_the_mount_knows_of_none() -> None:
    rng = np.random.default_rng(13)
    parts = tree(4000, 0)
    follower = Follower(parts, None, heads=HEADS)
    how = {"world": 5, "ranks": (3,)}
    order = build(Hypothesis(0, 0, SHUFFLED, **how), parts)
    follower.register([(order, 8)])
    flags = []
    for epoch in range(3):
        opens = epoch_opens(parts[0], SHUFFLED, epoch, Loader(1, 1, 1), rng, 5, (3,))
        flags.append(read(follower, [(int(row), 7) for row in opens]))
    assert np.concatenate(flags).mean() >= 0.99
    assert (follower.status().world, follower.status().ranks) == (5, (3,))


@pytest.mark.long
@pytest.mark.parametrize("whole", [False, long(True)])
def test_a_plan_said_after_an_order_that_is_not_known_is_followed_at_once(whole: bool) -> None:
    """Said of the data set itself, or of all the mount, which holds no other files."""
    rng = np.random.default_rng(918273645546372819)
    parts = [*tree(1200, 0), replace(tree(1200, 0)[0], key=1, name="")]
    follower = Follower(parts, None, heads=HEADS)
    rows = parts[0].orders[0].rows
    for _ in range(2):
        read(follower, [(row, 50) for row in rows[rng.permutation(1200)].tolist()])
    assert follower.status().state == "unknown"
    spec = Spec("distributed", 12345678901)
    index = 1 if whole else 0
    follower.register([(build(Hypothesis(index, 0, spec), parts), None)])
    expected = rows[registry.order(spec, 1200, 0)]
    np.testing.assert_array_equal(follower.upcoming(follower.position, 100), expected[:100])
    assert read(follower, [(row, 50) for row in expected.tolist()]).mean() >= 0.99
    assert follower.status().state == "locked"


def test_a_known_validation_is_not_steady_beside_a_training_whose_order_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Closes that are given up for good while the training pauses would be missed when it goes on."""
    monkeypatch.setattr(search_budget, "_BUDGET_S", 0.5)
    rng = np.random.default_rng(987654321012)
    parts = tree(2000, 1500)
    follower = Follower(parts, None)
    for epoch in range(2):
        shuffled = [(int(row), 1000 + epoch) for row in rng.permutation(parts[0].orders[0].rows)]
        in_order = [(int(row), 5000 + epoch) for row in parts[1].orders[0].rows]
        read(follower, shuffled)
        assert follower.status().state in ("unknown", "mismatch")
        read(follower, in_order)
        assert (follower.status().state, follower.status().dataset) == ("locked", "val")
        assert not follower.steady
