"""`nopfs warm` and `nopfs drop` at the control socket: paths in requests, then records until all is done."""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from nopfsfs.dataset.tree_scan import scan
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.protocol.columns import METRICS, Metric
from nopfsfs.supervisor import file_requests
from nopfsfs.supervisor.file_requests import REQUESTS_MOST, FileRequests
from tests.dataset.scanned import fill
from tests.policy.splits import split
from tests.supervisor.talking import answer_of, served


class Bench:
    """Orders over a policy that nobody drives: `stage` does."""

    def __init__(self, tmp_path: Path) -> None:
        (tmp_path / "source").mkdir()
        self.index = scan(str(fill(tmp_path / "source", *(f"d/{number}" for number in range(10)), "8"))).index
        charges = np.where(np.arange(self.index.n) >= self.index.n_dirs, 10, 0).astype(np.int64)
        self.policy = NodePolicy(charges, np.zeros(self.index.n, np.uint8), split(1000, 0, 100), [])
        self.metrics = memoryview(bytearray(8 * METRICS)).cast("q")
        self.requests = FileRequests(self.index, SimpleNamespace(policy=self.policy), self.metrics)  # type: ignore[arg-type]

    def stage(self, errors: int = 0, error: int = errno.EIO) -> None:
        """Let all that is commanded be staged, but for the first `errors` rows, which cannot be read."""
        self.policy.warm.serve(stream=False)
        for _, rows, _ in self.policy.take_commands():
            for row in rows[:errors]:
                self.policy.fetch_failed(row, error=error)
            for row in rows[errors:]:
                self.policy.staged(row)
        self.policy.warm.serve(stream=False)


async def ask(stream: trio.SocketStream, command: str = "warm", **request: Any) -> Any:
    await stream.send_all(json.dumps({"command": command, **request}).encode() + b"\n")
    return await answer_of(stream)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@asynccontextmanager
async def connected(bench: Bench, tmp_path: Path) -> AsyncIterator[tuple[str, trio.SocketStream]]:
    async with served(tmp_path, bench.requests.answer) as path, await trio.open_unix_socket(path) as stream:
        yield path, stream


async def last_record(stream: trio.SocketStream) -> dict[str, Any]:
    """The record in which all is done."""
    while True:
        record: dict[str, Any] = (await answer_of(stream))["record"]
        if record["done"]:
            return record


def test_what_is_named_is_staged_and_told(bench: Bench, tmp_path: Path) -> None:
    async def body() -> None:
        async with connected(bench, tmp_path) as (_, stream):
            first = await ask(stream, paths=["d/1", "no", "d/1", "8/x", "\ud800"])
            assert first["record"] == {
                "asked": {"files": 1, "bytes": 1},
                "wrong": [[1, "is not there"], [3, "is not there"], [4, "is no file name"]],
            }
            assert (await ask(stream, paths=["d"]))["record"]["asked"]["files"] == 10
            assert (await ask(stream, paths=["8"], follow=True))["record"]["asked"]["files"] == 11
            assert not (await answer_of(stream))["record"]["done"]
            bench.stage(errors=1)
            record = await last_record(stream)
            assert record["staged"] == {"files": 10, "bytes": 10}
            assert record["failed"] == {"files": 1, "bytes": 1}
            assert record["failures"] == [["d/1", "Input/output error"]]

    trio.run(body)


def test_an_order_ends_with_its_caller(bench: Bench, tmp_path: Path) -> None:
    async def body() -> None:
        async with connected(bench, tmp_path) as (_, stream):
            await ask(stream, paths=[""], follow=True)
            bench.policy.warm.serve(stream=False)
            assert len(bench.policy.warm.requests) == 1
            assert bench.policy.fetches.under_way == 11
            await stream.aclose()
            with trio.fail_after(10):
                while bench.policy.warm.requests:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert (7, [], 1) in bench.policy.take_commands(), "what is queued is cancelled"

    trio.run(body)


@pytest.mark.parametrize(
    "request_", [{"paths": "d"}, {"paths": [1]}, {"paths": {"d": 1}}, {"follow": 1}, {"paths": None}]
)
def test_nonsense_begins_nothing(request_: dict[str, Any], bench: Bench, tmp_path: Path) -> None:
    async def body() -> None:
        async with connected(bench, tmp_path) as (_, stream):
            answer = await ask(stream, **request_)
            assert not answer["ok"]
            assert "is " in answer["error"]
            assert not bench.policy.warm.requests

    trio.run(body)


def test_few_warm_at_once(bench: Bench, tmp_path: Path) -> None:
    async def body() -> None:
        async with connected(bench, tmp_path) as (path, stream):
            others = [await trio.open_unix_socket(path) for _ in range(REQUESTS_MOST)]
            begun = [await ask(other, paths=["8"]) for other in others]
            refused = await ask(stream, paths=["8"])
            for other in others:
                await other.aclose()
            assert all(answer["ok"] for answer in begun)
            assert refused["error"].startswith(f"{REQUESTS_MOST} commands warm, drop or check files of this mount")

    trio.run(body)


def test_what_does_not_move_is_given_up(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_requests, "STALLED_S", 0.05)

    async def body() -> None:
        async with connected(bench, tmp_path) as (_, stream):
            await ask(stream, paths=["d"], follow=True)
            record = await last_record(stream)
            assert record["stalled"]
            assert record["unfit"]["files"] == 10

    trio.run(body)


def test_what_hangs_is_asked_for_again(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_requests, "RETRY_S", 0.05)

    async def body() -> None:
        async with connected(bench, tmp_path) as (_, stream):
            await ask(stream, paths=["d"], follow=True)
            bench.stage(errors=3, error=errno.ETIMEDOUT)
            record = {"done": False}
            while not record["done"]:
                bench.stage()
                record = (await answer_of(stream))["record"]
            assert (record["staged"]["files"], record["failures"], record["stalled"]) == (10, [], False)

    trio.run(body)


def test_what_hangs_again_and_again_is_given_up_though_a_job_reads(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_requests, "RETRY_S", 0.02)
    monkeypatch.setattr(file_requests, "STALLED_S", 0.3)

    async def body() -> None:
        async with connected(bench, tmp_path) as (_, stream):
            await ask(stream, paths=["d"], follow=True)
            bench.stage(errors=3, error=errno.ETIMEDOUT)
            with trio.fail_after(10):
                record = {"done": False}
                while not record["done"]:
                    bench.policy.warm.serve(stream=False)
                    tried = [row for _, rows, _ in bench.policy.take_commands() for row in rows]
                    bench.metrics[Metric.SOURCE_READ_BYTES] += 1000  # by a job
                    record = (await answer_of(stream))["record"]
                    for row in tried:
                        bench.policy.fetch_failed(row, error=errno.ETIMEDOUT)
            assert record["stalled"]
            assert (record["staged"]["files"], record["failed"]["files"], record["unfit"]["files"]) == (7, 3, 0)

    trio.run(body)


def test_what_is_dropped_is_told(bench: Bench, tmp_path: Path) -> None:
    async def body() -> None:
        async with connected(bench, tmp_path) as (_, stream):
            for row in range(bench.index.n_dirs, bench.index.n):
                bench.policy.staged(row)
            bench.policy.take_commands()
            bench.policy.opened(bench.index.n - 1)
            assert (await ask(stream, "drop", paths=[""], follow=True))["record"]["asked"]["files"] == 11
            bench.policy.drops.serve()
            evicted = [row for do, rows, value in bench.policy.take_commands() if do == 4 and not value for row in rows]
            for row in evicted:
                bench.policy.evicted(row)
            record = await last_record(stream)
            assert (record["dropped"]["files"], record["open"]["files"]) == (10, 1)

    trio.run(body)


def test_a_connection_does_one_thing(bench: Bench, tmp_path: Path) -> None:
    async def body() -> None:
        async with connected(bench, tmp_path) as (_, stream):
            assert (await ask(stream, paths=["8"]))["ok"]
            refused = await ask(stream, "drop", paths=["8"])
            assert refused["error"] == "this connection has begun to warm; use another"

    trio.run(body)
