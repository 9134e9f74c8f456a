"""Plans that may follow one that is certain: its next epoch or another one, further ranks, the order by another name.

Compares the opens that contradict a locked plan with what that plan may have gone over to. Compares an epoch that began
as expected with the others. Reads off the opens to whom an epoch is dealt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nopfsfs.plan.epoch_order import Hypothesis, same_order, same_stream, successor
from nopfsfs.plan.following.beliefs import Beliefs
from nopfsfs.plan.following.order_tables import OrderTables
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.search import deal
from nopfsfs.plan.search.candidates import Candidate, candidate_of
from nopfsfs.plan.search.cohort import Cohort
from nopfsfs.plan.search.dealt_order import as_dealt
from nopfsfs.plan.search.suspects import FOLLOWING, LOCK, MARGIN, OpensView, Suspect, certain
from nopfsfs.plan.tracking.track import Track

# A track is idle when its own readers had fewer hits than this share of the opens that it does not explain.
_IDLE = 0.25
# Other names of an order that are kept, and of all.
_OTHERS, _OTHERS_KEPT = 6, 24
# Bits by which another epoch must be more likely than the one that was expected.
_VERIFIED = 10.0
# The share of a reader's opens that lie behind those who follow the same order, by which it is elsewhere.
_ELSEWHERE = 0.75


class Continuation:
    """The comparisons of a locked plan with what may follow it. Not thread-safe."""

    def __init__(self, tables: OrderTables, beliefs: Beliefs) -> None:
        self._tables, self._beliefs = tables, beliefs
        self._others: list[tuple[Candidate, Candidate]] = []  # what was believed, and the same order by another name

    def goes_on(self, track: Track, cohort: Cohort, view: OpensView) -> bool:
        """Adopt an epoch that may follow, further ranks of this one, or another place in it, if a cohort's opens prove
        that. True: they did."""
        here = track.hypothesis
        suspects = self._tables.suspects(list(dict.fromkeys((*track.alternatives(), here, *self.instead(here)))))
        for suspect in suspects:
            suspect.weigh(view)
        best = certain(suspects, FOLLOWING)
        if best is None:
            return False
        cohort.prove(best.worth, best.candidate.hypothesis(here.world, here.ranks))
        gone_over = track if idle(track, cohort) else None
        mine = next((one for one in suspects if one.candidate == candidate_of(here)), best)
        if not best.repeats(mine) or _begins_anew(track, best):
            found = _as_dealt(best, here) or best.candidate.hypothesis(here.world, here.ranks)
            self._beliefs.adopt(found, cohort, gone_over)
            return True
        more = self._further(track, best, view)
        if more is not None:
            self._beliefs.adopt(more, cohort, track)
            return True
        if track.places.behind(view.rows.tolist()) >= _ELSEWHERE:
            self._beliefs.adopt(here, cohort, gone_over)
            return True
        return False

    def _further(self, track: Track, found: Suspect, view: OpensView) -> Hypothesis | None:
        """The epoch of a track with the ranks that the opens show beside its own; None: there are none."""
        here = track.hypothesis
        theirs = _as_dealt(found, here)
        if (
            theirs is not None
            and replace(theirs, ranks=here.ranks) == here
            and not set(theirs.ranks) <= set(here.ranks)
        ):
            return replace(here, ranks=tuple(sorted({*here.ranks, *theirs.ranks})))
        both = self._read_again(track, view)
        return None if both is None or same_stream(both, here) else both

    def redeal(self, track: Track) -> Hypothesis | None:
        """The track's epoch as its readers show it to be dealt out; None: as was thought."""
        found = self._read_again(track)
        here = track.hypothesis
        if found is not None and replace(found, ranks=here.ranks) == here:
            # one that is merely slow has made a step or two
            slow = [rank for rank, steps in zip(here.ranks, track.places.begun_lanes(), strict=True) if steps > 1]
            found = replace(found, ranks=tuple(sorted({*found.ranks, *slow})))
        elif found is not None and same_order(found, here) and found.world > here.world and found.spec == here.spec:
            table = self._tables.table(candidate_of(here))  # of as many ranks, not all have been seen lately
            if table is not None:
                places = table.places(np.array(track.places.rows_opened(), np.int64))
                steps = np.bincount(places[places >= 0] % found.world, minlength=found.world)
                seen = {*found.ranks, *np.flatnonzero(steps > 1).tolist()}
                found = replace(found, ranks=deal.divided(here.world, here.ranks, found.world, seen))
        if found is None or (same_stream(found, here) and found.world <= here.world):
            return None
        return found  # also a larger world that reads the same files: the first opens did not show it

    def _read_again(self, track: Track, view: OpensView | None = None) -> Hypothesis | None:
        """To whom this epoch is dealt, by what a track's readers opened of it lately, and by further opens."""
        here = track.hypothesis
        suspects = self._tables.suspects([here])
        if not suspects:
            return None
        lately = track.lately()
        rows, readers = np.array(lately, np.int64).reshape(-1, 2).T
        if view is not None:
            rows, readers = np.concatenate([rows, view.rows]), np.concatenate([readers, view.readers])
        _, first = np.unique(rows, return_index=True)
        first.sort()
        suspects[0].weigh(OpensView(rows[first], readers[first], len(rows)))
        return _as_dealt(suspects[0], here)

    def verify(self, track: Track) -> None:
        """The first opens of an epoch that followed as expected: is another that may follow much more like them?

        Epochs of a small shuffle buffer are alike, so that none is ever contradicted.
        """
        self._tables.epoch_began()
        rows = np.array(track.first_rows(), dtype=np.int64)
        view = OpensView(rows, np.zeros_like(rows), len(rows))
        here = track.hypothesis
        others = [other for other in track.alternatives_of_this() if other != here]
        suspects = self._tables.suspects([here, *others])
        for suspect in suspects:
            suspect.weigh(view)
        if len(suspects) < 2 or suspects[0].candidate != candidate_of(here):
            return
        best = max(suspects[1:], key=lambda one: one.likelihood)
        if best.worth > _VERIFIED and best.likelihood > suspects[0].likelihood + _VERIFIED:
            self._beliefs.replace(track, best.candidate.hypothesis(here.world, here.ranks))

    def note_others(self, best: Suspect, suspects: Sequence[Suspect]) -> None:
        """Keep the other names of an order that was found. By another name the order goes on otherwise. The other names
        are tried when the order does not go on as expected."""
        same = [one for one in suspects if one is not best and one.worth >= LOCK - MARGIN and not best.contradicts(one)]
        self._others = [(best.candidate, one.candidate) for one in same][:_OTHERS] + self._others
        del self._others[_OTHERS_KEPT:]

    def instead(self, here: Hypothesis) -> list[Hypothesis]:
        """The epochs that follow where the order that was read was another sampler's."""
        found = []
        for believed, other in self._others:
            epochs = here.epoch - believed.epoch
            same = believed.hypothesis(here.world, here.ranks)
            if epochs < 0 or not same_order(same, replace(here, epoch=believed.epoch)):
                continue
            batch = here.spec.number("batch") or 1
            spec = registry.sampler(other.spec.sampler).dealt_out(other.spec, batch) if here.world > 1 else other.spec
            hypothesis = replace(other, spec=spec or other.spec).hypothesis(here.world, here.ranks)
            for _ in range(min(epochs, 1) + 1):
                hypothesis = successor(hypothesis)
                found.append(hypothesis)
        return found


def _as_dealt(found: Suspect, here: Hypothesis) -> Hypothesis | None:
    """To whom an order is dealt that opens follow after a plan that was certain; None: not known yet."""
    trust = deal.HELD if here.world > 1 else deal.SAID  # a world of one may be the lack of another
    return as_dealt(found, ((here.world, here.ranks),), trust)


def _begins_anew(track: Track, found: Suspect) -> bool:
    """True: opens in another epoch of the same order lie where an epoch begins, and the track is not there."""
    first = min((min(places) for places in found.ledger.followed.values()), default=0)
    return found.candidate != candidate_of(track.hypothesis) and first <= track.places.k * track.hypothesis.world


def idle(track: Track, cohort: Cohort) -> bool:
    """True: a track's own readers do nothing while others do what it does not explain."""
    return track.agreement.hits_since(cohort.began) < _IDLE * len(cohort.opens) + 1
