"""A follower that sees the opens of tripwires only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_model import Loader

from nopfsfs.plan.epoch_order import DataSet, Hypothesis, build
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.search.evidence import Ledger
from nopfsfs.plan.tracking.track import OpenVerdict, Track
from nopfsfs.plan.visible_opens import VisibleOpens
from nopfsfs.protocol.tripwires import Tripwires
from tests.conftest import long, slow
from tests.examples import examples
from tests.plan.following_jobs import SHUFFLED, epoch_opens, feed, tree
from tests.plan.lasting_heads import LastingHeads

pytestmark = pytest.mark.usefixtures("small_budget")

HEADS = LastingHeads(512 << 20)
THIN = LastingHeads(512 << 20)
WORLDS = [(1, (0,)), (2, (0, 1)), (4, (1,)), (8, (4, 5, 6, 7))]


def showing(parts: list[DataSet], certain_in: int = 0) -> VisibleOpens:
    """As many as tell one order from another, or as follow one that is certain in a world of this size."""
    n = sum(len(part.orders[0].rows) for part in parts if part.name)
    wires = Tripwires(20, 20 + n)
    if certain_in:
        wires = wires.for_certain(len(parts[0].orders[0].rows) // certain_in)
    return VisibleOpens(wires.mask(), wires.apart)


def whose(part: DataSet, epoch: int, loader: Loader, world: int, ranks: tuple[int, ...]) -> dict[int, int]:
    """By row, the process that opens it: new workers in each epoch, which take batches in turn."""
    rows, found = part.orders[0].rows, {}
    for rank in ranks:
        order = rows[registry.order(SHUFFLED, len(rows), epoch, world, rank)].tolist()
        first = 1000 + 100 * epoch + 10 * rank
        found.update({row: first + at // loader.batch % loader.workers for at, row in enumerate(order)})
    return found


def replay(
    follower: Follower, opens: np.ndarray, seen: VisibleOpens, chunk: int = 64, readers: dict[int, int] | None = None
) -> tuple[float, int]:
    """(share of the tripwires that was foreseen, files of this epoch that were neither read nor among what the stream
    says comes next)."""
    flags: list[int] = []
    missing = 0
    for at in range(0, len(opens), chunk):
        part = opens[at : at + chunk]
        shown = part[seen.mask[part]]
        known = None if readers is None else np.array([readers[row] for row in shown.tolist()], np.int64)
        flags += follower.observe(shown, known).tolist()
        follower.settle()
        coming = set(follower.upcoming(follower.position, 4 * chunk * seen.spacing + 4 * 1024).tolist())
        missing += len(set(opens[at + chunk : at + 2 * chunk].tolist()) - coming)
    return float(np.mean(flags)) if flags else 1.0, missing


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(
    st.integers(0, 2**32),
    st.integers(2000, 12_000),
    st.sampled_from(WORLDS),
    st.integers(1, 4),
    st.sampled_from([1, 8, 16]),
    st.booleans(),
)
def test_a_plan_that_is_locked_is_followed_by_tripwires(seed, n, world, workers, batch, few) -> None:
    rng = np.random.default_rng(seed)
    parts = tree(n)
    seen = showing(parts, few * world[0])
    loader = Loader(workers, 2, batch)
    follower = Follower(parts, 42, heads=HEADS, worlds=[world], inflight=loader.inflight)
    first = epoch_opens(parts[0], SHUFFLED, 0, loader, rng, *world)
    feed(follower, first[: len(first) // 2])
    assert follower.status().state == "locked"
    follower.show_only(seen)
    shares = [replay(follower, first[len(first) // 2 :], seen)]
    shares += [replay(follower, epoch_opens(parts[0], SHUFFLED, epoch, loader, rng, *world), seen) for epoch in (1, 2)]
    for share, missing in shares:
        assert share >= 0.98
        assert missing <= 2 * loader.inflight + 2 * seen.spacing  # what a slow worker comes late with
    assert follower.status().state == "locked"
    assert follower.status().epoch in (2, 3)


# Of 300 files two ranks have 150 each, of which K is 7 where the loader is not known, and their loaders hold 80.
@pytest.mark.parametrize(
    ("n", "world"),
    [
        (300, WORLDS[0]), *((1000, world) for world in WORLDS[:3]), long(6000, WORLDS[1]),
        *(slow(6000, world) for world in (WORLDS[0], WORLDS[2])),
    ],
)
def test_a_plan_is_found_by_tripwires(n, world) -> None:
    rng = np.random.default_rng(n)
    parts = tree(n, 0)
    seen = showing(parts)
    loader = Loader(2, 2, 8)
    follower = Follower(parts, 42, heads=THIN, worlds=[world], showing=seen)
    shares = []
    for epoch in range(3):
        opens, readers = (
            epoch_opens(parts[0], SHUFFLED, epoch, loader, rng, *world), whose(parts[0], epoch, loader, *world)
        )  # fmt: skip
        shares.append(replay(follower, opens, seen, readers=readers)[0])
    assert follower.status().state == "locked"
    assert follower.status().epoch in (2, 3)
    assert min(shares[1:]) >= (0.9 if n > 300 else 0.5)  # there, all opens show, and a few are much of an epoch


@pytest.mark.parametrize("apart", [0, 400, 1900])
def test_opens_are_counted_however_far_ranks_are_apart(apart: int) -> None:
    """Of 2,000 files of a rank in each epoch: most of the next epoch may be read before this one is over."""
    n, ranks = 6000, 3
    parts = tree(n, 0)
    rng = np.random.default_rng(apart)
    follower = Follower(parts, 42, heads=HEADS, worlds=[(ranks, tuple(range(ranks)))])
    rows = parts[0].orders[0].rows
    lanes = [
        np.concatenate([rows[registry.order(SHUFFLED, n, epoch, ranks, rank)] for epoch in range(3)])
        for rank in range(ranks)
    ]
    at, opens, readers = [0] * ranks, [[]], [[]]
    while min(at) < n:
        if min(at) >= n // ranks and len(opens) == 1:  # the first epoch is over; all opens showed until now
            opens.append([])
            readers.append([])
        rank = int(rng.integers(ranks))
        if at[rank] <= min(at) + apart:
            part = lanes[rank][at[rank] : at[rank] + 20]
            at[rank] += 20
            opens[-1] += part.tolist()
            readers[-1] += [100 + rank] * len(part)

    def read(these: np.ndarray, whose: np.ndarray) -> None:
        for first in range(0, len(these), 16):
            follower.observe(these[first : first + 16], whose[first : first + 16])
            follower.settle()

    read(np.array(opens[0]), np.array(readers[0]))
    seen = showing(parts, 1)
    follower.show_only(seen)
    before, shown = follower.stood_for, seen.mask[opens[1]]
    read(np.array(opens[1])[shown], np.array(readers[1])[shown])
    assert follower.stood_for - before == pytest.approx(len(opens[1]), abs=0.01 * n)


@pytest.mark.parametrize("left", [5000, 420, 330, 60, 20])
def test_opens_are_counted_wherever_in_an_epoch_tripwires_begin(left: int) -> None:
    """Where the rest of an epoch has few tripwires, or none, each tells of far more opens, or fewer, than one of the
    next epoch. Among them are some that are opened before that epoch is over."""
    n = 6000
    parts = tree(n)
    loader = Loader(2, 2, 8)
    rng = np.random.default_rng(0)
    follower = Follower(parts, 42, heads=HEADS, inflight=loader.inflight)
    opens = [epoch_opens(parts[0], SHUFFLED, epoch, loader, rng) for epoch in range(4)]
    feed(follower, opens[0])
    feed(follower, opens[1][: n - left])
    seen = showing(parts, 1)
    follower.show_only(seen)
    before = follower.stood_for
    for part in (opens[1][n - left :], opens[2], opens[3]):
        replay(follower, part, seen)
    # Tripwires of the next epoch may have been opened before only tripwires showed.
    early = 2 if left < loader.inflight else 0
    assert follower.stood_for - before == pytest.approx(left + 2 * n, abs=early * n / np.count_nonzero(seen.mask) + 1)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(180)  # a search takes its 20 s of a processor, however busy that is
@pytest.mark.usefixtures("whole_budget")
def test_another_order_is_found_by_tripwires() -> None:
    rng = np.random.default_rng(0)
    parts = tree(10_000)
    seen = showing(parts)
    loader = Loader(2, 2, 32)
    follower = Follower(parts, 42, heads=HEADS, inflight=loader.inflight)
    feed(follower, epoch_opens(parts[0], SHUFFLED, 0, loader, rng))
    follower.show_only(seen)
    replay(follower, epoch_opens(parts[0], SHUFFLED, 1, loader, rng), seen)
    other = Spec("distributed", 1234)
    replay(follower, epoch_opens(parts[0], other, 0, loader, rng), seen)
    share, _ = replay(follower, epoch_opens(parts[0], other, 1, loader, rng), seen)
    assert (follower.status().state, follower.status().seed) == ("locked", 1234)
    assert share >= 0.98


@given(st.integers(0, 3000), st.integers(1, 3000))
def test_all_processes_agree_upon_the_tripwires(first, files) -> None:
    wires = Tripwires(first, first + files)
    mask = wires.mask()
    assert [row in wires for row in range(first + files)] == mask.tolist()
    assert not mask[:first].any()
    assert abs(mask.sum() - files / wires.apart) <= 3 + 5 * np.sqrt(files / wires.apart) * (wires.apart > 1)


@pytest.mark.parametrize(("mean", "apart"), [(4096, 32), (117_000, 32), (1 << 20, 4), (16 << 20, 1)])
def test_the_larger_the_files_the_more_of_them_are_tripwires(mean, apart) -> None:
    assert Tripwires(10, 100_010, mean * 100_000).apart == apart


@pytest.mark.parametrize(
    ("files", "size", "each", "apart"),
    [
        (100_000, 4096, 100_000, 128), (5000, 117_000, 5000, 104), (5000, 117_000, 625, 19),
        (100_000, 1 << 20, 100_000, 16), (24, 16 << 20, 24, 1), (6000, 4096, 0, 23),
    ],
)  # fmt: skip
def test_fewer_tripwires_follow_an_order_that_is_certain(files, size, each, apart) -> None:
    more = Tripwires(10, 10 + files, size * files)
    fewer = more.for_certain(each)
    assert fewer.apart == apart
    assert not (fewer.mask() & ~more.mask()).any()


@pytest.mark.parametrize("n", [300, long(2000), 4000])
@pytest.mark.parametrize("epochs", [(0, 0, 1, 1, 2, 2), (0, 1, 0, 1, 2, 5)])
def test_epochs_that_nobody_expected(n, epochs) -> None:
    rng = np.random.default_rng(0)
    parts = tree(n, 0)
    seen = showing(parts)
    follower = Follower(parts, 42, heads=THIN, showing=seen)
    for epoch in epochs:
        share, _ = replay(follower, epoch_opens(parts[0], SHUFFLED, epoch, Loader(1, 1, 1), rng), seen)
        assert share >= 0.8
    assert follower.status().state == "locked"


def test_what_is_read_at_random_does_not_look_like_the_listing() -> None:
    """Tripwires at like distances would make steps in the order of the files that come again and again."""
    n = 4000
    rows = np.flatnonzero(Tripwires(20, 20 + n).mask()) - 20
    for seed in range(100):
        order = np.random.default_rng(seed).permutation(rows)[:256].tolist()
        ledger = Ledger(n)
        for at, place in enumerate(order):
            ledger.add(place, seed % 2 * (1 + at % 4))
            assert ledger.bits < 20


def test_epochs_in_which_nothing_shows_have_an_end() -> None:
    """A rank of a large world may open one tripwire in many epochs."""
    parts = tree(4000, 0)
    how = Hypothesis(0, 0, SHUFFLED, 0, 1024, (7,))
    order = build(how, parts)
    mask = np.zeros(5000, np.bool_)
    mask[order.rows[1]] = True
    track = Track(order, lambda hypothesis: build(hypothesis, parts), showing=VisibleOpens(mask, 16))
    track.agreement.lock(track.hypothesis)
    assert track.observe(int(order.rows[1])) is OpenVerdict.FORESEEN
    assert track.hypothesis.epoch <= 2


def test_nothing_is_certain_before_anything_is_known() -> None:
    """Else the mount would go over to tripwires at its first open."""
    parts = tree(4000, 0)
    follower = Follower(parts, None, heads=THIN)
    follower.observe(parts[0].orders[0].rows[[17]])
    assert not follower.steady


@pytest.mark.parametrize("n", [2000, long(6000), slow(40_000)])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("few", "gaps"), [(False, 4), (True, 8)])
def test_what_is_followed_goes_on_when_all_opens_are_shown_again(n, world, workers, few, gaps) -> None:
    rng = np.random.default_rng(n)
    parts = tree(n)
    seen = showing(parts, few * world[0])
    loader = Loader(workers, 2, 8)
    follower = Follower(parts, 42, heads=HEADS, worlds=[world], inflight=loader.inflight)
    feed(follower, epoch_opens(parts[0], SHUFFLED, 0, loader, rng, *world))
    assert follower.status().state == "locked"
    for epoch in (1, 2, 3):
        opens = epoch_opens(parts[0], SHUFFLED, epoch, loader, rng, *world)
        third = len(opens) // 3
        follower.show_only(seen)
        assert replay(follower, opens[:third], seen)[0] >= 0.95
        strays = rng.choice(opens[third:], 3)  # by somebody else
        follower.observe(strays[seen.mask[strays]], np.full(int(seen.mask[strays].sum()), 77))
        follower.show_all()
        assert not follower.puzzled
        flags = []
        for at in range(third, len(opens), 200):
            coming = follower.upcoming(follower.position, len(opens))
            assert set(opens[at:].tolist()) <= set(coming.tolist()), "nothing that is yet to be read is taken for read"
            flags.append(feed(follower, opens[at : at + 200]))
            lag = len(world[1]) * (4 * loader.inflight + gaps * seen.spacing)
            if at + 200 + lag < len(opens):
                soon = set(follower.upcoming(follower.position, lag).tolist())
                assert soon - set(opens[: at + 200].tolist()), "and what was read is not waited for"
        assert np.concatenate(flags).mean() >= 0.99
        assert not follower.puzzled
        assert follower.status().epoch in (epoch, epoch + 1)
        assert follower.status().k <= max(2 * loader.inflight, 64)


@pytest.mark.parametrize("n", [3000, long(10_000)])
@pytest.mark.parametrize("few", [False, long(True)])
def test_another_order_is_found_when_all_opens_are_shown_again(n, few) -> None:
    """As a mount does it: from a few tripwires that nothing explains on."""
    rng = np.random.default_rng(0)
    parts = tree(n)
    seen = showing(parts, int(few))
    loader = Loader(2, 2, 32)
    follower = Follower(parts, 42, heads=HEADS, inflight=loader.inflight)
    feed(follower, epoch_opens(parts[0], SHUFFLED, 0, loader, rng))
    follower.show_only(seen)
    assert replay(follower, epoch_opens(parts[0], SHUFFLED, 1, loader, rng), seen)[0] >= 0.98
    other = Spec("distributed", 7654)
    opens = epoch_opens(parts[0], other, 0, loader, rng)
    hidden = 0
    while not follower.puzzled:
        part = opens[hidden : hidden + 16]
        follower.observe(part[seen.mask[part]])
        hidden += 16
        assert hidden <= 16 * seen.spacing
    follower.show_all()
    flags = feed(follower, opens[hidden:])
    assert (follower.status().state, follower.status().seed) == ("locked", 7654)
    assert flags[256:].all()
    follower.show_only(seen)
    assert replay(follower, epoch_opens(parts[0], other, 1, loader, rng), seen)[0] >= 0.98


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_second_job_in_the_middle_of_an_epoch_is_not_taken_for_the_first(goes_on: bool) -> None:
    """What the first may have read while it did not show was read: the second opens nearly all of it again."""
    rng = np.random.default_rng(1)
    parts = tree(6000, 0)
    seen = showing(parts)
    loader = Loader(2, 2, 8)
    follower = Follower(parts, 42, heads=HEADS, inflight=loader.inflight)
    feed(follower, epoch_opens(parts[0], SHUFFLED, 0, loader, rng))
    first = epoch_opens(parts[0], SHUFFLED, 1, loader, rng)
    half = len(first) // 2
    follower.show_only(seen)
    replay(follower, first[:half], seen)
    follower.show_all()
    flags = []
    for at, row in enumerate(rng.permutation(parts[0].orders[0].rows)[:300].tolist()):
        if goes_on:
            follower.observe(first[half + at : half + at + 1], np.array([1]))
        flags.append(follower.observe(np.array([row]), np.array([2]))[0])
    assert np.mean(flags) <= 0.25
    assert follower.puzzled, "somebody reads what no plan explains"


def test_readers_that_each_go_on_where_they_were_take_no_turns() -> None:
    """So that a mount need not wait to see how far a loader reads ahead."""
    rng = np.random.default_rng(0)
    parts = tree(2000, 0)
    for workers, steady in ((1, True), (2, False)):
        follower = Follower(parts, 42, heads=HEADS)
        for epoch in (0, 1):
            assert not follower.steady, "no end of an epoch was seen"
            opens = epoch_opens(parts[0], SHUFFLED, epoch, Loader(1, 1, 1), rng)[: 2000 - 1000 * epoch]
            readers = np.arange(len(opens)) % workers + 1
            follower.observe(opens, readers)
            follower.settle()
        assert follower.steady is steady


def test_a_job_that_has_ended_is_soon_no_part_of_the_stream() -> None:
    """So many opens as are many, where all show, are an hour where one in a hundred does."""
    rng = np.random.default_rng(8)
    parts = tree(6000, 1000)
    follower = Follower(parts, 42, heads=HEADS, inflight=64)
    loader = Loader(2, 2, 16)
    feed(follower, epoch_opens(parts[0], SHUFFLED, 0, loader, rng))
    feed(follower, epoch_opens(parts[1], Spec("sequential"), 0, loader, rng))
    seen = showing(parts, 1)
    follower.show_only(seen)
    opens = np.concatenate([epoch_opens(parts[0], SHUFFLED, epoch, loader, rng) for epoch in (1, 2)])
    before = follower.generation
    replay(follower, opens[: len(opens) - 500], seen)
    coming = follower.upcoming(follower.position, 100)
    assert np.isin(coming, parts[0].orders[0].rows).all()
    assert follower.generation - before <= 8
