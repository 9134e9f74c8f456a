"""What breaks: a source that stalls or fails, readers and processes that are killed. No hang, no wrong byte."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slow_source import SlowSource

from nopfsfs.control.process_list import Process, read_pids, start_time
from nopfsfs.errors import Exit
from tests.conftest import long
from tests.mount.conftest import Mounting
from tests.mount.harness import (
    TEST_ID,
    Mounted,
    Reader,
    aborted_after,
    content,
    fill,
    module,
    mount_command,
    read_all,
    run,
)
from tests.mount.modes import Mode, mostly
from tests.mount.reading import comparing
from tests.waiting import wait_until

pytestmark = pytest.mark.mount

SIZE = 300_000
HASTY_UMOUNT = """
import sys
from nopfsfs.cli.umount import Limits, main
sys.exit(main(sys.argv[1:], Limits(busy=1, end=2, term=1, kill=1)))
"""


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowSource]:
    backing = tmp_path / "backing"
    fill(backing, 20, 50_000)
    (backing / "f.jpg").write_bytes(content(1, SIZE))
    (backing / "g.jpg").write_bytes(content(2, SIZE))
    with SlowSource(backing) as source:
        yield source


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "source", 200, 60_000)
    return tmp_path / "source"


def ended(reader: Reader) -> bool:
    """Whether the process is gone, without waiting for it."""
    return start_time(reader.process.pid) is None


# ---- the source -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [long("open"), "read"])
def test_a_source_that_stalls_and_comes_back(mounting: Mounting, slow: SlowSource, operation: str) -> None:
    with mounting(slow.path) as m:
        slow.stall(operation, "f.jpg")
        with Reader("wait", m.path / "f.jpg") as reader:
            assert reader.line() == "open"
            slow.wait_stalled()
            # Everything else goes on.
            assert (m.path / "g.jpg").read_bytes() == content(2, SIZE)
            assert "f.jpg" in os.listdir(m.path)
            assert (m.path / "f.jpg").stat().st_size == SIZE
            assert m.status()["state"] == "running"
            slow.release()
            assert reader.result() == SIZE
        assert slow.counters().files["f.jpg"].opens == 1


@pytest.mark.long
def test_a_source_that_never_answers_is_an_error_in_the_end(mounting: Mounting, slow: SlowSource) -> None:
    with mounting(slow.path, "--io-timeout", "1s") as m:
        m.errors_expected = True
        slow.stall("read", "f.jpg")
        with Reader("wait", m.path / "f.jpg") as reader:
            assert reader.result()["errno"] == errno.EIO
        assert m.status()["read_errors"] >= 1
        slow.release()
        assert wait_until(lambda: outcome(m, "f.jpg") == SIZE)


def outcome(m: Mounted, name: str) -> object:
    with Reader("read", m.path / name) as reader:
        found = reader.result()[0]
    return found[0] if isinstance(found, list) else found


@pytest.mark.parametrize("operation", [long("open"), "read"])
@pytest.mark.parametrize("seed", [long(()), ("--seed", "42")], ids=["plain", "seed"])
def test_a_source_that_fails_and_recovers(
    mounting: Mounting, slow: SlowSource, operation: str, seed: tuple[str, ...]
) -> None:
    slow.fail(operation, errno.EIO)
    with mounting(slow.path, *seed) as m:
        for name in ("f.jpg", "class1/00001.jpg"):
            assert outcome(m, name) == errno.EIO
        slow.release()
        read_all(m)


@pytest.mark.long
@mostly("tripwire", "records")
def test_what_fails_and_what_stalls_in_each_mode(mounting: Mounting, slow: SlowSource, mode: Mode) -> None:
    slow.fail("read", errno.EIO, "f.jpg")
    with mounting(slow.path, mode=mode) as m:
        assert outcome(m, "f.jpg") == errno.EIO
        slow.stall("read", "g.jpg")
        with Reader("wait", m.path / "g.jpg") as reader:
            assert reader.line() == "open"
            slow.wait_stalled()
            assert (m.path / "class1/00001.jpg").read_bytes() == (m.source / "class1/00001.jpg").read_bytes()
            with Reader("wait", m.path / "g.jpg") as other:
                assert other.line() == "open"
                other.process.kill()
                assert wait_until(lambda: ended(other))
            slow.release()
            assert reader.result() == SIZE
        assert outcome(m, "f.jpg") == SIZE


@pytest.mark.long
def test_a_reader_that_is_killed_while_it_waits(mounting: Mounting, slow: SlowSource) -> None:
    with mounting(slow.path) as m:
        slow.stall("read", "f.jpg")
        with Reader("wait", m.path / "f.jpg") as reader:
            assert reader.line() == "open"
            slow.wait_stalled()
            reader.process.kill()
            assert wait_until(lambda: ended(reader))
        slow.release()
        assert (m.path / "f.jpg").read_bytes() == content(1, SIZE)


@pytest.mark.long
def test_an_unmount_while_the_source_stalls(mounting: Mounting, slow: SlowSource) -> None:
    with mounting(slow.path) as m:
        slow.stall("any", "f.jpg")
        with Reader("wait", m.path / "f.jpg") as reader:
            assert reader.line() == "open"
            slow.wait_stalled()
            done = run([sys.executable, "-c", HASTY_UMOUNT, str(m.path)])
            assert done.returncode in (Exit.LAZY, Exit.STUCK), done.stderr
            assert f"pid {reader.process.pid}" in done.stderr
            assert reader.result()["errno"] in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
        slow.release()
        # Killed while they slept in the kernel: they are gone now, and what they left is in nobody's way.
        assert wait_until(lambda: not m.is_mounted() and not m.living()), m.living()
        mount_again(m)


@pytest.mark.long
def test_what_was_killed_and_unmounted_by_hand_is_in_nobodys_way(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        kill_all(m)
        assert run(["umount", "-l", str(m.path)]).returncode == 0
        assert os.path.exists(m.state_dir)
        mount_again(m)


# ---- the processes of the mount -------------------------------------------------------------------------------


@pytest.mark.long
def test_the_stager_is_killed_while_four_read(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--ram", "4M", "--seed", "42") as m:
        m.errors_expected = True  # it says that the stager died
        killed = []
        with comparing(m, readers=4, rounds="all"):  # until the last has died, however long the next one takes
            for _ in range(3):
                before = m.status()["opens"]["total"]
                m.wait_status(lambda s, before=before: s["opens"]["total"] > before + 100)
                killed.append(m.kill("stager"))
                assert wait_until(lambda: m.pid("stager") not in killed)
        roles = {p["role"]: p["pid"] for p in m.status()["processes"]}
        assert roles["stager"] not in killed
        assert m.status()["state"] == "running"
        read_all(m)


@pytest.mark.slow
def test_the_stager_is_killed_again_and_again(mounting: Mounting, data: Path) -> None:
    """The mount goes on without one, says so, and tries again after a while."""
    with mounting(data) as m:
        m.errors_expected = True
        killed: set[int] = set()

        def pauses() -> bool:
            for process in m.children():
                if process.role == "stager" and process.signal(signal.SIGKILL):
                    killed.add(process.pid)
            return len(killed) > 6

        assert wait_until(pauses, 50)
        off = m.wait_status(lambda status: status["off"])["off"]
        assert [(one["what"], "ended with status -9" in one["why"]) for one in off] == [("stager", True)]
        read_all(m)
        assert m.status()["direct_reads"] > 0
        m.wait_status(lambda status: not status["off"])
        assert m.pid("stager") not in killed


def error_of_listing(m: Mounted) -> int | None:
    try:
        os.listdir(m.path)
    except OSError as error:
        return error.errno
    return None


def remount_and_read(m: Mounted) -> None:
    """A stale mount is found and cleared by nopfs-mount."""
    assert "cleared a stale mount" in mount_again(m)


def mount_again(m: Mounted) -> str:
    """Mount, read all; what nopfs-mount said."""
    again = run(mount_command(m), env={**os.environ, TEST_ID: m.test_id})
    assert again.returncode == 0, again.stderr
    with aborted_after(40, m.path):
        read_all(m)
    return again.stderr


def kill_all(m: Mounted) -> None:
    """The supervisor first, which would replace the others; then its stager may have ended before it is killed."""
    for process in sorted(read_pids(m.state_dir), key=lambda one: one.role != "supervisor"):
        process.signal(signal.SIGKILL)


def test_umount_clears_a_stale_mount(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        kill_all(m)
        assert wait_until(lambda: not m.living())
        status = run([*module("nopfs"), "status", str(m.path)])
        assert (status.returncode, "is dead" in status.stderr) == (Exit.STUCK, True), status.stderr
        done = run([*module("umount"), str(m.path)])
        assert done.returncode == 0, done.stderr
        assert "cleared the stale mount" in done.stderr
        m.wait_gone()


@pytest.mark.long
def test_all_are_killed_at_once_while_four_read(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--seed", "42") as m:
        with_readers = [Reader("loop", m.path) for _ in range(4)]
        for reader in with_readers:
            assert reader.line() == "ready"
        kill_all(m)
        for reader in with_readers:
            codes = {code for _, code in reader.result()["errors"]}
            assert codes <= {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO}
            reader.__exit__()
        remount_and_read(m)


@pytest.mark.long
def test_a_stopped_stager_delays_and_breaks_nothing(mounting: Mounting, data: Path) -> None:
    """Whatever the time limit of the source: the source is well."""
    with mounting(data, "--io-timeout", "1.5s") as m:  # less than the usual patience with a stager, 1.75 s
        m.errors_expected = True
        stager = Process("stager", m.pid("stager"), start_time(m.pid("stager")) or 0)
        stager.signal(signal.SIGSTOP)
        try:
            assert outcome(m, "class1/00001.jpg") == len((data / "class1/00001.jpg").read_bytes())
            assert m.status()["read_errors"] == 0
        finally:
            stager.signal(signal.SIGCONT)
        read_all(m)


@pytest.mark.long
def test_the_mount_command_is_killed_while_it_starts(mounting: Mounting, data: Path) -> None:
    """Whatever it leaves, the next one clears."""
    with mounting(data) as m:
        assert m.umount().returncode == 0
        m.wait_gone()
        for delay in (0.1, 0.3, 0.5, 0.7):
            starting = subprocess.Popen(
                mount_command(m), env={**os.environ, TEST_ID: m.test_id}, stderr=subprocess.DEVNULL
            )
            try:
                starting.wait(delay)
            except subprocess.TimeoutExpired:
                starting.kill()
                starting.wait()
            again = run([*module("umount"), str(m.path)])
            assert again.returncode in (Exit.OK, Exit.NOT_MOUNTED, Exit.STUCK), again.stderr
            assert wait_until(lambda: not m.is_mounted() and not m.living()), m.living()
        last = run(mount_command(m), env={**os.environ, TEST_ID: m.test_id})
        assert last.returncode == 0, last.stderr
        read_all(m, readers=1)
