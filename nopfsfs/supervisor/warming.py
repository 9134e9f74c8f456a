"""The supervisor's part of `nopfs warm`: paths that a caller names become an order of the policy, which is served until
the caller goes away.

A caller names its paths in as many requests as it likes, since a request is short. Then it follows what becomes of
them.
"""

from __future__ import annotations

import os
from typing import Any

import trio

from nopfsfs.dataset.index import Index
from nopfsfs.dataset.named_rows import NamedRows
from nopfsfs.policy.warm_queue import WarmOrder
from nopfsfs.protocol.columns import Metric
from nopfsfs.supervisor.control_socket import Caller
from nopfsfs.supervisor.event_loop import EventLoop

ORDERS_MOST = 8  # each takes some bytes for each file of the mount
PATHS_AT_ONCE = 256  # looked up before others have their turn: some milliseconds
FAILURES_AT_ONCE = 100  # of one record
FIRST_PAUSE_S, PAUSE_S = 0.02, 0.5  # between two records: the first, and the longest
STALLED_S = 120.0  # without any progress: what is left finds no room beside what the job reads, or nothing answers


class WarmFeed:
    """Records of what becomes of an order: a `Feed` of the control socket."""

    def __init__(self, index: Index, order: WarmOrder, stager_gauge: memoryview) -> None:
        self._index, self._order, self._gauge = index, order, stager_gauge
        self._pause_s = FIRST_PAUSE_S
        self._progress: tuple[object, ...] = ()
        self._progress_at = trio.current_time()
        self._stalled = False

    async def wait(self) -> None:
        """Return when it is time for the next record."""
        await trio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_S)

    def next(self) -> dict[str, Any]:
        """Make the next record. In the last, `done` is true."""
        order = self._order
        self._see_progress()
        failures = [order.failures.popleft() for _ in range(min(FAILURES_AT_ONCE, len(order.failures)))]
        return order.figures() | {
            "failures": [[os.fsdecode(self._index.path(row)), os.strerror(error)] for row, error in failures],
            "stalled": self._stalled,
            "done": order.done and not order.failures,
        }

    def _see_progress(self) -> None:
        """Give the order up when nothing has moved for STALLED_S. A large file that is read moves, too."""
        order, gauge = self._order, self._gauge
        read = gauge[Metric.SOURCE_READ_BYTES] if any(order.under_way.values()) else 0
        tallies = (order.there, order.staged, order.unfit, order.elsewhere, order.failed)
        progress = (*(tally.files for tally in tallies), read)
        if progress != self._progress:
            self._progress, self._progress_at = progress, trio.current_time()
        elif not order.done and trio.current_time() - self._progress_at > STALLED_S:
            order.give_up()
            self._stalled = True


class Warmings:
    """The orders of all callers, one each."""

    def __init__(self, index: Index, loop: EventLoop, stager_gauge: memoryview) -> None:
        self._index, self._loop, self._gauge = index, loop, stager_gauge
        self._named: dict[Caller, tuple[WarmOrder, NamedRows]] = {}

    async def answer(self, request: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Take the `paths` of a request, texts below the mountpoint; with `follow`, tell from now on what becomes of
        all that the caller named. Return `asked`, and `wrong`: [number in `paths`, what is wrong]. Raises
        ValueError."""
        paths, follow = request.get("paths", []), request.get("follow", False)
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise ValueError("'paths' is a list of texts: paths below the mountpoint")
        if not isinstance(follow, bool):
            raise ValueError("'follow' is true or false")
        order, named = self._named.get(caller) or self._begin(caller)
        wrong: list[tuple[int, str]] = []
        for number, path in enumerate(paths):
            if number % PATHS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            try:
                order.add(named.rows(os.fsencode(path)))
            except ValueError as error:  # among them texts that are no file names
                wrong.append((number, "is no file name" if isinstance(error, UnicodeError) else str(error)))
        if follow:
            order.complete = True
            caller.feed = WarmFeed(self._index, order, self._gauge)
        return {"asked": order.figures()["asked"], "wrong": wrong}

    def _begin(self, caller: Caller) -> tuple[WarmOrder, NamedRows]:
        if len(self._named) >= ORDERS_MOST:
            raise ValueError(f"{ORDERS_MOST} commands warm this mount already; wait for one, or end one")
        order = WarmOrder(self._index.size)
        made = self._named[caller] = order, NamedRows(self._index)
        self._loop.policy.warm.add(order)
        caller.at_end.append(lambda: self._end(caller))
        return made

    def _end(self, caller: Caller) -> None:
        order, _ = self._named.pop(caller)
        self._loop.policy.warm.remove(order)
