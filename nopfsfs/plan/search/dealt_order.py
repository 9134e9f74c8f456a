"""To whom an order that opens follow is dealt: from a suspect to a hypothesis. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nopfsfs.plan.epoch_order import Hypothesis
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import STRIDED, Dealt, Spec
from nopfsfs.plan.search import by_seed, deal, repeats
from nopfsfs.plan.search.deal import World
from nopfsfs.plan.search.suspects import Suspect


def as_dealt(suspect: Suspect, said: Sequence[World], trust: float = deal.SAID) -> Hypothesis | None:
    """The part of a certain order that is read here; None: not known yet. `said`, `trust`: as in `deal.read`."""
    candidate, ledger = suspect.candidate, suspect.ledger
    family = registry.sampler(candidate.spec.sampler)
    if candidate.world is not None:
        return candidate.hypothesis()
    followed = {reader: places for reader, places in ledger.followed.items() if ledger.follows(reader)}
    found = deal.read(followed, suspect.table.n, said, trust, suspect.apart)
    shuffled = candidate.spec.sampler == by_seed.FAMILY and not candidate.spec.number("sequential")
    if found is not None and found.batch == 1 and shuffled:
        # steps that no world tells may be those of a sampler that repeats samples before it deals them out
        repeated = repeats.deal_of(followed, suspect.table.n, found.world)
        if repeated is not None:
            number = candidate.spec.seed + candidate.epoch
            return replace(candidate, spec=Spec(repeats.FAMILY), epoch=number).hypothesis(*repeated)
    if found is None:
        return candidate.hypothesis() if family.dealt is Dealt.ALL else None
    if family.dealt is Dealt.BATCHES and found.whole and found.world == 1:
        found = deal.Deal(2, (0, 1))  # in one process the order would be another
    undealt = replace(candidate, spec=candidate.spec.with_option(STRIDED, 0))
    if found.whole and family.dealt is Dealt.ALL:
        return undealt.hypothesis()
    spec = family.dealt_out(candidate.spec, found.batch)
    if spec is None:
        return undealt.hypothesis()
    return replace(candidate, spec=spec).hypothesis(found.world, found.ranks)
