"""Processes of a mount that are killed, stopped, taken over and upgraded, while readers read: no failed read, no wrong
byte, nothing left."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from pathlib import Path

import pytest
from slow_source import SlowSource

from nopfsfs.control.client import call
from nopfsfs.control.process_list import living, read_pids
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse.connection import WITHOUT
from nopfsfs.protocol.columns import LAYOUT
from nopfsfs.supervisor.processes.supervised import DONE
from tests.conftest import long, slow
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, content, fill, module, mount_command, read_all, run
from tests.mount.reading import FINE, are_reading, comparing
from tests.waiting import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.timeout(260)]

KILLS, DEATHS = 100, 20
HANGS_S = 240.0


@pytest.fixture
def redelivery(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How requests of a dead server come to another one: `kernel` (from Linux 6.9 on), `records`, or `none`."""
    monkeypatch.setenv(WITHOUT, {"kernel": "", "records": "resend", "none": "resend,records"}[request.param])
    return str(request.param)


BOTH = pytest.mark.parametrize("redelivery", ["kernel", "records"], indirect=True)
KERNEL = pytest.mark.parametrize("redelivery", ["kernel", slow("records")], indirect=True)
RECORDS = pytest.mark.parametrize("redelivery", [slow("kernel"), "records"], indirect=True)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "source", 200, 60_000)
    return tmp_path / "source"


@BOTH
@pytest.mark.slow
def test_a_hundred_deaths_in_three_epochs(mounting: Mounting, tmp_path: Path, redelivery: str) -> None:
    fill(tmp_path / "source", 900, 60_000)  # read three times, and more on a slow machine, until all have died
    rng = random.Random(17)
    killed = 0
    with mounting(tmp_path / "source", "--servers", "2", "--ram", "16M", "--seed", "42", hangs_s=HANGS_S) as m:
        m.errors_expected = True  # it says that they died
        with comparing(m, readers=2, rounds="all", pause=0.015, limit_s=HANGS_S) as readers:
            while are_reading(readers) and killed < KILLS:
                processes = call(m.state_dir, "status")["processes"]
                if len(processes) == 4 and all(process["running"] for process in processes):
                    time.sleep(rng.uniform(0.0, 0.3))
                    killed += rng.choice(m.children()).signal(signal.SIGKILL)
                time.sleep(0.02)
        assert killed == KILLS
        assert wait_until(lambda: sorted(p.role for p in m.children()) == ["server", "server-1", "stager"])
        assert m.status()["state"] == "running"
        assert m.status()["read_errors"] == 0
        read_all(m)


@RECORDS
@pytest.mark.long
def test_twenty_deaths_of_the_only_server(mounting: Mounting, tmp_path: Path, redelivery: str) -> None:
    """Four readers get all their bytes."""
    fill(tmp_path / "source", 60, 60_000)
    with mounting(tmp_path / "source", "--servers", "1", "--ram", "16M", "--page-cache", "1M", hangs_s=HANGS_S) as m:
        m.errors_expected = True  # it says that they died
        assert m.status()["modes"]["redelivery"] == redelivery
        killed: set[int] = set()
        with comparing(m, readers=4, rounds="all", pause=0.002, limit_s=HANGS_S) as readers:
            while are_reading(readers) and len(killed) < DEATHS:
                for process in m.status()["processes"]:
                    if process["role"] == "server" and process["running"] and process["pid"] not in killed:
                        before = m.status()["opens"]["total"]
                        # else it dies in vain: after some of these the next ones are started later and later
                        m.wait_status(lambda status, before=before: status["opens"]["total"] >= before + DONE)
                        os.kill(process["pid"], signal.SIGKILL)
                        killed.add(process["pid"])
                time.sleep(0.02)
        assert len(killed) == DEATHS
        m.wait_status(lambda s: all(process["running"] for process in s["processes"]))
        assert m.status()["read_errors"] == 0
        read_all(m)


@RECORDS
@pytest.mark.long
def test_a_reader_of_a_request_that_an_heir_took_over_can_be_killed(
    mounting: Mounting, tmp_path: Path, redelivery: str
) -> None:
    """Also where it got its signal before the server died."""
    fill(tmp_path / "backing", 4, 50_000)
    with SlowSource(tmp_path / "backing") as slow, mounting(slow.path) as m:
        m.errors_expected = True
        slow.stall("read")
        with Reader("read", m.path / "class1/00001.jpg") as early, Reader("read", m.path / "class2/00002.jpg") as late:
            slow.wait_stalled()
            m.kill("server", signal.SIGSTOP)
            early.process.kill()
            pid = m.kill("server")
            assert wait_until(lambda: m.pid("server") != pid)
            early.process.wait(10)
            time.sleep(0.2)
            assert late.process.poll() is None
            late.process.kill()
            late.process.wait(10)
            slow.release()
        read_all(m)


@BOTH
@pytest.mark.parametrize("servers", ["1", long("2")])
def test_servers_that_die_while_they_wait_for_the_source(
    mounting: Mounting, tmp_path: Path, servers: str, redelivery: str
) -> None:
    fill(tmp_path / "backing", 4, 50_000)
    with SlowSource(tmp_path / "backing") as slow, mounting(slow.path, "--servers", servers) as m:
        m.errors_expected = True
        slow.stall("read")
        with comparing(m, readers=2, rounds=1):
            slow.wait_stalled()
            for process in m.children():
                if process.role != "stager":
                    process.signal(signal.SIGKILL)
            slow.release()


@pytest.mark.parametrize("redelivery", ["kernel", long("records"), long("none")], indirect=True)
def test_a_server_dies_when_there_is_no_supervisor(mounting: Mounting, tmp_path: Path, redelivery: str) -> None:
    """Another one sees to what it had taken; where that is lost, the mount ends, and nobody waits."""
    fill(tmp_path / "backing", 4, 50_000)
    with SlowSource(tmp_path / "backing") as slow, mounting(slow.path, "--servers", "2") as m:
        m.errors_expected = True
        slow.stall("read")
        m.kill("supervisor")
        assert wait_until(lambda: m.log.read_text().count("the supervisor is gone") == 2)
        m.kill("server-1", signal.SIGSTOP)  # the other one takes what comes
        with Reader("compare", m.path, m.source, "1", "1", "0.0") as reader:
            slow.wait_stalled()
            m.kill("server-1", signal.SIGCONT)
            m.kill("server")
            slow.release()
            found = reader.result(30)
        if redelivery == "none":
            assert found["wrong"] == []
            assert found["errors"]
        else:
            assert found == FINE
        assert run([*module("umount"), str(m.path)]).returncode == 0
        m.wait_gone()


@KERNEL
@pytest.mark.long
def test_a_server_that_is_stopped_is_replaced(mounting: Mounting, data: Path, redelivery: str) -> None:
    with mounting(data, "--servers", "2") as m:
        m.errors_expected = True
        before = {p.pid for p in m.children()}
        stopped = next(p for p in m.children() if p.role == "server")
        stopped.signal(signal.SIGSTOP)
        read_all(m)
        assert wait_until(lambda: not stopped.alive(), 30)
        assert wait_until(lambda: len({p.pid for p in m.children()} - before) == 1)
        read_all(m)


@RECORDS
@pytest.mark.long
def test_server_and_stager_die_at_once(mounting: Mounting, data: Path, redelivery: str) -> None:
    """As by the kernel when memory is short. The next server knows the next stager, and reads what is staged."""
    with mounting(data, "--seed", "42", "--page-cache", "1M") as m:
        m.errors_expected = True
        for _ in range(3):
            m.wait_status(lambda s: all(p["running"] for p in s["processes"]) and len(s["processes"]) == 3)
            for process in m.children():
                process.signal(signal.SIGKILL)
            read_all(m)
        m.wait_status(lambda s: all(p["running"] for p in s["processes"]) and len(s["processes"]) == 3)
        first, second = reads_anew(m), reads_anew(m)
        assert first["ram"] > 50, "what was staged before is used"
        assert second["source"] < 20, "and what was read while there was no stager is staged, too"


def reads_anew(m: Mounted) -> dict[str, int]:
    """Read all files, also what the kernel has of them; return how many came from where."""
    for path in (path for path in m.path.rglob("*") if path.is_file()):
        with path.open("rb") as file:  # else the server is not asked for what the kernel has of it
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = m.status()["served"]
    read_all(m)
    after = m.status()["served"]
    return {place: after[place]["files"] - before[place]["files"] for place in after}


def kill_servers(m: Mounted, count: int) -> None:
    """Kill so many servers, each as soon as it is started."""
    killed: set[int] = set()

    def enough() -> bool:
        for process in m.children():
            if process.role == "server" and process.pid not in killed and process.signal(signal.SIGKILL):
                killed.add(process.pid)
        return len(killed) >= count

    assert wait_until(enough, 90), killed


@pytest.mark.slow
def test_a_server_that_cannot_live_is_tried_for_ever(mounting: Mounting, data: Path) -> None:
    """Killed as soon as it is started, again and again: plain ones are tried, more and more slowly; reads wait."""
    with mounting(data, hangs_s=HANGS_S) as m:
        m.errors_expected = True
        kill_servers(m, 9)
        with Reader("compare", m.path, m.source, "1", "1", "0.0") as reader:
            kill_servers(m, 3)
            off = m.wait_status(lambda status: status["off"])["off"]
            assert [(one["what"], "ended with status -9" in one["why"]) for one in off] == [("server 0", True)]
            assert reader.result(90) == FINE
        m.wait_status(lambda status: not status["off"])
        assert m.status()["state"] == "running"
        assert wait_until(lambda: m.pid("server") and "gets to know the others" in m.log.read_text(), 40)
        read_all(m)


@pytest.mark.long
def test_while_no_server_lives_who_waits_can_be_killed_and_the_mount_unmounted(
    mounting: Mounting, data: Path
) -> None:
    with mounting(data) as m:
        m.errors_expected = True
        kill_servers(m, 10)  # the next one comes after eight seconds
        with Reader("read", m.path / "class1/00001.jpg") as reader:
            time.sleep(1)
            assert reader.process.poll() is None
            reader.process.kill()
            reader.process.wait(5)
        done = run([*module("umount"), str(m.path)])
        assert done.returncode == 0, done.stderr
        m.wait_gone()


@BOTH
@pytest.mark.slow
def test_ten_supervisors_die_and_are_replaced(mounting: Mounting, data: Path, redelivery: str) -> None:
    with mounting(data, "--servers", "2", "--ram", "6M", "--seed", "42", hangs_s=HANGS_S) as m:
        m.errors_expected = True
        modes = m.status()["modes"]
        with Reader("hold", m.path / "class1/00001.jpg") as held:
            assert held.line() == 4096
            with comparing(m, readers=2, rounds="all", pause=0.002) as readers:
                for _ in range(10):
                    m.kill("supervisor")
                    assert wait_until(lambda: "supervisor" not in {p.role for p in living(read_pids(m.state_dir))})
                    status = run([*module("nopfs"), "status", str(m.path)])
                    assert (status.returncode, "nopfs adopt" in status.stderr) == (Exit.STUCK, True)
                    adopted = run([*module("nopfs"), "adopt", str(m.path)])
                    assert adopted.returncode == 0, adopted.stderr
                    assert m.status()["state"] == "running"
                assert are_reading(readers)
            held.go()
            assert held.line()[0] == len((m.source / "class1/00001.jpg").read_bytes())
        opens = m.status()["opens"]
        assert m.status()["read_errors"] == 0
        assert m.status()["modes"] == modes
        assert opens["total"] >= 2 * 10 * 200, "counted on"


def test_a_mount_whose_supervisor_died_is_unmounted(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        m.kill("supervisor")
        read_all(m)
        done = run([*module("umount"), str(m.path)])
        assert done.returncode == 0, done.stderr
        m.wait_gone()


@pytest.mark.long
def test_the_mount_command_takes_over(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        m.kill("supervisor")
        # On a busy machine it lives on for a moment, and nothing takes over from a supervisor that lives.
        assert wait_until(lambda: "supervisor" not in {p.role for p in living(read_pids(m.state_dir))})
        again = run(mount_command(m), env={**os.environ, "NOPFS_TEST_ID": m.test_id})
        assert (again.returncode, "took over" in again.stderr) == (0, True)
        read_all(m)


@pytest.mark.long
def test_a_version_with_another_memory_is_refused_and_changes_nothing(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        before = {p.pid for p in read_pids(m.state_dir)}
        with pytest.raises(NopfsError, match="does not understand"):
            call(m.state_dir, "hand-over", 5, layout=LAYOUT + 1)
        assert m.status()["state"] == "running"
        assert {p.pid for p in read_pids(m.state_dir)} == before


@KERNEL
@pytest.mark.long
def test_an_upgrade_while_files_are_read(mounting: Mounting, data: Path, redelivery: str) -> None:
    with mounting(data, "--seed", "42") as m:
        before = {p.pid for p in read_pids(m.state_dir)}
        with Reader("hold", m.path / "class1/00001.jpg") as held:
            assert held.line() == 4096
            with comparing(m, readers=2, rounds="all", pause=0.002):
                done = run([*module("nopfs"), "upgrade", str(m.path)])
                assert done.returncode == 0, done.stderr
                assert not before & {p.pid for p in read_pids(m.state_dir)}
            held.go()
            assert held.line()[0] == len((m.source / "class1/00001.jpg").read_bytes())
        assert m.status()["state"] == "running"


@pytest.mark.long
@pytest.mark.parametrize("fallback", ["no fast path", "no redelivery"])
def test_without_what_recovery_needs(
    mounting: Mounting, data: Path, fallback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stager's death changes nothing; a server's ends the mount, and nothing hangs."""
    monkeypatch.setenv(WITHOUT, "resend,records" if fallback == "no redelivery" else "")
    flags = ["--no-fast-path"] if fallback == "no fast path" else ["--servers", "2"]
    with mounting(data, *flags, "--ram", "4M") as m:
        m.errors_expected = True
        refused = run([*module("nopfs"), "upgrade", str(m.path)])
        assert (refused.returncode, "cannot be taken over" in refused.stderr) == (Exit.STUCK, True)
        with comparing(m, readers=2, rounds=3):
            m.kill("stager")
        with Reader("loop", m.path) as reader:
            assert reader.line() == "ready"
            m.kill("server")
            codes = {code for _, code in reader.result()["errors"]}
        assert codes <= {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO}
        assert wait_until(lambda: not m.living())
        assert run([*module("umount"), str(m.path)]).returncode == 0


@pytest.mark.parametrize("servers", ["1", long("2")])
def test_signals_that_do_not_kill_do_not_interrupt(mounting: Mounting, tmp_path: Path, servers: str) -> None:
    (tmp_path / "backing").mkdir()
    (tmp_path / "backing/f.jpg").write_bytes(content(1, 300_000))
    with SlowSource(tmp_path / "backing") as slow, mounting(slow.path, "--servers", servers) as m:
        slow.stall("read")
        with Reader("signals", m.path / "f.jpg") as reader:
            assert reader.line() == "open"
            slow.wait_stalled()
            reader.process.send_signal(signal.SIGUSR1)
            slow.release()
            assert reader.line() > 0
