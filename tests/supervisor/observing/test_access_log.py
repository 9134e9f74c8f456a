"""The access log copies opens to those who listen, within its bounds, and says what it left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio

from nopfsfs.control.client import Connection
from nopfsfs.supervisor import control_socket
from nopfsfs.supervisor.observing import access_log
from nopfsfs.supervisor.observing.access_log import KEPT_MOST, LISTENERS_MOST, OPENS_AT_ONCE, RATE_MOST, AccessLog
from nopfsfs.supervisor.server_rings import SeenOpens
from tests.supervisor.talking import answer_of, served
from tests.waiting import until

NOW = 10**12  # ns, when each test's listener begins


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the log; nothing of it passes by itself."""
    now = SimpleNamespace(ns=NOW)
    fake = SimpleNamespace(monotonic_ns=lambda: now.ns, monotonic=lambda: now.ns / 1e9, time=lambda: now.ns / 1e9 + 1e9)
    monkeypatch.setattr(access_log, "time", fake)
    return now


class Bench:
    """A log over an event loop of which only the copies are real."""

    def __init__(self) -> None:
        self.taker: Callable[[SeenOpens], None] | None = None
        self.loop = SimpleNamespace(copy_opens_to=self._copy_opens_to, lost=0)
        index = SimpleNamespace(path=lambda row: f"d/{row}".encode())
        self.log = AccessLog(index, self.loop)  # type: ignore[arg-type]

    def _copy_opens_to(self, taker: Callable[[SeenOpens], None] | None) -> None:
        self.taker = taker

    def listen(self) -> control_socket.Caller:
        caller = control_socket.Caller(trio.CapacityLimiter(1))
        self.log.listen(caller)
        return caller

    def open(self, rows: range, stand_for: float = 1.0, at: int = NOW) -> None:
        """Opens, one a nanosecond."""
        found = np.array(rows, np.int64)
        times = np.arange(at, at + len(found), dtype=np.uint64)
        self.taker(SeenOpens(times, found * 0 + 7, found, found % 2 == 0, stand_for))


def all_of(caller: control_socket.Caller) -> list[dict[str, Any]]:
    """The records that wait now."""
    assert caller.feed is not None
    found = [caller.feed.next()]
    while found[-1]["paths"]:
        found.append(caller.feed.next())
    return found


def paths(records: list[dict[str, Any]]) -> list[str]:
    return [path for record in records for path in record["paths"]]


def test_opens_are_copied_while_somebody_listens(clock: SimpleNamespace) -> None:
    bench = Bench()
    assert bench.taker is None
    first, second = bench.listen(), bench.listen()
    bench.open(range(3))
    for caller in (first, second):
        (record, _) = all_of(caller)
        assert record["paths"] == ["d/0", "d/1", "d/2"]
        assert record["readers"] == [7, 7, 7]
        assert record["foreseen"] == [True, False, True]
        assert record["times"] == pytest.approx([1e9 + NOW / 1e9] * 3, abs=1e-3)
        assert (record["counts"], record["stand_for"], record["dropped"], record["lost"]) == ("exact", 1.0, 0, 0)
    for caller in (first, second):
        assert bench.taker is not None
        for leave in caller.at_end:
            leave()
    assert bench.taker is None


def test_opens_from_before_are_left_out_and_not_counted(clock: SimpleNamespace) -> None:
    bench = Bench()
    caller = bench.listen()
    bench.open(range(10), at=NOW - 4)
    records = all_of(caller)
    assert paths(records) == [f"d/{row}" for row in range(4, 10)]
    assert records[0]["dropped"] == 0


def test_more_than_may_be_copied_in_a_second_is_counted(clock: SimpleNamespace) -> None:
    bench = Bench()
    caller = bench.listen()
    bench.open(range(RATE_MOST + 1000))
    bench.open(range(500))
    records = all_of(caller)
    assert (len(paths(records)), records[0]["dropped"]) == (RATE_MOST, 1500)
    clock.ns += 10**8
    bench.open(range(RATE_MOST))
    records = all_of(caller)
    assert len(paths(records)) == pytest.approx(RATE_MOST / 10, abs=1)
    assert records[0]["dropped"] + len(paths(records)) == RATE_MOST


def test_a_listener_that_takes_nothing_keeps_a_bounded_number(clock: SimpleNamespace) -> None:
    bench = Bench()
    deaf, other = bench.listen(), bench.listen()
    for _ in range(4):
        bench.open(range(RATE_MOST))
        assert len(paths(all_of(other))) == RATE_MOST
        clock.ns += 10**9
    records = all_of(deaf)
    assert (len(paths(records)), records[0]["dropped"]) == (KEPT_MOST, 4 * RATE_MOST - KEPT_MOST)


def test_records_are_short_and_a_sample_is_not_mixed_with_other_opens(clock: SimpleNamespace) -> None:
    bench = Bench()
    caller = bench.listen()
    bench.open(range(OPENS_AT_ONCE + 10))
    bench.open(range(5), stand_for=33.3)
    bench.open(range(5))
    records = all_of(caller)
    assert [len(record["paths"]) for record in records] == [OPENS_AT_ONCE, 10, 5, 5, 0]
    assert [record["counts"] for record in records] == ["exact", "exact", "estimated", "exact", "exact"]
    assert records[2]["stand_for"] == 33.3


def test_events_that_the_supervisor_was_too_late_for_are_counted(clock: SimpleNamespace) -> None:
    bench = Bench()
    bench.loop.lost = 5
    caller = bench.listen()
    bench.loop.lost = 12
    assert [record["lost"] for record in (all_of(caller) + all_of(caller))] == [7, 0]


def test_listeners_are_few() -> None:
    bench = Bench()
    for _ in range(LISTENERS_MOST):
        bench.listen()
    with pytest.raises(ValueError, match="8 commands listen to this mount already"):
        bench.listen()


def test_a_listener_that_never_reads_is_hung_up_and_another_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel keeps some records for it; then its time runs out."""
    monkeypatch.setattr(control_socket, "SEND_S", 0.5)
    bench = Bench()

    async def answer(request: dict[str, Any], caller: control_socket.Caller) -> dict[str, Any]:
        return bench.log.listen(caller) if request.get("command") == "accesslog" else {}

    async def body() -> None:
        async with served(tmp_path, answer) as path, trio.open_nursery() as nursery:
            deaf = await trio.open_unix_socket(path)
            await deaf.send_all(b'{"command": "accesslog"}\n')

            async def fill() -> None:
                while bench.taker is not None:
                    bench.open(range(20_000), at=access_log.time.monotonic_ns())
                    await trio.sleep(0.02)

            await until(lambda: bool(bench.log._listeners))
            nursery.start_soon(fill)
            async with await trio.open_unix_socket(path) as stream:
                await stream.send_all(b"{}\n")
                assert (await answer_of(stream))["ok"]
            await until(lambda: not bench.log._listeners)
            assert bench.taker is None
            await deaf.aclose()

    trio.run(body)


def test_a_quiet_mount_sends_a_record_each_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "BEAT_S", 0.05)
    bench = Bench()

    async def answer(request: dict[str, Any], caller: control_socket.Caller) -> dict[str, Any]:
        return bench.log.listen(caller)

    def listen() -> list[list[str]]:
        with Connection(str(tmp_path)) as connection:
            connection.send("accesslog")
            assert connection.receive(10)["most_per_second"] == RATE_MOST
            return [list(connection.receive(10)["paths"]) for _ in range(3)]

    async def body() -> None:
        async with served(tmp_path, answer):
            assert await trio.to_thread.run_sync(listen) == [[], [], []]
            await until(lambda: not bench.log._listeners)

    trio.run(body)
