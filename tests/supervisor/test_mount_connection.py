"""The end of a mount is seen, also where it could not be looked at for a while."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from nopfsfs.config import MountConfig
from nopfsfs.supervisor import mount_connection
from nopfsfs.supervisor.mount_connection import MountConnection

SHORTAGES = [RuntimeError("can't start new thread"), OSError(errno.ENFILE, "no descriptor")]


class Watch:
    """The table of mounts, which changes and cannot be looked at `shortages` times. Then the mount is gone."""

    def __init__(self, shortages: list[Exception]) -> None:
        self._shortages = shortages
        self._changed = os.eventfd(1)

    def fileno(self) -> int:
        return self._changed

    def unmounted(self) -> bool:
        if self._shortages:
            raise self._shortages.pop()
        return True

    def close(self) -> None:
        os.close(self._changed)


def connection(resources: contextlib.ExitStack) -> MountConnection:
    config = MountConfig(source="/pfs", mountpoint="/mnt/none", state_dir="")
    return MountConnection(config, {"fuse": -1}, resources, {}, any_acl=False)


def test_a_mount_that_cannot_be_looked_at_for_a_while_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No thread, or no descriptor, was to be had at that moment."""
    left: list[float] = []

    async def note() -> None:
        left.append(trio.current_time())

    monkeypatch.setattr(mount_connection, "MountWatch", lambda minor: Watch([*SHORTAGES]))
    monkeypatch.setattr(mount_connection, "is_over", lambda fuse: True)
    stager = cast(Any, SimpleNamespace(leave_mount=note, process=SimpleNamespace(asleep=[])))

    async def main() -> None:
        began = trio.current_time()
        with contextlib.ExitStack() as resources:
            await connection(resources).wait_until_over(stager, list)
        assert left
        assert left[0] - began >= len(SHORTAGES) * mount_connection.SHORTAGE_PAUSE_S, "it does not spin"

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.001))
    assert caplog.text.count("cannot be looked at") == 1


@pytest.mark.parametrize("shortage", SHORTAGES)
def test_an_unmount_that_is_not_possible_does_not_keep_the_mount_from_its_end(
    shortage: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def unmount(mount: object) -> None:
        asked.append(mount)
        raise shortage

    monkeypatch.setattr(mount_connection, "_unmount_or_detach", unmount)
    monkeypatch.setattr(mount_connection, "is_over", lambda fuse: False)
    monkeypatch.setattr(mount_connection.mount_table, "find_mount_of", lambda path, minor: (path, minor))

    async def main(unmount: Callable[[], Any]) -> None:
        await unmount()

    with contextlib.ExitStack() as resources:
        trio.run(main, connection(resources).unmount)
    assert asked == [("/mnt/none", 0)]
