"""Root examines the mount of a user with that user's rights: nothing that the user has prepared leads root anywhere."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nopfsfs.control.find_mount import Located
from nopfsfs.control.options_file import OPTIONS_FILE
from nopfsfs.doctor import diagnosis
from nopfsfs.doctor.diagnosis import collect_mount, judge
from nopfsfs.doctor.findings import Facts
from nopfsfs.fuse.mount_table import Mount

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
USER = 12345


@pytest.fixture
def secret(open_to_all: Path) -> Path:
    """A directory of root's alone, with a file in it."""
    path = open_to_all / "roots"
    path.mkdir(mode=0o700)
    (path / "hidden.jpg").write_text("for root alone\n")
    return path


def collected(open_to_all: Path, source: Path, options: Any) -> dict[str, Any]:
    """Facts of a mount of USER's, whose state directory and options USER has written."""
    state = open_to_all / "state"
    state.mkdir(mode=0o700)
    (state / OPTIONS_FILE).write_text(json.dumps(options))
    for path in (state, state / OPTIONS_FILE):
        os.chown(path, USER, USER)
    mount = Mount(1, 0, 1, "/", str(open_to_all / "mnt"), (), "fuse.nopfs", str(source), (f"user_id={USER}",))
    return collect_mount(Located(mount.mountpoint, mount, str(state)), {})


def test_files_that_the_user_may_not_read_are_not_read(secret: Path, open_to_all: Path) -> None:
    options = {"log_file": str(secret / "hidden.jpg"), "uid": 0, "disks": [{"path": str(secret / "below")}, 5, {}]}
    parts = collected(open_to_all, secret, options)
    said = {name: part for name, part in parts.items() if name not in ("options", "disk_paths")}
    assert parts["options"]["uid"] == 0, "as the user has written it"
    assert "for root alone" not in json.dumps(said)
    assert "hidden" not in json.dumps(parts["source"])
    assert "Permission denied" in parts["log"]["error"]
    assert parts["source"]["text"] == parts["disk-0"]["text"] == "Permission denied"
    assert parts["disk_paths"] == {"disk-0": str(secret / "below")}


@pytest.mark.parametrize("options", [None, 5, [], {"disks": {"a": 1}, "uid": "x", "log_file": 7}, {"disks": [None]}])
def test_options_that_are_none_hide_nothing_else(
    options: Any, secret: Path, open_to_all: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "RULES", diagnosis.RULES[:2])
    parts = collected(open_to_all, secret, options)
    assert parts["versions"]["nopfsfs"]
    assert parts["processes"] == []
    assert len(judge(Facts(parts))) <= 1


def test_the_policy_file_of_a_user_is_looked_at_with_that_users_rights(secret: Path, open_to_all: Path) -> None:
    """What root alone may read does not come into the archive, nor that it is there."""
    (open_to_all / "source").mkdir()
    parts = collected(open_to_all, open_to_all / "source", {"policy": str(secret / "hidden.jpg")})
    *_, hidden = parts["policy"]["files"]
    assert (hidden["trusted"], hidden["why"], "bytes" in hidden) == (False, "Permission denied", False)
    assert "for root alone" not in json.dumps(parts["policy"])


def test_a_fifo_in_the_place_of_options_and_log(secret: Path, open_to_all: Path) -> None:
    os.mkfifo(open_to_all / "fifo")
    os.chown(open_to_all / "fifo", USER, USER)
    parts = collected(open_to_all, secret, {"log_file": str(open_to_all / "fifo")})
    assert "no regular file" in parts["log"]["error"]
