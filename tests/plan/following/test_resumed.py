"""Jobs that go on where another ended, and what the record of the last job on a source is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import DataSet, FileOrder
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.following.recorded import PLANS_MOST, RecordedPlan, last_plans, merged
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.search import candidates, matching
from nopfsfs.plan.search.matching import Search
from tests.conftest import slow
from tests.plan.jobs import mixed, workers_of
from tests.plan.lasting_heads import LastingHeads

SEED, OTHER = 4711, 815
FILES, BATCH, WORKERS = 6000, 16, 2
FIRST_ROW = 20
HEADS = LastingHeads(256 << 20)
# The whole job reads here; a node of two.
WORLDS = {"alone": (1, (0,)), "ranks 4-7 of 8": (8, (4, 5, 6, 7))}
# Epoch, batches of each rank that are skipped: Trainer's skip_first_batches, Lightning, StatefulDataLoader.
BEGINNINGS = {"anew": (0, 0), "in epoch 0": (0, 9), "at epoch 37": (37, 0), "in epoch 37": (37, 9)}
NEIGHBOURS = {"at epoch 36": (36, 0), "in epoch 38": (38, 9)}
LAST = RecordedPlan("train", "image_folder", "distributed", SEED, 37)

Opens = tuple[NDArray[np.int64], NDArray[np.int64]]


def tree(files: int = FILES, name: str = "train") -> list[DataSet]:
    return [DataSet(0, name, (FileOrder(("image_folder",), np.arange(FIRST_ROW, FIRST_ROW + files)),))]


def job(
    world: tuple[int, tuple[int, ...]], epoch: int, skipped: int, files: int = FILES, seed: int = SEED,
    workers: int = WORKERS, batch: int = BATCH,
) -> Opens:  # fmt: skip
    """(rows, readers): a DistributedSampler's epoch from a batch on, with all workers; then the beginning of the
    next."""
    size, ranks = world
    rows, readers = [], []
    for number, first in ((epoch, skipped), (epoch + 1, 0)):
        dealt = [registry.order(Spec("distributed", seed), files, number, size, rank) for rank in ranks]
        each = [one for rank in dealt for one in workers_of(rank[first * batch :], workers, batch)]
        opens = mixed(each, np.random.default_rng(number))
        rows += [FIRST_ROW + sample for sample, _ in opens]
        readers += [100 * (1 + number - epoch) + reader for _, reader in opens]
    return np.array(rows, np.int64), np.array(readers, np.int64)


def foreseen(follower: Follower, opens: Opens, most: int = 600, each: int = 1) -> NDArray[np.uint8]:
    """Which opens were, when jobs are done after every few of them."""
    follower.settle()
    flags = []
    for at in range(0, min(len(opens[0]), most), each):
        flags.append(follower.observe(opens[0][at : at + each], opens[1][at : at + each]))
        follower.settle()
    return np.concatenate(flags)


@pytest.mark.parametrize("seed", [None, SEED])
@pytest.mark.parametrize("begin", BEGINNINGS)
@pytest.mark.parametrize("world", WORLDS)
def test_a_job_that_goes_on_is_found_as_soon_as_one_that_begins(world: str, begin: str, seed: int | None) -> None:
    follower = Follower(tree(), seed, heads=HEADS)
    flags = foreseen(follower, job(WORLDS[world], *BEGINNINGS[begin]), 140)
    assert flags[40:].mean() >= 0.99
    status = follower.status()
    assert (status.state, (status.seed or 0) + status.epoch) == ("locked", SEED + BEGINNINGS[begin][0])
    assert (status.world, status.ranks) == WORLDS[world]


@pytest.mark.long
@pytest.mark.parametrize("ranks", [slow((3, 4, 5, 6)), (0, 2, 4, 6)])
@pytest.mark.parametrize("seed", [SEED, slow(4928)])
def test_a_world_whose_ranks_nobody_said_is_no_worse_than_none(ranks: tuple[int, ...], seed: int) -> None:
    """As torchrun's WORLD_SIZE alone: all ranks may read here. Four do, with many workers, from mid-epoch on."""
    opens = job((7, ranks), 0, 9, 4000, seed, workers=8, batch=32)
    follower = Follower(tree(4000), seed, "distributed", heads=HEADS, worlds=[(7, tuple(range(7)))])
    flags = foreseen(follower, opens, 400, each=8)
    assert flags[64:].mean() >= 0.99
    assert (follower.status().world, follower.status().ranks) == (7, ranks)


@pytest.mark.parametrize("said", [None, OTHER])
def test_the_first_whole_epoch_of_new_workers_is_found_while_all_is_tried_for_the_middle_before_it(
    said: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fast job of a large world: a node reads a sixth of the files in an epoch, and the search takes longer."""
    monkeypatch.setattr(matching, "_SECONDS", 1e9)  # candidates are counted, not what this machine can compute
    opens = job((24, (14, 15, 16, 17)), 0, 8, 4000, batch=10)
    follower = Follower(tree(4000), said, heads=candidates.OrderHeads())
    flags = []
    for at in range(0, len(opens[0]), 32):
        flags.append(follower.observe(opens[0][at : at + 32], opens[1][at : at + 32]))
        work = follower.work()
        if work is not None:
            work.run()
            follower.finish(work)
    assert np.concatenate(flags)[-100:].all()
    status = follower.status()
    assert (status.state, status.sampler) == ("locked", "distributed")
    assert (status.world, status.ranks) == (24, (14, 15, 16, 17))


@pytest.mark.parametrize(
    ("said", "each", "together"),
    [(None, 200, 0), (OTHER, 100, 0), (OTHER, 150, 24), slow(None, 300, 0), slow(OTHER, 200, 0), slow(OTHER, 200, 60)],
)
def test_epochs_that_are_over_before_one_has_been_searched_for(
    said: int | None, each: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few files, or a busy machine: each epoch has new workers, who read it while a handful of jobs is done. The last
    opens of an epoch, `together` of them, are made while the next one begins."""
    monkeypatch.setattr(matching, "_SECONDS", 1e9)
    opens: list[tuple[int, int, int]] = []
    for epoch in range(14):
        begins = epoch * (668 - together)
        rows, readers = job((24, (14, 15, 16, 17)), epoch, 0, 4000, batch=10)
        first = readers < 200  # of two epochs
        both = zip(rows[first].tolist(), readers[first].tolist(), strict=True)
        opens += [(begins + at, row, 1000 * epoch + who) for at, (row, who) in enumerate(both)]
    _, rows, readers = np.array(sorted(opens)).T
    follower = Follower(tree(4000), said, heads=candidates.OrderHeads())
    for at in range(0, len(rows), each):
        follower.observe(rows[at : at + each], readers[at : at + each])
        work = follower.work()
        if work is not None:
            work.run()
            follower.finish(work)
        if follower.status().state == "locked":
            break
    status = follower.status()
    assert (status.state, status.sampler) == ("locked", "distributed")
    assert (status.world, status.ranks) == (24, (14, 15, 16, 17))


@pytest.mark.slow
def test_all_is_tried_for_the_first_epoch_however_many_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs in an order that nobody knows, of new workers: all is tried for the newest and for the oldest in turn."""
    monkeypatch.setattr(matching, "_SECONDS", 1e9)
    calls: list[Search] = []
    run = Search.run

    def counted(self: Search, *args: Any) -> Any:
        calls.append(self)
        return run(self, *args)

    monkeypatch.setattr(Search, "run", counted)
    follower = Follower(tree(600), None, heads=candidates.OrderHeads())
    rng = np.random.default_rng(876_234_987)  # none that would be found
    for epoch in range(8):
        rows = FIRST_ROW + rng.permutation(600)[:320]
        for at in range(0, len(rows), 8):
            follower.observe(rows[at : at + 8], 100 * epoch + np.arange(8) % 4 + 1)
            work = follower.work()
            if work is not None:
                work.run()
                follower.finish(work)
    assert follower.status().state != "locked"
    whole = [one for one in dict.fromkeys(calls) if one.past_streams]
    assert whole[0].done, "it was not begun again for each epoch"
    assert len(whole) >= 3, "it did not keep the newer ones waiting"


@pytest.mark.parametrize("seed", [None, SEED])
@pytest.mark.parametrize("begin", [*BEGINNINGS, *NEIGHBOURS])
@pytest.mark.parametrize("world", WORLDS)
def test_a_job_that_goes_on_is_foreseen_from_its_first_opens(world: str, begin: str, seed: int | None) -> None:
    size, ranks = WORLDS[world]
    epoch, skipped = (BEGINNINGS | NEIGHBOURS)[begin]
    follower = Follower(tree(), seed, heads=HEADS, record=[replace(LAST, world=size, ranks=ranks)])
    flags = foreseen(follower, job(WORLDS[world], epoch, skipped), 120)
    assert flags[5 * len(ranks) :].mean() >= 0.99
    assert (follower.status().world, follower.status().ranks) == (size, ranks)


@pytest.mark.parametrize("begin", ["anew", "at epoch 37", "in epoch 37", "at epoch 36", "in epoch 38"])
def test_a_job_that_goes_on_at_once_needs_no_other_thread(begin: str) -> None:
    """Its first opens come while the mount still computes other things."""
    rows, readers = job((1, (0,)), *(BEGINNINGS | NEIGHBOURS)[begin])
    follower = Follower(tree(), None, heads=HEADS, record=[LAST])
    flags = follower.observe(rows[:40], readers[:40])
    assert flags[8:].all()


def test_staging_begins_before_any_open() -> None:
    size, ranks = WORLDS["ranks 4-7 of 8"]
    record = [replace(LAST, world=size, ranks=ranks)]
    expected = [FIRST_ROW + registry.order(Spec("distributed", SEED), FILES, 0, size, rank)[:10] for rank in ranks]
    follower = Follower(tree(), None, heads=HEADS, record=record)
    assert follower.status().state == "watching"
    assert follower.upcoming(0, 40).tolist() == np.stack(expected, axis=1).reshape(-1).tolist()
    # ranks of another node of the same job were recorded last
    elsewhere = Follower(tree(), None, worlds=[(8, (0, 1))], heads=HEADS, record=record)
    assert elsewhere.status().ranks == (0, 1)


def test_what_is_said_comes_before_the_record() -> None:
    record = [replace(LAST, seed=OTHER), LAST]
    assert Follower(tree(), SEED, heads=HEADS, record=record).status().seed == SEED
    assert Follower(tree(), 5, heads=HEADS, record=record).status().seed == 5
    assert Follower(tree(), None, heads=HEADS, record=record).status().seed == OTHER
    assert Follower(tree(), None, "sequential", heads=HEADS, record=record).status().sampler == "sequential"


def test_an_epoch_far_from_the_last_is_found_by_the_seed_of_the_record() -> None:
    seed = 876_234_987  # none that would be found otherwise
    follower = Follower(tree(), None, heads=HEADS, record=[replace(LAST, seed=seed, epoch=50)])
    flags = foreseen(follower, job((1, (0,)), 20, 0, seed=seed), 200)
    assert flags[64:].all()


WRONG = {
    "another seed": replace(LAST, seed=OTHER),
    "another world": replace(LAST, world=5, ranks=(1, 3)),
    "another sampler": replace(LAST, sampler="random"),
    "in order": replace(LAST, sampler="sequential", seed=0),
    "a window that is too wide": replace(LAST, inflight=1 << 40, seed=OTHER),
}
OF_NO_USE = {
    "a data set that is gone": replace(LAST, dataset="gone"),
    "files that are listed in no such way": replace(LAST, files="timm"),
    "no such sampler": replace(LAST, sampler="nonesuch"),
    "no such option": replace(LAST, options=(("nonesuch", 1),)),
    "no such rank": replace(LAST, world=4, ranks=(4,)),
    "no such part": replace(LAST, subset=("random_split", 0, (("part", 7),))),
    "an epoch that no job reaches": replace(LAST, epoch=1 << 40),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("world", ["alone", slow("ranks 4-7 of 8")])
def test_a_wrong_record_makes_nothing_worse(world: str, wrong: str) -> None:
    opens = job(WORLDS[world], 3, 0)
    without = foreseen(Follower(tree(), None, heads=HEADS), opens, 120)
    follower = Follower(tree(), None, heads=HEADS, record=[WRONG[wrong]])
    flags = foreseen(follower, opens, 120)
    assert flags[64:].all()
    assert flags.sum() >= without.sum()
    assert follower.status().state == "locked"


@pytest.mark.parametrize("plan", OF_NO_USE.values(), ids=OF_NO_USE)
def test_a_record_of_what_there_is_not_is_ignored(plan: RecordedPlan) -> None:
    assert last_plans([plan, LAST], tree(), registry.SAMPLERS) == last_plans([LAST], tree(), registry.SAMPLERS)


@pytest.mark.parametrize("recorded", [(8, (0, 1, 2, 3)), (5, (2,)), (1, (0,))])
def test_ranks_of_another_node_make_a_seed_that_is_said_no_worse(recorded: tuple[int, tuple[int, ...]]) -> None:
    size, ranks = recorded
    follower = Follower(tree(), SEED, heads=HEADS, record=[replace(LAST, world=size, ranks=ranks)])
    assert foreseen(follower, job(WORLDS["ranks 4-7 of 8"], 0, 0), 120).all()


def test_a_record_of_what_is_no_longer_read_is_soon_forgotten() -> None:
    parts = tree()
    opens = np.random.default_rng(987_654_321_000).permutation(parts[0].orders[0].rows)[:64]
    follower = Follower(parts, None, heads=HEADS, record=[LAST])
    assert len(follower.upcoming(follower.position, 10)) == 10
    for at in range(0, len(opens), 8):
        follower.observe(opens[at : at + 8], np.full(8, 7))
    assert len(follower.upcoming(follower.position, 10)) == 0
    assert (follower.status().state, follower.status().sampler) == ("watching", None)


def test_files_that_were_added_since_do_not_matter() -> None:
    follower = Follower(tree(FILES + 500), None, heads=HEADS, record=[LAST])
    flags = foreseen(follower, job((1, (0,)), 38, 0, FILES + 500), 200)
    assert flags[5:].mean() >= 0.99


def test_what_is_followed_is_what_the_next_mount_needs() -> None:
    size, ranks = world = WORLDS["ranks 4-7 of 8"]
    follower = Follower(tree(), None, heads=HEADS)
    assert follower.to_record() == []
    foreseen(follower, job(world, 0, 0), 800)
    (plan,) = follower.to_record()
    assert (plan.name, plan.epoch, plan.world, plan.ranks) == (LAST.name, 0, size, ranks)
    assert 700 <= plan.position <= 800
    (last,) = last_plans([plan], tree(), registry.SAMPLERS)
    assert last.hypothesis.spec == Spec("distributed", SEED)


def test_the_record_says_where_the_job_is_that_reads_now() -> None:
    """A job was killed 1,000 opens into epoch 6, and goes on from the beginning of that epoch. The job that was
    killed came further, and opened more."""
    alone, files = WORLDS["alone"], 2000
    follower = Follower(tree(files), SEED, heads=HEADS)
    killed, resumed = job(alone, 5, 0, files), job(alone, 6, 0, files)
    for opens, pid, count in ((killed, 0, files + 1000), (resumed, 1000, 600)):
        for at in range(0, count, 50):
            chunk = slice(at, at + 50)
            follower.observe(opens[0][chunk], pid + opens[1][chunk])
            follower.settle()
    plan = merged(follower.to_record(), [])[0]
    assert (plan.name, plan.epoch) == (LAST.name, 6)
    assert 500 <= plan.position <= 600


plans = st.builds(
    replace,
    st.just(LAST),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 9),
    dataset=st.sampled_from(["train", "val"]),
)


@given(st.lists(plans, max_size=6), st.lists(plans, max_size=6))
def test_a_record_keeps_what_was_read_last(newer: list[RecordedPlan], older: list[RecordedPlan]) -> None:
    kept = merged(newer, older)
    assert len({plan.name for plan in kept}) == len(kept) == min(PLANS_MOST, len({p.name for p in (*newer, *older)}))
    if newer:
        assert kept[0] == newer[0]
    for plan in kept:
        assert plan == next(one for one in (*newer, *older) if one.name == plan.name)


def test_what_a_reader_opened_in_an_epoch_before_does_not_tell_how_far_it_runs_ahead() -> None:
    """It is found in its second epoch: one process that reads from the middle of an epoch on, and goes on."""
    rng = np.random.default_rng(5)
    unknown = FIRST_ROW + rng.permutation(FILES)[: FILES // 2]
    known = FIRST_ROW + registry.order(Spec("distributed", SEED), FILES, 0)
    rows = np.concatenate([unknown, known[:600]])
    follower = Follower(tree(), SEED, heads=HEADS)
    follower.observe(rows, np.ones_like(rows))
    follower.settle()
    follower.observe(known[600:620], np.ones(20, np.int64))
    status = follower.status()
    assert (status.state, status.seed, status.k) == ("locked", SEED, FILES // 20)
    assert follower.observe(known[620:], np.ones(FILES - 620, np.int64)).all()
