"""The facts about plans: by which evidence each is known, what is still missing, how what was said was judged.

Owns the facts that `nopfs plan` shows beside the plans themselves; `wording` says them in English. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from nopfsfs.plan.epoch_order import DataSet, Hypothesis, undealt
from nopfsfs.plan.following.follower_output import PlanStatus, describe
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Dealt, Spec, Value
from nopfsfs.plan.search.cohort import Cohort
from nopfsfs.plan.search.deal import World
from nopfsfs.plan.search.suspects import LOCK, Suspect, certain
from nopfsfs.plan.tracking.agreement import PlanState
from nopfsfs.plan.tracking.track import Track
from nopfsfs.text.units import format_ranks

# Cohorts that are explained, and candidates of each.
GROUPS_MOST = 3
_LEADS_MOST = 3
# More opens than this that seem to be missing mean that the candidate is a wrong one.
_MISSING_MOST = 256
_IN_ORDER = Spec("sequential")


class PlanOrigin(str, Enum):
    """The origin of a plan, or of its world size and ranks."""

    SAID = "said"  # by a user
    ENVIRONMENT = "environment"  # of the job, when the mount was made
    OPENS = "opens"  # read off
    ASSUMED = "assumed"  # so that staging can begin
    ALONE = "alone"  # all is read here


class Missing(str, Enum):
    """The reason why it is not certain yet which plan some opens follow."""

    OPENS = "opens"  # a candidate leads, and needs more evidence
    TOLD_APART = "told apart"  # two candidates that read other files next fit about as well
    DEAL = "deal"  # the order is known; to whom it is dealt, or what else fits, is still looked at
    CANDIDATE = "candidate"  # none of what was tried fits
    FILES = "files"  # there are too few to tell an order from chance


class Verdict(str, Enum):
    """The verdict of the opens on what was said."""

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    OPEN = "open"  # not judged yet


@dataclass(frozen=True)
class Known:
    """A plan that is followed. `after`: opens of the plan's readers after which it was certain; `bits`: the evidence
    then, less the bits that name it. None: the plan is not certain, or never was."""

    plan: PlanStatus
    origin: PlanOrigin
    dealt: PlanOrigin
    was_locked: bool
    after: int | None
    bits: float | None


@dataclass(frozen=True)
class Lead:
    """A candidate. `bits`: its evidence, less `cost`, the bits that name it."""

    sampler: str
    seed: int | None
    epoch: int
    options: tuple[tuple[str, Value], ...]
    subset: str | None
    bits: float
    cost: float


@dataclass(frozen=True)
class Group:
    """Readers that came together, and whose opens no plan explains. `readers` 0: not known. `share`: how much of what
    there is to try was tried, about; None: no search runs. `again_at`: the opens with which one begins again. `more`:
    opens that are missing, about. `unread`: what was not read yet is staged meanwhile."""

    dataset: str
    files: int
    readers: int
    opens: int
    leads: tuple[Lead, ...]
    missing: Missing
    more: int | None
    share: float | None
    again_at: int
    tried_all: bool
    unread: bool


@dataclass(frozen=True)
class Said:
    """`what` was said: "seed", "sampler", "world", "plan"; `shows`: what the opens show instead."""

    what: str
    value: str
    origin: PlanOrigin
    verdict: Verdict
    shows: str | None = None


@dataclass(frozen=True)
class Explanation:
    """`opens`: of all files; `needed`: bits that make a plan certain. `rests_s`: seconds for which searches rest,
    because they have taken their share of a core. `long_search`: one that takes minutes runs."""

    state: str
    opens: int
    needed: float
    plans: tuple[Known, ...]
    groups: tuple[Group, ...]
    said: tuple[Said, ...]
    rests_s: float
    long_search: bool


def known(track: Track, datasets: Sequence[DataSet], seed: int | None, worlds: Sequence[World]) -> Known:
    """The facts about a track; `worlds`: that were said, or guessed from the environment."""
    origin = PlanOrigin.SAID if track.given else PlanOrigin.OPENS if track.agreement.was_locked else PlanOrigin.ASSUMED
    proof = track.agreement.proof if track.agreement.was_locked else None
    return Known(
        plan=describe(track, datasets, seed),
        origin=origin,
        dealt=_dealt(track, worlds),
        was_locked=track.agreement.was_locked,
        after=None if proof is None else proof.opens,
        bits=None if proof is None else round(proof.bits, 1),
    )


def _dealt(track: Track, worlds: Sequence[World]) -> PlanOrigin:
    """The origin of world size and ranks."""
    here = track.hypothesis
    if here.world == 1 or registry.sampler(here.spec.sampler).dealt is Dealt.ALL:
        return PlanOrigin.ALONE
    if track.said is not None and (track.said.world, track.said.ranks) == (here.world, here.ranks):
        return PlanOrigin.SAID
    if (here.world, here.ranks) in worlds:
        return PlanOrigin.SAID if len(worlds) == 1 else PlanOrigin.ENVIRONMENT
    return PlanOrigin.OPENS


def group(cohort: Cohort, suspects: Sequence[Suspect], datasets: Sequence[DataSet], *, unread: bool) -> Group | None:
    """The facts about a cohort whose opens were weighed; None: all were strays."""
    among = cohort.datasets()
    if not among:
        return None
    dataset = datasets[among[0]]
    files = max(len(order.rows) for order in dataset.orders)
    leads = sorted((one for one in suspects if one.worth > 0), key=lambda one: -one.worth)
    more = _more(leads[0], len(cohort)) if leads else None
    search = cohort.full or cohort.quick
    return Group(
        dataset=dataset.name,
        files=files,
        readers=len(cohort.readers - {0}),
        opens=cohort.count,
        leads=tuple(_lead(one) for one in leads[:_LEADS_MOST]),
        missing=_missing(leads, more, files),
        more=more,
        share=None if search is None else round(search.share, 3),
        again_at=cohort.full_from,
        tried_all=cohort.despaired,
        unread=unread,
    )


def _missing(leads: Sequence[Suspect], more: int | None, files: int) -> Missing:
    if any(one.worth >= LOCK for one in leads):
        return Missing.DEAL if certain(leads) is not None else Missing.TOLD_APART
    if math.lgamma(files + 1) / math.log(2) < LOCK:
        return Missing.FILES
    return Missing.CANDIDATE if more is None else Missing.OPENS


def _more(lead: Suspect, opens: int) -> int | None:
    """Opens after which a candidate is certain, if they go on as they did; None: that will not be."""
    each = lead.ledger.bits / max(opens, 1)
    if each * _MISSING_MOST < LOCK - lead.worth:
        return None
    return max(math.ceil((LOCK - lead.worth) / each), 0)


def _lead(suspect: Suspect) -> Lead:
    here = suspect.candidate
    seeded = registry.sampler(here.spec.sampler).seeds is not None
    return Lead(
        sampler=here.spec.sampler,
        seed=here.spec.seed if seeded else None,
        epoch=here.epoch,
        options=tuple(pair for pair in here.spec.options if pair[0] != "state"),
        subset=None if here.subset is None else here.subset.sampler,
        bits=round(suspect.worth, 1),
        cost=round(suspect.cost, 1),
    )


def judge(tracks: Sequence[Track], seed: int | None, sampler: str, worlds: Sequence[World]) -> tuple[Said, ...]:
    """Judge what was said by the plans that the opens have confirmed."""
    found = [track.hypothesis for track in tracks if track.agreement.was_locked]
    said: list[Said] = []
    if seed is not None:
        said.append(_judge_seed(seed, found))
    if sampler != registry.AUTO:
        holds = any(_is(one.spec, sampler) for one in found)
        shown = dict.fromkeys(one.spec.sampler for one in found if not _in_order(one.spec))
        said.append(_said("sampler", sampler, PlanOrigin.SAID, holds, tuple(shown)))
    said += _judge_world(worlds, found)
    said += (_judge_plan(track, tracks) for track in tracks if track.said is not None)
    return tuple(said)


def _said(what: str, value: str, origin: PlanOrigin, holds: bool, shown: Sequence[str]) -> Said:
    if holds:
        return Said(what, value, origin, Verdict.CONFIRMED)
    return Said(what, value, origin, Verdict.CONTRADICTED if shown else Verdict.OPEN, ", ".join(shown) or None)


def _judge_seed(seed: int, found: Sequence[Hypothesis]) -> Said:
    """A sampler without a seed says nothing of it; nor does one whose generator's state was given."""
    specs = [spec for one in found for spec in (one.spec, one.subset) if spec is not None and _seeded(spec)]
    shown = tuple(dict.fromkeys(str(spec.seed) for spec in specs))
    return _said("seed", str(seed), PlanOrigin.SAID, str(seed) in shown, shown)


def _seeded(spec: Spec) -> bool:
    rule = registry.SAMPLERS.get(spec.sampler) or registry.subset(spec.sampler)
    return rule.seeds is not None and not _in_order(spec) and not spec.get("state", "")


def _judge_world(worlds: Sequence[World], found: Sequence[Hypothesis]) -> list[Said]:
    """Judge the worlds that were said. One rank alone, which a mount assumes when nobody has said anything, is not
    judged."""
    guesses = [world for world in worlds if world != (1, (0,))]
    if not guesses:
        return []
    origin = PlanOrigin.SAID if len(worlds) == 1 else PlanOrigin.ENVIRONMENT
    dealt = [(one.world, one.ranks) for one in found if registry.sampler(one.spec.sampler).dealt is not Dealt.ALL]
    shown = tuple(dict.fromkeys(ranks_text(*world) for world in dealt))
    fits = next((guess for guess in guesses if any(_same_world(guess, world) for world in dealt)), None)
    return [_said("world", ranks_text(*(fits or guesses[0])), origin, fits is not None, shown)]


def _same_world(a: World, b: World) -> bool:
    """True: the worlds are equal, or all ranks of each read here. Then it does not matter how many they are."""
    return a == b or all(len(ranks) == size for size, ranks in (a, b))


def _judge_plan(track: Track, tracks: Sequence[Track]) -> Said:
    """A plan that was registered: by its own track, or by another of the same files."""
    assert track.said is not None
    said, value = track.said, plan_text(track.said)
    others = [
        one.hypothesis for one in tracks
        if one is not track and not one.given and one.locked
        and (one.hypothesis.dataset, one.hypothesis.subset) == (said.dataset, said.subset)
    ]  # fmt: skip
    if track.agreement.was_locked and not _same_plan(said, track.hypothesis):
        others.insert(0, track.hypothesis)
    elif track.locked:
        return Said("plan", value, PlanOrigin.SAID, Verdict.CONFIRMED)
    elif track.agreement.state is PlanState.MISMATCH and not others:
        return Said("plan", value, PlanOrigin.SAID, Verdict.CONTRADICTED)
    return _said("plan", value, PlanOrigin.SAID, False, [plan_text(one) for one in others[:1]])


def _same_plan(a: Hypothesis, b: Hypothesis) -> bool:
    """True: both are one order, whatever the epoch, dealt to the same ranks."""
    named = (a.spec.sampler, a.spec.seed) == (b.spec.sampler, b.spec.seed)
    worlds = (a.world, a.ranks), (b.world, b.ranks)
    alone = registry.sampler(a.spec.sampler).dealt is Dealt.ALL
    return named and (alone or _same_world(*worlds))


def _is(spec: Spec, sampler: str) -> bool:
    """True: an order is one of that sampler's, or of one that deals out the same, as Trainer does
    DistributedSampler's."""
    return spec.sampler == sampler or undealt(spec)[0] == undealt(Spec(sampler))[0]


def _in_order(spec: Spec) -> bool:
    return undealt(spec) == undealt(_IN_ORDER)


def plan_text(hypothesis: Hypothesis) -> str:
    """A plan in a few words."""
    here = hypothesis
    seeded = registry.sampler(here.spec.sampler).seeds is not None
    seed, epoch = here.spec.seed if seeded else None, None if _in_order(here.spec) else here.epoch
    words = [order_text(here.spec.sampler, seed, epoch, here.spec.options)]
    if here.world > 1:
        words.append(ranks_text(here.world, here.ranks))
    return ", ".join(words)


def order_text(
    sampler: str, seed: int | None, epoch: int | None, options: Sequence[tuple[str, Value]], summary: str = ""
) -> str:
    """An order in a few words; `summary`: what its sampler is."""
    words = [f"{sampler} ({summary})" if summary else sampler]
    words += [f"{name} {value}" for name, value in (("seed", seed), ("epoch", epoch)) if value is not None]
    words += [f"{name} = {value}" for name, value in options if name != "state"]
    return ", ".join(words)


def ranks_text(world: int, ranks: Sequence[int]) -> str:
    """The ranks that read here, and of how many, in a few words."""
    if len(ranks) == world:
        return "one rank" if world == 1 else f"all {world:,} ranks"
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)} of {world:,}"
