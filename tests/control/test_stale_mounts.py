"""Clearing of mounts whose daemon is dead, while other commands do the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nopfsfs.control import stale_mounts
from nopfsfs.fuse.mount_table import Mount, find_mount
from nopfsfs.fuse.mounting import NotMounted, unmount
from nopfsfs.system.state_dirs import make_state_dir
from tests.conftest import FakeMounts, state_dirs_at


def test_who_is_slower_leaves_the_state_of_what_the_faster_has_mounted(
    fake_mount: FakeMounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives the device number of a mount that is gone to the next one."""
    fake = fake_mount()
    fake.kill()
    stale = find_mount(fake.mountpoint)
    assert stale is not None

    def be_slower(mount: Mount, lazy: bool) -> None:
        unmount(mount, lazy)
        make_state_dir(fake.state_dir, os.geteuid(), lambda made: (Path(made) / "pids").touch())
        raise NotMounted(mount.mountpoint)

    monkeypatch.setattr(stale_mounts, "unmount", be_slower)
    stale_mounts.clear_stale(stale, os.environ)
    assert os.listdir(fake.state_dir) == ["pids"]

    stale_mounts.clear_stale(stale, os.environ)
    assert state_dirs_at(fake.mountpoint) == [fake.state_dir]
