"""The benchmarks' own parts: what they conclude from numbers, and what they start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import bench_cost
import bench_files
import bench_latency
import bench_warm
import lab
import plan_cases
import pytest
from bench_files import FileSet, Result
from bench_latency import Round
from slow_source import cpu_seconds

from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Sampler
from nopfsfs.registration.plan_file import read_plan_file

SMALL = FileSet("1KB", 60, 1000)


def served(page_cache: int, ram: int = 0, source: int = 0) -> dict[str, Any]:
    """A status record with as many bytes, and a file for each 1000."""
    counts = {"page_cache": page_cache, "ram": ram, "disk": 0, "peer": 0, "source": source}
    return {"served": {tier: {"files": count // 1000, "bytes": count} for tier, count in counts.items()}}


def values(entries: Any) -> dict[str, float]:
    return {entry.name: entry.value for entry in entries}


def test_readers_that_run_at_once_are_as_fast_as_the_last_to_end() -> None:
    first = bench_files.together([Result(100, 1000, 1.0), Result(100, 1000, 3.0)])
    second = bench_files.together([Result(100, 1000, 2.0), Result(100, 1000, 1.0)])
    assert (first, second) == (Result(200, 2000, 3.0), Result(200, 2000, 2.0))
    assert bench_files.in_turn([first, second]).rate == 80


@pytest.mark.parametrize(("seconds", "repeats"), [(0.1, 4), (0.35, 1), (0.34, 2), (5.0, 1)])
def test_short_runs_are_repeated(seconds: float, repeats: int) -> None:
    assert bench_warm.repeats_for(seconds, 0.35) == repeats


def test_bytes_that_the_mount_was_asked_for_are_not_from_the_page_cache() -> None:
    assert bench_warm.asked_bytes(served(0, 2000, 1000), served(9000, 2500, 1100)) == 600


def test_a_mount_that_was_not_warm_is_refused() -> None:
    class Cooled(lab.Mount):
        def status(self) -> dict[str, Any]:
            return served(9000, ram=1000)

    system = bench_warm.System("open", Cooled(Path()), [], before=served(0), bytes=100_000)
    assert system.cold_share() == 0.01
    system.bytes = 10_000
    with pytest.raises(lab.LabError, match=r"open: 10\.0%"):
        system.cold_share()


def test_each_run_is_compared_with_the_run_on_tmpfs_before_it() -> None:
    rates = {("c", "open"): [10.0, 30.0, 20.0]}
    limits = {("c", "open"): [40.0, 40.0, 50.0]}
    assert values(bench_warm.rate_entries("warm/4KB", rates, limits)) == {
        "warm/4KB/c/tmpfs/rate": 40.0,
        "warm/4KB/c/open/rate": 20.0,
        "warm/4KB/c/open/ratio_to_tmpfs": 0.4,  # of 0.25, 0.75, 0.4
    }


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100)])
def test_percentiles(share: float, value: int) -> None:
    assert bench_latency.percentile(list(range(100, 0, -1)), share) == value


def test_latencies_are_compared_round_by_round() -> None:
    def one(busy: float, idle: float, again: float) -> Round:
        return Round({"busy": [busy] * 9, "idle": [idle] * 9, "idle again": [again] * 9}, 1e8)

    found = values(bench_latency.latency_entries([one(2e-3, 1e-3, 1e-3), one(9e-3, 3e-3, 6e-3), one(4e-3, 1e-3, 1e-3)]))
    assert found["latency/staged_p99_ratio_busy_to_idle"] == pytest.approx(3)
    assert found["latency/staged_p99_ratio_idle_to_idle"] == pytest.approx(1)
    assert found["latency/busy/staged_p99_us"] == pytest.approx(4000)


def test_files_are_counted_by_the_tier_that_answered() -> None:
    before, after = served(1000, ram=5000)["served"], served(9000, ram=8000, source=1000)["served"]
    assert bench_latency.answered_files(before, after) == {"ram": 3, "source": 1}


def test_memory_is_a_line_through_two_data_sets() -> None:
    assert bench_cost.line({52_000: 60e6, 2000: 50e6}) == (200.0, 49.6e6)


@pytest.mark.parametrize("family", registry.SAMPLERS.values(), ids=lambda family: family.name)
def test_an_epoch_of_each_sampler_is_measured(family: Sampler) -> None:
    for spec in plan_cases.specs(family, 42, 1234).values():
        assert len(family.shared(spec, 1234, 1)) > 0


def test_a_process_has_memory_and_has_used_time() -> None:
    sum(number * number for number in range(1_000_000))
    assert bench_cost.resident_bytes(os.getpid()) > 1_000_000
    assert cpu_seconds(os.getpid()) > 0


@pytest.fixture
def listings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two lists, of half of the files each; and both readers."""
    compiled = tmp_path / "reader"
    subprocess.run(["cc", "-o", compiled, lab.SCRIPTS / "readers" / "reader.c"], check=True)
    monkeypatch.setitem(bench_files.READERS, "c", [compiled])
    paths = bench_files.write_files(tmp_path, SMALL)
    return [bench_files.write_listing(tmp_path / f"list{part}", tmp_path, paths[part::2]) for part in range(2)]


@pytest.mark.parametrize("reader", bench_files.READERS)
def test_readers_begin_together_and_read_all(reader: str, listings: list[Path]) -> None:
    result = bench_files.read(reader, listings, repeats=3)
    assert (result.files, result.bytes) == (3 * SMALL.files, 3 * SMALL.bytes)


@pytest.mark.parametrize("reader", bench_files.READERS)
def test_a_reader_that_fails_is_told_of(reader: str, listings: list[Path], capfd: pytest.CaptureFixture[str]) -> None:
    listings[0].write_text("/not/there\n")
    with pytest.raises(lab.LabError, match="reader"):
        bench_files.read(reader, listings)
    assert "/not/there" in capfd.readouterr().err


@pytest.mark.parametrize(("workers", "batch"), [(1, bench_files.BATCH), (2, SMALL.files // 2)])
def test_a_plan_holds_the_order(workers: int, batch: int, tmp_path: Path) -> None:
    paths = bench_files.write_files(tmp_path, SMALL)
    (plan,) = read_plan_file(os.fspath(bench_files.write_plan(tmp_path, "all", paths, workers))).plans
    assert plan.root == "train"
    assert plan.inflight == (2 * workers + 1) * batch  # two for each worker, and the one that is used
    assert Path(plan.order[0]).read_text().splitlines() == paths
