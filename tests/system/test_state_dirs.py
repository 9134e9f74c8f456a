"""Directories that are safe to use, and paths that are resolved without touching a mount."""

from __future__ import annotations

import os
import threading
from fcntl import flock
from pathlib import Path

import pytest

from nopfsfs.errors import NopfsError
from nopfsfs.system import state_dirs
from nopfsfs.system.state_dirs import (
    StateDir,
    claimed_dir,
    claimed_mountpoint,
    find_state_dir,
    make_private_dir,
    make_state_dir,
    real_mountpoint,
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


def test_each_mount_has_its_own() -> None:
    paths = ("/mnt/a", "/mnt/b", "/mnt/\udcff")
    names = {state_dir_for(path, minor, "/run/nopfs") for path in paths for minor in (7, 8)}

    assert len(names) == 6
    assert all(len(name) < 40 for name in names)


def test_a_private_directory(tmp_path: Path) -> None:
    path = tmp_path / "a" / "run"
    make_private_dir(str(path), ME)
    assert path.stat().st_mode & 0o777 == 0o700

    path.chmod(0o755)
    make_private_dir(str(path), ME)
    assert path.stat().st_mode & 0o777 == 0o700


def fill(path: str) -> None:
    (Path(path) / "pids").touch()


def made(state_dir: str) -> StateDir:
    make_state_dir(state_dir, ME, fill)
    return StateDir(state_dir)


def test_one_mount_begins_while_the_last_of_the_others_ends(tmp_path: Path) -> None:
    """Who ends removes the run directory, which was empty for a moment."""
    one, other = (str(tmp_path / "run" / name) for name in ("one", "other"))
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            state = made(other)
            state.remove()
            state.close()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(2000):
            state = made(one)
            assert Path(one).stat().st_mode & 0o777 == 0o700
            state.remove()
            state.close()
    finally:
        done.set()
        thread.join()
    assert not (tmp_path / "run").exists()


def test_who_ends_removes_no_directory_of_a_later_mount_at_its_path(tmp_path: Path) -> None:
    path = tmp_path / "run" / "state"
    before = made(str(path))
    (Path(before.here) / "log").touch()
    assert before.is_in_place()

    later = made(str(path))
    assert not before.is_in_place()
    with pytest.raises(FileNotFoundError):
        fill(before.here)
    before.remove()
    assert os.listdir(path) == ["pids"]

    later.remove()
    assert not path.parent.exists()
    for state in before, later:
        state.close()


def test_who_ends_while_a_later_mount_begins_disturbs_it_never(tmp_path: Path) -> None:
    path = str(tmp_path / "run" / "state")
    for _ in range(500):
        before = made(path)
        thread = threading.Thread(target=before.remove)
        thread.start()
        later = made(path)
        thread.join()
        assert os.listdir(tmp_path / "run") == ["state"]
        assert os.listdir(later.here) == ["pids"]
        later.remove()
        for state in before, later:
            state.close()


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


def test_a_mountpoint_is_claimed_by_one(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    with (
        claimed_mountpoint("/mnt/a", run, ME),
        pytest.raises(NopfsError, match="another nopfs-mount"),
        claimed_mountpoint("/mnt/a", run, ME),
    ):
        pass
    with claimed_mountpoint("/mnt/a", run, ME), claimed_mountpoint("/mnt/b", run, ME):
        assert [path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir()] == [0o700, 0o700]

    assert not (tmp_path / "run").exists()


def test_what_a_start_left_that_was_killed_is_cleared_by_the_next_at_its_mountpoint(tmp_path: Path) -> None:
    run = str(tmp_path / "nopfs")

    def killed(made: str) -> None:
        Path(made, "pids").write_text("")
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_dirs.shutil, "rmtree", lambda path, ignore_errors: None)
        with pytest.raises(KeyboardInterrupt):
            make_state_dir(state_dir_for("/mnt/a", 41, run), ME, killed)
    make_state_dir(state_dir_for("/mnt/a", 42, run), ME, lambda made: Path(made, "pids").touch())
    with claimed_mountpoint("/mnt/b", run, ME):
        assert len(os.listdir(run)) == 3
    with claimed_mountpoint("/mnt/a", run, ME):
        pass
    assert [os.path.join(run, name) for name in os.listdir(run)] == [state_dir_for("/mnt/a", 42, run)]


def test_a_claim_whose_directory_was_removed_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who had claimed it before removes it, after it was opened and before it is locked."""
    claim, removed = tmp_path / "run" / "claim", []

    def lock(fd: int, how: int) -> None:
        if not removed:
            removed.append(claim.rmdir())
        flock(fd, how)

    monkeypatch.setattr(state_dirs, "flock", lock)
    with (
        claimed_dir(str(claim), ME),
        pytest.raises(NopfsError, match="another nopfs-mount"),
        claimed_dir(str(claim), ME),
    ):
        pass


@pytest.mark.skipif(ME != 0, reason="needs root")
def test_a_state_directory_of_someone_else_is_passed_over(open_to_all: Path) -> None:
    os.chown(open_to_all, USER, USER)
    env = {"XDG_RUNTIME_DIR": str(open_to_all)}
    state = Path(state_dir_for("/mnt/a", 7, str(open_to_all / "nopfs")))
    state.mkdir(parents=True)
    trap = find_state_dir("/mnt/a", 7, USER, env)
    os.chown(state, USER, USER)

    assert find_state_dir("/mnt/a", 7, USER, env) == str(state)
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
