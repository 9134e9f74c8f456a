"""How many requests a real mount has under way at its source: tuned, stated, as a command asks."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slow_source import SlowSource

import nopfsfs
from nopfsfs.control.process_list import living, read_pids
from nopfsfs.errors import Exit
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, fill, module, run
from tests.mount.modes import DEFAULT, Mode
from tests.waiting import wait_until

pytestmark = pytest.mark.mount

COUNT = 1500  # files; with the first limit, a mount would take more than a minute for them
LATENCY_S = 0.2
PLAN = ("--sampler", "random", "--seed", "42", "--signal", "open")  # nothing has to be seen, to fetch ahead
RISEN = 16


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowSource]:
    fill(tmp_path / "backing", COUNT, 2000)
    with SlowSource(tmp_path / "backing", open_latency=LATENCY_S, concurrent=4096) as source:
        yield source


def limit(m: Mounted) -> int:
    return int(m.status()["tuning"]["limit"])


def policy_files(m: Mounted) -> dict[str, float]:
    return {
        one.name.removeprefix("nopfs_"): one.value
        for one in nopfsfs.Mount(m.path).metrics() if one.name.startswith("nopfs_policy")
    }  # fmt: skip


def tune(m: Mounted, *words: str) -> dict[str, Any]:
    done = run([*module("nopfs"), "tune", str(m.path), "--json", *words])
    assert done.returncode == Exit.OK, done.stderr
    return dict(json.loads(done.stdout))


def test_a_lone_mount_goes_up_from_four_where_the_source_answers_in_parallel(
    mounting: Mounting, slow: SlowSource
) -> None:
    with mounting(slow.path, *PLAN) as m:
        m.wait_status(lambda status: status["tuning"]["limit"] >= RISEN)
        assert wait_until(lambda: slow.counters(files=False).peak >= RISEN)
        record = tune(m)
        assert record["mode"] == "auto"
        assert [one["limit"] for one in record["decisions"]][:2] == [4, 8], "it doubles"
        assert sum(record["ended"]) > 0
        assert record["base_seconds"][0] == pytest.approx(LATENCY_S, rel=0.5)
        shown = {one.name: one.value for one in nopfsfs.Mount(m.path).metrics()}
        assert shown["nopfs_source_base_seconds"] == pytest.approx(LATENCY_S, rel=0.5)


@pytest.mark.long
def test_a_stall_brings_the_limit_down_while_readers_are_not_held_back(mounting: Mounting, slow: SlowSource) -> None:
    with mounting(slow.path, *PLAN) as m:
        m.wait_status(lambda status: status["tuning"]["limit"] >= RISEN)
        slow.stall("open")
        slow.wait_stalled(RISEN)
        m.wait_status(lambda status: status["tuning"]["limit"] <= 8, limit_s=15.0)
        assert m.status()["tuning"]["reason"] == "hang"
        read = set(slow.counters().files)
        name = next(name for name in map(name_of(m), sorted(m.source.rglob("*.jpg"))) if name not in read)
        before = slow.counters(files=False).stalled
        with Reader("wait", m.path / name) as reader:
            assert reader.line() == "open"
            slow.wait_stalled(before + 1)
            slow.release()
            assert reader.result() == (m.source / name).stat().st_size
        m.wait_status(lambda status: status["tuning"]["limit"] >= 8, limit_s=30.0)


def name_of(m: Mounted) -> Any:
    return lambda path: os.path.relpath(path, m.source)


@pytest.mark.long
def test_a_stager_that_is_killed_goes_on_with_the_limit(mounting: Mounting, slow: SlowSource) -> None:
    with mounting(slow.path, *PLAN) as m:
        m.errors_expected = True
        m.wait_status(lambda status: status["tuning"]["limit"] >= RISEN)
        before = m.kill("stager")
        assert wait_until(lambda: m.pid("stager") != before)
        staged = m.status()["stager"]["staged_files"]
        # All but a few may have been staged by now, which is no fewer.
        m.wait_status(lambda status: status["stager"]["staged_files"] > min(staged + RISEN, COUNT - RISEN))
        assert limit(m) >= RISEN / 2


@pytest.mark.long
def test_a_stated_number_bounds_the_prefetches(mounting: Mounting, tmp_path: Path) -> None:
    fill(tmp_path / "backing", 200, 2000)
    with SlowSource(tmp_path / "backing", open_latency=0.02) as slow:
        slow.stall("open")
        with mounting(slow.path, *PLAN, "--source-concurrency", "8") as m:
            slow.wait_stalled(8)  # else, on a busy machine, some might end before the others begin
            slow.release()
            record = m.wait_status(lambda status: status["stager"]["staged_files"] == 200)
            # One that hangs, as the test is late by a second, gives its slot on.
            assert 8 <= slow.counters(files=False).peak <= 8 + record["stager"]["stuck_ever"]
            assert (limit(m), m.status()["tuning"]["mode"]) == (8, "fixed")


@pytest.mark.long
def test_a_command_sets_the_number_until_the_unmount_whoever_supervises(mounting: Mounting, slow: SlowSource) -> None:
    with mounting(slow.path, *PLAN) as m:
        m.errors_expected = True
        assert tune(m, "--concurrency", "6")["limit"] == 6
        assert wait_until(lambda: limit(m) == 6)
        m.kill("supervisor", signal.SIGKILL)
        assert wait_until(lambda: "supervisor" not in {p.role for p in living(read_pids(m.state_dir))})
        adopted = run([*module("nopfs"), "adopt", str(m.path)])
        assert adopted.returncode == Exit.OK, adopted.stderr
        found = m.wait_status(lambda status: status["tuning"]["limit"] == 6)["tuning"]
        assert (found["mode"], found["asked"]) == ("fixed", True)
        assert tune(m, "--concurrency", "auto")["mode"] == "auto"
        assert wait_until(lambda: limit(m) > 6)
        assert tune(m, "--hold")["mode"] == "fixed"
        status = run([*module("nopfs"), "status", str(m.path)])
        assert "not tuned, as a command asked" in status.stdout


def rate_over(slow: SlowSource, seconds: float) -> float:
    """Bytes a second that the source gives meanwhile."""
    begun, before = time.monotonic(), slow.counters(files=False).bytes
    time.sleep(seconds)
    return (slow.counters(files=False).bytes - before) / (time.monotonic() - begun)


@pytest.mark.slow
def test_over_ten_seconds_prefetches_keep_to_the_bandwidth_within_a_twentieth(
    mounting: Mounting, tmp_path: Path
) -> None:
    fill(tmp_path / "backing", 1000, 20_000)
    with (
        SlowSource(tmp_path / "backing", open_latency=0.005) as slow,
        mounting(slow.path, *PLAN, "--source-bandwidth", "1MB/s") as m,
    ):
        m.wait_status(lambda status: status["stager"]["staged_files"] > 10)
        assert rate_over(slow, 10.0) == pytest.approx(1e6, rel=0.05)


@pytest.mark.long
def test_prefetches_keep_to_the_bandwidth_and_a_command_changes_it(mounting: Mounting, tmp_path: Path) -> None:
    """Within a tenth, over some seconds; the page promises a twentieth over ten."""
    size, rate = 20_000, 1_000_000
    fill(tmp_path / "backing", 1000, size)

    with (
        SlowSource(tmp_path / "backing", open_latency=0.005) as slow,
        mounting(slow.path, *PLAN, "--source-bandwidth", f"{rate}") as m,
    ):
        m.wait_status(lambda status: status["stager"]["staged_files"] > 10)
        assert rate_over(slow, 4.0) == pytest.approx(rate, rel=0.1)
        assert m.status()["tuning"]["bandwidth"] == rate
        before = m.kill("stager")
        m.errors_expected = True
        assert wait_until(lambda: m.pid("stager") != before)
        assert tune(m, "--bandwidth", "3MB/s")["bandwidth"] == 3_000_000
        staged = m.status()["stager"]["staged_files"]
        m.wait_status(lambda status: status["stager"]["staged_files"] > staged)
        assert rate_over(slow, 2.0) == pytest.approx(3e6, rel=0.15)
        assert tune(m, "--bandwidth", "none")["bandwidth"] is None
        m.wait_status(lambda status: status["stager"]["staged_files"] == 1000)


@pytest.mark.long
def test_readers_are_not_held_back_by_a_bandwidth(mounting: Mounting, tmp_path: Path) -> None:
    """Prefetches alone would take 40 s for these files."""
    names = fill(tmp_path / "backing", 200, 20_000)
    with (
        SlowSource(tmp_path / "backing", open_latency=0.005) as slow,
        mounting(slow.path, *PLAN, "--source-bandwidth", "100KB/s") as m,
    ):
        m.wait_status(lambda status: status["tuning"]["bandwidth"] == 100_000)
        begun = time.monotonic()
        for name, data in names.items():
            assert (m.path / name).read_bytes() == data
        assert time.monotonic() - begun < 15.0


@pytest.mark.long
@pytest.mark.parametrize("mode", [DEFAULT])  # so a user who is not root runs it, too: tests/mount/test_as_a_user.py
def test_a_policy_file_bounds_a_mount(mode: Mode, mounting: Mounting, tmp_path: Path) -> None:
    fill(tmp_path / "source", 20, 2000)
    policy = tmp_path / "policy.toml"
    policy.write_text('version = 1\n[[rule]]\nmatch = { source = "*/source" }\nbandwidth = "3MB/s"\nconcurrency = 12\n')
    policy.chmod(0o644)
    check = run([*module("nopfs"), "policy", "check", str(policy)])
    assert (check.returncode, "rules: 1;" in check.stdout) == (Exit.OK, True), check.stderr
    with mounting(tmp_path / "source", "--policy", str(policy), mode=mode) as m:
        m.wait_status(lambda status: status["tuning"]["bandwidth"] == 3_000_000, limit_s=30.0)
        shown = run([*module("nopfs"), "policy", "show", str(m.path)])
        assert shown.returncode == Exit.OK, shown.stderr
        assert "at most 12 requests under way" in shown.stdout
        assert f"{policy}: rules 1 apply" in shown.stdout
        assert policy_files(m) == {"policy_files": 1, "policy_files_refused": 0}
        is_root = os.geteuid() == 0
        asked = tune(m, "--concurrency", "200", "--bandwidth", "9MB/s", "--weight", "4")
        got = (asked["limit"], asked["bandwidth"], asked["weight"])
        assert got == ((200, 9_000_000, 4.0) if is_root else (12, 3_000_000, 1.0)), "only root gets more by asking"
        less = tune(m, "--concurrency", "5", "--bandwidth", "1MB/s", "--weight", "0.5")
        assert (less["limit"], less["bandwidth"], less["weight"]) == (5, 1_000_000, 0.5)
    policy.write_text("version = 1\n[[rule]]\nweigth = 2\n")
    check = run([*module("nopfs"), "policy", "check", str(policy)])
    assert check.returncode == Exit.USAGE
    assert "rule[1].weigth: no such key; did you mean weight?" in check.stderr
    with mounting(tmp_path / "source", "--policy", str(policy), mode=mode) as m:
        assert wait_until(lambda: policy_files(m) == {"policy_files": 0, "policy_files_refused": 1})
        m.errors_expected = True
