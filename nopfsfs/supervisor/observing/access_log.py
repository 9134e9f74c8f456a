"""The access log: opens as the rings carry them, copied to those who listen on the control socket, and only then.

The supervisor copies numbers while it looks at the rings. Paths are looked up when a record is sent, in the time that
callers of the control socket have. Whoever reads too slowly loses opens, which are counted, and slows nobody.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

import numpy as np
import trio

from nopfsfs.dataset.index import Index
from nopfsfs.supervisor.control_socket import Caller
from nopfsfs.supervisor.event_loop import EventLoop
from nopfsfs.supervisor.server_rings import SeenOpens

LISTENERS_MOST = 8
RATE_MOST = 50_000  # opens a second that are copied, and at once
KEPT_MOST = 100_000  # opens that wait for one listener: 3 MB
OPENS_AT_ONCE = 2048  # of one record: some milliseconds of the supervisor
BEAT_S = 1.0  # between records where nothing is opened
GATHER_S = 0.05  # for more opens to come before a record is made


class Listener:
    """Opens that are to be sent to one caller: a `Feed` of the control socket."""

    def __init__(self, index: Index, loop: EventLoop) -> None:
        self._index, self._loop = index, loop
        self._since = time.monotonic_ns()
        self._waiting: deque[SeenOpens] = deque()
        self._count = self._dropped = 0
        self._lost = loop.lost
        self._came = trio.Event()

    def add(self, opens: SeenOpens, dropped: int) -> None:
        """Keep opens that were made since the caller listens, as far as there is room. `dropped`: so many more were
        not copied."""
        first = int(np.searchsorted(opens.times, np.uint64(self._since)))
        room = max(0, KEPT_MOST - self._count)
        kept = _part(opens, first, first + room)
        self._dropped += dropped + len(opens.rows) - first - len(kept.rows)
        if len(kept.rows):
            self._waiting.append(kept)
            self._count += len(kept.rows)
        self._came.set()

    async def wait(self) -> None:
        """Return when there are opens to be sent, after BEAT_S at most."""
        if self._count < OPENS_AT_ONCE:
            with trio.move_on_after(BEAT_S):
                await self._came.wait()
                await trio.sleep(GATHER_S)

    def next(self) -> dict[str, Any]:
        """Make a record of the next opens that stand for equally many."""
        parts: list[SeenOpens] = []
        room = OPENS_AT_ONCE
        while self._waiting and room and (not parts or self._waiting[0].stand_for == parts[0].stand_for):
            opens = self._waiting.popleft()
            parts.append(_part(opens, 0, room))
            room -= len(parts[-1].rows)
            if len(parts[-1].rows) < len(opens.rows):
                self._waiting.appendleft(_part(opens, len(parts[-1].rows), len(opens.rows)))
        self._count -= OPENS_AT_ONCE - room
        if not self._waiting:
            self._came = trio.Event()
        dropped, self._dropped = self._dropped, 0
        lost, self._lost = self._loop.lost - self._lost, self._loop.lost
        return self._record(parts) | {"dropped": dropped, "lost": lost}

    def _record(self, parts: list[SeenOpens]) -> dict[str, Any]:
        offset = time.time() - time.monotonic()
        stand_for = parts[0].stand_for if parts else 1.0
        found: dict[str, Any] = {"times": [], "readers": [], "foreseen": [], "paths": []}
        for opens in parts:
            found["times"] += np.round(opens.times * 1e-9 + offset, 6).tolist()
            found["readers"] += opens.readers.tolist()
            found["foreseen"] += [None] * len(opens.rows) if opens.foreseen is None else opens.foreseen.tolist()
            found["paths"] += [os.fsdecode(self._index.path(row)) for row in opens.rows.tolist()]
        return {"counts": "exact" if stand_for == 1.0 else "estimated", "stand_for": round(stand_for, 3)} | found


class AccessLog:
    """The listeners of a mount. The event loop copies opens while there is one."""

    def __init__(self, index: Index, loop: EventLoop) -> None:
        self._index, self._loop = index, loop
        self._listeners: list[Listener] = []
        self._left, self._at = float(RATE_MOST), time.monotonic()

    def listen(self, caller: Caller) -> dict[str, Any]:
        """Send all opens from now on to a caller, until it hangs up. Raises ValueError where too many listen."""
        if len(self._listeners) >= LISTENERS_MOST:
            raise ValueError(f"{LISTENERS_MOST} commands listen to this mount already; end one")
        listener = Listener(self._index, self._loop)
        self._listeners.append(listener)
        self._loop.copy_opens_to(self._copy)
        caller.feed = listener
        caller.at_end.append(lambda: self._leave(listener))
        return {"time": round(time.time(), 6), "most_per_second": RATE_MOST}

    def _leave(self, listener: Listener) -> None:
        self._listeners.remove(listener)
        if not self._listeners:
            self._loop.copy_opens_to(None)

    def _copy(self, opens: SeenOpens) -> None:
        """Give opens to all listeners, RATE_MOST a second at most."""
        now = time.monotonic()
        self._left, self._at = min(RATE_MOST, self._left + RATE_MOST * (now - self._at)), now
        allowed = min(len(opens.rows), int(self._left))
        self._left -= allowed
        for listener in self._listeners:
            listener.add(_part(opens, 0, allowed), len(opens.rows) - allowed)


def _part(opens: SeenOpens, begin: int, end: int) -> SeenOpens:
    foreseen = None if opens.foreseen is None else opens.foreseen[begin:end]
    return SeenOpens(
        opens.times[begin:end], opens.readers[begin:end], opens.rows[begin:end], foreseen, opens.stand_for
    )  # fmt: skip
