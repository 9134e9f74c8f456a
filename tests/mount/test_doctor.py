"""`nopfs doctor` on mounts that are well, dead, stopped and hung: it names what is wrong first, and never hangs."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from slow_source import SlowSource

from nopfsfs.control.client import call
from nopfsfs.control.process_list import living, read_pids
from nopfsfs.errors import Exit
from nopfsfs.system.proc import is_stopped
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, fill, module, run
from tests.waiting import wait_until

pytestmark = pytest.mark.mount

LIMIT_S = 40.0  # of the command: the longest part has 10 s, the archive 30 s; this allows for a slow machine
SECRET_WORDS = "a password that nobody may see"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "source", 100, 3000)
    return tmp_path / "source"


class Diagnosis:
    """What the command said, and the files of its archive."""

    def __init__(self, work: Path, *words: str) -> None:
        path = work / f"doctor-{time.monotonic_ns()}.tar.gz"
        environment = {**os.environ, "MY_SECRET": SECRET_WORDS}
        began = time.monotonic()
        argv = [*module("nopfs"), "doctor", *words, "--output", str(path)]
        self.done = run(argv, LIMIT_S, env=environment)
        self.took_s = time.monotonic() - began
        assert (self.done.returncode, self.done.stderr) == (0, ""), self.done.stderr
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        self.files: dict[str, str] = {}
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                file = archive.extractfile(member)
                assert file is not None
                self.files[member.name.partition("/")[2]] = file.read().decode()
        assert SECRET_WORDS not in "".join(self.files.values())

    @property
    def findings(self) -> str:
        """The findings on one line, as it was printed."""
        return " ".join(self.done.stdout.partition("\nThe archive is")[0].split())

    def part(self, name: str) -> Any:
        return json.loads(self.files[f"{name}.json"])


@contextmanager
def stopped(m: Mounted, *roles: str) -> Iterator[list[int]]:
    """Processes of the mount that are stopped; they go on at the end."""
    processes = [p for p in living(read_pids(m.state_dir)) if p.role.partition("-")[0] in roles]
    try:
        for process in processes:
            process.signal(signal.SIGSTOP)
        assert wait_until(lambda: all(is_stopped(process.pid) for process in processes))
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.signal(signal.SIGCONT)


def test_a_mount_that_is_well(mounting: Mounting, data: Path, tmp_path: Path) -> None:
    with mounting(data, "--seed", "42", "--ram", "64M") as m:
        m.wait_status(lambda status: status["state"] == "running")
        found = Diagnosis(tmp_path, str(m.path))
    assert found.findings.startswith(f"{m.path}: ")
    for wrong in ("of the mount is gone", "All processes of the mount are", "stopped", "Not collected", "error"):
        assert wrong not in found.findings
    assert found.part("options")["seed"] == 42
    assert found.part("status")["state"] == "running"
    assert found.part("metrics")["info"]["mountpoint"] == str(m.path)
    assert found.part("answers")["errno"] == found.part("source")["errno"] == 0
    assert Path(found.part("source")["looked_at"]).suffix == ".jpg"
    assert "fuse.nopfs" in found.part("mount")["mountinfo"][0]
    assert {one["role"] for one in found.part("processes")} >= {"supervisor", "stager"}
    assert all(one["threads"] for one in found.part("processes"))
    assert any("event_loop.py" in frame for task in found.part("stacks")["tasks"] for frame in task["frames"])
    assert found.part("history")["columns"]
    assert {one["mountpoint"]: "supervisor" in one["living"] for one in found.part("mounts")}[str(m.path)]
    assert {"versions.json", "kernel.json", "clock.json", "cgroup.json", "node.json", "tune.json"} <= set(found.files)


@pytest.mark.long
def test_hidden_paths(mounting: Mounting, data: Path, tmp_path: Path) -> None:
    policy = tmp_path / "rules.toml"
    policy.write_text("version = 1\n[[rule]]\nweight = 0.5\n[[rule]]\nmatch = { user = 'nobody-*' }\nweight = 0.1\n")
    policy.chmod(0o640)
    with mounting(data, "--seed", "42", "--policy", str(policy)) as m:
        m.wait_status(lambda _: call(m.state_dir, "tune")["policy"]["files"] != [])
        found = Diagnosis(tmp_path, str(m.path), "--hash-paths")
    text = "".join(found.files.values())
    assert str(m.path) in found.done.stdout
    for name in (str(m.path), str(data), tmp_path.name, policy.name):
        assert name not in text, name
    assert found.part("status")["state"] == "running"
    seen, said = found.part("policy")["files"][-1], found.part("policy")["in_force"]
    assert (seen["trusted"], seen["owner"], seen["mode"], seen["kind"]) == (True, os.geteuid(), "0640", "file")
    assert [(one["number"], one["weight"]) for one in seen["rules"]] == [(1, 0.5), (2, 0.1)]
    assert (said["weight"], said["files"][-1]["rules"], said["files"][-1]["path"]) == (0.5, [1], seen["path"])


@pytest.mark.long
def test_a_supervisor_that_was_killed(mounting: Mounting, data: Path, tmp_path: Path) -> None:
    with mounting(data) as m:
        m.kill("supervisor")
        assert wait_until(lambda: "supervisor" not in {p.role for p in living(read_pids(m.state_dir))})
        found = Diagnosis(tmp_path, str(m.path))
        assert " 1. The supervisor of the mount is gone; its servers serve on, without prefetching." in found.findings
        assert f"-> Start another one: nopfs adopt {m.path}" in found.findings
        assert found.part("answers")["errno"] == 0
        assert found.part("options")["source"] == str(data)
        assert "the supervisor is gone; serving on" in found.files["log.txt"]
        assert "error" in found.part("status")
        assert run([*module("nopfs"), "adopt", str(m.path)]).returncode == 0


@pytest.mark.long
def test_a_server_that_is_stopped(mounting: Mounting, data: Path, tmp_path: Path) -> None:
    with mounting(data, "--servers", "1") as m:
        m.errors_expected = True  # the supervisor may replace the server meanwhile
        with stopped(m, "supervisor", "server") as pids:
            found = Diagnosis(tmp_path, str(m.path))
            assert "A signal or a debugger has stopped processes of the mount: " in found.findings
            assert f"kill -CONT {' '.join(map(str, pids))}" in found.findings
            assert "The mount does not answer" in found.findings
            assert found.part("answers") == {"error": "nothing within 3 s"}
            assert all(is_stopped(pid) for pid in pids), "nobody has touched them"
            assert [one["stopped"] for one in found.part("processes") if one["pid"] in pids] == [True, True]
        assert sorted(os.listdir(m.path)) == sorted(os.listdir(data))


@pytest.mark.long
def test_a_source_that_does_not_answer(mounting: Mounting, tmp_path: Path) -> None:
    fill(tmp_path / "backing", 20, 3000)
    with SlowSource(tmp_path / "backing") as slow, mounting(slow.path) as m:
        m.errors_expected = True
        name = next(iter(sorted(path.relative_to(m.path) for path in m.path.rglob("*.jpg"))))
        slow.stall("open")
        try:
            with Reader("wait", m.path / name) as reader:
                assert reader.line() == "open"
                slow.wait_stalled()
                found = Diagnosis(tmp_path, str(m.path))
                assert " 1. The source does not answer: the source gave nothing within 10 s" in f" {found.findings}"
                assert "Not collected: source: nothing within 10 s" in found.findings
                assert found.part("answers")["errno"] == 0
                slow.release()
                assert reader.result() > 0
        finally:
            slow.release()


@pytest.mark.long
def test_all_processes_were_killed(mounting: Mounting, data: Path, tmp_path: Path) -> None:
    with mounting(data) as m:
        processes = living(read_pids(m.state_dir))
        for process in sorted(processes, key=lambda one: one.role != "supervisor"):  # it would replace the others
            process.signal(signal.SIGKILL)
        assert wait_until(lambda: not living(processes))
        found = Diagnosis(tmp_path, str(m.path))
        assert " 1. All processes of the mount are gone" in found.findings
        assert f"nopfs-umount {m.path}" in found.findings
        if found.part("options") is not None:  # the state is cleared away by any mount that starts meanwhile
            assert found.part("options")["source"] == str(data)
        assert found.part("answers")["errno"] == errno.ENOTCONN
        report = run([*module("nopfs"), "report", str(m.path), "--output", str(tmp_path / "report.html")])
        assert (report.returncode, report.stderr.count("\n"), report.stdout) == (Exit.STUCK, 1, "")
        assert not (tmp_path / "report.html").exists()
        said = Diagnosis(tmp_path).findings.partition("All processes of these mounts are gone: ")[2]
        assert str(m.path) in said.partition(" -> ")[0]
        assert m.umount().returncode in (0, 14)


def test_the_node_alone(tmp_path: Path) -> None:
    found = Diagnosis(tmp_path)
    assert found.findings.startswith("this node: ")
    assert {name for name in found.files if not name.startswith("mount-")} == {
        "report.txt", "versions.json", "kernel.json", "clock.json", "node.json", "mounts.json", "cgroup.json",
        "mount_paths.json",
    }  # fmt: skip


def test_what_cannot_be_done_is_one_line(tmp_path: Path) -> None:
    done = run([*module("nopfs"), "doctor", str(tmp_path), "--hash-paths"])
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    (tmp_path / "there.tar.gz").write_bytes(b"mine")
    for output, said in (("there.tar.gz", "File exists"), ("missing/a.tar.gz", "No such file"), ("dir/", "no name")):
        done = run([*module("nopfs"), "doctor", "--output", str(tmp_path / output) + "/" * output.endswith("/")])
        assert (done.returncode, done.stderr.count("\n"), said in done.stderr) == (2, 1, True), done.stderr
    assert (tmp_path / "there.tar.gz").read_bytes() == b"mine"
