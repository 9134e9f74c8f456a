"""The agreement of opens with a plan, and the worth that the plan has by it.

Owns the state of one track's plan and the counts that change it. Knows no order and no place.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from nopfsfs.plan.epoch_order import Hypothesis, Proof

# Contradicting opens of its own readers, beyond those that agreed, after which a locked plan is given up.
LOST = 24
# Agreeing opens, beyond those that contradicted, after which a plan that was given up is locked again.
_REVIVED = 24
# Foreseen opens after which a plan is steady: where K is known, or cannot be learned; and where it is not.
_STEADY, _STEADY_WITHOUT_K = 512, 8192
_HITS_KEPT = 64
# A plan is read now when so many of the last opens were those of its own readers.
ACTIVE, _READ_NOW = 512, 8
# Where few opens show, so many of fewer, of any reader: a reader needs a large part of an epoch then to belong to a
# plan, and an open that is foreseen by chance is mostly expected by the plan that is read, too.
_FEW, _READ_OF_FEW = 24, 2
# Or when half of so many were those of any reader: readers that were just made belong to none.
_HALF_OF = 32


class PlanState(str, Enum):
    """The worth of a plan, in the words of `nopfs status`."""

    NONE = "none"  # there is nothing to read
    WATCHING = "watching"  # assumed or searched for, not confirmed
    LOCKED = "locked"  # the opens cannot agree with it by chance
    MISMATCH = "mismatch"  # opens contradict it and no candidate fits
    UNKNOWN = "unknown"  # no seed was given, and no candidate fits


class Agreement:
    """The evidence for and against one plan since it is followed."""

    def __init__(self) -> None:
        self.state = PlanState.WATCHING
        self.was_locked = False
        self.proof: Proof | None = None  # by which the sampler and the seed became certain first
        self.turns = 0  # times that the plan became a mismatch, or ceased to be one
        self.against = 0  # contradicting opens of own readers, less half of the agreeing ones between them
        self.hits = 0  # opens foreseen
        # The mount's count of opens at the last hits; and at those of own readers, which chance does not make.
        self._hits: deque[int] = deque(maxlen=_HITS_KEPT)
        self._own: deque[int] = deque(maxlen=_HITS_KEPT)
        self._agreeing = 0
        self._forgive = False

    # -- opens --

    def hit(self, now: int, *, own: bool) -> None:
        """Count a foreseen open, of a reader that belongs to the plan or of another; `now`: the mount's count of
        opens."""
        self.hits += 1
        self._hits.append(now)
        if own:
            self._own.append(now)

    def show_only(self, now: int, spacing: int) -> None:
        """Go on where one open in `spacing` is counted: the last hits are as long ago as if it had been so before."""
        self._hits = deque((now - (now - at) // spacing for at in list(self._hits)[-_READ_OF_FEW:]), maxlen=_HITS_KEPT)

    def agreed(self) -> None:
        """Count an open among those that come next, while the plan is in doubt.

        Two agreeing opens cancel one contradiction, so that a plan which explains only half of the opens is given up.
        """
        self._agreeing += 1
        self._forgive = not self._forgive
        if self.against and self._forgive:
            self.against -= 1

    def disagreed(self) -> None:
        """Count an open, of any reader, that contradicts the plan."""
        self._agreeing = max(0, self._agreeing - 1)

    # -- changes of trust --

    def contradicted(self) -> bool:
        """Count a contradicting open of an own reader. True: there are too many for the plan to hold."""
        self.against += 1
        return self.against >= LOST

    def revived(self, *, telling: bool) -> bool:
        """Tell whether a plan that was given up fits again; `telling`: a hit proves something, because the window is a
        small part of the epoch."""
        given_up = self.was_locked and self.state is not PlanState.LOCKED
        return given_up and telling and self._agreeing >= _REVIVED

    def lock(self, hypothesis: Hypothesis, proof: Proof | None = None) -> None:
        """Confirm the plan. `proof` is kept unless the same plan was proven before."""
        if self.proof is None or (proof is not None and _named(self.proof.of) != _named(hypothesis)):
            self.proof = proof
        if self.state is PlanState.MISMATCH:
            self.turns += 1
        self.state = PlanState.LOCKED
        self.was_locked = True
        self.against = 0

    def watch(self) -> None:
        """Begin with a plan that is not confirmed."""
        self.state = PlanState.WATCHING

    def begin_epoch(self) -> None:
        """Forget what contradicted the plan before: another epoch, or another plan, begins."""
        self.against = 0

    def give_up(self, state: PlanState) -> None:
        """Withdraw the trust in the plan, which is followed on in case its reader comes back."""
        self._agreeing = 0
        self.against = 0
        if state is not self.state and state is PlanState.MISMATCH:
            self.turns += 1
        self.state = state

    # -- figures --

    def steady(self, *, k_known: bool) -> bool:
        """Tell whether the plan is locked and has held for a while; `k_known`: K is known, or cannot be learned."""
        return self.state is PlanState.LOCKED and self.hits >= (_STEADY if k_known else _STEADY_WITHOUT_K)

    @property
    def last_hit(self) -> int:
        """The mount's count of opens at the last one that was foreseen; 0: none was."""
        return self._hits[-1] if self._hits else 0

    @property
    def last_own(self) -> int:
        """The mount's count of opens at the last one of own readers that was foreseen; 0: none was."""
        return self._own[-1] if self._own else 0

    def hits_since(self, then: int) -> int:
        """The opens foreseen since that count of the mount's opens, at most 64."""
        return sum(1 for at in self._hits if at > then)

    def own_since(self, then: int) -> int:
        """The opens of own readers foreseen since that count of the mount's opens, at most 64."""
        return sum(1 for at in self._own if at > then)

    def read_now(self, now: int, spacing: int) -> bool:
        """Tell whether the plan is among those that are read now; one open in `spacing` shows. A plan whose readers
        have ended still foresees some opens, by chance."""
        if spacing > 1:
            return self.hits_since(now - max(_FEW, ACTIVE // spacing)) >= _READ_OF_FEW
        return self.own_since(now - ACTIVE) >= _READ_NOW or 2 * self.hits_since(now - _HALF_OF) >= _HALF_OF

    def rate(self, now: int) -> float:
        """The share of the mount's last opens that were foreseen, since the first of them; 0.0: none was."""
        return len(self._hits) / (now - self._hits[0] + 1) if self._hits else 0.0


def _named(hypothesis: Hypothesis) -> tuple[int, str, int]:
    """The part of a plan that stays over its epochs."""
    return hypothesis.dataset, hypothesis.spec.sampler, hypothesis.spec.seed
