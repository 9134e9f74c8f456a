"""Processes that hang: a stopped or sleeping one costs readers moments, is replaced, and outlives no mount."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from slow_source import SlowSource

from nopfsfs.control.process_list import Process, living, read_pids, start_time
from nopfsfs.errors import Exit
from tests.conftest import long, remove_state
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, content, fill, module, read_all, run
from tests.waiting import wait_until

pytestmark = pytest.mark.mount
PASSED_BY_S = 2.0  # a reader waits so much longer than the source takes
MARGIN_S = 3.0  # for a machine with a lot to do
GONE_S = 15.0  # for the processes of a mount that has ended
SIZE = 300_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "source", 200, 60_000)
    return tmp_path / "source"


def stop(m: Mounted, *roles: str) -> list[Process]:
    """Stop processes of the mount, surely. One that has just been started is given more time for its first sign."""
    assert wait_until(lambda: all(p["running"] for p in m.status()["processes"] if p["role"] in roles))
    processes = [Process(role, m.pid(role), start_time(m.pid(role)) or 0) for role in roles]
    for process in processes:
        process.signal(signal.SIGSTOP)
        stat = Path(f"/proc/{process.pid}/stat")
        assert wait_until(lambda stat=stat: stat.read_text().rpartition(")")[2].split()[0] == "T")
    return processes


def together(m: Mounted, names: list[str], readers: int) -> float:
    """Read files by so many threads at once, compare them with the source; seconds that the slowest took."""

    def read(name: str) -> float:
        began = time.monotonic()
        assert (m.path / name).read_bytes() == (m.source / name).read_bytes()
        return time.monotonic() - began

    with ThreadPoolExecutor(readers) as pool:
        return max(pool.map(read, names))


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.glob("*/*.jpg"))


@pytest.mark.long
def test_a_stopped_stager_is_passed_by_and_then_replaced(mounting: Mounting, data: Path) -> None:
    """By all of 200 that ask at once, and by those after them at once."""
    with mounting(data, "--io-timeout", "5s") as m:
        m.errors_expected = True  # it says that the stager hangs
        names = files(data)
        [stager] = stop(m, "stager")
        assert together(m, names[:150], 150) < PASSED_BY_S + MARGIN_S
        assert together(m, names[150:], 1) < PASSED_BY_S
        off = m.wait_status(lambda status: status["off"])["off"]
        assert [one["what"] for one in off] == ["stager"]
        assert wait_until(lambda: not stager.alive(), 20)
        m.wait_status(lambda status: not status["off"])
        before = m.status()
        read_all(m)
        after = m.status()
        assert after["read_errors"] == 0
        assert after["direct_reads"] == before["direct_reads"], "the next one is asked"


@pytest.mark.slow
def test_a_stager_that_goes_on_is_asked_again(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        names = files(data)
        [stager] = stop(m, "stager")
        assert together(m, names[:2], 2) < PASSED_BY_S + MARGIN_S
        stager.signal(signal.SIGCONT)
        assert wait_until(lambda: "answers again" in m.log.read_text())
        before = m.status()["direct_reads"]
        assert before >= 2
        read_all(m)
        assert m.status()["direct_reads"] == before
        assert m.pid("stager") == stager.pid


def test_a_stager_that_stops_while_it_holds_what_readers_wait_for(mounting: Mounting, tmp_path: Path) -> None:
    """It has begun to read the file; the source is slow, and then well again."""
    (tmp_path / "backing").mkdir()
    (tmp_path / "backing/f.jpg").write_bytes(content(1, SIZE))
    with SlowSource(tmp_path / "backing") as slow, mounting(slow.path) as m:
        slow.stall("read", "f.jpg")
        with Reader("wait", m.path / "f.jpg") as reader:
            assert reader.line() == "open"
            slow.wait_stalled()
            [stager] = stop(m, "stager")
            slow.release()
            began = time.monotonic()
            assert reader.result() == SIZE
            assert time.monotonic() - began < PASSED_BY_S + MARGIN_S
        stager.signal(signal.SIGCONT)
        assert (m.path / "f.jpg").read_bytes() == content(1, SIZE)


@pytest.mark.slow
def test_a_stager_that_is_asleep_in_the_kernel_keeps_its_arena(mounting: Mounting, tmp_path: Path) -> None:
    """Killed while the source holds its threads: the next one stages into another arena, and what the source gives to
    the old one at last harms nobody."""
    backing = tmp_path / "backing"
    fill(backing, 40, 50_000)
    (backing / "f.jpg").write_bytes(content(1, SIZE))
    with SlowSource(backing) as slow, mounting(slow.path, "--servers", "2") as m:
        m.errors_expected = True
        together(m, files(backing)[:20], 4)
        slow.stall("open", "f.jpg")
        with Reader("wait", m.path / "f.jpg") as reader:
            assert reader.line() == "open"
            slow.wait_stalled()
            stager = Process("stager", m.pid("stager"), start_time(m.pid("stager")) or 0)
            stager.signal(signal.SIGKILL)
            assert wait_until(lambda: "stager" in roles(m) and m.pid("stager") != stager.pid, 30)
            assert stager.alive(), "the kernel holds it"
            assert f"stager-asleep-{stager.pid}" in roles(m), "who takes over must know"
            m.wait_status(lambda status: not status["off"])
            before = m.status()
            together(m, files(backing), 4)
            after = m.status()
            assert after["used"]["ram"] > 0
            assert after["direct_reads"] - before["direct_reads"] < 10
            slow.release()
            assert reader.result() == SIZE
        assert wait_until(lambda: not stager.alive())
        read_all(m)
        assert (m.path / "f.jpg").read_bytes() == content(1, SIZE)
        m.kill("supervisor")
        adopted = run([*module("nopfs"), "adopt", str(m.path)])
        assert adopted.returncode == 0, adopted.stderr
        read_all(m)
        assert (m.path / "f.jpg").read_bytes() == content(1, SIZE)


def roles(m: Mounted) -> set[str]:
    return {process.role for process in living(read_pids(m.state_dir))}


@pytest.mark.slow
def test_a_whole_that_was_suspended_replaces_nobody_when_it_goes_on(mounting: Mounting, data: Path) -> None:
    """As by the freezer or Slurm; the supervisor goes on first, which is hardest."""
    with mounting(data, "--servers", "2") as m:
        before = {process.role: process.pid for process in read_pids(m.state_dir)}
        stopped = stop(m, *before)
        time.sleep(13)  # longer than a hanging process is waited for
        for process in stopped:
            process.signal(signal.SIGCONT)
            time.sleep(0.2)
        read_all(m)
        time.sleep(3)
        assert {process.role: process.pid for process in read_pids(m.state_dir)} == before
        assert m.status()["off"] == []


@pytest.mark.slow
def test_one_is_stopped_when_another_was_killed(mounting: Mounting, data: Path) -> None:
    """The one that has to welcome its successor."""
    for killed, hangs in (("stager", "server"), ("server", "stager")):
        with mounting(data, "--servers", "2") as m:
            m.errors_expected = True
            victim = Process(killed, m.pid(killed), start_time(m.pid(killed)) or 0)
            [other] = stop(m, hangs)
            victim.signal(signal.SIGKILL)
            read_all(m, limit_s=30)
            assert wait_until(lambda victim=victim, other=other: not victim.alive() and not other.alive(), 40)
            assert wait_until(lambda: {"stager", "server", "server-1"} <= roles(m), 40)
            read_all(m)
            m.wait_status(lambda status: not status["off"])


@pytest.mark.slow
def test_a_disk_that_comes_later_is_used(mounting: Mounting, data: Path, tmp_path: Path) -> None:
    """Its directory vanished before the mount's stager, a second one, opened it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounting(data, "--disk", f"{disk}:100M", disks=[disk]) as m:
        m.errors_expected = True
        away = tmp_path / "away"
        disk.rename(away)
        stager = m.kill("stager")
        assert wait_until(lambda: m.pid("stager") != stager)
        off = m.wait_status(lambda status: [one for one in status["off"] if "disk" in one["what"]])["off"]
        assert f"disk tier {disk}" in [one["what"] for one in off]
        text = run([*module("nopfs"), "status", str(m.path)]).stdout
        assert f"off        disk tier {disk} since " in text
        assert "No such file" in text
        read_all(m)
        away.rename(disk)
        m.wait_status(lambda status: not status["off"])
        assert [entry for entry in os.listdir(disk) if "nopfs" in entry]


# ---- a supervisor that is stopped -----------------------------------------------------------------------------


def answered(words: list[str], code: Exit, limit_s: float = 5.0) -> str:
    """What a command says that has to answer soon."""
    began = time.monotonic()
    done = run(words)
    assert (done.returncode, time.monotonic() - began < limit_s + MARGIN_S) == (code, True), done.stderr
    return done.stderr


def test_with_a_stopped_supervisor_reads_go_on_and_commands_answer(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        m.errors_expected = True
        [supervisor] = stop(m, "supervisor")
        read_all(m)
        say_to = f"kill -CONT {supervisor.pid}"
        assert say_to in answered([*module("nopfs"), "status", str(m.path)], Exit.STUCK)
        assert say_to in answered([*module("nopfs"), "adopt", str(m.path)], Exit.BUSY_MOUNTPOINT)
        assert supervisor.alive()
        assert "is stopped: ending it" in answered([*module("umount"), str(m.path)], Exit.OK)
        m.wait_gone()


@pytest.mark.slow
def test_adopt_while_the_stager_is_stopped(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        m.errors_expected = True
        [stager] = stop(m, "stager")
        m.kill("supervisor")
        assert wait_until(lambda: "supervisor" not in roles(m))
        assert "took over" in answered([*module("nopfs"), "adopt", str(m.path)], Exit.OK, limit_s=15.0)
        assert not stager.alive()
        read_all(m)


# ---- the end of a mount ---------------------------------------------------------------------------------------


def unmount_and_wait(m: Mounted) -> None:
    """`umount -l`, and nothing runs any more in time."""
    assert run(["umount", "-l", str(m.path)]).returncode == 0
    assert wait_until(lambda: not m.living(), GONE_S), m.living()
    remove_state(m.path)  # nobody was left to


def kill_supervisor(m: Mounted) -> None:
    m.kill("supervisor")
    assert wait_until(lambda: "supervisor" not in roles(m))


@pytest.mark.parametrize("stopped", ["stager", long("supervisor"), pytest.param("server", marks=pytest.mark.slow)])
def test_a_mount_that_is_gone_leaves_no_process(mounting: Mounting, data: Path, stopped: str) -> None:
    with mounting(data) as m:
        m.errors_expected = True
        stop(m, stopped)
        unmount_and_wait(m)


@pytest.mark.slow
def test_a_mount_that_is_gone_waits_for_no_stager_that_is_asleep(mounting: Mounting, tmp_path: Path) -> None:
    """It holds a copy of the mount, and the source holds it."""
    (tmp_path / "backing").mkdir()
    (tmp_path / "backing/f.jpg").write_bytes(content(1, SIZE))
    with SlowSource(tmp_path / "backing") as slow, mounting(slow.path) as m:
        m.errors_expected = True
        slow.stall("open", "f.jpg")
        with Reader("wait", m.path / "f.jpg") as reader:
            assert reader.line() == "open"
            slow.wait_stalled()
        stager, supervisor = m.pid("stager"), m.pid("supervisor")
        stop(m, "stager")
        assert run(["umount", "-l", str(m.path)]).returncode == 0
        assert wait_until(lambda: start_time(supervisor) is None, GONE_S), m.log.read_text()
        assert start_time(stager) is not None, "the source has not answered"
        slow.release()
        assert wait_until(lambda: not m.living())
        remove_state(m.path)


STOPS: list[tuple[list[str], bool]] = [
    (["supervisor", "stager"], False), (["supervisor", "server"], False), (["stager", "server"], False),
    (["stager"], True), (["server"], True),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("stopped", "killed"), STOPS)
def test_a_mount_that_is_gone_leaves_no_process_whoever_is_left_to_notice(
    mounting: Mounting, data: Path, stopped: list[str], killed: bool
) -> None:
    """Also without a supervisor."""
    with mounting(data, "--servers", "2") as m:
        m.errors_expected = True
        stop(m, *stopped)
        if killed:
            kill_supervisor(m)
        unmount_and_wait(m)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to mount as another user")
def test_a_server_that_serves_as_a_user_ends_a_stopped_supervisor_of_root(
    mounting: Mounting, open_to_all: Path
) -> None:
    made = open_to_all / "data"
    fill(made, 10, 5_000)
    with mounting(made, "--user", "nobody") as m:
        m.errors_expected = True
        stop(m, "supervisor", "stager")
        unmount_and_wait(m)


@pytest.mark.slow
def test_a_lazily_unmounted_mount_goes_on_for_who_uses_it(mounting: Mounting, data: Path) -> None:
    """With a stager that is stopped, too."""
    name = files(data)[0]
    with mounting(data) as m:
        m.errors_expected = True
        stop(m, "stager")
        with Reader("hold", m.path / name) as reader:
            reader.line()
            assert run(["umount", "-l", str(m.path)]).returncode == 0
            supervisor = m.pid("supervisor")
            assert wait_until(lambda: "does not let go" in m.log.read_text())
            assert start_time(supervisor) is not None
            reader.go()
            assert reader.line()[0] == (data / name).stat().st_size
        assert wait_until(lambda: not m.living(), GONE_S), m.living()
