"""The demo's and benchmarks' own parts: what they conclude from numbers, and the programs that they time."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench
import demo
import lab
import pytest
from demo_result import Check, Job, MountedRun, checks, reported_later_share, table, verdict_lines
from lab import Epoch
from slow_source import FileCounters, SourceCounters

from tests.conftest import slow
from tests.monitor import runs


def epochs(*seconds: float, checksum: int = 7) -> list[Epoch]:
    return [Epoch(n, 100.0 + n, s, 100, 10_000_000, checksum) for n, s in enumerate(seconds)]


def report(opens: int, predicted: int, slow: int) -> dict[str, Any]:
    served = {"page_cache": {"files": opens - slow, "bytes": 1}, "source": {"files": slow, "bytes": 1}}
    return {"opens": {"total": opens, "predicted": predicted}, "served": served}


def mounted(*seconds: float, checksum: int = 7, opens: int = 100) -> MountedRun:
    return MountedRun(
        epochs=epochs(*seconds, checksum=checksum),
        mount_seconds=0.5,
        head_start=2.0,
        opens_by_epoch=[100, opens, opens],
        opens_per_file={1: 100},
        source_reads=100,
        source_bytes=10_000_000,
        report=report(300, 300, 100),
        after_first_epoch=report(100, 100, 99),
    )


def io_job(run: MountedRun, mode: str = "sums", local: float = 0.2, runs: int = 1) -> Job:
    own, again = [epochs(local, local, local)], [epochs(local, 1.1 * local, 1.1 * local)]
    return Job(mode, 100, direct=[epochs(10, 10, 10)], local=own * runs, again=again * runs, mounted=[run] * runs)


def decode_job(run: MountedRun, runs: int) -> Job:
    local = [epochs(4, 4, 4)] * runs
    return Job("decode", 100, direct=[epochs(9, 9, 9)], local=local, again=local, mounted=[run] * runs)


def failed(job: Job) -> list[str]:
    return [check.what for check in checks([job], bandwidth=4e8) if check.passed is False]


def left_open(job: Job) -> list[str]:
    return [check.what for check in checks([job], bandwidth=4e8) if check.passed is None]


def test_a_good_run_passes_and_its_table_says_so() -> None:
    job = io_job(mounted(4, 1, 1))
    assert failed(job) == []
    lines = table([job], 4e8).splitlines()
    assert next(line for line in lines if line.startswith("nopfsfs mount")).split()[2:] == [
        *("4.00", "1.00", "1.00"),
        *("100", "2.5", "10.0", "5.00"),
    ]


@pytest.mark.parametrize(
    ("run", "broken"),
    [
        (mounted(6, 1, 1), "epoch 1: times faster"),
        (mounted(4, 3, 3), "later epochs: times faster"),
        (mounted(4, 1, 1, checksum=8), "bytes differ"),
        (mounted(4, 1, 1, opens=110), "by its count"),
    ],
)
def test_each_broken_promise_is_named(run: MountedRun, broken: str) -> None:
    found = failed(io_job(run))
    assert len(found) == 1
    assert broken in found[0]


def test_epochs_whose_bytes_reach_the_loop_are_compared_with_the_local_copy() -> None:
    """5 % and the noise, which is 10 % here."""
    job = io_job(mounted(4, 1.14, 1.14), "bytes", local=1.0, runs=3)
    assert failed(job) == left_open(job) == []
    job.tripwire = [mounted(4, 1.16, 1.16)] * 3
    assert failed(job) == ["I/O-bound, later epochs, mount, tripwires / local copy (5 % and the noise)"]
    assert sum(line.startswith("mount, tripwires ") for line in table([job], 4e8).splitlines()) == 1


def test_what_was_not_reported_is_not_passed() -> None:
    run = mounted(4, 1, 1)
    run.report, run.after_first_epoch = {}, {}
    assert [what.rpartition(", ")[2] for what in failed(io_job(run))] == ["by the report"] * 2


def test_decoding_is_compared_with_the_local_copy() -> None:
    assert failed(decode_job(mounted(5, 4, 4), 3)) == []
    assert failed(decode_job(mounted(6, 5, 4), 3)) == ["decoding, all epochs: mount / local copy"]


def test_one_run_leaves_open_what_takes_more() -> None:
    """It is compared with the source, and its bytes are; the local copy is too near for one run."""
    jobs = [io_job(mounted(4, 9, 9), "bytes", local=1.0), decode_job(mounted(6, 5, 4), 1)]
    assert failed(jobs[0]) == ["I/O-bound, later epochs: times faster than the source"]
    assert left_open(jobs[0]) == ["I/O-bound, later epochs, nopfsfs mount / local copy (5 % and the noise)"]
    assert (failed(jobs[1]), left_open(jobs[1])) == ([], ["decoding, all epochs: mount / local copy"])
    lines = verdict_lines(checks(jobs, 4e8))
    assert "----  decoding, all epochs: mount / local copy: 1.25 (at most 1.15)" in lines
    assert lines[-1].endswith("make demo DEMO='--runs 5'")
    assert not verdict_lines(checks([decode_job(mounted(6, 5, 4), 3)], 4e8))[-1].startswith("----")


def test_the_noise_is_said() -> None:
    """Of one run the local copy's two readings; of several the range."""
    one, several = (table([io_job(mounted(4, 1, 1), runs=runs)], 4e8) for runs in (1, 3))
    assert "the local copy, read again, differs by 10% from itself" in one
    job = io_job(mounted(4, 1, 1), runs=3)
    job.mounted[2] = mounted(4, 1.2, 1.2)
    assert "run by run: nopfsfs mount 5.00 to 6.00, local copy again 1.10 to 1.10 (noise)." in table([job], 4e8)
    assert "one run of each" in one
    assert "medians of 3 runs (source: 1)" in several


def test_the_first_epoch_does_not_count_for_the_later_share() -> None:
    assert reported_later_share(mounted(4, 1, 1)) == pytest.approx(1 - 1 / 200)


def test_a_check_prints_its_limit() -> None:
    assert str(Check("speed", 4.9, 5)) == "FAIL  speed: 4.9 (at least 5)"
    assert str(Check("ratio", 1.1, 1.15, at_most=True)) == "PASS  ratio: 1.1 (at most 1.15)"
    assert str(Check("share", None, 0.99)) == "FAIL  share: not reported (at least 0.99)"


def test_files_never_opened_are_counted() -> None:
    seen = {
        "train/a": FileCounters(1, 1, 1),
        "train/b": FileCounters(2, 1, 1),
        "val/a": FileCounters(5, 1, 1),
    }
    counters = SourceCounters(8, 3, 3, in_flight=0, peak=1, stalled=0, files=seen)
    assert demo.opens_per_file(counters, files=4) == {1: 1, 2: 1, 0: 2}


def test_the_picture_shows_the_jobs(tmp_path: Path) -> None:
    """A PNG of 10 by 4.4 inches, small enough to be kept with the code; the same figures give the same file."""
    pytest.importorskip("matplotlib")
    from demo_picture import save

    jobs = [io_job(mounted(4, 1, 1), "bytes"), decode_job(mounted(6, 5, 4), 1)]
    for name, shown in (("a", jobs), ("b", jobs), ("one", jobs[:1])):
        save(tmp_path / name, shown)
    data = (tmp_path / "a").read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1500, 660)
    assert 10_000 < len(data) < 100_000
    assert data == (tmp_path / "b").read_bytes() != (tmp_path / "one").read_bytes()


def test_the_progress_bar_is_right_at_the_end_of_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps together take what was expected, however long they really took; a step does not pass its end."""
    now = 100.0
    monkeypatch.setattr(lab, "time", SimpleNamespace(monotonic=lambda: now))
    modes = {"bytes": 4000, "decode": 1500}
    total = demo.expected_s(modes, lambda mode: demo.rows(mode, 2))
    progress = lab.TimedProgress(total)
    work = demo.Demo(2, Path(), demo.bindfs, progress)
    for mode, files in modes.items():
        for row in demo.rows(mode, 2):
            for epoch in range(demo.EPOCHS + 1):
                before = progress.expected_s
                demo.begin_epoch(work, Job(mode, files), row, epoch)
                now += 1000 if epoch < demo.EPOCHS else 0
                assert before <= progress.expected_s <= total + 1e-9
    assert progress.expected_s == pytest.approx(total)


@pytest.mark.mount
def test_the_lines_to_paste_mount_train_and_unmount(
    small_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are typed where the demo was started; `ls` stands for the training."""
    build = tmp_path / "build"
    monkeypatch.setattr(lab, "BUILD", build)
    monkeypatch.chdir(lab.SCRIPTS.parent)
    mount, train, unmount = demo.lines_to_paste(small_tree)
    assert all(Path(word).exists() for word in train.split()[:2])
    assert mount.split()[0] == f"{Path(sys.executable).parent.parent.name}/bin/nopfs-mount"
    try:
        command = f"{mount} --index-dir {build}/index && ls {mount.split()[2]}; {unmount}"
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        assert done.stdout.split()[:2] == ["n0", "n1"]
    finally:
        lab.unmount(build / "mnt")


def test_the_demo_ends_with_the_name_of_the_mount_s_own_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "BUILD", tmp_path / "build")
    seen = runs.report(runs.waited(0, 0, 10, 9, source=1.0), runs.epoch(1, 10, 10))
    job = io_job(replace(mounted(1.0, 0.2, 0.2), report=report(300, 300, 100) | seen))
    page = tmp_path / "demo.html"
    words = ["--record", f"{tmp_path}/demo.json", "--picture", f"{tmp_path}/demo.png", "--page", f"{page}"]
    demo.finish(demo.parse_arguments(words), [job], checks([job], demo.BANDWIDTH), 1.0)
    assert capsys.readouterr().out.splitlines()[-1].endswith("demo.html")
    assert "for 90\xa0% of epoch 0" in page.read_text()
    assert (tmp_path / "demo.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ([], [b.names for b in bench.BENCHMARKS]),
        (["warm/*"], ["warm/4KB/*", "warm/117KB/*", "warm/16MB/*"]),
        (["warm2/117KB/c/open/*"], ["warm2/117KB/*"]),
        (["warm*/117KB/c/open/ratio_to_tmpfs"], ["warm/117KB/*", "warm2/117KB/*"]),
        (["cpu/per_hit_us", "rss/base_mb"], ["cpu/*", "rss/*"]),
        (["epoch/bytes/*"], ["epoch/*"]),
        (["kept/*/first_over_later"], ["kept/*"]),
        (["plan/*/1281167/*"], ["plan/*/1281167/*"]),
        (["plan/grain/*", "index/*"], ["index/*", "plan/*/1281167/*", "plan/*/14197122/*"]),
        (["identify/*/opens"], ["identify/*", "identify/job/*"]),
        (["nothing"], []),
    ],
)
def test_benchmarks_are_chosen_by_pattern(patterns: list[str], names: list[str]) -> None:
    assert [b.names for b in bench.selected(patterns)] == names


@pytest.fixture
def small_tree(tmp_path: Path) -> Path:
    """Two classes of files whose bytes need not be images."""
    for number in range(10):
        path = tmp_path / "train" / f"n{number % 2}" / f"{number}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(number).randbytes(1000 * number + 1))
    return tmp_path / "train"


@pytest.mark.long
@pytest.mark.framework
@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
@pytest.mark.parametrize("mode", ["bytes", slow("sums")])
def test_the_training_loop_reads_all_files_in_each_epoch(small_tree: Path, mode: str) -> None:
    seen: list[int] = []
    done = lab.train(small_tree, mode, 2, lambda epoch: seen.append(epoch.epoch), step=True)
    assert seen == [0, 1]
    assert [(e.files, e.bytes) for e in done] == [(10, 45_010)] * 2
    assert done[0].checksum == done[1].checksum


def test_both_readers_read_the_same(small_tree: Path, tmp_path: Path) -> None:
    listing = tmp_path / "list"
    listing.write_text("".join(f"{path}\n" for path in small_tree.rglob("*.JPEG")))
    compiled = tmp_path / "reader"
    subprocess.run(["cc", "-o", compiled, lab.SCRIPTS / "readers" / "reader.c"], check=True)
    for command in ([compiled], [sys.executable, lab.SCRIPTS / "readers" / "reader.py"]):
        lines = lab.run([*command, listing, 2]).splitlines()
        results = [json.loads(line) for line in lines]
        assert [(r["files"], r["bytes"]) for r in results] == [(10, 45_010)] * 2


def test_a_local_copy_lies_in_tmpfs_and_goes_away(small_tree: Path) -> None:
    with lab.local_copy(small_tree) as copy:
        assert lab.filesystem_type(copy) == "tmpfs"
        assert lab.tree_bytes(copy) == 45_010
    assert not copy.exists()


@pytest.mark.mount
def test_the_plain_passthrough_reads(small_tree: Path, tmp_path: Path) -> None:
    with lab.plain_mount(small_tree, tmp_path / "mnt") as mount:
        assert sorted(os.listdir(mount.path)) == ["n0", "n1"]
        assert (mount.path / "n1/3.JPEG").read_bytes() == (small_tree / "n1/3.JPEG").read_bytes()
    assert not os.path.ismount(tmp_path / "mnt")


def test_a_failing_command_is_quoted() -> None:
    with pytest.raises(lab.LabError, match=r"exit 1: .*not/there"):
        lab.run(["sh", "-c", "echo cannot open /not/there >&2; exit 1"])


def test_all_missing_system_packages_are_named_at_once(tmp_path: Path) -> None:
    """With nothing on the path but what the shell script itself needs."""
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", lab.SCRIPTS / "system_deps.sh"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    for package in ("fuse3", "libfuse3-dev", "pkg-config", "build-essential", "python3-venv"):
        assert package in done.stderr
