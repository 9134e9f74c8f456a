"""Computations in a process of their own."""

from __future__ import annotations

import functools
import os
import time

import pytest
import trio

from nopfsfs.system import low_priority_call


def test_a_result_comes_back() -> None:
    assert trio.run(low_priority_call.compute, functools.partial(pow, 3, 4)) == 81


@pytest.mark.long
def test_it_is_of_low_priority_and_outlives_the_thread_that_started_it() -> None:
    """trio's worker threads end after ten idle seconds; a process that took that for its parent's end would be gone."""

    async def later() -> object:
        return await low_priority_call.compute(functools.partial(time.sleep, 12)), await low_priority_call.compute(
            functools.partial(os.getpriority, os.PRIO_PROCESS, 0)
        )

    before = time.monotonic()
    assert trio.run(later) == (None, min(19, os.getpriority(os.PRIO_PROCESS, 0) + low_priority_call.LOW_PRIORITY))
    assert time.monotonic() - before >= 12


def test_one_that_fails_is_none() -> None:
    assert trio.run(low_priority_call.compute, functools.partial(int, "x")) is None


def test_it_ends_when_its_caller_is_cancelled() -> None:
    async def given_up() -> None:
        with trio.move_on_after(1.0):
            await low_priority_call.compute(functools.partial(time.sleep, 3600))

    before = time.monotonic()
    trio.run(given_up)
    assert time.monotonic() - before < 60
