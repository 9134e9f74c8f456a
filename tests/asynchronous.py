"""Tests that are coroutines, in real or in virtual time."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.abc
import trio.testing

LIMIT_S = 30.0
VIRTUAL_LIMIT_S = 600.0


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test, which is a coroutine, in a trio of its own; fails when it does not end."""
    return _run(test, LIMIT_S, lambda: None)


def in_virtual_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The same with a clock that goes on only where all tasks wait. Real threads disturb it: see `without_threads`."""
    return _run(test, VIRTUAL_LIMIT_S, lambda: trio.testing.MockClock(autojump_threshold=0.0))


def _run(
    test: Callable[..., Awaitable[None]], limit_s: float, clock: Callable[[], trio.abc.Clock | None]
) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def limited() -> None:
            with trio.fail_after(limit_s):
                await test(*args, **kwargs)

        trio.run(limited, clock=clock())

    return run


def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in the event loop what is for a thread. A real thread takes real time, in which the virtual clock of an idle
    event loop goes on."""

    async def run_sync(call: Callable[..., Any], *words: Any, abandon_on_cancel: bool = False) -> Any:
        await trio.lowlevel.checkpoint()
        return call(*words)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
