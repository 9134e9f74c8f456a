"""The memory budget follows the node's memory, as far as that can be measured."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import trio
import trio.testing

from nopfsfs.protocol.columns import Metric
from nopfsfs.supervisor import memory_budget
from nopfsfs.supervisor.memory_budget import PAUSE_S, MemoryBudget
from nopfsfs.supervisor.node_promises import NodePromises
from nopfsfs.system.node_memory import NOTHING_PROMISED, Memory, Promised

GIB = 1 << 30
PLENTY, LITTLE = Memory(64 * GIB, 48 * GIB), Memory(64 * GIB, GIB)


@pytest.mark.parametrize("shortage", [OSError(errno.EMFILE, "no descriptor"), MemoryError()])
def test_memory_that_cannot_be_measured_for_a_while_changes_nothing(
    shortage: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    found: list[Memory | Exception] = [PLENTY]

    def measure(promised: Promised = NOTHING_PROMISED) -> Memory:
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(memory_budget.node_memory, "measure", measure)
    stager = memoryview(bytearray(8 * 128)).cast("q")
    stager[Metric.ARENA_USED] = 8 * GIB
    policy = SimpleNamespace(pages_used=0, total=32 * GIB, use_disk=lambda pays: None, resize=lambda *_: None)
    loop = cast(Any, SimpleNamespace(policy=policy, last_used_first=lambda count: ()))

    async def main() -> None:
        node = NodePromises(str(tmp_path), str(tmp_path))
        budget = MemoryBudget(16 * GIB, np.array([32 * GIB]), None, stager, 0, node)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                budget.watch, loop, cast(Any, SimpleNamespace(command=nothing)),
                cast(Any, SimpleNamespace(look=lambda: True)),
            )  # fmt: skip
            found[0] = shortage
            await trio.sleep(10 * PAUSE_S)
            assert budget.allowed == 16 * GIB
            found[0] = LITTLE
            await trio.sleep(10 * PAUSE_S)
            assert budget.allowed < 16 * GIB, "and then it is followed again"
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert caplog.text.count("cannot be measured") == 1
