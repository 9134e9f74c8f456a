"""How many servers a mount has."""

from __future__ import annotations

import os

import pytest

from nopfsfs.config import MountConfig
from nopfsfs.supervisor.processes.servers import number_of_servers


def config(**more: object) -> MountConfig:
    return MountConfig(source="/s", mountpoint="/m", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("cores", "servers"), [(1, 1), (4, 1), (7, 1), (8, 2), (16, 4), (256, 4)])
def test_there_is_one_for_each_four_cores(cores: int, servers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert number_of_servers(config()) == servers
    assert number_of_servers(config(servers=3)) == 3


def test_without_the_fast_path_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a pyfuse3 on the one descriptor then, and one of them would get INIT."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert number_of_servers(config(fast_path=False)) == 1
    assert number_of_servers(config(fast_path=False, servers=3)) == 1
