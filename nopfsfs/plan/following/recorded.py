"""The plans of the last job on a source, by the mount's record, and the epochs in which the next one may begin.

A job that was restarted, requeued or started again reads what the last one read: its plans are candidates that cost
little. Owns what is recorded of a plan (`RecordedPlan`), in names that hold for another mount. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from nopfsfs.plan.epoch_order import DataSet, Hypothesis, files_of
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Dealt, Spec, Value
from nopfsfs.plan.search.candidates import RECORDED, Candidate, candidate_of
from nopfsfs.plan.search.deal import World
from nopfsfs.plan.tracking.track import Track

PLANS_MOST = 4
# Bounds of what is taken from a record.
EPOCH_MOST, WORLD_MOST = 1 << 20, 1 << 20

Part = tuple[str, int, tuple[tuple[str, Value], ...]]  # of the files: name of the subset, seed, options


@dataclass(frozen=True)
class RecordedPlan:
    """A plan that a mount followed, in its last state. `dataset`: path below the source, "." for all of it; `files`:
    how they are listed (`dataset/file_orders.py`); `inflight`: K where it was known. `position`: accesses of the epoch
    before the first that was still to come, all local ranks."""

    dataset: str
    files: str
    sampler: str
    seed: int
    epoch: int
    world: int = 1
    ranks: tuple[int, ...] = (0,)
    options: tuple[tuple[str, Value], ...] = ()
    subset: Part | None = None
    inflight: int | None = None
    position: int = 0

    @property
    def name(self) -> tuple[object, ...]:
        """The part that stays the same from one epoch, and one job, to the next."""
        return self.dataset, self.files, self.sampler, self.seed, self.subset


def recorded(track: Track, datasets: Sequence[DataSet]) -> RecordedPlan | None:
    """The record of a track; None where its order was given as arrays."""
    here = track.hypothesis
    spec, subset, dataset = here.spec, here.subset, datasets[here.dataset]
    if spec.data is not None:
        return None
    return RecordedPlan(
        dataset=dataset.name,
        files=dataset.orders[here.order].names[0],
        sampler=spec.sampler,
        seed=spec.seed,
        epoch=here.epoch,
        world=here.world,
        ranks=here.ranks,
        options=spec.options,
        subset=None if subset is None else (subset.sampler, subset.seed, subset.options),
        inflight=track.places.inflight,
        position=min(track.position - track.places.base, track.places.now.length),
    )


@dataclass(frozen=True)
class LastPlan:
    """A recorded plan in terms of the data sets of now; `inflight`: K where it was known."""

    hypothesis: Hypothesis
    inflight: int | None


def last_plans(record: Iterable[RecordedPlan], datasets: Sequence[DataSet], samplers: Container[str]) -> list[LastPlan]:
    """The plans of a record that these data sets can be read by, with one of the `samplers`."""
    found = [(_hypothesis(plan, datasets), plan.inflight) for plan in record if plan.sampler in samplers]
    return [LastPlan(hypothesis, inflight) for hypothesis, inflight in found if hypothesis is not None]


def begun_anew(plans: Iterable[LastPlan], seed: int | None, worlds: Sequence[World]) -> LastPlan | None:
    """The likeliest of the plans at its first epoch; none of another seed than the one that was said (None: none was).
    `worlds`: those that were said or guessed, which come first; where a seed was said, the first is what is assumed
    without a record."""
    for plan in plans:
        here = plan.hypothesis
        family = registry.sampler(here.spec.sampler)
        if seed is not None and (family.seeds is None or here.spec.seed != seed):
            continue
        size, ranks = worlds[0]
        if family.dealt is Dealt.ALL or (seed is None and (size == 1 or here.world in dict(worlds))):
            size, ranks = here.world, dict(worlds).get(here.world, here.ranks)
        return replace(plan, hypothesis=replace(here, epoch=0, world=size, ranks=ranks))
    return None


def _hypothesis(plan: RecordedPlan, datasets: Sequence[DataSet]) -> Hypothesis | None:
    """None where there are no such files, no such part of them, no such sampler or no such option."""
    at = next((i for i, one in enumerate(datasets) if one.name == plan.dataset), None)
    if at is None:
        return None
    order = next((i for i, one in enumerate(datasets[at].orders) if plan.files in one.names), None)
    sound = 0 <= plan.epoch <= EPOCH_MOST and 1 <= plan.world <= WORLD_MOST
    if order is None or not sound or not plan.ranks or not all(0 <= rank < plan.world for rank in plan.ranks):
        return None
    try:
        spec = registry.make_spec(registry.sampler(plan.sampler), plan.seed, dict(plan.options))
        subset = None
        if plan.subset is not None:
            name, seed, options = plan.subset
            subset = registry.make_spec(registry.subset(name), seed, dict(options))
        found = Hypothesis(at, order, spec, plan.epoch, plan.world, plan.ranks, subset)
        return found if len(files_of(found, datasets)) else None
    except ValueError:
        return None


def merged(newer: Iterable[RecordedPlan], older: Iterable[RecordedPlan]) -> tuple[RecordedPlan, ...]:
    """At most PLANS_MOST plans; of those with the same name the newer."""
    found: dict[object, RecordedPlan] = {}
    for plan in (*newer, *older):
        found.setdefault(plan.name, plan)
    return tuple(found.values())[:PLANS_MOST]


def beginnings(plans: Sequence[Hypothesis]) -> dict[Candidate, tuple[Hypothesis, float]]:
    """The epochs in which a job may begin that reads one of these plans (likeliest first), and the bits that it takes
    to name each. A plan gives its epoch, those that may follow, the first, and the one before, whose end the job may
    not have saved."""
    found: dict[Candidate, tuple[Hypothesis, float]] = {}
    for nth, plan in enumerate(plans):
        here, family = plan.spec, registry.sampler(plan.spec.sampler)
        epochs: list[tuple[Spec, int]] = [(here, plan.epoch), *family.following(here, plan.epoch), (here, 0)]
        epochs.append((here, max(plan.epoch - 1, 0)))
        for spec, epoch in dict.fromkeys(epochs):
            one = replace(plan, spec=spec, epoch=epoch)
            found.setdefault(candidate_of(one), (one, RECORDED + 2 * math.log2(nth + 1)))
    return found
