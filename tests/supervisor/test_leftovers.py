"""Disk directories are cleared at the start, and whenever the stager is another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from nopfsfs.supervisor import leftovers
from nopfsfs.supervisor.leftovers import tidy
from tests.asynchronous import in_trio
from tests.tiers.makers import kill, start_maker
from tests.waiting import until


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(leftovers, "LOOK_S", 0.01)
    caplog.set_level("INFO")


def leave(path: Path) -> None:
    process, home = start_maker(path)
    kill(process)
    assert home.exists()


@in_trio
async def test_leftovers_go_at_first_and_with_each_stager(tmp_path: Path) -> None:
    stager: list[object] = [None]
    leave(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tidy, str(tmp_path), None, lambda: stager[0])
        await until(lambda: os.listdir(tmp_path) == [])
        for child in (object(), object(), None):
            leave(tmp_path)
            stager[0] = child
            await until(lambda: os.listdir(tmp_path) == [])
        nursery.cancel_scope.cancel()


@in_trio
async def test_a_directory_that_is_away_for_a_while(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, stager = tmp_path / "disk", [object()]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tidy, str(path), None, lambda: stager[0])
        await until(lambda: "cannot be cleared" in caplog.text)
        path.mkdir()
        leave(path)
        stager[0] = object()
        await until(lambda: os.listdir(path) == [])
        nursery.cancel_scope.cancel()


@in_trio
async def test_a_directory_that_cannot_be_cleared_for_lack_of_a_thread_is_cleared_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(path: str, uid: int | None) -> int:
        raise RuntimeError("can't start new thread")

    stager = [object()]
    leave(tmp_path)
    with monkeypatch.context() as without:
        without.setattr(leftovers, "clear_leftovers", short)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tidy, str(tmp_path), None, lambda: stager[0])
            await until(lambda: "cannot be cleared" in caplog.text)
            without.undo()
            stager[0] = object()
            await until(lambda: os.listdir(tmp_path) == [])
            nursery.cancel_scope.cancel()


@in_trio
async def test_what_an_earlier_release_left_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old, stager = tmp_path / "nopfs-ab_cd3fg", [object()]
    old.mkdir()
    (old / "lock").touch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tidy, str(tmp_path), None, lambda: stager[0])
        await until(lambda: f"{old} was left by an earlier release" in caplog.text)
        leave(tmp_path)
        stager[0] = object()
        await until(lambda: len(os.listdir(tmp_path)) == 1)
        nursery.cancel_scope.cancel()
    assert old.exists()
    assert caplog.text.count("earlier release") == 1
