"""Waiting for what comes soon, in tests with and without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio


def wait_until(condition: Callable[[], object], limit_s: float = 20.0) -> bool:
    """Return whether `condition` came true within `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


async def until(condition: Callable[[], object], limit_s: float = 20.0) -> None:
    """Return when `condition` has come true. Raises trio.TooSlowError after `limit_s` seconds."""
    with trio.fail_after(limit_s):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.005)
