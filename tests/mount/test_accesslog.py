"""`nopfs accesslog` shows what a job opens, as the job counts it, and costs nobody anything."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nopfsfs.control.client import Connection, call
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, fill, module, run
from tests.waiting import wait_until

pytestmark = pytest.mark.mount

FILES, SEED, PROBE = 600, 42, "probe.txt"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "source", FILES, 3000)
    (tmp_path / "source" / PROBE).write_bytes(b"not of the job")
    return tmp_path / "source"


@contextmanager
def listening(m: Mounted, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A running `nopfs accesslog`."""
    argv = [*module("nopfs"), "accesslog", str(m.path), *flags]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def begun(m: Mounted, process: subprocess.Popen[str]) -> None:
    """Open the probe until the log shows it."""
    assert process.stdout is not None

    def shown() -> bool:
        (m.path / PROBE).read_bytes()
        return bool(select.select([process.stdout], [], [], 0.1)[0])

    assert wait_until(shown)


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End it by Ctrl-C; what it said."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    return out, err


def job(m: Mounted, epochs: int) -> tuple[int, list[str]]:
    """A job in a process of its own: (its pid, the paths that it opened)."""
    names = sorted(str(path.relative_to(m.source)) for path in m.source.glob("class*/*.jpg"))
    orders = [registry.order(Spec("distributed", SEED), FILES, epoch).tolist() for epoch in range(epochs)]
    said = m.log.with_suffix(".orders")
    said.write_text(json.dumps({"names": names, "epochs": orders}))
    with Reader("follow", m.path, m.source, said, "0.0003") as reader:
        assert reader.result() == {"wrong": []}
        return reader.process.pid, [names[at] for order in orders for at in order]


@pytest.mark.long
def test_each_open_is_logged_once_in_order(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--seed", str(SEED), "--signal", "open") as m, listening(m, "--json") as log:
        begun(m, log)
        pid, opened = job(m, 2)
        m.wait_status(lambda status: status["opens"]["total"] >= len(opened))
        (m.path / PROBE).read_bytes()
        lines = []
        assert log.stdout is not None
        while not lines or sum(one.get("reader") == pid for one in lines) < len(opened):
            lines.append(json.loads(log.stdout.readline()))
        lines += [json.loads(line) for line in ended(log)[0].splitlines()]
    logged = [one for one in lines if one.get("reader") == pid]
    assert [one["path"] for one in logged] == opened
    assert all(one["stand_for"] == 1 for one in logged)
    assert [one["time"] for one in logged] == sorted(one["time"] for one in logged)
    assert sum(one["foreseen"] is True for one in logged) > 0.9 * len(opened)
    assert not [one for one in lines if "dropped" in one]


@pytest.mark.long
def test_a_profile_has_the_sums_of_the_job(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--seed", str(SEED), "--signal", "open") as m:
        done = run([*module("nopfs"), "accesslog", str(m.path), "--profile", "--json", "--seconds", "1"])
        assert (done.returncode, done.stderr) == (0, "")
        assert [json.loads(done.stdout)[key] for key in ("opens", "seconds")] == [0, 1]
        with listening(m, "--profile", "--json") as log:
            assert wait_until(lambda: _is_connected(m, log.pid))
            pid, opened = job(m, 2)
            assert m.umount().returncode == 0  # the end of the mount ends the profile, however long the job takes
            out, err = log.communicate(timeout=30)
            assert (log.returncode, err.count("\n")) == (0, 1), err
        found = json.loads(out)
        assert {one["name"]: one["opens"] for one in found["readers"]} == {pid: len(opened)}
        assert (found["opens"], found["counts"], found["dropped"]) == (len(opened), "exact", 0)
        assert found["distinct_files"] == FILES
        directories = Counter(path.partition("/")[0] for path in opened)
        assert {one["name"]: one["opens"] for one in found["directories"]} == directories
        assert found["foreseen"] > 0.9 * len(opened)


def _is_connected(m: Mounted, pid: int) -> bool:
    """True when the command waits for an answer, and the supervisor has answered others since."""
    sockets = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            sockets += str(link.readlink()).startswith("socket:")
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "S" and sockets > 0 and m.status()["state"] == "running"


@pytest.mark.long
def test_a_sample_is_said_to_be_one(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--seed", str(SEED), "--signal", "tripwire") as m, listening(m) as log:
        assert wait_until(lambda: _is_connected(m, log.pid))
        _, opened = job(m, 2)
        assert log.stdout is not None
        first = log.stdout.readline()
        out, _ = ended(log)
    assert first.startswith("# a sample: the kernel opens files by itself now, and each line stands for about ")
    assert len(out.splitlines()) < len(opened) / 2


@pytest.mark.long
def test_a_listener_that_never_reads_disturbs_nobody(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--seed", str(SEED), "--signal", "open") as m:
        deaf = [Connection(m.state_dir) for _ in range(9)]
        for connection in deaf:
            connection.send("accesslog")
        try:
            job(m, 3)
            assert call(m.state_dir, "status")["state"] == "running"
            done = run([*module("nopfs"), "accesslog", str(m.path), "--seconds", "1"])
            assert (done.returncode, done.stderr.count("\n")) == (1, 1)
            assert "8 commands listen to this mount already" in done.stderr
        finally:
            for connection in deaf:
                connection.__exit__(None, None, None)


@pytest.mark.long
def test_an_unmount_ends_the_log(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--signal", "open") as m, listening(m) as log:
        begun(m, log)
        assert m.umount().returncode == 0
        out, err = log.communicate(timeout=20)
        assert (log.returncode, err.count("\n")) == (0, 1), err
        assert "was unmounted" in err
        assert PROBE in out


def test_bad_options_are_one_line_each(tmp_path: Path) -> None:
    for flags, code, said in (
        (("--seconds", "0"), 2, "is not from 1ms"), (("--seconds", "x"), 2, "is not a time"),
        ((), 9, "nothing is mounted"),
    ):  # fmt: skip
        done = run([*module("nopfs"), "accesslog", str(tmp_path), *flags])
        assert (done.returncode, done.stderr.count("\n"), said in done.stderr) == (code, 1, True), done.stderr
