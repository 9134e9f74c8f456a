"""The follower against simulated loaders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from loader_model import Loader

from nopfsfs.plan.epoch_order import DataSet, FileOrder
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.search import candidates
from nopfsfs.plan.search.matching import Search
from nopfsfs.plan.search.suspects import LOCK, OpensView
from tests.conftest import slow
from tests.examples import examples
from tests.plan.following_jobs import HEADS, IN_ORDER, SEED, SHUFFLED, epoch_opens, feed, read, tree

pytestmark = pytest.mark.usefixtures("small_budget")


@pytest.mark.long
# Readers are not told apart here, as a mount does: where four ranks drift apart, some opens would not be foreseen.
@settings(max_examples=examples(25))
@given(
    st.integers(0, 2**32),
    st.integers(2000, 6000),
    st.sampled_from([(1, (0,)), (2, (0, 1)), (4, (1,)), (8, (4, 5)), (5, (2,))]),
    st.integers(0, 4),
    st.sampled_from([1, 8, 16]),
    st.booleans(),
)
@example(9890, 2000, (8, (4, 5)), 4, 8, False)  # the first half of the order, as random_split cuts it off
def test_epochs_in_a_row_are_predicted(seed, n, world, workers, batch, drop_last) -> None:
    rng = np.random.default_rng(seed)
    parts = tree(n)
    loader = Loader(max(workers, 1), 2, batch, drop_last)
    follower = Follower(parts, SEED, heads=HEADS, worlds=[world], inflight=loader.inflight)
    for epoch in range(3):
        flags = feed(follower, epoch_opens(parts[0], SHUFFLED, epoch, loader, rng, *world))
        assert flags.mean() >= 0.98, (epoch, follower.status())
        assert follower.status().state == "locked"
        assert follower.status().epoch in (epoch, epoch + 1)


@pytest.mark.parametrize("world", [(1, (0,)), (4, (2, 3))])
def test_k_when_the_loader_is_not_known(world) -> None:
    rng = np.random.default_rng(3)
    parts = tree(20_000)
    loader = Loader(2, 2, 64)
    follower = Follower(parts, SEED, heads=HEADS, worlds=[world])
    flags = [feed(follower, epoch_opens(parts[0], SHUFFLED, e, loader, rng, *world)) for e in range(3)]
    assert np.concatenate(flags).mean() >= 0.99
    assert follower.status().k == min(1024, -(-20_000 // world[0]) // 20)


def test_staging_can_begin_before_any_open() -> None:
    parts = tree()
    follower = Follower(parts, SEED, heads=HEADS)
    rows = parts[0].orders[0].rows
    expected = rows[registry.order(SHUFFLED, len(rows))]
    np.testing.assert_array_equal(follower.upcoming(0, 100), expected[:100])
    assert follower.status().state == "watching"


CASES = {
    "another world, one rank": (SHUFFLED, 0, 8, (3,)),
    "another world, four ranks": (SHUFFLED, 0, 8, (4, 5, 6, 7)),
    "resumed": (SHUFFLED, 17, 1, (0,)),
    "resumed, rank of two": (SHUFFLED, 5, 2, (1,)),
    "not shuffled": (Spec("distributed", 0, (("sequential", 1),)), 0, 8, (3,)),
    "random": (Spec("random", SEED), 0, 1, (0,)),
    "random, own generator": (Spec("random", SEED, (("base_seed", "never"),)), 0, 1, (0,)),
    "random, epoch 1": (Spec("random", SEED), 1, 1, (0,)),
    "in order": (IN_ORDER, 0, 1, (0,)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dataset", [0, slow(1), slow(2)])
def test_locks_within_the_first_batch(case: str, dataset: int) -> None:
    spec, epoch, world, ranks = CASES[case]
    rng = np.random.default_rng(11)
    parts = tree(8000, 3000)
    loader = Loader(2, 2, 16)
    worlds = [(1, (0,)), (8, (4, 5, 6, 7)), (2, (0,)), (8, tuple(range(8)))]
    follower = Follower(parts, SEED, heads=HEADS, worlds=worlds, inflight=loader.inflight)
    opens = epoch_opens(parts[dataset], spec, epoch, loader, rng, world, ranks)
    feed(follower, opens[:64], chunk=4)
    assert follower.status().state == "locked", follower.status()
    flags = feed(follower, opens[64:])
    status = follower.status()
    # what is read in order is taken for the first of two directories, until the second begins
    assert flags.mean() >= (0.97 if case == "not shuffled" and dataset == 2 else 0.99), status
    if spec != IN_ORDER:
        assert (status.world, status.ranks) == (world, ranks)
    flags = feed(follower, epoch_opens(parts[dataset], spec, epoch + 1, loader, rng, world, ranks))
    assert flags.mean() >= 0.99, follower.status()


def test_set_epoch_forgotten() -> None:
    rng = np.random.default_rng(5)
    parts = tree()
    loader = Loader(2, 2, 16)
    follower = Follower(parts, SEED, heads=HEADS)
    shares = [feed(follower, epoch_opens(parts[0], SHUFFLED, 0, loader, rng)).mean() for _ in range(4)]
    assert min(shares) >= 0.99
    assert shares[3] == 1.0
    generation = follower.generation
    assert feed(follower, epoch_opens(parts[0], SHUFFLED, 0, loader, rng)).mean() == 1.0
    assert follower.generation == generation


@pytest.mark.parametrize("spec", [SHUFFLED, Spec("random", SEED), IN_ORDER])
def test_epochs_left_early(spec: Spec) -> None:
    rng = np.random.default_rng(6)
    parts = tree()
    loader = Loader(2, 2, 16, stop_after=60)
    follower = Follower(parts, SEED, heads=HEADS)
    for epoch in range(4):
        this = spec.with_option("left_early", epoch) if spec.sampler == "random" else spec
        flags = feed(follower, epoch_opens(parts[0], this, epoch, loader, rng))
        assert flags[64:].mean() >= 0.99, (epoch, follower.status())
        assert flags[:64].mean() >= 0.75


def test_restarted_and_resumed() -> None:
    rng = np.random.default_rng(7)
    parts = tree()
    loader = Loader(2, 2, 16)
    follower = Follower(parts, SEED, heads=HEADS)
    for epoch in (0, 1, 2, 0, 1, 9, 10, 10, 10, 11, 12):
        flags = feed(follower, epoch_opens(parts[0], SHUFFLED, epoch, loader, rng), chunk=4)
        assert flags[64:].mean() >= 0.99, (epoch, follower.status())


@pytest.mark.parametrize("world", [(1, (0,)), (4, (0, 1))])
@pytest.mark.parametrize("whole", [True, False])
def test_validation_in_between(world, whole: bool) -> None:
    rng = np.random.default_rng(8)
    parts = tree()
    loader = Loader(2, 2, 16, drop_last=True)
    follower = Follower(parts, SEED, heads=HEADS, worlds=[world], inflight=loader.inflight)
    val = IN_ORDER if whole else Spec("distributed", 0, (("sequential", 1),))
    for epoch in range(3):
        train = epoch_opens(parts[0], SHUFFLED, epoch, loader, rng, *world)
        half = len(train) // 2
        check = [epoch_opens(parts[1], val, 0, Loader(2, 2, 16), rng, *world) for _ in range(2)]
        flags = [feed(follower, part) for part in (train[:half], check[0], train[half:], check[1])]
        shares = [part.mean() for part in flags]
        assert min(shares[0], shares[2]) >= 0.99, shares
        if epoch > 0:
            assert min(shares) >= 0.99, shares
        assert follower.status().dataset == "val"


@pytest.mark.parametrize("listed", [0, 1])
def test_validation_of_files_that_are_listed_otherwise(listed: int) -> None:
    """As timm lists them: 2 before 10. Both orders begin alike; training lists its files as validation, or not."""
    rng = np.random.default_rng(15)
    natural = [np.arange(20, 4020), np.arange(4020, 4420)]
    parts = []
    for key, rows in enumerate(natural):
        by_name = np.array(sorted(rows.tolist(), key=lambda row, first=int(rows[0]): str(row - first)))
        orders = (FileOrder(("image_folder",), by_name), FileOrder(("timm",), rows))
        parts.append(DataSet(key, ("train", "val")[key], orders))
    files = parts[0].orders[listed].rows
    loader = Loader(2, 2, 16)
    follower = Follower(parts, SEED, heads=HEADS)
    feed(follower, np.array(loader.ranks([files[registry.order(SHUFFLED, len(files))].tolist()], rng), np.int64))
    flags = []
    for first in range(0, 400, 32):  # two workers, 16 files each in turn
        batches = natural[1][first : first + 16], natural[1][first + 16 : first + 32]
        rows = [int(batch[i]) for i in range(16) for batch in batches if i < len(batch)]
        whose = [7 + nth for i in range(16) for nth, batch in enumerate(batches) if i < len(batch)]
        for at in range(0, len(rows), 4):
            flags.append(follower.observe(np.array(rows[at : at + 4]), np.array(whose[at : at + 4])))
            follower.settle()
    status = follower.status()
    assert (status.dataset, status.sampler, status.files, status.world) == ("val", "sequential", "timm", 1)
    assert np.concatenate(flags)[64:].mean() == 1.0


def test_training_and_validation_at_once() -> None:
    rng = np.random.default_rng(9)
    parts = tree(4000, 4000)
    loader = Loader(2, 2, 16)
    both = np.stack([epoch_opens(parts[0], SHUFFLED, 0, loader, rng), epoch_opens(parts[1], IN_ORDER, 0, loader, rng)])
    follower = Follower(parts, SEED, heads=HEADS)
    assert feed(follower, both.T.reshape(-1)).mean() >= 0.99


def test_files_opened_twice() -> None:
    rng = np.random.default_rng(10)
    parts = tree()
    loader = Loader(2, 2, 16)
    follower = Follower(parts, SEED, heads=HEADS)
    for epoch in range(3):
        opens = np.repeat(epoch_opens(parts[0], SHUFFLED, epoch, loader, rng), 2)
        assert feed(follower, opens).mean() >= 0.99


def test_strays_do_not_move_the_cursor() -> None:
    rng = np.random.default_rng(12)
    parts = tree()
    opens = epoch_opens(parts[0], SHUFFLED, 0, Loader(2, 2, 16), rng)
    strays = rng.permutation(parts[0].orders[0].rows)[: len(opens) // 10]
    mixed = np.insert(opens, np.sort(rng.integers(200, len(opens), len(strays))), strays)
    follower = Follower(parts, SEED, heads=HEADS)
    feed(follower, mixed)
    assert follower.generation == 0
    assert follower.predicted_for >= 0.99 * (len(opens) - len(strays))


def test_ranks_that_are_far_apart_are_foreseen() -> None:
    """Nobody is told apart here, and opens lie up to three times K ahead of those that come last."""
    n, apart = 4000, 600
    follower = Follower(tree(n, 0), SEED, heads=HEADS)
    missed = []
    for epoch in range(2):
        order = 20 + registry.order(SHUFFLED, n, epoch, 1, 0)
        late = np.random.default_rng(epoch).integers(0, apart, n)
        missed.append(1 - feed(follower, order[np.argsort(np.arange(n) + late, kind="stable")]))
    assert missed[0][1000:].mean() < 0.01
    assert missed[1].mean() < 0.01


@pytest.mark.long
def test_who_follows_no_order_does_not_make_the_window_wider() -> None:
    n, rng = 4000, np.random.default_rng(0)
    follower = Follower(tree(n, 0), SEED, heads=HEADS)
    order = 20 + registry.order(SHUFFLED, n, 0, 1, 0)
    mixed = np.stack([order, rng.integers(20, 20 + n, n)], axis=1).reshape(-1)
    flags = []
    for i in range(0, len(mixed), 16):
        flags.append(follower.observe(mixed[i : i + 16], np.tile([1, 2], 8)))
        follower.settle()
    seen = np.concatenate(flags)[2000:].reshape(-1, 2).mean(axis=0)
    assert seen[0] > 0.99
    assert seen[1] < 0.2  # as many as there are files in the window


def test_a_process_that_reads_two_orders_at_once_keeps_the_plan_of_the_one_that_is_known() -> None:
    """In two threads, which are not told apart."""
    n, rng = 4000, np.random.default_rng(1)
    follower = Follower(tree(n, 0), SEED, heads=HEADS)
    for epoch in range(4):
        order = 20 + registry.order(SHUFFLED, n, epoch, 1, 0)
        beside = np.flatnonzero(rng.random(n) < 0.3)[64:]
        opens = np.insert(order, beside, rng.integers(20, 20 + n, len(beside)))
        flags = read(follower, [(row, 1) for row in opens.tolist()])
        own = np.insert(np.ones(n, np.bool_), beside, False)
        assert flags[own].mean() > 0.99
        assert follower.status().k == n // 20


@pytest.mark.long
@pytest.mark.parametrize("n", [200, 1000, slow(20_000)])
def test_a_plan_that_does_not_match_is_noticed_in_the_first_batch(n: int) -> None:
    rng = np.random.default_rng(987_654_321_000 + n)  # no seed that is tried
    parts = tree(n, 0)
    follower = Follower(parts, SEED, heads=HEADS)
    opens = rng.permutation(parts[0].orders[0].rows)
    feed(follower, opens[:64], chunk=8)
    assert follower.status().state == "mismatch"
    # what is left to read in this epoch is all that is known
    coming = follower.upcoming(follower.position, n)
    assert len(coming) >= min(n, 64) - follower.position
    assert not np.isin(coming[coming >= 0], opens[:64]).any()
    assert not feed(follower, opens[64:]).any()
    assert not (follower.upcoming(follower.position, n) >= 0).any()
    # and what can be known later is still found
    opens = epoch_opens(parts[0], SHUFFLED, 0, Loader(2, 2, 4), rng)
    feed(follower, opens[: n // 2], chunk=4)
    assert follower.status().state == "locked"


@pytest.mark.long
@pytest.mark.parametrize(("n", "times"), [(300, 2), slow(1000, 4), slow(20_000, 2)])
def test_no_random_order_is_ever_locked(n: int, times: int) -> None:
    """Against all candidates (`test_ledger` has 100,000 random orders)."""
    rng = np.random.default_rng(987_654_321_000 + n)  # no seed that is tried
    (part,) = parts = tree(n, 0)
    for _ in range(times):
        seeds = candidates.Seeds(int(rng.integers(2**40, 2**41)))
        search = Search(parts, [0], seeds, "auto", [(1, (0,)), (8, (3,)), (2, (0, 1))], HEADS)
        view = OpensView(rng.permutation(part.orders[0].rows)[:64], rng.integers(1, 5, 64), n)
        while not search.done:
            for suspect in search.run(view):
                assert suspect.worth < LOCK / 2, (suspect.candidate, suspect.worth)


def test_what_is_likeliest_is_tried_again_as_readers_open_more() -> None:
    """Many readers begin at once; none had opened enough when the search began, which goes on with what is less so."""
    (part,) = parts = tree(4000, 0)
    rows = part.orders[0].rows[registry.order(SHUFFLED, 4000, 37)].reshape(-1, 16)[:40]

    def view(each: int) -> OpensView:
        firsts = tuple(rows[:, :each])
        return OpensView(rows[:, :each].T.reshape(-1), np.tile(np.arange(1, 41), each), 4000, firsts)

    search = Search(parts, [0], candidates.Seeds(SEED), "auto", [(1, (0,))], candidates.OrderHeads(), first_only=True)
    assert search.run(view(2)) == []
    assert not search.done
    found = max(search.run(view(6)), key=lambda one: one.worth)
    assert (found.candidate.spec, found.candidate.epoch) == (SHUFFLED, 37)
    assert found.worth >= LOCK


def test_it_hurries_while_searches_begin_and_not_for_what_a_plan_explains_nor_for_ever() -> None:
    """Whoever waits for it asks for work at once, as a search that begins later locks later."""
    follower = Follower(tree(4000), None)
    hurried = []
    for row in np.random.default_rng(7).permutation(4000)[:400].tolist():
        follower.observe(np.array([row]))
        hurried.append(follower.hurries)
        follower.settle()  # all the work there is
    assert hurried.index(True) == 3  # the fourth open
    assert not any(hurried[64:])

    parts = tree(4000, 0)
    known = Follower(parts, SEED)
    known.settle()
    plan = parts[0].orders[0].rows[registry.order(SHUFFLED, 4000, 0)]
    known.observe(plan[:64])
    known.settle()
    known.observe(plan[64:])
    assert not known.hurries


@pytest.mark.slow
def test_random_orders_end_as_mismatch_on_a_mount_with_subtrees() -> None:
    rng = np.random.default_rng(14)
    parts = tree(3000, 700)
    for order in (parts[0].orders[0].rows, parts[2].orders[0].rows):
        follower = Follower(parts, SEED, heads=HEADS, worlds=[(1, (0,)), (8, tuple(range(8)))])
        feed(follower, rng.permutation(order)[:300], chunk=32)
        assert follower.status().state == "mismatch"


def test_training_after_all_files_were_read_in_order() -> None:
    rng = np.random.default_rng(15)
    parts = tree()
    follower = Follower(parts, SEED, heads=HEADS)
    feed(follower, parts[0].orders[0].rows)
    assert follower.status().sampler == "sequential"
    flags = feed(follower, epoch_opens(parts[0], SHUFFLED, 0, Loader(2, 2, 16), rng), chunk=4)
    assert flags[64:].mean() >= 0.99
    assert follower.status().sampler == "distributed"


@pytest.mark.long
def test_large_data_sets_are_computed_as_jobs() -> None:
    rng = np.random.default_rng(16)
    parts = tree(250_000, 0)
    loader = Loader(2, 2, 64)
    follower = Follower(parts, SEED, heads=HEADS)
    feed(follower, epoch_opens(parts[0], SHUFFLED, 3, loader, rng)[:2000], chunk=200)
    assert (follower.status().state, follower.status().epoch) == ("locked", 3)
    # left early, and resumed where no table is at hand: found at once, followed when the job is done
    opens = epoch_opens(parts[0], SHUFFLED, 0, loader, rng)
    follower.observe(opens[:500])
    assert follower.status().epoch == 3
    follower.settle()
    assert (follower.status().state, follower.status().epoch) == ("locked", 0)
    assert follower.observe(opens[500:4000]).mean() >= 0.99


@settings(max_examples=examples(12))
# Few sizes: the beginnings of orders are kept from one example to the next.
@pytest.mark.slow
@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 60, 700]),
    st.sampled_from([0, 5, 300]),
    st.sampled_from([None, 3, 100]),
)
def test_whatever_is_opened_the_stream_stays_sound(seed, train, val, inflight) -> None:
    rng = np.random.default_rng(seed)
    parts = tree(train, val)
    follower = Follower(parts, SEED, heads=HEADS, worlds=[(2, (0, 1)), (1, (0,))], inflight=inflight)
    last, opens = 0, 0
    for _ in range(8):
        part = parts[rng.integers(len(parts))]
        loader = Loader(int(rng.integers(1, 4)), 2, int(rng.integers(1, 20)))
        spec = (SHUFFLED, IN_ORDER, Spec("random", SEED))[rng.integers(3)]
        taken = epoch_opens(part, spec, int(rng.integers(4)), loader, rng)
        if rng.random() < 0.2:
            taken = rng.integers(0, train + val + 40, 300)
        taken = taken[: int(rng.integers(1, len(taken) + 1))]
        for i in range(0, len(taken), 37):
            follower.observe(taken[i : i + 37])
            opens += len(taken[i : i + 37])
            if rng.random() < 0.7:
                follower.settle()
            position = follower.position
            assert position >= last
            last = position
            begin = max(0, position - int(rng.integers(0, 50)))
            upcoming = follower.upcoming(begin, 200)
            known = upcoming[upcoming >= 0]
            assert len(upcoming) <= 200
            assert np.isin(known, parts[-1].orders[0].rows).all()
    assert follower.opens == opens
    assert 0 <= follower.predicted_for <= opens


def test_a_rank_that_starts_late_joins() -> None:
    rng = np.random.default_rng(17)
    parts = tree(8000)
    loader = Loader(2, 2, 16)
    first, second = (epoch_opens(parts[0], SHUFFLED, 0, loader, rng, 4, (rank,)) for rank in (1, 2))
    follower = Follower(parts, SEED, heads=HEADS, worlds=[(4, (1, 2))], inflight=loader.inflight)
    feed(follower, first[:100], chunk=4)
    assert follower.status().ranks in ((1,), (1, 2))
    both = np.stack([first[100:1100], second[:1000]], axis=1).reshape(-1)
    flags = feed(follower, both, chunk=4)
    assert follower.status().ranks == (1, 2)
    assert flags.mean() >= 0.98


def test_ranks_that_are_not_equally_fast_read_the_same_files_in_successive_epochs() -> None:
    """The fast one opens files of the next epoch that the slow one has just opened, or is about to, in this one."""
    world, ranks, behind = 8, (1, 3, 5, 7), 12
    parts = tree(800, 0)
    rows = parts[0].orders[0].rows
    first, second = ([rows[registry.order(SHUFFLED, 800, epoch, world, rank)] for rank in ranks] for epoch in (0, 1))
    slow, early = np.concatenate(first[1:]), second[0][:8]
    near = np.concatenate([mine[-2 * behind :] for mine in first[1:]])
    assert np.isin(early, near).any(), "this seed does not show it"
    follower = Follower(parts, SEED, heads=HEADS, worlds=[(world, ranks)])
    together = len(first[0]) - behind
    opens = [(int(mine[at]), 1 + lane) for at in range(together) for lane, mine in enumerate(first)]
    opens += [(int(row), 1) for row in (*first[0][together:], *second[0][: 2 * behind])]
    opens += [(int(mine[at]), 2 + lane) for at in range(together, 100) for lane, mine in enumerate(first[1:])]
    opens += [(int(mine[at]), 2 + lane) for at in range(2 * behind) for lane, mine in enumerate(second[1:])]
    opens += [(int(mine[at]), 1 + lane) for at in range(2 * behind, 100) for lane, mine in enumerate(second)]
    assert set(slow.tolist()) <= {row for row, _ in opens}
    flags = []
    for row, reader in opens:
        flags.append(follower.observe(np.array([row]), np.array([reader])))
        follower.settle()
    assert np.concatenate(flags).all()


@pytest.mark.long
def test_without_a_seed_nothing_is_foreseen_before_it_is_known() -> None:
    parts = tree()
    follower = Follower(parts, None, heads=HEADS)
    assert follower.status().state == "watching"
    assert len(follower.upcoming(0, 10)) == 0
    opens = np.random.default_rng(987_654_321_005).permutation(parts[0].orders[0].rows)
    assert not feed(follower, opens).any()
    assert follower.status().state == "unknown"
    assert (follower.opens, follower.predicted_for) == (4000, 0)


@pytest.mark.parametrize("seed", [0, 42, 1234, 3407])
def test_a_common_seed_is_found(seed: int) -> None:
    parts = tree()
    follower = Follower(parts, None, heads=HEADS)
    loader = Loader(2, 2, 16)
    rng = np.random.default_rng(seed)
    opens = epoch_opens(parts[0], Spec("distributed", seed), 0, loader, rng)
    feed(follower, opens[:256], chunk=8)
    status = follower.status()
    assert (status.state, status.sampler, status.seed) == ("locked", "distributed", seed)
    assert feed(follower, opens[256:]).all()


@pytest.mark.parametrize("parts", [[], [DataSet(0, "", (FileOrder(("image_folder",), np.zeros(0, np.int64)),))]])
def test_nothing_to_read(parts) -> None:
    follower = Follower(parts, SEED, heads=HEADS)
    assert not follower.observe(np.array([0, 5])).any()
    assert follower.status().state == "none"
    assert len(follower.upcoming(0, 5)) == 0


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(st.integers(1, 40), st.integers(1, 3), st.integers(0, 2**32))
def test_tiny_data_sets(n: int, world: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = tree(n, 0)
    ranks = tuple(range(world))
    follower = Follower(parts, SEED, heads=HEADS, worlds=[(world, ranks)])
    for epoch in range(4):
        opens = epoch_opens(parts[0], SHUFFLED, epoch, Loader(1, 1, 1), rng, world, ranks)
        flags = feed(follower, opens, chunk=1)
        rows = follower.upcoming(follower.position, 3 * n)
        assert len(flags) == len(opens)
        assert set(rows.tolist()) <= set(opens.tolist()), "what is no file of the data set"
        assert len(rows) <= 3 * n
        assert (len(rows) > 0) == (follower.status().state != "mismatch")


def test_the_least_data_set_that_is_followed() -> None:
    """Of fewer files than these there is too little to tell a plan by."""
    parts = tree(40, 0)
    follower = Follower(parts, SEED, heads=HEADS)
    for epoch in range(3):
        opens = epoch_opens(parts[0], SHUFFLED, epoch, Loader(1, 1, 1), np.random.default_rng(0))
        assert feed(follower, opens, chunk=1).all()
    assert follower.status().state == "locked"
    after = epoch_opens(parts[0], SHUFFLED, 3, Loader(1, 1, 1), np.random.default_rng(0))
    assert set(after[:20].tolist()) <= set(follower.upcoming(follower.position, 40).tolist())


def test_the_stream_foretells_the_opens() -> None:
    rng = np.random.default_rng(14)
    parts = tree()
    world = (4, (1, 2))
    follower = Follower(parts, SEED, heads=HEADS, worlds=[world])
    loader = Loader(2, 2, 16, drop_last=True)
    streams: dict[int, dict[int, int]] = {}
    last = 0
    for epoch in range(3):
        opens = epoch_opens(parts[0], SHUFFLED, epoch, loader, rng, *world)
        for i in range(0, len(opens), 50):
            feed(follower, opens[i : i + 50])
            position = follower.position
            assert position >= last
            last = position
            rows = follower.upcoming(position, 700)
            assert len(rows) == 700
            known = streams.setdefault(follower.generation, {})
            for at, row in enumerate(rows.tolist(), position):
                assert known.setdefault(at, row) == row
            assert set(rows.tolist()).issuperset(opens[i + 50 : i + 60].tolist())
    assert follower.generation == 0
    assert last > 2 * len(opens) - 100


def test_a_job_that_fails_is_forgotten() -> None:
    parts = tree()
    follower = Follower(parts, SEED, heads=HEADS)
    follower.observe(epoch_opens(parts[0], SHUFFLED, 9, Loader(), np.random.default_rng(1))[:32])
    job = follower.work()
    assert job is not None
    assert follower.work() is None
    follower.finish(job)  # never ran
    assert follower.status().state == "watching"


@pytest.mark.parametrize(
    ("worlds", "message"), [([(2, (2,))], "do not fit"), ([(0, (0,))], "do not fit"), ([], "no world")]
)
def test_bad_worlds(worlds, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Follower(tree(), SEED, heads=HEADS, worlds=worlds)


def test_bad_sampler() -> None:
    with pytest.raises(ValueError, match="unknown sampler"):
        Follower(tree(), SEED, sampler="nonesuch")


def test_the_world_that_was_said_is_told_although_one_rank_begins_long_before_the_other() -> None:
    """One worker of rank 1 opens 17 files before another process does; of the others five are seen next."""
    parts = tree(6000, 0)
    rows = parts[0].orders[0].rows
    batches = [rows[registry.order(SHUFFLED, 6000, 0, 2, rank)].reshape(-1, 8) for rank in (0, 1)]
    left = {(rank, worker): iter(batches[rank][worker::2].reshape(-1)) for rank in (0, 1) for worker in (0, 1)}
    opens = [((1, 1), 17), ((0, 1), 3), ((0, 0), 1), ((1, 0), 1)]
    opens += [(who, 4) for _ in range(64) for who in left]
    follower = Follower(parts, SEED, heads=HEADS, worlds=[(2, (0, 1))])
    for (rank, worker), count in opens:
        for _ in range(count):
            follower.observe(np.array([next(left[rank, worker])]), np.array([1 + 2 * rank + worker]))
            follower.settle()
    assert (follower.status().world, follower.status().ranks) == (2, (0, 1))


def test_ranks_that_are_left_out_as_an_epoch_ends_take_no_opens_of_the_next_with_them() -> None:
    """All ranks were thought to read here. When four are seen to, two of them have begun the next epoch."""
    parts, world, ranks = tree(1024, 0), 64, (23, 24, 25, 26)
    rows = parts[0].orders[0].rows
    epochs = [[rows[registry.order(SHUFFLED, 1024, epoch, world, rank)] for rank in ranks] for epoch in (0, 1)]
    streams = [iter(np.concatenate(mine)) for mine in zip(*epochs, strict=True)]
    turns = [1, 2, 2, *[0, 1, 2, 3] * 15, 1, 0, 3, 0, 3, *[1, 2, 0, 3] * 13]
    follower = Follower(parts, SEED, heads=HEADS, worlds=[(world, tuple(range(world)))])
    flags = []
    for lane in turns:
        flags.append(follower.observe(np.array([next(streams[lane])]), np.array([1 + lane]))[0])
        follower.settle()
    assert follower.status().ranks == ranks
    assert np.mean(flags[64:]) == 1
