"""What a plan is known by, what is missing, and how what was said was judged; and what is said of it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.plan.epoch_order import DataSet, FileOrder, Hypothesis, build
from nopfsfs.plan.following.explaining import Explanation, Group, Lead, Missing, PlanOrigin, Said, Verdict, group
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.following.search_budget import Budget
from nopfsfs.plan.following.wording import paragraph
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.search.candidates import Candidate, OrderHeads, Seeds
from nopfsfs.plan.search.cohort import Cohort
from nopfsfs.plan.search.matching import Search
from nopfsfs.plan.search.row_owners import RowOwners
from nopfsfs.plan.search.suspects import LOCK, Suspect, Table
from tests.examples import examples

FILES = 2000
SHUFFLED = Spec("distributed", 42)
ROWS = np.arange(20, 20 + FILES)
TRAIN = [DataSet(0, "train", (FileOrder(("image_folder",), ROWS),))]
ORDER = "distributed (torch.utils.data.DistributedSampler with set_epoch)"


def read(follower: Follower, opens: int, world: int = 8, ranks: tuple[int, ...] = (4, 5, 6, 7), epoch: int = 3) -> None:
    """One process for each rank opens files in turn."""
    orders = [ROWS[registry.order(SHUFFLED, FILES, epoch, world, rank)] for rank in ranks]
    for at in range(opens):
        nth, rank = divmod(at, len(ranks))
        follower.observe(orders[rank][nth : nth + 1], np.array([100 + rank]))
        follower.settle()


def test_before_anything_is_read() -> None:
    found = Follower(TRAIN, None).explain()
    assert (found.plans, found.groups, found.said) == ((), (), ())
    assert paragraph(found) == "Nothing was read yet."
    assumed = Follower(TRAIN, 42).explain()
    assert [(one.origin, one.after, one.was_locked) for one in assumed.plans] == [(PlanOrigin.ASSUMED, None, False)]
    assert assumed.said == (Said("seed", "42", PlanOrigin.SAID, Verdict.OPEN),)
    assert paragraph(assumed) == (
        f"Nothing was read yet. The files in train/ are expected in the order of {ORDER}, seed 42, epoch 0: the mount "
        "goes by that until the opens show what is read. You said seed 42: the opens have not judged it yet."
    )
    assert paragraph(Follower([], None).explain()) == "There are no files in this mount."


def test_a_plan_that_is_known() -> None:
    follower = Follower(TRAIN, 42)
    read(follower, 40)
    found = follower.explain()
    (known,) = found.plans
    assert (known.plan.seed, known.plan.epoch, known.plan.world, known.plan.ranks) == (42, 3, 8, (4, 5, 6, 7))
    assert (known.origin, known.dealt, known.was_locked) == (PlanOrigin.OPENS, PlanOrigin.OPENS, True)
    assert known.after is not None
    assert 4 <= known.after <= 16
    assert known.bits is not None
    assert known.bits >= LOCK
    assert found.said == (Said("seed", "42", PlanOrigin.SAID, Verdict.CONFIRMED),)
    assert paragraph(found) == (
        f"The files in train/ are read in the order of {ORDER}, seed 42, epoch 3: ranks 4-7 of 8 read here. Known "
        f"after {known.after} opens, by {known.bits:.0f} bits of evidence, where 40 are needed. You said seed 42: the "
        "opens confirm it. World size and ranks were read off the opens."
    )
    assert json.loads(json.dumps(asdict(found)))["plans"][0]["after"] == known.after


def test_how_a_plan_was_known_stays_over_its_epochs() -> None:
    follower = Follower(TRAIN, 42)
    read(follower, FILES // 2, epoch=3)
    before = follower.explain().plans[0]
    read(follower, 100, epoch=4)
    after = follower.explain().plans[0]
    assert (before.plan.epoch, after.plan.epoch) == (4, 4)  # the one that comes, and the one that is read
    assert (after.after, after.bits) == (before.after, before.bits)


EIGHT = (8, (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("seed", "sampler", "worlds", "expected"),
    [
        (7, "auto", [(1, (0,))], [Said("seed", "7", PlanOrigin.SAID, Verdict.CONTRADICTED, "42")]),
        (None, "distributed", [(1, (0,))], [Said("sampler", "distributed", PlanOrigin.SAID, Verdict.CONFIRMED)]),
        (None, "auto", [EIGHT], [Said("world", "ranks 4-7 of 8", PlanOrigin.SAID, Verdict.CONFIRMED)]),
        (
            None, "auto", [(16, (8, 9, 10, 11))],
            [Said("world", "ranks 8-11 of 16", PlanOrigin.SAID, Verdict.CONTRADICTED, "ranks 4-7 of 8")],
        ),
        (
            None, "auto", [(16, (8,)), EIGHT, (1, (0,))],
            [Said("world", "ranks 4-7 of 8", PlanOrigin.ENVIRONMENT, Verdict.CONFIRMED)],
        ),
    ],
)  # fmt: skip
def test_what_was_said_is_judged(seed, sampler, worlds, expected) -> None:
    follower = Follower(TRAIN, seed, sampler, worlds)
    assert {one.verdict for one in follower.explain().said} == {Verdict.OPEN}
    read(follower, 64)
    found = follower.explain()
    assert list(found.said) == expected
    assert found.plans[0].dealt is {EIGHT: expected[-1].origin}.get(
        next((one for one in worlds if one == EIGHT), None), PlanOrigin.OPENS
    )


@pytest.mark.parametrize(
    ("seed", "opens", "verdict", "shows"),
    [
        (42, 0, Verdict.OPEN, None),
        (42, 40, Verdict.CONFIRMED, None),
        (1, 64, Verdict.CONTRADICTED, "distributed, seed 42, epoch 3, ranks 4-7 of 8"),
    ],
)
def test_a_plan_that_was_registered_is_judged(seed, opens, verdict, shows) -> None:
    follower = Follower(TRAIN, None)
    said = Hypothesis(0, 0, Spec("distributed", seed), 3, 8, (4, 5, 6, 7))
    follower.register([(build(said, TRAIN), None)])
    read(follower, opens)
    (judged,) = follower.explain().said
    value = f"distributed, seed {seed}, epoch 3, ranks 4-7 of 8"
    assert judged == Said("plan", value, PlanOrigin.SAID, verdict, shows)
    assert f"You registered {value}: " in paragraph(follower.explain())


def test_the_same_order_under_another_name_confirms_the_sampler() -> None:
    follower = Follower(TRAIN, 42, "hf_trainer")
    read(follower, 40, 1, (0,))
    said = {one.what: one.verdict for one in follower.explain().said}
    assert said == {"seed": Verdict.CONFIRMED, "sampler": Verdict.CONFIRMED}


# -- what is missing --


def cohort(datasets: list[DataSet], rows: np.ndarray) -> Cohort:
    found = Cohort(RowOwners(datasets), 0)
    found.readers.add(1)
    for now, row in enumerate(rows.tolist(), 1):
        found.add(row, 1, now)
    return found


def suspect(rows: np.ndarray, of: Cohort, spec: Spec = SHUFFLED, cost: float = 5.0) -> Suspect:
    found = Suspect(Candidate(0, 0, spec, 0), Table(rows), cost)
    found.weigh(of.view())
    return found


def told(of: Cohort, *suspects: Suspect, datasets: list[DataSet] = TRAIN) -> Group:
    found = group(of, suspects, datasets, unread=False)
    assert found is not None
    return found


def shuffled(seed: int) -> np.ndarray:
    return ROWS[np.random.default_rng(seed).permutation(FILES)]


def test_how_many_opens_are_missing_is_about_right() -> None:
    order = shuffled(1)
    most = next(k for k in range(1, 40) if suspect(order, cohort(TRAIN, order[:k])).worth >= LOCK)
    found = told(few := cohort(TRAIN, order[: most - 2]), suspect(order, few))
    assert found.missing is Missing.OPENS
    assert found.more is not None
    assert 1 <= found.more <= 6
    assert (found.readers, found.opens, found.dataset, found.files) == (1, most - 2, "train", FILES)
    assert 0 < found.leads[0].bits < LOCK
    assert found.leads[0].cost == 5.0


def test_two_orders_that_fit_are_to_be_told_apart() -> None:
    order, seen = shuffled(1), 30
    other = np.concatenate([order[:seen], np.random.default_rng(2).permutation(order[seen:])])
    of = cohort(TRAIN, order[:seen])
    both = told(of, suspect(order, of), suspect(other, of, Spec("random", 42)))
    assert both.missing is Missing.TOLD_APART
    assert [one.sampler for one in both.leads] == ["distributed", "random"]
    assert told(of, suspect(order, of)).missing is Missing.DEAL


def test_nothing_that_fits_and_too_few_files() -> None:
    of = cohort(TRAIN, shuffled(1)[:50])
    found = told(of, suspect(shuffled(2), of), suspect(ROWS, of, Spec("sequential")))
    assert (found.missing, found.more, found.leads) == (Missing.CANDIDATE, None, ())
    few = [DataSet(0, "few", (FileOrder(("image_folder",), ROWS[:7]),))]
    assert told(cohort(few, ROWS[:3]), datasets=few).missing is Missing.FILES
    of = cohort(TRAIN, ROWS[:1])
    of.forgive()
    of.forgive()  # the second time its one open was a stray
    assert group(of, [], TRAIN, unread=False) is None


@settings(max_examples=examples(50))
@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(0, 40), st.floats(0, 45))
def test_whatever_is_opened_something_is_said(seed: int, opens: int, strays: int, cost: float) -> None:
    rng = np.random.default_rng(seed)
    order = shuffled(seed % 5)
    mixed = rng.permutation(np.concatenate([np.arange(opens), rng.integers(0, FILES, strays)]))
    of = cohort(TRAIN, order[mixed])
    found = told(of, suspect(order, of, cost=cost), suspect(shuffled(9), of, Spec("random", 1)))
    assert [one.bits for one in found.leads] == sorted((one.bits for one in found.leads), reverse=True)
    assert (found.missing is Missing.OPENS) <= (found.more is not None and found.more > 0)
    assert (found.missing in (Missing.OPENS, Missing.DEAL, Missing.TOLD_APART)) <= bool(found.leads)
    text = paragraph(explained(found))
    assert text.endswith(".")
    assert "None" not in text


# -- searches --


def test_a_search_says_how_far_it_is() -> None:
    follower = cohort(TRAIN, shuffled(3)[:8])
    search = Search(TRAIN, [0], Seeds(7), "auto", [(1, (0,))], OrderHeads(), first_only=True)
    shares = [search.share]
    while not search.done:
        search.run(follower.view())
        shares.append(search.share)
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_searches_rest_when_they_have_taken_their_share() -> None:
    now = 0.0
    budget = Budget(lambda: now)
    assert budget.rests_s == 0
    budget.spend(23.0)
    assert budget.rests_s == pytest.approx(100.0)
    now = 90.0
    assert budget.rests_s == pytest.approx(10.0)
    now = 101.0
    assert budget.rests_s == 0


# -- words --

FIRST = Lead("distributed", 42, 3, (), None, 21.0, 5.0)
SECOND = Lead("tf_shuffle", 0, 1, (("buffer", 100),), "random_split", 4.2, 9.0)
SEARCHED = Group("train", 4000, 2, 40, (), Missing.CANDIDATE, None, 0.52, 96, tried_all=False, unread=False)


def explained(*groups: Group, said: tuple[Said, ...] = (), rests_s: float = 0.0, long: bool = False) -> Explanation:
    return Explanation("unknown", 100, LOCK, (), groups, said, rests_s, long)


EVIDENCE = {
    "a lead": (
        replace(SEARCHED, leads=(FIRST, SECOND), missing=Missing.OPENS, more=5),
        "distributed, seed 42, epoch 3 fits best, by 21 bits of evidence of the 40 that are needed: that takes about 5 "
        "more opens. Next comes tf_shuffle, seed 0, epoch 1, buffer = 100 over a part of the files (random_split), by "
        "4. The search has tried about 52% of what is known.",
    ),
    "two": (
        replace(SEARCHED, leads=(FIRST, replace(FIRST, sampler="random")), missing=Missing.TOLD_APART, more=1),
        "distributed, seed 42, epoch 3 and random, seed 42, epoch 3 fit about equally well; opens in which they differ "
        "will tell.",
    ),
    "backwards": (
        replace(SEARCHED, leads=(FIRST,), missing=Missing.TOLD_APART, more=1),
        "distributed, seed 42, epoch 3 fits, but its readers do not go forward in it; more opens will tell.",
    ),
    "the deal": (
        replace(SEARCHED, leads=(FIRST,), missing=Missing.DEAL, more=1),
        "They follow distributed, seed 42, epoch 3; the next opens will show which ranks read it, or that something "
        "fits better.",
    ),
    "none": (
        replace(SEARCHED, opens=20, share=None),
        "Nothing that was tried so far fits them. All that is known is tried from 96 opens on.",
    ),
    "one that does not grow": (
        replace(SEARCHED, opens=20, share=None, again_at=20, leads=(SECOND,)),
        "Nothing that was tried so far fits them. Least unlikely is tf_shuffle, seed 0, epoch 1, buffer = 100 over a "
        "part of the files (random_split), by 4 bits of evidence of 40. A search waits for its turn.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EVIDENCE)
def test_what_is_missing_in_words(case: str) -> None:
    found, words = EVIDENCE[case]
    begin = f"2 readers have made {found.opens} opens in train/ that no plan explains yet. "
    assert paragraph(explained(found)) == begin + words


def test_what_helps_when_nothing_is_found() -> None:
    tried = replace(SEARCHED, share=None, tried_all=True, unread=True, readers=0, dataset="")
    text = paragraph(explained(tried, long=True))
    assert text.startswith(
        "No plan explains 40 opens of this mount yet. Nothing that was tried so far fits them. All that is known was "
        "tried; that begins again from 96 opens on. One that takes minutes runs besides. Meanwhile what was not read "
        "yet is staged, in the order of the listing. What helps: mount with --seed, if the job has a seed, or register "
    )
    assert text.endswith("The mount goes on searching by itself; a shuffle without a seed cannot be found.")
    seed = (Said("seed", "42", PlanOrigin.SAID, Verdict.OPEN),)
    assert "--seed" not in paragraph(explained(tried, said=seed))
    rests = paragraph(explained(SEARCHED, rests_s=40.0))
    assert "has tried about 52% of what is known, and rests for 40.0 s to leave the processor to others." in rests


def test_strays_beside_a_plan_that_is_known_are_not_told_of() -> None:
    follower = Follower(TRAIN, 42)
    read(follower, 40)
    plans = follower.explain().plans
    few = replace(SEARCHED, opens=15, tried_all=True)
    assert "no plan explains" not in paragraph(replace(explained(few), plans=plans))
    assert "no plan explains" in paragraph(replace(explained(replace(few, opens=16)), plans=plans))
