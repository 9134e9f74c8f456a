"""Directories that are safe to use, and paths that are resolved without touching a mount."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from nopfsfs.errors import NopfsError
from nopfsfs.system import state_dirs
from nopfsfs.system.state_dirs import (
    claimed_state_dir,
    find_state_dir,
    make_private_dir,
    make_state_dir,
    real_mountpoint,
    remove_state_dir,
    state_dir_for,
    user_run_dirs,
)

ME = os.geteuid()
USER = 54321  # nobody's


def test_run_directories(tmp_path: Path) -> None:
    assert user_run_dirs(0, {"XDG_RUNTIME_DIR": str(tmp_path)}) == ("/run/nopfs",)
    assert user_run_dirs(USER, {}) == (f"/tmp/nopfs-{USER}",)
    assert user_run_dirs(USER, {"XDG_RUNTIME_DIR": "/nonexistent"}) == (f"/tmp/nopfs-{USER}",)


def test_xdg_runtime_dir_counts_where_it_is_the_users(tmp_path: Path) -> None:
    mine = str(tmp_path)
    if ME:
        assert user_run_dirs(ME, {"XDG_RUNTIME_DIR": mine})[0] == f"{mine}/nopfs"
    else:
        assert f"{mine}/nopfs" not in user_run_dirs(USER, {"XDG_RUNTIME_DIR": mine})
        os.chown(mine, USER, USER)
        assert user_run_dirs(USER, {"XDG_RUNTIME_DIR": mine})[0] == f"{mine}/nopfs"


def test_a_logout_removes_no_state_of_a_mount_that_no_session_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """/run/user/UID is there while the user is logged in, also for jobs of that user, and is emptied with the last
    session. Who is logged in may have made a mount there, which is found."""
    monkeypatch.setattr(state_dirs, "_owned", lambda path, uid: path == f"/run/user/{uid}")
    session = {"XDG_RUNTIME_DIR": f"/run/user/{USER}"}
    assert user_run_dirs(USER, {}) == (f"/tmp/nopfs-{USER}", f"/run/user/{USER}/nopfs")
    assert user_run_dirs(USER, session) == (f"/run/user/{USER}/nopfs", f"/tmp/nopfs-{USER}")


def test_each_mountpoint_has_its_own() -> None:
    names = {state_dir_for(path, "/run/nopfs") for path in ("/mnt/a", "/mnt/b", "/mnt/\udcff")}

    assert len(names) == 3
    assert all(len(name) < 40 for name in names)


def test_a_private_directory(tmp_path: Path) -> None:
    path = tmp_path / "a" / "run"
    make_private_dir(str(path), ME)
    assert path.stat().st_mode & 0o777 == 0o700

    path.chmod(0o755)
    make_private_dir(str(path), ME)
    assert path.stat().st_mode & 0o777 == 0o700


def test_one_mount_begins_while_the_last_of_the_others_ends(tmp_path: Path) -> None:
    """Who ends removes the run directory, which was empty for a moment."""
    one, other = (str(tmp_path / "run" / name) for name in ("one", "other"))
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            make_state_dir(other, ME)
            remove_state_dir(other)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(2000):
            make_state_dir(one, ME)
            assert Path(one).stat().st_mode & 0o777 == 0o700
            remove_state_dir(one)
    finally:
        done.set()
        thread.join()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["file", "link", "other"])
def test_what_someone_else_left_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    if kind == "file":
        path.touch()
    elif kind == "link":
        path.symlink_to(tmp_path)
    else:
        path.mkdir()

    with pytest.raises(NopfsError, match="is someone else's"):
        make_private_dir(str(path), USER if kind == "other" else ME)


def test_a_state_directory_is_held_by_one(tmp_path: Path) -> None:
    state = str(tmp_path / "run" / "x")
    with (
        claimed_state_dir(state, ME),
        pytest.raises(NopfsError, match="another nopfs-mount"),
        claimed_state_dir(state, ME),
    ):
        pass
    with claimed_state_dir(state, ME):
        pass

    remove_state_dir(state)
    remove_state_dir(state)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(ME != 0, reason="needs root")
def test_a_state_directory_of_someone_else_is_passed_over(open_to_all: Path) -> None:
    os.chown(open_to_all, USER, USER)
    env = {"XDG_RUNTIME_DIR": str(open_to_all)}
    state = Path(state_dir_for("/mnt/a", str(open_to_all / "nopfs")))
    state.mkdir(parents=True)
    trap = find_state_dir("/mnt/a", USER, env)
    os.chown(state, USER, USER)

    assert find_state_dir("/mnt/a", USER, env) == str(state)
    assert trap == str(state)  # nothing better exists; its owner is checked by whoever makes it


@pytest.mark.parametrize(
    "path",
    [
        "{}/mnt",
        "{}/mnt/",
        "{}//x/../mnt/.",
        "{}/link",
        "{}/dir/back",
        "{}/long/dir/back",
        "mnt",
        "./dir/../mnt",
    ],
)
def test_real_mountpoint(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "mnt", "dir", "x":
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("mnt")
    (tmp_path / "long").symlink_to(tmp_path)
    (tmp_path / "dir" / "back").symlink_to("../link")
    monkeypatch.chdir(tmp_path)
    root = os.path.realpath(tmp_path)

    assert real_mountpoint(path.format(root), lambda p: False) == f"{root}/mnt"


def test_a_mountpoint_is_never_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to("mnt")
    touched: list[str] = []
    readlink = os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: touched.append(path) or readlink(path))
    mountpoint = f"{os.path.realpath(tmp_path)}/mnt"

    assert real_mountpoint(f"{tmp_path}/link", mountpoint.__eq__) == mountpoint
    assert mountpoint not in touched


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")

    assert real_mountpoint(f"{tmp_path}/a", lambda p: False).startswith(os.path.realpath(tmp_path))
