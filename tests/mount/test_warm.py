"""`nopfs warm` stages files of a real mount, which are then read without the source; `nopfs drop` forgets
them, and `nopfs check` compares them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from slow_source import SlowSource

from nopfsfs.control.client import call
from nopfsfs.errors import Exit
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, content, fill, module, read_all, run, write
from tests.waiting import wait_until

pytestmark = pytest.mark.mount

FILES = 120


@pytest.fixture
def source(tmp_path: Path) -> Path:
    fill(tmp_path / "source", FILES, 30_000)
    return tmp_path / "source"


def warm(m: Mounted, *words: str, code: int = Exit.OK, command: str = "warm") -> dict[str, Any]:
    done = run([*module("nopfs"), command, str(m.path), *words, "--json"])
    assert (done.returncode, done.stderr) == (code, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def files(record: dict[str, Any]) -> dict[str, int]:
    counts = {name: one["files"] for name, one in record.items() if isinstance(one, dict) and name != "asked"}
    return {name: count for name, count in counts.items() if count}


def drop(m: Mounted, *words: str) -> dict[str, int]:
    return files(warm(m, *words, command="drop"))


def source_opens(m: Mounted) -> int:
    return int(call(m.state_dir, "metrics")["source"]["opens"])


def fetches(m: Mounted) -> tuple[int, int, int]:
    """Fetches that are ordered and not done; requests under way at the source; those of them that hang."""
    figures = call(m.state_dir, "metrics")
    return figures["fetches_in_flight"], figures["tuner"]["under_way"], figures["source"]["stuck"]


def test_what_is_warm_is_read_without_the_source(mounting: Mounting, source: Path) -> None:
    with mounting(source, "--ram", "64M") as m:
        in_class = len(os.listdir(source / "class1"))
        assert files(warm(m, "class1")) == {"staged": in_class}
        assert files(warm(m)) == {"there": in_class, "staged": FILES - in_class}
        opens = source_opens(m)
        assert opens == FILES
        read_all(m, readers=2)
        assert files(warm(m)) == {"there": FILES}
        metrics = call(m.state_dir, "metrics")
        assert metrics["source"]["opens"] == opens
        assert metrics["served"]["source"]["files"] == metrics["direct_reads"] == 0


@pytest.mark.long
def test_what_does_not_fit_is_said_and_disks_take_more(mounting: Mounting, tmp_path: Path) -> None:
    write(tmp_path / "source", {f"{number}": content(number, 400_000) for number in range(60)})
    write(tmp_path / "source", {"large": content(99, 8_000_000)})
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounting(tmp_path / "source", "--ram", "16M", "--disk", f"{disk}:12M", disks=[disk]) as m:
        first = warm(m)
        found = files(first)
        assert found["staged"] + found["unfit"] == 61
        assert found["staged"] > 12_000_000 // 400_000, "more than the disk holds"
        assert found["unfit"] >= 1, "one is too large"
        assert first["unfit"]["bytes"] >= 8_000_000
        assert source_opens(m) == found["staged"]
        assert files(warm(m)) == {"there": found["staged"], "unfit": found["unfit"]}
        assert source_opens(m) == found["staged"]
        read_all(m, readers=1)


@pytest.mark.long
def test_paths_that_are_not_there_are_said_and_the_others_staged(
    mounting: Mounting, source: Path, tmp_path: Path
) -> None:
    listed = tmp_path / "list"
    names = [os.path.relpath(path, source) for path in source.glob("class2/*")]
    listed.write_text("\n".join([*names, "no/such", *names]))
    with mounting(source, "--ram", "64M") as m:
        done = run([*module("nopfs"), "warm", str(m.path), "--list", str(listed)])
        assert (done.returncode, done.stderr) == (Exit.USAGE, "nopfs: no/such: is not there\n")
        assert done.stdout.startswith(f"staged     {len(names)} files")
        assert files(warm(m, "class2")) == {"there": len(names)}
        os.mkfifo(tmp_path / "pipe")
        done = run([*module("nopfs"), "warm", str(m.path), "--list", str(tmp_path / "pipe")])
        assert done.returncode == Exit.USAGE
        assert done.stderr.count("\n") == 1
        assert "write the paths to one" in done.stderr


@pytest.mark.long
def test_a_file_that_cannot_be_read_is_said(mounting: Mounting, source: Path) -> None:
    with mounting(source, "--ram", "64M") as m:
        (source / "class0/00000.jpg").unlink()
        found = warm(m, "class0", code=Exit.SOURCE)
        assert found["failed"]["files"] == len(found["failures"]) == 1
        assert found["failures"][0][0] == "class0/00000.jpg"


@pytest.mark.long
def test_ctrl_c_ends_it_and_it_is_taken_up_again(mounting: Mounting, source: Path) -> None:
    with SlowSource(source, open_latency=0.1, concurrent=4) as slow, mounting(slow.path, "--ram", "64M") as m:
        slow.stall("open", "class3/*")  # the command does not end by itself
        argv = [*module("nopfs"), "warm", str(m.path)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert wait_until(lambda: source_opens(m) >= 8, 20.0)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=10)
        assert (process.returncode, out, err) == (Exit.INTERRUPTED, "", "nopfs: interrupted\n")
        # All is cancelled but what the source has; the source answers only then.
        assert wait_until(lambda: fetches(m)[0] <= slow.counters(files=False).stalled, 10.0)
        slow.release()
        assert wait_until(lambda: fetches(m) == (0, 0, 0), 10.0)
        opens = source_opens(m)
        assert opens < FILES
        found = files(warm(m))
        assert found == {"there": opens, "staged": FILES - opens}
        assert source_opens(m) == FILES


@pytest.mark.long
def test_the_stager_may_die_meanwhile(mounting: Mounting, source: Path) -> None:
    with SlowSource(source, open_latency=0.05, concurrent=4) as slow, mounting(slow.path, "--ram", "64M") as m:
        m.errors_expected = True
        argv = [*module("nopfs"), "warm", str(m.path), "--json"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert wait_until(lambda: source_opens(m) >= 8, 20.0)
            m.kill("stager")
            out, _ = process.communicate(timeout=30)
        assert process.returncode == Exit.OK
        assert files(json.loads(out)) == {"staged": FILES}


@pytest.mark.long
def test_the_stager_may_be_stopped_for_some_seconds(mounting: Mounting, source: Path) -> None:
    """As where a virtual machine is moved: its reads seem to hang, and come."""
    with SlowSource(source, open_latency=0.2, concurrent=8) as slow, mounting(slow.path, "--ram", "64M") as m:
        m.errors_expected = True
        argv = [*module("nopfs"), "warm", str(m.path), "--json"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert wait_until(lambda: source_opens(m) >= 8, 20.0)
            (stager,) = [one["pid"] for one in m.status()["processes"] if one["role"] == "stager"]
            os.kill(stager, signal.SIGSTOP)
            time.sleep(4.0)
            os.kill(stager, signal.SIGCONT)
            out, _ = process.communicate(timeout=40)
        assert process.returncode == Exit.OK
        assert files(json.loads(out)) == {"staged": FILES}


@pytest.mark.long
def test_what_is_dropped_is_read_from_the_source(mounting: Mounting, source: Path) -> None:
    """After the reads, the mount may fetch again what it expects to be read."""
    names = sorted(os.listdir(source / "class1"))
    with mounting(source, "--ram", "64M") as m:
        warm(m)
        opens = source_opens(m)
        assert drop(m, "class1") == {"dropped": len(names)}
        assert drop(m, "class1") == {"nothing": len(names)}
        for name in names:
            assert (m.path / "class1" / name).read_bytes() == (source / "class1" / name).read_bytes()
        assert source_opens(m) == opens + len(names)
        assert drop(m) == {"dropped": FILES}
        read_all(m, readers=2)
        assert source_opens(m) >= opens + len(names) + FILES


@pytest.mark.long
def test_copies_on_disk_are_dropped_and_large_files(mounting: Mounting, tmp_path: Path) -> None:
    write(tmp_path / "source", {f"{number}": content(number, 400_000) for number in range(60)})
    write(tmp_path / "source", {"large": content(99, 8_000_000)})
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounting(tmp_path / "source", "--ram", "16M", "--disk", f"{disk}:40M", disks=[disk]) as m:
        assert files(warm(m)) == {"staged": 61}
        (m.path / "large").read_bytes()
        copies = [path for path in disk.rglob("*") if path.is_file() and path.stat().st_size >= 400_000]
        assert copies
        assert wait_until(lambda: not call(m.state_dir, "metrics")["fetches_in_flight"])
        before, opens = call(m.state_dir, "metrics")["source"]["bytes"], source_opens(m)
        assert drop(m) == {"dropped": 61}
        assert not any(path.exists() for path in copies)
        (m.path / "large").read_bytes()
        assert call(m.state_dir, "metrics")["source"]["bytes"] >= before + 8_000_000, "a block may be read twice"
        read_all(m, readers=1)
        assert source_opens(m) + call(m.state_dir, "metrics")["direct_reads"] >= opens + 60


@pytest.mark.long
def test_what_is_open_is_left_and_dropped_later(mounting: Mounting, source: Path) -> None:
    with mounting(source, "--ram", "64M", "--signal", "open") as m:
        warm(m)
        with (m.path / "class0/00000.jpg").open("rb") as file:
            file.read(10)
            found = drop(m)
            assert found == {"dropped": FILES - 1, "open": 1}
            assert file.read() == (source / "class0/00000.jpg").read_bytes()[10:]
        assert wait_until(lambda: drop(m) == {"dropped": 1, "nothing": FILES - 1}, 10.0)


def check(m: Mounted, *words: str, code: int = Exit.OK) -> dict[str, Any]:
    return warm(m, *words, code=code, command="check")


@pytest.mark.long
def test_a_rotten_copy_on_disk_is_found_and_dropped(mounting: Mounting, tmp_path: Path) -> None:
    write(tmp_path / "source", {f"{number:02}": content(number, 400_000) for number in range(60)})
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounting(tmp_path / "source", "--ram", "16M", "--disk", f"{disk}:40M", "--disk-keep", "no", disks=[disk]) as m:
        assert files(check(m)) == {"nothing": 60}
        assert source_opens(m) == 0
        warm(m)
        assert files(check(m)) == {"same": 60}
        rotten = next(path for path in disk.rglob("*") if path.is_file() and path.stat().st_size == 400_000)
        with rotten.open("r+b") as file:
            file.seek(399_999)
            file.write(b"x")
        found = check(m, code=Exit.INTERNAL)
        assert files(found) == {"same": 59, "differ": 1}
        ((name, why),) = found["failures"]
        assert why == "the copy on disk differs"
        assert name == f"{int(rotten.name) - 1:02}"
        assert files(check(m, name, code=Exit.INTERNAL)) == {"differ": 1}
        assert drop(m, name) == {"dropped": 1}
        assert files(check(m, name)) == {"nothing": 1}
        read_all(m, readers=1)


def test_a_file_that_changed_is_not_compared(mounting: Mounting, source: Path) -> None:
    with mounting(source, "--ram", "64M") as m:
        warm(m)
        (source / "class0/00000.jpg").write_bytes(b"other")
        done = run([*module("nopfs"), "check", str(m.path), "class0", "--json"])
        found = files(json.loads(done.stdout))
        assert "differ" not in found
        assert found["same"] == len(os.listdir(source / "class0")) - 1, "the mount may have noticed it before"
        assert done.returncode == (Exit.SOURCE if "failed" in found else Exit.OK)


@pytest.mark.long
def test_readers_go_on_while_files_are_compared(mounting: Mounting, source: Path) -> None:
    with SlowSource(source, open_latency=0.02, concurrent=4) as slow, mounting(slow.path, "--ram", "64M") as m:
        warm(m)
        argv = [*module("nopfs"), "check", str(m.path), "--json"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            read_all(m, readers=2)
            out, _ = process.communicate(timeout=30)
        assert files(json.loads(out)) == {"same": FILES}
        slow.stall("open")  # the command does not end by itself
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            slow.wait_stalled()
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=10)[1] == "nopfs: interrupted\n"
        slow.release()
        assert wait_until(lambda: call(m.state_dir, "metrics")["tuner"]["under_way"] == 0)
