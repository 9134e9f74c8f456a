"""The memory budget of the mount: less while the node has too little memory, more again when there is enough."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt
import trio

from nopfsfs.config import MountConfig
from nopfsfs.policy import budget
from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.supervisor.event_loop import EventLoop
from nopfsfs.supervisor.measured_rates import MeasuredRates
from nopfsfs.supervisor.node_promises import NodePromises
from nopfsfs.supervisor.stager_socket import StagerSocket
from nopfsfs.system import node_memory
from nopfsfs.system.outages import SHORTAGE

log = logging.getLogger(__name__)
PAUSE_S = 1.0  # between two looks at the node's memory
# Looks in a row at too little memory, each after others have given their parts. Then each mount gives all that is
# missing: another may be stopped.
SHARED_LOOKS = 4
FURTHEST_LOOKED_AT = 1 << 20  # positions of the access stream


def configured_bytes(config: MountConfig, given: int | None, data: int, node: NodePromises) -> int:
    """The budget of a mount whose files cost `data` bytes; `given`: by the supervisor before; `node`: what others were
    promised is not available."""
    configured = given if given is not None else config.ram
    if configured is None:
        configured = budget.automatic(node_memory.measure(promised=node.others()).available, data)
    if config.page_cache is not None and config.page_cache > configured:
        log.warning("--page-cache is more than the memory there is; it may take %d MiB", configured >> 20)
    return configured


class MemoryBudget:
    """Bytes that the mount may take: `configured`, and `allowed` now. `charges` i64[n]: what each file costs, as the
    policy changes it; `page_cache`: of the configuration; `stager`: its metrics. `processes`: the number of those still
    to be started; `node`: where others see what this mount was promised."""

    def __init__(
        self, configured: int, charges: npt.NDArray[np.int64], page_cache: int | None, stager: memoryview,
        processes: int, node: NodePromises,
    ) -> None:  # fmt: skip
        self._node, self._charges, self._data = node, charges, int(charges.sum())
        self.configured, self._page_cache, self._stager = configured, page_cache, stager
        self._unmeasured = False  # that was logged
        self._short_looks = 0  # the last ones in a row that found too little memory
        found = node_memory.measure(promised=node.others())
        most = budget.affordable(stager[Metric.ARENA_USED], found.available, found.total, processes)
        self.allowed = min(configured, most)
        if self.allowed < configured:
            log.warning(
                "the memory budget is %d MiB for now, not %d: there is no more", self.allowed >> 20, configured >> 20
            )
        node.promise(self.allowed, stager[Metric.ARENA_USED])

    @property
    def split(self) -> budget.MemorySplit:
        """The parts of what is allowed now."""
        large = self._charges[self._charges > budget.whole_limit(self.allowed)]
        return budget.split(self.allowed, self._data, self._page_cache, int(large.sum()))

    def used(self, pages: int) -> dict[str, int]:
        """Bytes in use, by tier. `pages`: in the page cache, as far as is known."""
        stager = self._stager
        return {"page_cache": max(0, pages), "ram": stager[Metric.ARENA_USED], "disk": stager[Metric.DISK_USED]}

    async def watch(self, loop: EventLoop, stager: StagerSocket, rates: MeasuredRates) -> None:
        """Shrink under memory pressure, grow back when it is over; for ever."""
        policy = loop.policy
        while True:
            await trio.sleep(PAUSE_S)
            policy.use_disk(rates.look())
            found = self._measure()
            if found is None:
                continue
            used, others = self.used(policy.pages_used), self._node.others()
            short = found.available < budget.kept_free(found.total)
            self._short_looks = self._short_looks + 1 if short else 0
            beside = others.held if self._short_looks <= SHARED_LOOKS else 0
            allowed = budget.under_pressure(
                self.configured, self.allowed, used["ram"] + used["page_cache"], found.available, found.total,
                used["ram"], others.node, beside,
            )  # fmt: skip
            self._node.promise(allowed, used["ram"])
            if allowed != self.allowed or policy.total != self._data:
                await self._resize(allowed, loop, stager)

    def _measure(self) -> node_memory.Memory | None:
        """Measure the node's memory; None where that is not possible at this moment."""
        try:
            found = node_memory.measure()
        except SHORTAGE as e:
            if not self._unmeasured:
                log.warning("the node's memory cannot be measured now; the budget stays as it is: %s", e)
            self._unmeasured = True
            return None
        self._unmeasured = False
        return found

    async def _resize(self, allowed: int, loop: EventLoop, stager: StagerSocket) -> None:
        if allowed != self.allowed:
            log.info("memory budget %d MiB, was %d MiB", allowed >> 20, self.allowed >> 20)
        self.allowed, self._data = allowed, loop.policy.total
        split = self.split
        loop.policy.resize(split, loop.furthest_use_first(FURTHEST_LOOKED_AT))
        arena, *parts = split.for_stager
        await stager.command(StagerCommand.BUDGET, np.array(parts, np.int64), arena)
