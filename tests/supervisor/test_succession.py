"""A mount that is left to another supervisor: when it may be, and the list of its processes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nopfsfs.control.process_list import read_pids
from nopfsfs.protocol.columns import LAYOUT
from nopfsfs.supervisor import succession
from nopfsfs.supervisor.succession import Succession, check_hand_over

GOOD = {"state": "running", "lasting": True, "serving": True, "foreground": False, "peers": False}


def test_a_mount_that_runs_may_be_handed_over() -> None:
    check_hand_over({"layout": LAYOUT}, **GOOD)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"lasting": False}, "fast path"),
        ({"serving": False}, "no server of this mount lives now"),  # the last descriptor of the connection would close
        ({"foreground": True}, "foreground"),
        ({"peers": True}, "peers"),
        ({"state": "starting"}, "still starting"),
    ],
)
def test_otherwise_it_is_said_why_not(what: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_hand_over({"layout": LAYOUT}, **{**GOOD, **what})  # type: ignore[arg-type]


def test_another_version_does_not_understand_the_memory() -> None:
    with pytest.raises(ValueError, match="mount it anew"):
        check_hand_over({"layout": LAYOUT + 1}, **GOOD)  # type: ignore[arg-type]


def test_a_state_directory_that_another_command_removed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`nopfs-mount` was killed while it started, and `nopfs-umount` has cleared what it left."""
    caplog.set_level("INFO")
    state = tmp_path / "state"
    state.mkdir()
    left = Succession(str(state), None)
    left.write_down([])
    assert [process.role for process in read_pids(str(state))] == ["supervisor"]
    (state / "pids").unlink()
    state.rmdir()
    left.write_down([])

    def full(state_dir: str, roles: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(succession, "write_pids", full)
    left.write_down([])
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]
