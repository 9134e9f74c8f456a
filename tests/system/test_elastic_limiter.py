"""Calls in threads: those that do not come back leave room for others, up to a limit."""

from __future__ import annotations

import threading

import trio
import trio.testing

from nopfsfs.system.elastic_limiter import ElasticLimiter
from tests.asynchronous import in_trio


async def until_busy(limiter: ElasticLimiter, calls: int) -> None:
    with trio.fail_after(20):
        while limiter._tokens.borrowed_tokens != calls:  # noqa: ASYNC110
            await trio.sleep(0.01)


@in_trio
async def test_calls_that_hang_leave_others_threads_up_to_a_limit() -> None:
    limiter, gate = ElasticLimiter(4, 10), threading.Event()
    ended: list[int] = []

    async def call(number: int, wait: bool) -> None:
        if wait:
            await limiter.run(gate.wait, 30)
        else:
            await limiter.run(ended.append, number)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(call, number, True)
        await until_busy(limiter, 8)
        with trio.fail_after(20):
            await call(8, False)
        assert ended == [8]
        for number in range(9, 14):
            nursery.start_soon(call, number, True)
        await until_busy(limiter, 10)
        nursery.start_soon(call, 14, False)
        await trio.testing.wait_all_tasks_blocked(0.3)
        assert (limiter._tokens.borrowed_tokens, ended) == (10, [8]), "no more than the limit"
        gate.set()
    assert sorted(ended) == [8, 14]
    assert limiter._tokens.total_tokens == 4
