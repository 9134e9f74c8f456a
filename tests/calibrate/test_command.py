"""`nopfs calibrate`, as users call it: what it finds, where it writes, what it refuses, and that it leaves nothing."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from slow_source import SlowSource

from nopfsfs.calibrate import meter_client
from nopfsfs.cli import preflight
from nopfsfs.cli.calibrate import Call
from nopfsfs.cli.nopfs import main
from nopfsfs.config import DiskSpec
from nopfsfs.errors import Exit
from nopfsfs.performance.cluster_file import class_name, read_cluster
from nopfsfs.system.state_dirs import calibration_path
from tests.conftest import FakeMounts, long
from tests.dead import dead
from tests.mount.harness import COMMAND_S, fill, module, run
from tests.waiting import wait_until

SIZE = 20_000
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
Words = list[object]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    fill(root, 600, SIZE, classes=8)
    return root


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk"
    path.mkdir()
    return path


def figures(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    """What `nopfs calibrate ... --json` prints."""
    assert main(["calibrate", *map(str, words), "--json"]) == Exit.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], code: Exit, *words: object) -> str:
    """The one line on stderr with which these words are refused."""
    assert main(["calibrate", *map(str, words)]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("nopfs: ")
    assert said.err.count("\n") == 1
    return said.err


def test_a_directory_and_a_disk(tree: Path, disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["calibrate", str(tree), "--disk", f"{disk}:1G", "--ram", "64M", "--seconds", "2"]
    assert main([*words, "--index-dir", str(tmp_path / "index")]) == Exit.OK

    path = calibration_path(str(tmp_path / "index"), str(tree))
    said = capsys.readouterr()
    assert said.out.startswith(f"source     {tree}\n")
    assert said.out.endswith(f"written to {path}\n")
    assert said.err == ""
    cluster = read_cluster(path)
    assert (cluster.nodes, cluster.ranks) == (1, 1)
    assert [one.name for one in cluster.classes] == ["ram", str(disk)]
    assert cluster.classes[1].capacity == (1 << 30,)
    assert cluster.staging.capacity[0] + cluster.classes[0].capacity[0] == 64 << 20
    assert 0 < cluster.source.latency < 1
    assert cluster.source.share(1) > 0
    assert os.listdir(disk) == []
    assert os.listdir(tmp_path / "index") == [os.path.basename(path)]
    assert os.stat(path).st_mode & 0o077 == os.stat(tmp_path / "index").st_mode & 0o077 == 0


@pytest.mark.parametrize("name", [long("a" * 200), "line\nfeed", long("end "), long(os.fsdecode(b"\xff"))])
def test_a_disk_whose_path_is_no_name_of_a_class(
    name: str, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / name
    disk.mkdir()

    figures(capsys, tree, "--disk", disk, "--seconds", "1", "--output", tmp_path / "c.toml")

    assert read_cluster(str(tmp_path / "c.toml")).classes[1].name == class_name(str(disk))


def test_where_it_is_written_does_not_depend_on_how_the_source_is_named(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tree)

    path = calibration_path("/index", str(tree))

    assert path == calibration_path("/index", str(tmp_path / "link")) == calibration_path("/index", f"{tree}/")
    assert path != calibration_path("/index", str(tree / "class0"))
    assert len(os.path.basename(path)) == len("calibration-.toml") + 16


@pytest.mark.slow
@pytest.mark.mount
def test_a_slow_source(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It waits 30 ms for an open and 20 ms for a read, of which there is one a file, and works on four at a time.
    What a busy machine adds makes files no faster, and not three times as slow."""
    with SlowSource(tree, open_latency=0.03, read_latency=0.02, concurrent=4) as slow:
        found = figures(capsys, slow.path, "--seconds", 12, "--output", tmp_path / "c.toml")
        counters = slow.counters()

    source = found["source"]
    assert 0.05 <= source["latency"] < 0.15
    # four, and what the first level had of the machine's noise
    assert 1.5 < source["overlap"] < 5.5 * source["latency"] / 0.05
    assert source["at_once"] in (2, 4, 8, 16)
    assert source["rate_is_least"]
    assert max(level["files"] for level in source["levels"]) <= 4 / 0.05 * 1.1
    assert set(counters.files) <= {str(path.relative_to(tree)) for path in tree.rglob("*.jpg")}
    assert max(one.opens for one in counters.files.values()) == 1
    assert read_cluster(str(tmp_path / "c.toml")).source.at_once == max(1, round(source["overlap"]))


@pytest.mark.mount
def test_files_that_cannot_be_read_are_left_out(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SlowSource(tree) as slow:
        slow.fail("open", errno.EACCES, pattern="class1/*")
        words = ["calibrate", str(slow.path), "--seconds", "2", "--output", str(tmp_path / "c.toml")]
        assert main(words) == Exit.OK
        said = capsys.readouterr()
        slow.fail("open", errno.EACCES)
        none = refused(capsys, Exit.SOURCE, slow.path, "--seconds", "1", "--output", tmp_path / "d.toml")

    assert "left out that could not be read, for example" in said.err
    assert "class1/" in said.err
    assert " skipped; " in said.out
    assert "files could be read, such as" in none
    assert "Permission denied" in none
    assert not (tmp_path / "d.toml").exists()


@pytest.mark.long
@pytest.mark.mount
@pytest.mark.parametrize("operation", ["open", "read"])
def test_a_source_that_hangs(
    tree: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
) -> None:
    """The process that sleeps in the kernel is left; it goes when the source answers, or is gone."""
    monkeypatch.setattr(meter_client, "PATIENCE_S", 1.0)
    pids = watch_workers(monkeypatch)
    with SlowSource(tree) as slow:
        slow.stall(operation)
        said = refused(capsys, Exit.SOURCE, slow.path, "--seconds", "1", "--output", tmp_path / "c.toml")

    assert f"did not answer for 1 s (reading {slow.path}" in said
    assert not (tmp_path / "c.toml").exists()
    assert wait_until(lambda: all(reaped(pid) for pid in pids))


@pytest.mark.long
@pytest.mark.mount
@pytest.mark.parametrize("what", ["source", "disk"])
def test_what_is_dead_is_not_waited_for(
    tree: Path,
    disk: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    for limit in "SOURCE_S", "DISK_S":
        monkeypatch.setattr(preflight, limit, 1.0)
    with dead(tmp_path) as path:
        words = [path] if what == "source" else [tree, "--disk", disk, "--disk", path]
        said = refused(capsys, Exit[what.upper()], *words, "--output", tmp_path / "c.toml")

    assert f"{path} did not answer within 1 s; check the file system that it is on" in said


def watch_workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pids of the processes that are started from here on."""
    pids: list[int] = []
    real = subprocess.Popen

    def start(*args: Any, **options: Any) -> Any:
        made = real(*args, **options)
        pids.append(made.pid)
        return made

    monkeypatch.setattr(meter_client.subprocess, "Popen", start)
    return pids


def reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["{tmp}/none"], Exit.SOURCE, "does not exist; check the path"),
        (["{tree}/class0/00000.jpg"], Exit.SOURCE, "is not a directory; name the directory"),
        ([""], Exit.USAGE, "SOURCE: the path is empty"),
        (["{tmp}/empty"], Exit.SOURCE, "it holds no files"),
        (["{tree}", "--disk", "{tmp}/none"], Exit.DISK, "make the directory, or name another"),
        (["{tree}", "--disk", "{tree}/class0"], Exit.DISK, "is inside the source"),
        (["{tree}", "--disk", "{tmp}/empty:900P"], Exit.DISK, "has no room for 900 PiB"),
        (["{tree}", "--disk", "{tmp}/empty:1K"], Exit.USAGE, "did you mean 1M?"),
        (["{tree}", "--disk", "{tmp}/empty", "--disk", "{tmp}/empty/"], Exit.DISK, "named twice"),
        (["{tree}", "--ram", "much"], Exit.USAGE, "--ram: 'much' is not a size"),
        (["{tree}", "--ram", "7000P"], Exit.USAGE, "--ram: '7000P' is more than any machine has"),
        (["{tree}", "--seconds", "soon"], Exit.USAGE, "--seconds: 'soon' is not a time"),
        (["{tree}", "--seconds", "0"], Exit.USAGE, "is not from 1s to 1h"),
        (["{tree}", "--output", "{tmp}/none/x"], Exit.USAGE, "cannot be written; name a file"),
        (["{tree}", "--output", "{tmp}"], Exit.USAGE, "cannot be written; name a file"),
        (["{tree}", "--output", "{tmp}/" + 300 * "a"], Exit.USAGE, "cannot be written; name a file"),
        (["{tree}", "--output", "{tree}/fifo"], Exit.USAGE, "cannot be written; name a file"),
    ],
)
def test_what_is_refused(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: Exit, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tree / "fifo")
    given = [word.format(tmp=tmp_path, tree=tree) for word in words]
    more = {"--output": str(tmp_path / "c.toml"), "--seconds": "1"}
    given += [word for name, value in more.items() if name not in given for word in (name, value)]

    assert message in refused(capsys, code, *given)
    assert sorted(os.listdir(tmp_path)) == ["empty", "tree"]


def test_an_index_directory_that_cannot_be(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, Exit.USAGE, tree, "--index-dir", tree / "class0" / "00000.jpg")

    assert "name a file with --output" in said


@root_only
def test_an_output_that_only_its_owner_may_replace_is_refused_before_all_is_measured(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    index.mkdir()
    index.chmod(0o1777)
    Path(calibration_path(str(index), str(tree))).touch()
    monkeypatch.setattr(os, "geteuid", lambda: 54321)

    assert "no right to write there; name a file with --output" in refused(
        capsys, Exit.USAGE, tree, "--index-dir", index
    )


@pytest.mark.mount
def test_a_mount_of_ours_is_refused(
    fake_mount: FakeMounts, mountpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where its daemon is dead, and by way of a link."""
    mount = fake_mount()
    (tmp_path / "link").symlink_to(mountpoint)
    for path in mountpoint, tmp_path / "link":
        assert "measure what it shows" in refused(capsys, Exit.SOURCE, path, "--output", tmp_path / "c")
    mount.kill()
    for path in mountpoint, mountpoint / "below":
        assert "measure what it shows" in refused(capsys, Exit.SOURCE, path, "--output", tmp_path / "c")


@pytest.mark.mount
def test_a_mount_of_ours_inside_the_source_is_left_out(
    fake_mount: FakeMounts, mountpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "source", 10, SIZE)
    fake_mount()

    found = figures(capsys, tmp_path, "--seconds", "1", "--output", tmp_path / "c.toml")

    assert found["source"]["files_seen"] == 11  # and the one of `source`


@pytest.fixture
def large_files(tmp_path: Path) -> Path:
    """A source whose files keep a disk busy for a while."""
    root = tmp_path / "large"
    root.mkdir()
    for number in range(20):
        (root / str(number)).write_bytes(bytes(4 << 20))
    return root


@pytest.fixture
def writing(large_files: Path, disk: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, which is writing to the disk now."""
    command = [*module("nopfs"), "calibrate", str(large_files), "--disk", str(disk), "--seconds", "30"]
    process = subprocess.Popen(
        [*command, "--output", str(tmp_path / "c.toml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C of the tests is not its own
    )
    try:
        assert wait_until(lambda: any(disk.glob(".nopfs-tier-*/copies/??/*")), COMMAND_S)
        yield process
    finally:
        process.kill()
        process.communicate(timeout=COMMAND_S)


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, Exit.INTERRUPTED, "nopfs: interrupted\n"),
        (signal.SIGTERM, -signal.SIGTERM, ""),
        (signal.SIGHUP, -signal.SIGHUP, ""),
    ],
)
def test_a_signal_ends_it_and_nothing_is_left(
    writing: subprocess.Popen[str], disk: Path, tmp_path: Path, number: signal.Signals, code: int, said: str
) -> None:
    os.killpg(writing.pid, number)

    out, err = writing.communicate(timeout=COMMAND_S)

    assert (writing.returncode, out, err) == (code, "", said)
    assert os.listdir(disk) == []
    assert not (tmp_path / "c.toml").exists()


def test_who_is_killed_leaves_nothing_either(writing: subprocess.Popen[str], disk: Path) -> None:
    writing.kill()

    assert wait_until(lambda: os.listdir(disk) == [], COMMAND_S)


@pytest.mark.long
def test_a_worker_that_is_killed_is_a_bug_that_leaves_what_the_next_one_removes(
    writing: subprocess.Popen[str], large_files: Path, disk: Path, tmp_path: Path
) -> None:
    [worker] = children(writing.pid)
    os.kill(worker, signal.SIGKILL)
    _, err = writing.communicate(timeout=COMMAND_S)
    assert writing.returncode == Exit.INTERNAL
    assert "ended with status -9" in err

    words = ["calibrate", str(large_files), "--disk", str(disk), "--seconds", "1", "--output", str(tmp_path / "c")]
    assert run([*module("nopfs"), *words]).returncode == Exit.OK
    assert os.listdir(disk) == []


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def test_a_terminal_sees_how_far_it_is_and_nothing_of_that_stays(tree: Path, tmp_path: Path) -> None:
    words = [*module("nopfs"), "calibrate", str(tree), "--seconds", "2", "--output", str(tmp_path / "c.toml")]
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 25, 200, 0, 0))
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=slave)
    os.close(slave)
    shown = b""
    with suppress(OSError):  # EIO: nobody has the other end any more
        while more := os.read(master, 1 << 16):
            shown += more
    os.close(master)

    assert process.wait(COMMAND_S) == Exit.OK
    assert b"at once" in shown
    assert b"/2 s" in shown
    assert shown.rstrip(b" ").endswith(b"\r")


@pytest.mark.parametrize("disks", [0, 1, 2, 3, 10])
@pytest.mark.parametrize("seconds", [1.0, 40.0, 600.0])
def test_the_time_is_divided(disks: int, seconds: float) -> None:
    call = Call("/", tuple(DiskSpec(f"/{n}") for n in range(disks)), None, "", seconds)

    parts = [call.source_seconds, call.memory_seconds, *[call.disk_seconds] * disks]
    assert sum(parts) == pytest.approx(seconds)
    assert call.source_seconds >= 0.4 * seconds
    assert all(part > 0 for part in parts)
