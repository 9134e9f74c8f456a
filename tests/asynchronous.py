"""Tests that are coroutines."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import trio

LIMIT_S = 30.0


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test, which is a coroutine, in a trio of its own; fails when it does not end."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def limited() -> None:
            with trio.fail_after(LIMIT_S):
                await test(*args, **kwargs)

        trio.run(limited)

    return run
