"""The screen of `nopfs top`, without a terminal: what it shows in 80x24, its keys, and that no mount holds it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Sparkline, Static

from nopfsfs.control.client import Command, NoAnswer, Record
from nopfsfs.monitor import top_screen, top_text
from nopfsfs.monitor.top_screen import HelpScreen, TopScreen
from nopfsfs.monitor.watched_mount import Moment, WatchedMount
from tests.monitor.figures import figures


class Reading:
    """A daemon whose mount is read at a steady rate of files a second, and nobody waits long."""

    def __init__(self, rate: int, ram: int = 0) -> None:
        self._rate, self._ram, self._number = rate, ram, 0

    def __call__(self, command: Command, further: Mapping[str, Any]) -> Record:
        if command == "history":
            raise NoAnswer("none")
        self._number += 1
        files, found = self._rate * self._number, figures()
        found["tiers"]["ram"]["used"] = self._ram
        return found | {
            "time": 1000.0 + self._number, "opens": files,
            "served": {tier: {"files": files if tier == "ram" else 0, "bytes": 0} for tier in found["served"]},
            "reader_waits": {"seconds": 0.25 * self._number, "buckets": [self._number] * 16},
        }  # fmt: skip


def watching(daemons: Mapping[str, Any]) -> Any:
    """What makes the watches of a screen: each has looked twice, and does not look by itself."""

    def watch(path: str) -> WatchedMount:
        made = WatchedMount(path, daemons[path])
        made.look()
        made.look()
        made.start = lambda: None  # type: ignore[method-assign]
        return made

    return watch


TWO = {"/mnt/a": Reading(10, 5000), "/mnt/b": Reading(900, 100)}


def shown(screen: TopScreen) -> list[str]:
    """The mounts in the table, from above."""
    table: DataTable[Any] = screen.query_one("#mounts", DataTable)
    return [str(table.get_row_at(number)[0]) for number in range(table.row_count)]


def run(screen: TopScreen, body: Any, size: tuple[int, int] = (80, 24)) -> None:
    async def main() -> None:
        async with screen.run_test(size=size) as pilot:
            await pilot.pause()
            await body(pilot)

    asyncio.run(main())


def text(screen: TopScreen, name: str) -> str:
    return str(screen.query_one(f"#{name}", Static).render())


def test_all_is_seen_on_a_small_screen() -> None:
    screen = TopScreen(lambda: list(TWO), watching(TWO))

    async def body(pilot: Pilot[None]) -> None:
        assert shown(screen) == ["/mnt/a", "/mnt/b"]
        detail = text(screen, "detail")
        for said in ("/mnt/a  of /pfs/data", "locked  random  epoch 3", "50 %", "src/s 0", "RAM 4.9K", "ram 100%"):
            assert said in detail, detail
        assert text(screen, "title-opens") == "opens/s 10, most 10"
        assert text(screen, "title-waiting") == "readers waiting 0.25, most 0.25"
        for widget in screen.query("Static, Sparkline, DataTable, Footer"):
            assert widget.region.y >= 0, widget
            assert widget.region.bottom <= 24, widget
            assert widget.region.right <= 80, widget
        data = screen.query_one("#curve-opens", Sparkline).data
        assert data is not None
        assert data[0] == 0
        assert data[-1] == 10

    run(screen, body)


def test_keys_sort_select_help_and_quit() -> None:
    screen = TopScreen(lambda: list(TWO), watching(TWO))

    async def body(pilot: Pilot[None]) -> None:
        assert (screen.selected, text(screen, "title-opens")) == ("/mnt/a", "opens/s 10, most 10")
        await pilot.press("s")
        assert shown(screen) == ["/mnt/b", "/mnt/a"]
        assert screen.selected == "/mnt/a", "the same mount stays selected"
        assert "by opens" in text(screen, "head")
        await pilot.press("n")
        await pilot.pause()
        assert screen.selected == "/mnt/b"
        assert "/mnt/b" in text(screen, "detail")
        await pilot.press("p")
        await pilot.pause()
        assert screen.selected == "/mnt/a"
        await pilot.press("down", "up")
        await pilot.pause()
        await pilot.press("question_mark")
        assert isinstance(screen.screen, HelpScreen)
        await pilot.press("x")
        await pilot.pause()
        assert not isinstance(screen.screen, HelpScreen)
        for _ in range(4):
            await pilot.press("s")
        assert "by mount" in text(screen, "head")
        await pilot.press("q")

    run(screen, body)
    assert screen.return_code == 0


def test_mounts_come_and_go_and_one_in_trouble_says_so() -> None:
    def silent(command: Command, further: Mapping[str, Any]) -> Record:
        raise NoAnswer("the daemon of this mount did not answer within 1 s")

    there: list[str] = []
    screen = TopScreen(lambda: there, watching({"/mnt/a": silent, "/mnt/[b]x": Reading(5)}))

    async def body(pilot: Pilot[None]) -> None:
        assert "No mount of yours is here" in text(screen, "detail")
        await pilot.press("n", "s", "s")
        there.append("/mnt/a")
        screen.draw()
        assert shown(screen) == ["/mnt/a"]
        assert "did not answer within 1 s" in text(screen, "detail")
        there[:] = ["/mnt/[b]x"]
        screen.draw()
        assert (shown(screen), screen.selected) == (["/mnt/[b]x"], "/mnt/[b]x")
        assert "/mnt/[b]x" in text(screen, "detail")

    run(screen, body)


def test_a_screen_that_has_ended_draws_no_more() -> None:
    """The timer may come once more while the parts of the screen are taken away."""
    screen = TopScreen(list, watching({}))

    async def body(_: Pilot[None]) -> None:
        await screen._shutdown()
        screen.draw()

    run(screen, body)


def test_a_mount_that_hangs_does_not_hold_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer never comes; the screen is drawn, takes keys, and ends at once. This allows for a slow machine."""
    monkeypatch.setattr(top_screen, "DRAW_S", 0.05)
    over = threading.Event()

    def hangs(command: Command, further: Mapping[str, Any]) -> Record:
        over.wait(60)
        raise NoAnswer("at last")

    screen = TopScreen(lambda: ["/mnt/hangs", "/mnt/works"], lambda path: WatchedMount(
        path, hangs if path == "/mnt/hangs" else Reading(7)
    ))  # fmt: skip

    async def body(pilot: Pilot[None]) -> None:
        for _ in range(200):
            moment = screen._watches["/mnt/works"].moment
            if moment.line is not None:
                break
            await pilot.pause(0.05)
        await pilot.pause(0.1)
        await pilot.press("n")
        await pilot.pause()
        assert screen.selected == "/mnt/works"
        assert "ram 100%" in text(screen, "detail")
        await pilot.press("q")

    began = time.monotonic()
    try:
        run(screen, body)
        assert time.monotonic() - began < 30
    finally:
        over.set()


def test_texts_fit_their_columns() -> None:
    assert sum(width for _, width in top_text.COLUMNS) == 80
    for value, said in ((0, "0"), (0.26, "0.3"), (42, "42"), (9999, "9999"), (10_400, "10.4k"), (2.5e6, "2.5M")):
        assert top_text.number(value) == said
    assert top_text.shortened("/a/very/long/path/to/a/mount", 12) == "…/to/a/mount"
    assert top_text.in_order([Moment("/b"), Moment("/a")], "opens") == [Moment("/a"), Moment("/b")]
