"""Starting and ending: every way to end a mount leaves nothing, and none waits for ever."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from nopfsfs.control.process_list import living, read_pids, wait_all
from nopfsfs.control.readiness import READY
from nopfsfs.errors import Exit
from tests.conftest import long, slow, tmpfs
from tests.mount.conftest import Mounting
from tests.mount.harness import COMMAND_S, TEST_ID, Mounted, Reader, fill, module, mount_command, read_all, run
from tests.waiting import wait_until

pytestmark = pytest.mark.mount


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "source", 400, 60_000)
    return tmp_path / "source"


def environment(m: Mounted) -> dict[str, str]:
    return {**os.environ, TEST_ID: m.test_id}


def late_supervisor(m: Mounted, work: Path) -> dict[str, str]:
    """An environment in which a supervisor stays where it begins to import its modules."""
    late = work / "late"
    late.mkdir()
    program = 'import sys, time\nif "nopfsfs.supervisor.process" in sys.orig_argv:\n    time.sleep(60)\n'
    (late / "sitecustomize.py").write_text(program)
    before = os.environ.get("PYTHONPATH")
    return {**environment(m), "PYTHONPATH": f"{late}{os.pathsep}{before}" if before else str(late)}


def in_the_foreground(m: Mounted, **options: Any) -> subprocess.Popen[bytes]:
    """A running `nopfs-mount -f` that has heard that the mount answers, and passes signals on. `options`: of Popen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(f"\0{m.test_id}")
        told.settimeout(COMMAND_S)
        telling = {**environment(m), "NOTIFY_SOCKET": f"@{m.test_id}"}
        process = subprocess.Popen([*mount_command(m, "-f")], env=telling, **options)
        assert told.recv(100) == READY
    return process


@pytest.mark.parametrize(
    "words",
    [["umount"], long(["umount", "-l"]), long(["fusermount3", "-u"]), long(["fusermount3", "-u", "-z"])],
    ids=" ".join,
)
@pytest.mark.parametrize("flags", [slow(()), ("--seed", "42", "--ram", "8M")], ids=["plain", "staging"])
def test_unmounted_by_others(mounting: Mounting, data: Path, words: list[str], flags: tuple[str, ...]) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]}")
    with mounting(data, *flags) as m:
        done = run([*words, str(m.path)])
        assert done.returncode == 0, done.stderr
        m.wait_gone()


@pytest.mark.parametrize("number", [signal.SIGTERM, long(signal.SIGINT)])
def test_signals(mounting: Mounting, data: Path, number: signal.Signals) -> None:
    with mounting(data, "--seed", "42") as m:
        m.kill("supervisor", number)
        assert wait_until(lambda: not m.living()), m.living()
        m.wait_gone()


@pytest.mark.long
def test_what_was_mounted_there_since_stays(mounting: Mounting, data: Path) -> None:
    """The mount is out of sight, and still in use, when it is told to end."""
    with mounting(data) as m, Reader("hold", next(m.path.glob("*/*.jpg"))) as reader:
        reader.line()
        assert run(["umount", "-l", str(m.path)]).returncode == 0
        with tmpfs(m.path, "1M"):
            m.kill("supervisor", signal.SIGTERM)
            assert wait_until(lambda: not m.living()), m.living()
            assert os.path.ismount(m.path)
        m.wait_gone()


@pytest.mark.long
def test_a_server_that_is_told_to_end_is_replaced(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--seed", "42") as m:
        m.errors_expected = True
        pid = m.kill("server", signal.SIGTERM)
        assert wait_until(lambda: [p.pid for p in m.children() if p.role == "server"] not in ([], [pid]))
        read_all(m)


@pytest.mark.long
def test_a_signal_while_four_read(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--seed", "42") as m:
        readers = [Reader("loop", m.path) for _ in range(4)]
        for reader in readers:
            assert reader.line() == "ready"
        m.kill("supervisor", signal.SIGTERM)
        assert wait_until(lambda: not m.is_mounted())
        for reader in readers:
            reader.__exit__()
        m.wait_gone()


@pytest.mark.slow
def test_an_unmount_never_finds_our_own_processes_in_the_way(mounting: Mounting, data: Path, tmp_path: Path) -> None:
    """umount(8) while staging is at full speed; nobody else uses the mount. Again and again."""
    with mounting(data, "--seed", "42", "--ram", "16M", hangs_s=110.0) as m:
        for number in range(20):
            if number:
                started = run(mount_command(m, "--seed", "42", "--ram", "16M"), env=environment(m))
                assert started.returncode == 0, started.stderr
            done = run(["umount", str(m.path)])
            assert done.returncode == 0, (number, done.stderr)
            m.wait_gone()


@pytest.mark.long
def test_busy_holders_are_named_then_it_is_unmounted_lazily(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--seed", "42") as m:
        readers = [Reader("loop", m.path, cwd=m.path) for _ in range(4)]
        for reader in readers:
            assert reader.line() == "ready"
        done = m.umount("--timeout", "1")

        assert done.returncode == Exit.LAZY, done.stderr
        for reader in readers:
            assert f"pid {reader.process.pid}" in done.stderr
            reader.__exit__()
        assert m.report["final"] is True
        assert m.report["opens"]["total"] > 0
        m.wait_gone()


def test_busy_for_a_while_only(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m, Reader("hold", next(m.path.glob("*/*.jpg"))) as reader:
        reader.line()
        umount = subprocess.Popen([*module("umount"), str(m.path)], stderr=subprocess.PIPE, text=True)
        assert umount.stderr is not None
        assert f"pid {reader.process.pid}" in umount.stderr.readline()
        reader.go("end")
        assert reader.result() == "ended"
        assert umount.wait(20) == Exit.OK
        umount.stderr.close()
        m.wait_gone()


def test_the_background_start_returns_when_the_mount_answers(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        assert sorted(os.listdir(m.path)) == sorted(os.listdir(data))
        assert m.status()["state"] == "running"


def test_a_second_mount_is_refused(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        second = run(mount_command(m), env=environment(m))

        assert second.returncode == Exit.BUSY_MOUNTPOINT
        assert "already mounted" in second.stderr
        read_all(m, readers=1)


@pytest.mark.long
@pytest.mark.parametrize("in_use", [False, True])
def test_a_mount_at_the_place_of_one_that_is_ending(mounting: Mounting, data: Path, in_use: bool) -> None:
    """It has its own state, which the other does not take with it."""
    with mounting(data) as m:
        before = read_pids(m.state_dir)
        with Reader("hold", next(m.path.glob("*/*.jpg"))) if in_use else nullcontext() as reader:
            if reader is not None:
                reader.line()
            assert run(["umount", *(["-l"] if in_use else []), str(m.path)]).returncode == 0
            again = run(mount_command(m), env=environment(m))
            assert again.returncode == 0, again.stderr
        assert wait_all(before, 20.0)
        assert m.status()["state"] == "running"
        assert {"supervisor", "server", "stager"} <= {process.role for process in living(read_pids(m.state_dir))}


@pytest.mark.long
def test_a_mount_at_the_same_path_in_another_mount_namespace(mounting: Mounting, data: Path) -> None:
    """Its commands reach its own daemon."""
    with mounting(data) as m:
        before = read_pids(m.state_dir)
        there = 'path=$1; shift; umount "$path" && "$@" && exec "$0" -m nopfsfs.cli.umount "$path"'
        argv = ["unshare", "--mount", "sh", "-c", there, sys.executable, str(m.path), *mount_command(m)]
        done = run(argv, env=environment(m))
        assert done.returncode == 0, done.stderr
        assert wait_until(lambda: len(m.living()) == len(before)), m.living()
        assert living(before) == before
        assert m.status()["state"] == "running"


@pytest.mark.long
def test_two_mounts_that_start_at_once(mounting: Mounting, data: Path) -> None:
    """One gets it, the others are refused."""
    with mounting(data) as m:
        assert m.umount().returncode == 0
        m.wait_gone()
        started = [subprocess.Popen(mount_command(m), env=environment(m), stderr=subprocess.DEVNULL) for _ in range(4)]
        codes = sorted(process.wait(30) for process in started)

        assert codes == [Exit.OK] + 3 * [Exit.BUSY_MOUNTPOINT]
        read_all(m, readers=1)


@pytest.mark.long
@pytest.mark.parametrize("number", [slow(signal.SIGINT), signal.SIGTERM])
def test_in_the_foreground(mounting: Mounting, data: Path, number: signal.Signals) -> None:
    with mounting(data) as m:
        assert m.umount().returncode == 0
        m.wait_gone()
        process = in_the_foreground(m)
        assert m.status()["state"] == "running"
        read_all(m, readers=1)
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(20) == 0
        m.wait_gone()


@pytest.mark.parametrize("number", [signal.SIGTERM, long(signal.SIGHUP)])
def test_a_signal_to_the_command_while_it_starts_leaves_no_mount(
    mounting: Mounting, data: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with mounting(data) as m:
        assert m.umount().returncode == 0
        m.wait_gone()
        process = subprocess.Popen(mount_command(m), env=late_supervisor(m, tmp_path))
        assert wait_until(m.is_mounted)
        process.send_signal(number)  # the supervisor has not answered yet
        assert process.wait(20) == 128 + number
        m.errors_expected = True  # the supervisor logs that it was told to end
        m.wait_gone()


@pytest.mark.long
def test_a_hangup_under_nohup_while_it_starts_changes_nothing(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        assert m.umount().returncode == 0
        m.wait_gone()
        process = subprocess.Popen(["nohup", *mount_command(m)], env=environment(m), stderr=subprocess.DEVNULL)
        assert wait_until(m.is_mounted)
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 0
        assert m.status()["state"] == "running"


@pytest.mark.long
def test_ctrl_c_at_a_terminal_reaches_all_processes_of_the_group(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        assert m.umount().returncode == 0
        m.wait_gone()
        process = in_the_foreground(m, start_new_session=True)
        read_all(m, readers=1)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(20) == 0
        m.wait_gone()


@pytest.mark.long
def test_umount_twice(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        assert m.umount().returncode == 0
        assert m.umount().returncode == Exit.NOT_MOUNTED
        m.wait_gone()


@pytest.mark.long
def test_umount_twice_at_once(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        both = [subprocess.Popen([*module("umount"), str(m.path)], stderr=subprocess.DEVNULL) for _ in range(2)]

        assert {process.wait(30) for process in both} <= {Exit.OK, Exit.NOT_MOUNTED}
        m.wait_gone()


@pytest.mark.long
def test_a_mount_in_another_process_group_survives_its_shell(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        assert m.umount().returncode == 0
        m.wait_gone()
        shell = subprocess.Popen(
            ["sh", "-c", '"$@"; kill -HUP 0', "sh", *mount_command(m)], env=environment(m), start_new_session=True
        )
        shell.wait(30)
        read_all(m, readers=1)


@pytest.mark.slow
def test_a_copy_of_the_mount_in_another_namespace_keeps_nothing_alive(mounting: Mounting, data: Path) -> None:
    """As a container or a service has one that began while it was mounted."""
    with mounting(data) as m:
        copy = subprocess.Popen(["unshare", "--mount", "sleep", "1000"])
        try:
            ours = os.readlink("/proc/self/ns/mnt")
            assert wait_until(lambda: os.readlink(f"/proc/{copy.pid}/ns/mnt") != ours)
            done = m.umount()
            assert done.returncode == 0
            assert "another mount namespace" in done.stderr
            assert m.report["final"]
            m.wait_gone()
        finally:
            copy.kill()
            copy.wait()
