"""A mount's directory on a disk: what of it is ever removed, by whom, and what nobody can lead it to."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nopfsfs.system import directory_access
from nopfsfs.system.proc import boot_id, pid_namespace, start_time
from nopfsfs.tiers import tier_directory
from nopfsfs.tiers.tier_directory import TierDirectory, clear_leftovers, old_directories, this_host
from tests.conftest import tmpfs
from tests.tiers.makers import kill, killed_at_each_call, start_maker

OTHER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be several users")


@pytest.fixture
def leftover(tmp_path: Path) -> Path:
    """The directory of a mount that was killed."""
    process, home = start_maker(tmp_path)
    kill(process)
    assert sorted(p.name for p in home.rglob("*")) == ["07", "263", "7", "copies", "marker"]
    return home


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[Path]:
    process, home = start_maker(tmp_path)
    yield home
    kill(process)


def change_marker(home: Path, **fields: object) -> Path:
    """Let the directory be one that another process made: its marker and its name say so."""
    marker = json.loads((home / "marker").read_text()) | fields
    (home / "marker").write_text(json.dumps(marker))
    named = home.with_name(f".nopfs-tier-{marker['host']}-{marker['boot']}-{marker['pid']}-{'0' * 16}")
    return home.rename(named)


def everything(path: Path) -> dict[str, str]:
    return {str(p.relative_to(path)): p.read_text() if p.is_file() else "" for p in path.rglob("*")}


# ---- what is not ours ---------------------------------------------------------------------------------------


def test_directories_of_people_stay_whatever_they_are_called(tmp_path: Path) -> None:
    """As reported: `nopfs-data/ab/x`, an empty `nopfs-out`, and whatever holds an unlocked `lock`."""
    for name in ("nopfs-data/ab", "nopfs-out", "nopfs-mine", "nopfs-1234-abc/01", ".nopfs-tier-mine/copies/07"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("nopfs-data/ab/x", "nopfs-mine/lock", "nopfs-1234-abc/01/257", ".nopfs-tier-mine/copies/07/7"):
        (tmp_path / name).write_text("mine")
    before = everything(tmp_path)

    assert clear_leftovers(str(tmp_path)) == 0
    assert everything(tmp_path) == before


def test_the_leftover_of_a_killed_mount_is_removed(leftover: Path, tmp_path: Path) -> None:
    assert clear_leftovers(str(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("uid", [-1, pytest.param(OTHER, marks=[needs_root, pytest.mark.long])])
def test_whenever_a_mount_is_killed_nothing_of_its_directory_stays(tmp_path: Path, uid: int) -> None:
    """Also when it was killed after it made the directory, and before it wrote the marker."""
    killed, left = killed_at_each_call(tmp_path, uid)
    assert killed > left > 20


@pytest.mark.parametrize("content", [[], ["marker"]])
@pytest.mark.parametrize("damage", [
    "", "the maker lives", "another host", "another container", "no start in the name", "writable", "another owner",
])  # fmt: skip
def test_without_a_marker_an_empty_directory_goes_only_when_its_name_proves_it(
    tmp_path: Path, content: list[str], damage: str
) -> None:
    if damage == "another owner" and os.geteuid() != 0:
        pytest.skip("needs root to be several users")
    home = tmp_path / TierDirectory(str(tmp_path)).name
    maker = {"host": this_host(), "boot": boot_id(), "pid": 2**22 + 1, "start": 7, "ns": pid_namespace()}
    match damage:
        case "the maker lives":
            maker |= {"pid": os.getpid(), "start": start_time(os.getpid())}
        case "another host":
            maker |= {"host": "elsewhere", "boot": "0" * 32}
        case "another container":
            maker |= {"ns": 1}
    parts = [str(maker[part]) for part in ("pid", "start", "ns")]
    told = parts[0] if damage == "no start in the name" else ".".join(parts)
    empty = tmp_path / f".nopfs-tier-{maker['host']}-{maker['boot']}-{told}-{'0' * 16}"
    empty.mkdir(mode=0o700)
    for name in content:
        (empty / name).touch(mode=0o600)
    if damage == "writable":
        empty.chmod(0o722)
    if damage == "another owner":
        os.chown(empty, OTHER, OTHER)

    assert clear_leftovers(str(tmp_path)) == (not damage)
    assert empty.exists() == bool(damage)
    assert home.exists(), "of this process"


def test_what_a_living_process_has_made_stays(alive: Path, tmp_path: Path) -> None:
    before = everything(tmp_path)
    assert clear_leftovers(str(tmp_path)) == 0
    assert everything(tmp_path) == before


def test_a_zombie_has_ended(tmp_path: Path) -> None:
    process, _ = start_maker(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert clear_leftovers(str(tmp_path)) == 1
    kill(process)


@pytest.mark.parametrize("damage", [
    "no marker", "empty marker", "half a marker", "another tool", "another host in the name", "a pid that is none",
    "a marker that is a link", "a marker that is a directory", "a marker that is a fifo", "a marker that is too large",
    "nested", "another field",
])  # fmt: skip
def test_without_a_marker_that_proves_it_nothing_is_removed(leftover: Path, tmp_path: Path, damage: str) -> None:
    marker = leftover / "marker"
    text = marker.read_text()
    marker.unlink()
    match damage:
        case "empty marker":
            marker.touch()
        case "half a marker":
            marker.write_text(text[: len(text) // 2])
        case "another tool":
            marker.write_text(text.replace("nopfsfs", "otherfs"))
        case "another host in the name":
            marker.write_text(text)
            leftover.rename(leftover.with_name(leftover.name.replace(this_host(), "elsewhere")))
        case "a pid that is none":
            marker.write_text(text)
            change_marker(leftover, pid=True)
        case "a marker that is a link":
            (tmp_path / "real").write_text(text)
            marker.symlink_to(tmp_path / "real")
        case "a marker that is a directory":
            marker.mkdir()
        case "a marker that is a fifo":
            os.mkfifo(marker)
        case "a marker that is too large":
            marker.write_text(text + " " * 5000)
        case "nested":
            marker.write_text("[" * 4000)
        case "another field":
            marker.write_text(text[:-1] + ', "more": 1}')
    before = sorted(tmp_path.rglob("*"))

    assert clear_leftovers(str(tmp_path)) == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_in_the_place_of_a_directory_is_not_followed(leftover: Path, tmp_path: Path) -> None:
    target = leftover.rename(tmp_path / "elsewhere")
    leftover.symlink_to(target)
    before = everything(target)
    assert clear_leftovers(str(tmp_path)) == 0
    assert everything(target) == before
    assert leftover.is_symlink()


def test_links_within_a_leftover_are_not_followed(leftover: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "256").write_text("mine")
    (leftover / "copies" / "00").symlink_to(data)
    clear_leftovers(str(tmp_path))
    assert (data / "256").read_text() == "mine"
    assert (leftover / "marker").exists()


@pytest.mark.parametrize("foreign", ["copies/07/notes", "copies/07/8", "copies/notes", "copies/07/519/x", "notes"])
def test_a_foreign_file_in_a_leftover_stays_and_so_does_the_directory(
    leftover: Path, tmp_path: Path, foreign: str
) -> None:
    """8 is no row of subdirectory 07."""
    (leftover / foreign).parent.mkdir(exist_ok=True)
    (leftover / foreign).write_text("mine")
    for _ in range(2):
        assert clear_leftovers(str(tmp_path)) == 0
        assert (leftover / foreign).read_text() == "mine"
        assert not (leftover / "copies/07/7").exists()
    (leftover / foreign).unlink()
    if foreign.endswith("/x"):
        (leftover / foreign).parent.rmdir()
    assert clear_leftovers(str(tmp_path)) == 1


# ---- whose mount is dead ------------------------------------------------------------------------------------


def test_a_pid_that_was_used_again_is_another_process(leftover: Path, tmp_path: Path) -> None:
    change_marker(leftover, pid=os.getpid(), start_time=1)
    assert clear_leftovers(str(tmp_path)) == 1


def test_of_this_host_s_earlier_boot_all_are_dead_and_of_another_host_none(leftover: Path, tmp_path: Path) -> None:
    change_marker(leftover, host="elsewhere", boot="0" * 32)
    os.utime(tmp_path / os.listdir(tmp_path)[0], (0, 0))  # however old
    assert clear_leftovers(str(tmp_path)) == 0
    (home,) = tmp_path.iterdir()
    change_marker(home, host=this_host(), boot="0" * 32)
    assert clear_leftovers(str(tmp_path)) == 1


def test_the_same_boot_is_this_machine_whatever_it_was_called(leftover: Path, tmp_path: Path) -> None:
    change_marker(leftover, host="renamed")
    assert clear_leftovers(str(tmp_path)) == 1


def test_a_lock_that_is_held_says_that_its_mount_lives(leftover: Path, tmp_path: Path) -> None:
    """As on a file system that several machines share, two of which have one name."""
    home = change_marker(leftover, boot="0" * 32)
    with open(home / "marker") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        assert clear_leftovers(str(tmp_path)) == 0
    assert clear_leftovers(str(tmp_path)) == 1


@pytest.mark.parametrize(("locked", "removed"), [(True, 1), (False, 0)])
def test_of_another_container_only_the_lock_tells(leftover: Path, tmp_path: Path, locked: bool, removed: int) -> None:
    change_marker(leftover, pid_namespace=1, locked=locked)
    assert clear_leftovers(str(tmp_path)) == removed


def test_without_locks_a_tier_works_and_the_dead_are_told_from_the_living(
    alive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    dead, _ = start_maker(tmp_path)
    kill(dead)
    own = TierDirectory(str(tmp_path))
    assert json.loads((tmp_path / own.name / "marker").read_text())["locked"] is False
    assert clear_leftovers(str(tmp_path)) == 1
    assert {p.name for p in tmp_path.iterdir()} == {own.name, alive.name}
    own.remove()
    assert {p.name for p in tmp_path.iterdir()} == {alive.name}


def test_processes_that_proc_hides_are_taken_for_alive(leftover: Path, tmp_path: Path) -> None:
    """With hidepid, /proc shows nothing of what a user started as another."""
    change_marker(leftover, pid=os.getpid(), start_time=1)
    hidden = pytest.MonkeyPatch()
    with hidden.context() as patch:
        patch.setattr("nopfsfs.system.proc._stat", lambda pid: None)
        assert clear_leftovers(str(tmp_path)) == 0
    assert clear_leftovers(str(tmp_path)) == 1


def test_directories_of_an_earlier_release_are_named_and_left(tmp_path: Path) -> None:
    for name in ("nopfs-ab_cd3fg", "nopfs-noonlock", "nopfs-data"):
        (tmp_path / name).mkdir()
    for name in ("nopfs-ab_cd3fg", "nopfs-data"):
        (tmp_path / name / "lock").touch()
    assert old_directories(str(tmp_path)) == [str(tmp_path / "nopfs-ab_cd3fg")]
    assert clear_leftovers(str(tmp_path)) == 0


# ---- several users ------------------------------------------------------------------------------------------


@needs_root
def test_the_copies_belong_to_the_reader_and_the_rest_to_the_maker(tmp_path: Path) -> None:
    made = TierDirectory(str(tmp_path), OTHER, OTHER)
    own = tmp_path / made.name
    assert [(p.stat().st_uid, p.stat().st_mode & 0o777) for p in (own, own / "marker", own / "copies")] == [
        (0, 0o700), (0, 0o600), (OTHER, 0o700),
    ]  # fmt: skip
    made.remove()
    assert list(tmp_path.iterdir()) == []


@needs_root
@pytest.mark.parametrize("swapped", ["link", "full directory", "own directory"])
def test_a_directory_that_is_swapped_while_it_is_made_is_not_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    """Its parent belongs to the reader, who moves it away between mkdir(2) and open(2)."""
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    if swapped == "full directory":
        (secret / "key").write_text("root's")
    if swapped == "own directory":
        os.chown(secret, OTHER, OTHER)
    parent = tmp_path / "disk"
    parent.mkdir()
    owner = secret.stat().st_uid
    mkdir = os.mkdir

    def mkdir_and_swap(name: str, mode: int, *, dir_fd: int) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        if name.startswith(".nopfs-tier-"):
            (parent / name).rename(tmp_path / "moved")
            if swapped == "link":
                (parent / name).symlink_to(secret)
            else:
                secret.rename(parent / name)

    monkeypatch.setattr(os, "mkdir", mkdir_and_swap)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"others can replace|no directory"):
        TierDirectory(str(parent), OTHER, OTHER)
    assert set(os.listdir("/proc/self/fd")) == before
    if swapped == "full directory":
        (secret,) = parent.iterdir()
        assert (secret / "key").read_text() == "root's"
    if swapped != "own directory":
        assert (secret.stat().st_uid, os.listdir(secret)) == (owner, ["key"] if swapped == "full directory" else [])


@needs_root
def test_root_removes_what_belongs_to_root_or_the_reader_and_nobody_else_s(tmp_path: Path) -> None:
    """Who owns the directory may have written its marker."""
    process, home = start_maker(tmp_path)
    kill(process)
    for path in (home, *home.rglob("*")):
        os.chown(path, OTHER, OTHER)
    assert clear_leftovers(str(tmp_path)) == 0
    assert clear_leftovers(str(tmp_path), OTHER + 1) == 0
    os.chown(home / "marker", 0, 0)
    assert clear_leftovers(str(tmp_path), OTHER) == 0
    os.chown(home / "marker", OTHER, OTHER)
    assert clear_leftovers(str(tmp_path), OTHER) == 1


@needs_root
@pytest.mark.parametrize("moved", ["copies", "copies/00"])
def test_a_directory_of_another_that_was_moved_into_a_leftover_is_not_emptied(tmp_path: Path, moved: str) -> None:
    process, home = start_maker(tmp_path, OTHER)
    kill(process)
    for path in (home, *home.rglob("*")):
        os.chown(path, OTHER, OTHER)
    if moved == "copies":
        (home / "copies").rename(tmp_path / "aside")
    (home / moved / "00").mkdir(parents=True)
    victim = home / moved / "256" if moved.endswith("00") else home / moved / "00" / "256"
    victim.write_text("another's")
    clear_leftovers(str(tmp_path), OTHER)
    assert victim.read_text() == "another's"


@needs_root
def test_mount_points_are_not_entered(leftover: Path, tmp_path: Path) -> None:
    """Behind one may be a FUSE daemon of another user, which never answers."""
    with tmpfs(leftover / "copies" / "00", "64k") as path:
        (path / "256").write_text("another's")
        assert clear_leftovers(str(tmp_path)) == 0
        assert (path / "256").read_text() == "another's"
    outside = leftover.rename(tmp_path / "outside")
    with tmpfs(leftover, "64k"):
        subprocess.run(["cp", "-a", f"{outside}/.", str(leftover)], check=True)
        assert clear_leftovers(str(tmp_path)) == 0
        assert (leftover / "marker").exists()
    leftover.rmdir()
    assert outside.rename(leftover).exists()
    assert clear_leftovers(str(tmp_path)) == 1


@needs_root
def test_who_gave_up_its_rights_removes_its_copies_and_leaves_the_rest_to_root(tmp_path: Path) -> None:
    script = f"""
import os
from nopfsfs.tiers.disk import Disk
disk = Disk({str(tmp_path)!r}, None)
disk.limit = 1 << 20
disk.open({OTHER}, {OTHER})
os.setresgid({OTHER}, {OTHER}, {OTHER})
os.setresuid({OTHER}, {OTHER}, {OTHER})
disk.write(7, memoryview(b"seven"))
into = bytearray(5)
disk.read(7, memoryview(into))
assert into == b"seven"
disk.write(8, memoryview(b"eight"))
disk.remove(8)
disk.close()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    (home,) = tmp_path.iterdir()
    assert sorted(p.name for p in home.rglob("*")) == ["copies", "marker"]
    assert clear_leftovers(str(tmp_path)) == 1


# ---- two at once --------------------------------------------------------------------------------------------


def test_two_mounts_share_a_directory_and_each_removes_its_own(alive: Path, tmp_path: Path) -> None:
    own = TierDirectory(str(tmp_path))
    assert clear_leftovers(str(tmp_path)) == 0
    assert {p.name for p in tmp_path.iterdir()} == {own.name, alive.name}
    own.remove()
    assert (alive / "copies/07/7").read_bytes() == b"seven"


def test_a_directory_without_room_for_its_marker_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="quota"):
        TierDirectory(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_many_names_are_removed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_access, "_BATCH", 3)
    made = TierDirectory(str(tmp_path))
    (tmp_path / made.name / "copies/07").mkdir()
    for row in range(7, 7 + 20 * 256, 256):
        (tmp_path / made.name / "copies/07" / str(row)).touch()
    made.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_name_for_the_host_is_one_that_a_directory_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(name: str) -> str:
        monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", name, "", "", "")))
        return this_host()

    assert named("node-042.cluster") == "node-042.cluster"
    assert named("a/../b c") == "a_.._b_c"
    assert named("localhost").startswith("localhost")
    for name in ("", "x" * 64, "localhost.localdomain", "ü" * 30):
        for maker in ("1", "1.2.3"):
            full = f".nopfs-tier-{named(name)}-{boot_id()}-{maker}-{'0' * 16}"
            assert tier_directory._NAME.fullmatch(full)
