"""The supervisor's part of looking again at what the source grants: requests to the stager, and the record."""

from __future__ import annotations

import stat
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from nopfsfs.dataset.index import Index
from nopfsfs.policy.recheck_schedule import ROUND_SHARE, round_s
from nopfsfs.protocol.columns import RECHECK_SHUT, Metric
from nopfsfs.protocol.supervisor_stager import StagerCommand


class Rechecks:
    """`period_s`: of --recheck, 0 for never. `metrics`: the stager's block. `command` sends to the stager."""

    def __init__(
        self, index: Index, period_s: float, metrics: memoryview, command: Callable[..., Awaitable[None]]
    ) -> None:
        self._metrics, self._command, self._period_s = metrics, command, period_s
        self._n_dirs = index.n_dirs
        self._files = int(np.count_nonzero(index.mode[index.n_dirs :] >> 12 != stat.S_IFLNK >> 12))
        self._requested = 0
        self._sent: tuple[object, int] = (None, 0)  # to which stager, up to which request

    async def answer(self, request: dict[str, Any], stager: object | None) -> dict[str, Any]:
        """A new request for a complete look, or with `number` the progress of one. A stager that takes the place of
        one that died is asked again; where there is none, the next one is. Raises ValueError."""
        number = request.get("number")
        before = self.status() if number is None else None  # looks may be over before the command has been sent
        if number is None:
            number = self._requested = max(self._requested, self._metrics[Metric.RECHECK_ANSWERED]) + 1
        elif not isinstance(number, int) or not 0 < number <= self._requested:
            raise ValueError("there is no such request: the supervisor may be another one since; ask anew")
        done = self._metrics[Metric.RECHECK_ANSWERED] >= number
        if stager is not None and not done and (self._sent[0] is not stager or self._sent[1] < number):
            self._sent = (stager, number)
            await self._command(StagerCommand.RECHECK, value=number)
        return {"number": number, "done": done, **(before or self.status())}

    def status(self) -> dict[str, Any]:
        """The part `recheck` of the record. Seconds; `ended`: since 1970, None before the first round has ended."""
        metrics, state = self._metrics, self._metrics[Metric.RECHECK_STATE]
        takes = round_s(self._n_dirs, self._files, self._period_s) if self._period_s else None
        return {
            "period_seconds": self._period_s or None,
            "round_seconds": takes,
            "late": takes is not None and takes > ROUND_SHARE * self._period_s,
            "directories": self._n_dirs,
            "files": self._files,
            "position": metrics[Metric.RECHECK_POSITION],
            "ended": metrics[Metric.RECHECK_ENDED_S] or None,
            "took_seconds": metrics[Metric.RECHECK_TOOK_MS] / 1000,
            "looked": metrics[Metric.RECHECK_LOOKED],
            "found": metrics[Metric.RECHECK_FOUND],
            "failed": metrics[Metric.RECHECK_FAILED],
            "waiting": state & (RECHECK_SHUT - 1),
            "shut": bool(state & RECHECK_SHUT),
        }
