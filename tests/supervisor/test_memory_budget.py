"""The memory budget follows the node's memory, as far as that can be measured."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio
import trio.testing

from nopfsfs.policy.budget import kept_free
from nopfsfs.protocol.columns import Metric
from nopfsfs.supervisor import memory_budget
from nopfsfs.supervisor.memory_budget import PAUSE_S, SHARED_LOOKS, MemoryBudget
from nopfsfs.supervisor.node_promises import NodePromises
from nopfsfs.system.node_memory import NOTHING_PROMISED, Memory, Promised

GIB = 1 << 30
PLENTY, LITTLE = Memory(64 * GIB, 48 * GIB), Memory(64 * GIB, GIB)


@asynccontextmanager
async def watching(node: NodePromises) -> AsyncIterator[MemoryBudget]:
    """A budget of 16 GiB, of which half is filled, that follows the node's memory."""

    async def nothing(*_: object) -> None:
        pass

    stager = memoryview(bytearray(8 * 128)).cast("q")
    stager[Metric.ARENA_USED] = 8 * GIB
    policy = SimpleNamespace(pages_used=0, total=32 * GIB, use_disk=lambda pays: None, resize=lambda *_: None)
    loop = cast(Any, SimpleNamespace(policy=policy, furthest_use_first=lambda count: ()))
    budget = MemoryBudget(16 * GIB, np.array([32 * GIB]), None, stager, 0, node)
    socket, rates = cast(Any, SimpleNamespace(command=nothing)), cast(Any, SimpleNamespace(look=lambda: True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(budget.watch, loop, socket, rates)
        yield budget
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("shortage", [OSError(errno.EMFILE, "no descriptor"), MemoryError()])
def test_memory_that_cannot_be_measured_for_a_while_changes_nothing(
    shortage: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    found: list[Memory | Exception] = [PLENTY]

    def measure(promised: Promised = NOTHING_PROMISED) -> Memory:
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    monkeypatch.setattr(memory_budget.node_memory, "measure", measure)

    async def main() -> None:
        async with watching(NodePromises(str(tmp_path), str(tmp_path))) as budget:
            found[0] = shortage
            await trio.sleep(10 * PAUSE_S)
            assert budget.allowed == 16 * GIB
            found[0] = LITTLE
            await trio.sleep(10 * PAUSE_S)
            assert budget.allowed < 16 * GIB, "and then it is followed again"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert caplog.text.count("cannot be measured") == 1


def test_beside_another_mount_it_gives_its_part_and_where_that_is_not_enough_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other one holds as much, and is stopped."""
    found = [PLENTY]
    monkeypatch.setattr(memory_budget.node_memory, "measure", lambda promised=NOTHING_PROMISED: found[0])
    node = NodePromises(str(tmp_path), str(tmp_path))
    monkeypatch.setattr(node, "others", lambda: Promised(0, 0, 8 * GIB))
    missing = kept_free(LITTLE.total) - LITTLE.available
    assert 0 < missing < 8 * GIB

    async def main() -> None:
        async with watching(node) as budget:
            found[0] = LITTLE
            await trio.sleep(1.5 * PAUSE_S)
            assert budget.allowed == 8 * GIB - missing // 2
            await trio.sleep((SHARED_LOOKS - 1) * PAUSE_S)
            assert budget.allowed == 8 * GIB - missing // 2
            await trio.sleep(PAUSE_S)
            assert budget.allowed == 8 * GIB - missing

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
