"""A policy of the limit with made-up metrics: a mount whose requests all take as long as the test says."""

from __future__ import annotations

import math
from collections.abc import Callable

from nopfsfs.policy.limit_policy import LimitDecision, LimitPolicy, Reason, SourceSample
from nopfsfs.protocol.columns import SIZE_CLASSES

FULL_MINUTE = 1_000_000 * 60.0


class FedPolicy:
    """Calls a policy when it asks for it. `seconds` says how long requests take with so many under way; a number for
    always. Requests do not differ, so that all count as young."""

    def __init__(self, policy: LimitPolicy, *, clock: float = FULL_MINUTE + 1.0, disciplined: bool = True) -> None:
        self.policy = policy
        self.clock, self.disciplined = clock, disciplined
        self.now = 0.0
        self.decisions: list[LimitDecision] = []
        self.lead: float | None = None
        self.errors = 0
        self._ended, self._log2_ns = [0.0] * SIZE_CLASSES, [0.0] * SIZE_CLASSES
        self._under_way_seconds = self._waited_seconds = 0.0
        self._under_way = 0

    @property
    def limit(self) -> int:
        return self.decisions[-1].limit if self.decisions else 0

    @property
    def reasons(self) -> list[Reason]:
        return [decision.reason for decision in self.decisions]

    def run(
        self, duration: float, seconds: Callable[[int], float] | float = 0.04, *, size_class: int = 3,
        busy: bool = True, used: float = 1.0, ends: bool = True,
    ) -> None:  # fmt: skip
        """Let time pass. `busy`: something is under way. `used`: the part of the slots that prefetches take; no slot is
        waited for, if it is below 1. `ends`: false while requests hang."""
        end = self.now + duration
        while self.now < end - 1e-9:
            decision = self.policy.step(self._sample())
            self.decisions.append(decision)
            passed = min(decision.wait, end - self.now)
            self.now += passed
            self.clock += passed
            self._under_way = max(1, int(decision.limit * used)) if busy else 0
            self._pass(passed, seconds, size_class, ends)
            self._waited_seconds += passed if busy and used >= 1.0 else 0.0

    def _pass(self, passed: float, seconds: Callable[[int], float] | float, size_class: int, ends: bool) -> None:
        self._under_way_seconds += passed * self._under_way
        if not ends:
            return
        took = seconds(self._under_way) if callable(seconds) else seconds
        count = passed * self._under_way / took
        self._ended[size_class] += count
        self._log2_ns[size_class] += count * math.log2(took * 1e9)

    def _sample(self) -> SourceSample:
        ended = tuple(map(int, self._ended))
        log2_ns = tuple(  # of the whole requests
            each * whole / n if n else 0.0 for whole, n, each in zip(ended, self._ended, self._log2_ns, strict=True)
        )
        return SourceSample(
            self.now, self.clock, ended, log2_ns, ended, log2_ns, self._under_way_seconds, self._waited_seconds,
            self._under_way, errors=self.errors, lead=self.lead, disciplined=self.disciplined,
        )  # fmt: skip
