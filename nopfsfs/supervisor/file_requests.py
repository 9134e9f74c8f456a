"""The supervisor's part of `nopfs warm`, `drop` and `check`: paths that a caller names become a request to the policy.

The policy serves it until the caller goes away. A caller names its paths in as many messages as it likes, since a
message is short. Then it follows what becomes of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import trio

from nopfsfs.dataset.index import Index
from nopfsfs.dataset.named_rows import NamedRows
from nopfsfs.policy.check_queue import CheckRequest
from nopfsfs.policy.drop_queue import DropRequest
from nopfsfs.policy.warm_queue import WarmRequest
from nopfsfs.protocol.columns import Metric
from nopfsfs.supervisor.control_socket import Caller
from nopfsfs.supervisor.event_loop import EventLoop

REQUESTS_MOST = 8  # each takes some bytes for each file of the mount
PATHS_AT_ONCE = 256  # looked up before others have their turn: some milliseconds
FAILURES_AT_ONCE = 100  # of one record
FIRST_PAUSE_S, PAUSE_S = 0.02, 0.5  # between two records: the first, and the longest
RETRY_S = 2.0  # between two looks at files of which the source does not answer
STALLED_S = 120.0  # without any progress: what is left finds no room beside what the job reads, or nothing answers

AnyRequest = WarmRequest | DropRequest | CheckRequest


class RequestFeed:
    """Records of what becomes of a request: a `Feed` of the control socket."""

    def __init__(self, index: Index, request: AnyRequest, stager_metrics: memoryview) -> None:
        self._index, self._request, self._metrics = index, request, stager_metrics
        self._pause_s = FIRST_PAUSE_S
        self._progress: tuple[object, ...] = ()
        self._progress_at = self._retried_at = trio.current_time()
        self._read = 0  # bytes, when files were read for the request last
        self._stalled = False

    async def wait(self) -> None:
        """Return when it is time for the next record."""
        await trio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_S)

    def next(self) -> dict[str, Any]:
        """Make the next record. In the last, `done` is true."""
        request = self._request
        self._see_progress()
        failures = [request.failures.popleft() for _ in range(min(FAILURES_AT_ONCE, len(request.failures)))]
        return request.figures() | {
            "failures": [[os.fsdecode(self._index.path(row)), request.reason(code)] for row, code in failures],
            "stalled": self._stalled,
            "done": request.done and not request.failures,
        }

    def _see_progress(self) -> None:
        """Give the request up when nothing has moved for STALLED_S. A large file that is read moves, too."""
        request, metrics = self._request, self._metrics
        now = trio.current_time()
        if now - self._retried_at > RETRY_S:
            self._retried_at = now
            request.retry()
        if request.reads:
            self._read = metrics[Metric.SOURCE_READ_BYTES]
        progress = (*(tally.files for tally in request.tallies().values()), self._read)
        if progress != self._progress:
            self._progress, self._progress_at = progress, now
        elif not request.done and now - self._progress_at > STALLED_S:
            request.give_up()
            self._stalled = True


@dataclass
class _Asked:
    """The request of a caller, and what it has named so far."""

    command: str
    request: AnyRequest
    named: NamedRows


class FileRequests:
    """The requests of all callers, one each. `stager_metrics`: the stager's block."""

    def __init__(self, index: Index, loop: EventLoop, stager_metrics: memoryview) -> None:
        self._index, self._loop, self._metrics = index, loop, stager_metrics
        self._asked: dict[Caller, _Asked] = {}

    async def answer(self, said: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Take the `paths` of a message `warm`, `drop` or `check`, texts below the mountpoint. With `follow`, report
        from now on what becomes of all that the caller named. Return `asked`, and `wrong`: [number in `paths`, what is
        wrong]. Raises ValueError."""
        command, paths, follow = said["command"], said.get("paths", []), said.get("follow", False)
        if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
            raise ValueError("'paths' is a list of texts: paths below the mountpoint")
        if not isinstance(follow, bool):
            raise ValueError("'follow' is true or false")
        asked = self._asked.get(caller) or self._begin(command, caller)
        if asked.command != command:
            raise ValueError(f"this connection has begun to {asked.command}; use another")
        request = asked.request
        wrong: list[tuple[int, str]] = []
        for number, path in enumerate(paths):
            if number % PATHS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            try:
                request.add(asked.named.rows(os.fsencode(path)))
            except ValueError as error:  # among them texts that are no file names
                wrong.append((number, "is no file name" if isinstance(error, UnicodeError) else str(error)))
        if follow:
            request.complete = True
            caller.feed = RequestFeed(self._index, request, self._metrics)
        return {"asked": request.figures()["asked"], "wrong": wrong}

    def _begin(self, command: str, caller: Caller) -> _Asked:
        if len(self._asked) >= REQUESTS_MOST:
            raise ValueError(f"{REQUESTS_MOST} commands warm, drop or check files of this mount already; wait for one")
        policy, sizes = self._loop.policy, self._index.size
        request: AnyRequest
        queue: Any
        if command == "warm":
            request, queue = WarmRequest(sizes), policy.warm
        elif command == "drop":
            request, queue = DropRequest(sizes), policy.drops
        else:
            request, queue = CheckRequest(sizes), policy.checks
        queue.add(request)
        asked = self._asked[caller] = _Asked(command, request, NamedRows(self._index))

        def end() -> None:
            del self._asked[caller]
            queue.remove(request)

        caller.at_end.append(end)
        return asked
