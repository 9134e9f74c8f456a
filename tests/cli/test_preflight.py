"""Bad input: one line, its own exit code, nothing started and nothing left."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from nopfsfs.cli import preflight as module
from nopfsfs.cli.mount import MountSteps, main
from nopfsfs.config import DiskSpec, MountConfig
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse import mounting
from nopfsfs.fuse.mount_table import find_mount, read_mounts
from nopfsfs.tiers import disk
from tests.conftest import FakeMounts, state_dirs_at, tmpfs
from tests.tiers.makers import kill, start_maker

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


class Started:
    """Stands for the parts that scan and start; notes what they were given."""

    def __init__(self, code: int = 0) -> None:
        self.configs: list[MountConfig] = []
        self.euid_of_scan: int | None = None
        self.code = code

    def __call__(self) -> MountSteps:
        return MountSteps(self.open_index, self.launch)

    def open_index(self, config: MountConfig, progress: object) -> str:
        self.euid_of_scan = os.geteuid()
        return "index"

    def launch(self, config: MountConfig, index: str | int) -> int:
        assert index == "index"
        self.configs.append(config)
        return self.code


def check(words: list[object], code: Exit, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that `nopfs-mount` refuses `words` with one line, and leaves nothing."""
    before = mounts_at(words[1])
    started = Started()

    assert main([str(word) for word in words], started) == code

    said = capsys.readouterr().err
    assert said.startswith("nopfs-mount: ")
    assert said.count("\n") == 1
    assert message in said
    assert started.configs == []
    assert mounts_at(words[1]) == before
    assert state_dirs_at(os.path.realpath(str(words[1]))) == []


def mounts_at(mountpoint: object) -> list[object]:
    """Those of this test: others on the machine come and go."""
    return [mount for mount in read_mounts() if mount.mountpoint == os.path.realpath(str(mountpoint))]


def test_a_good_call_starts(source: Path, mountpoint: Path) -> None:
    started = Started(code=Exit.START)
    link = mountpoint.parent / "link"
    link.symlink_to(source)

    assert main([str(link), str(mountpoint), "--seed", "42"], started) == Exit.START

    assert started.configs[0].source == str(source)
    assert started.configs[0].seed == 42
    assert state_dirs_at(mountpoint) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "does not exist"),
        ("file", "is not a directory"),
        ("file/x", "cannot be reached: Not a directory"),
    ],
)
def test_source(name: str, message: str, source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "file").touch()

    check([source / name, mountpoint], Exit.SOURCE, message, capsys)


@root_only
@pytest.mark.parametrize("closed", ["source", "above"])
def test_source_that_its_reader_cannot_read(
    closed: str, tmp_path: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "above" / "source"
    source.mkdir(parents=True)
    (source if closed == "source" else source.parent).chmod(0o700)

    check([source, mountpoint, "--user", "daemon"], Exit.SOURCE, "by user 1", capsys)


@root_only
def test_the_scan_runs_as_the_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_room = Path("/tmp") / f"nopfs-test-{os.getpid()}"  # tmp_path is closed to other users
    source, mountpoint = with_room / "source", with_room / "mnt"
    for path in (with_room, source, mountpoint):
        path.mkdir()
        path.chmod(0o755)
    started = Started(code=1)
    try:
        words = [str(source), str(mountpoint), "--user", "daemon", "--index-dir", str(with_room / "index")]
        assert main(words, started) == 1, capsys.readouterr().err
        assert started.euid_of_scan == 1
        assert os.geteuid() == 0
        assert os.stat(with_room / "index" / "uid-1").st_uid == 1
    finally:
        for path in (with_room / "index" / "uid-1", with_room / "index", source, mountpoint, with_room):
            path.rmdir()


def test_unknown_user(source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check([source, mountpoint, "--user", "nobody-by-that-name"], Exit.USER, "no such user", capsys)


def test_mountpoint_missing(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check([source, tmp_path / "x"], Exit.MOUNTPOINT, f"does not exist; make it: mkdir -p {tmp_path}/x", capsys)


def test_mountpoint_a_file(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").touch()

    check([source, tmp_path / "x"], Exit.MOUNTPOINT, "is not a directory", capsys)


def test_mountpoint_not_empty(source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (mountpoint / "x").touch()

    check([source, mountpoint], Exit.MOUNTPOINT, "is not empty", capsys)


def test_mountpoint_inside_the_source(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "d" / "e").mkdir(parents=True)

    check([source, source / "d" / "e"], Exit.MOUNTPOINT, "is inside the source", capsys)


def test_mountpoint_inside_the_source_by_a_link(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "d").mkdir()
    (tmp_path / "link").symlink_to(source)

    check([source, tmp_path / "link" / "d"], Exit.MOUNTPOINT, "is inside the source", capsys)


def test_mountpoint_is_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d").mkdir()

    check([tmp_path / "d", tmp_path / "d"], Exit.MOUNTPOINT, "is inside the source", capsys)


@pytest.mark.mount
def test_mountpoint_mounted_by_nopfs(
    fake_mount: FakeMounts, source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_mount()

    assert main([str(source), str(mountpoint)], Started()) == Exit.BUSY_MOUNTPOINT

    assert f"already mounted, from {source}; unmount it: nopfs-umount" in capsys.readouterr().err
    assert (mountpoint / "hello").read_text() == "hello world\n"


def test_mountpoint_mounted_by_something_else(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check([source, "/proc"], Exit.BUSY_MOUNTPOINT, "/proc is already mounted (proc", capsys)


@pytest.mark.mount
def test_a_stale_mount_is_cleared(
    fake_mount: FakeMounts, source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = fake_mount()
    fake.kill()
    started = Started(code=1)

    assert main([str(source), str(mountpoint)], started) == 1

    assert f"cleared a stale mount at {mountpoint}" in capsys.readouterr().err
    assert find_mount(str(mountpoint)) is None
    assert len(started.configs) == 1
    assert state_dirs_at(mountpoint) == []


def test_a_second_start_at_the_same_time(source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = []

    def launch(config: MountConfig, index: str | int) -> int:
        codes.append(main([str(source), str(mountpoint)], Started()))
        return 1

    parts = MountSteps(lambda config, progress: "index", launch)
    assert main([str(source), str(mountpoint)], lambda: parts) == 1

    assert codes == [Exit.BUSY_MOUNTPOINT]
    assert "another nopfs-mount is starting" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("disk", "message"),
    [
        ("missing", "No such file or directory; make the directory"),
        ("file", "is not a directory"),
        ("tier:900P", "has no room for 900 PiB"),
        ("source", "is inside the source"),
        ("mnt", "is inside the mountpoint"),
    ],
)
def test_disk(
    disk: str,
    message: str,
    source: Path,
    mountpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "tier").mkdir()

    check([source, mountpoint, "--disk", tmp_path / disk], Exit.DISK, message, capsys)


def test_disk_twice(source: Path, mountpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tier").mkdir()
    twice = ["--disk", tmp_path / "tier", "--disk", tmp_path / "tier:1M"]

    check([source, mountpoint, *twice], Exit.DISK, "is named twice", capsys)


@root_only
def test_copies_that_other_users_keep_make_the_tier_smaller_and_do_not_cost_the_mount(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not mounting.may_mount():
        pytest.skip("needs the right to call mount(2)")
    monkeypatch.setattr(module, "MIN_DISK", 100_000)
    monkeypatch.setattr(disk, "FLOOR_BYTES", 200_000)
    said: list[str] = []
    with tmpfs(tmp_path / "disk", "1m") as path:
        config = MountConfig(source=str(source), mountpoint="", disks=(DiskSpec(str(path), 900_000),))
        assert module.check_disks(config, said.append) == config
        (path / "others").write_bytes(bytes(500_000))
        with pytest.raises(NopfsError, match="has no room"):
            module.check_disks(config, said.append)
        assert said == []
        (path / "nopfs-cache-4242").mkdir()
        (found,) = module.check_disks(config, said.append).disks
        assert found.size is not None
        assert 200_000 < found.size < 400_000, "what is free above the floor"
        assert len(said) == 1
        assert "as other users keep copies there" in said[0]
        (path / "more").write_bytes(bytes(250_000))
        with pytest.raises(NopfsError, match="has no room"):
            module.check_disks(config)


@root_only
def test_a_disk_that_is_read_only_is_said_to_be_so(source: Path, tmp_path: Path) -> None:
    if not mounting.may_mount():
        pytest.skip("needs the right to call mount(2)")
    with tmpfs(tmp_path / "disk", "1m") as path:
        subprocess.run(["mount", "-o", "remount,ro", path], check=True)
        config = MountConfig(source=str(source), mountpoint="", disks=(DiskSpec(str(path), 100_000),))
        with pytest.raises(NopfsError, match="a read-only file system") as refused:
            module.check_disks(config)
        assert refused.value.exit_code == Exit.DISK


@pytest.mark.parametrize(
    ("uid", "reader", "allow_other", "kept"),
    [
        (0, None, True, True),
        (0, None, False, True),
        (1000, None, False, True),
        (1000, None, True, False),
        (0, 1000, True, False),
        (0, 0, True, True),
    ],
)
def test_copies_are_kept_where_nobody_reads_what_another_user_wrote(
    uid: int, reader: int | None, allow_other: bool, kept: bool
) -> None:
    config = MountConfig(source="/s", mountpoint="/m", allow_other=allow_other, uid=reader)
    assert config.keeps_copies(uid) is kept
    assert not replace(config, disk_keep=False).keeps_copies(uid)


def test_a_dead_mount_s_copies_do_not_take_the_room(source: Path, tmp_path: Path) -> None:
    """Those of a mount that was killed as a whole are of no use to anybody."""
    if not mounting.may_mount():
        pytest.skip("needs the right to call mount(2)")
    with tmpfs(tmp_path / "disk", "1m") as path:
        config = MountConfig(source=str(source), mountpoint="", disks=(DiskSpec(str(path), 800_000),))
        process, home = start_maker(path)
        (home / "copies/07/7").write_bytes(bytes(600_000))
        with pytest.raises(NopfsError, match="has no room"):
            module.check_disks(config)
        kill(process)
        module.check_disks(config)
        assert os.listdir(path) == []


def test_disk_that_cannot_be_written(source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check([source, mountpoint, "--disk", "/proc/self"], Exit.DISK, "cannot be written by you", capsys)


def test_log_file(source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(
        [source, mountpoint, "--log-file", "/nonexistent/log"],
        Exit.USAGE,
        "--log-file /nonexistent/log",
        capsys,
    )


def test_a_job_report_that_cannot_be_written_is_said(
    source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = Started()

    assert main([str(source), str(mountpoint), "--job-report", "/nonexistent/r"], started) == Exit.OK

    assert "--job-report /nonexistent/r cannot be written (No such file or directory)" in capsys.readouterr().err
    assert len(started.configs) == 1


@pytest.mark.parametrize("flag", ["--ram", "--page-cache"])
def test_more_memory_than_the_node_has(
    flag: str, source: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module.node_memory, "of_node", lambda: 8 << 30)
    message = f"{flag} 64T: this node has 8.0 GiB of memory; ask for less, or leave it out"
    check([source, mountpoint, flag, "64T"], Exit.USAGE, message, capsys)


def test_no_fuse(
    source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounting, "open_dev_fuse", lambda open_=mounting.open_dev_fuse: open_("/nonexistent/fuse"))

    check([source, mountpoint], Exit.NO_FUSE, "modprobe fuse", capsys)


@pytest.mark.parametrize(("helper", "message"), [(None, "apt-get install fuse3"), ("/x", "user_allow_other")])
def test_no_right_to_mount(
    helper: str | None,
    message: str,
    source: Path,
    mountpoint: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mounting, "may_mount", lambda: False)
    monkeypatch.setattr(mounting, "helper", lambda: helper)
    monkeypatch.setattr(mounting, "user_allow_other", lambda: False)

    check([source, mountpoint, "--allow-other"], Exit.NO_RIGHT, message, capsys)


def test_a_source_that_hangs(
    source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SOURCE_S", 0.1)
    monkeypatch.setattr(module, "_LOOK", "sleep 5")

    check([source, mountpoint], Exit.SOURCE, "did not answer within", capsys)


def test_a_bug_is_one_line_and_says_how_to_see_more(
    source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(config: MountConfig, progress: object) -> str:
        raise RuntimeError("oops")

    parts = MountSteps(broken, Started().launch)

    assert main([str(source), str(mountpoint)], lambda: parts) == Exit.INTERNAL
    said = capsys.readouterr().err
    assert said == "nopfs-mount: RuntimeError: oops; this is a bug: run again with --debug to see where\n"
    assert main([str(source), str(mountpoint), "--debug"], lambda: parts) == Exit.INTERNAL
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c(source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(config: MountConfig, progress: object) -> str:
        raise KeyboardInterrupt

    assert main([str(source), str(mountpoint)], lambda: MountSteps(interrupted, Started().launch)) == 130
    assert capsys.readouterr().err == "nopfs-mount: interrupted\n"
    assert state_dirs_at(mountpoint) == []


def test_a_processor_that_reorders_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("source", "mnt"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    check([tmp_path / "source", tmp_path / "mnt"], Exit.START, "does not run on aarch64", capsys)
