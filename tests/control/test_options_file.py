"""The options of a mount can be read while none of its processes answers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nopfsfs.config import DiskSpec, MountConfig
from nopfsfs.control.options_file import OPTIONS_FILE, read_options_of, write_options


def test_options_are_read_as_they_were_written(tmp_path: Path) -> None:
    config = MountConfig(source="/pfs/a\udcff b", mountpoint="/mnt/fast", seed=7, disks=(DiskSpec("/scratch", 5),))
    write_options(str(tmp_path), config)
    found = read_options_of(str(tmp_path))
    assert found is not None
    assert (found["source"], found["seed"], found["disks"]) == (config.source, 7, [{"path": "/scratch", "size": 5}])
    assert (tmp_path / OPTIONS_FILE).stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == [OPTIONS_FILE]


@pytest.mark.parametrize("text", [b"", b"[]", b"nonsense", b"[" * 100_000, b" " * (1 << 19)])
def test_a_damaged_file_holds_none(text: bytes, tmp_path: Path) -> None:
    (tmp_path / OPTIONS_FILE).write_bytes(text)
    assert read_options_of(str(tmp_path)) is None


def test_links_and_fifos_are_not_read(tmp_path: Path) -> None:
    assert read_options_of(str(tmp_path)) is None
    (tmp_path / "real").write_bytes(b"{}")
    (tmp_path / OPTIONS_FILE).symlink_to("real")
    assert read_options_of(str(tmp_path)) is None
    (tmp_path / OPTIONS_FILE).unlink()
    os.mkfifo(tmp_path / OPTIONS_FILE)
    assert read_options_of(str(tmp_path)) is None
