"""The tuner and its rivals on real mounts: the table's marks, who tunes when, and one small run of it all."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import bench_tuned_mount
import lab
import pytest
import tuned_mounts
import tuner_mount_table
from slow_source_load import Curve
from tuned_mounts import OutsideTuner, Share
from tuner_mount_table import OURS, WHO, Column

from nopfsfs.policy.limit_policy import LimitDecision, Reason, SourceSample
from nopfsfs.protocol.columns import SIZE_CLASSES
from tests.waiting import wait_until

ALONE, RATIO = Column("knee24", 1, least=0.85), Column("knee24", 2, is_ratio=True, most=1.3)


def share(of: float, *rates: float) -> Share:
    return Share(rates or (of,), of, 8.0)


def test_a_row_for_each_that_tunes_and_marks_for_ours_alone() -> None:
    found = {
        ALONE.key: {who: share(0.8) for who in WHO} | {"AIMD": share(0.9)},
        RATIO.key: {who: share(0.8, 300.0, 100.0) for who in WHO},
    }
    head, _, ours, *others = tuner_mount_table.lines([ALONE, RATIO], found)
    assert head == "| | knee24, alone: share | knee24, by 2: ratio |"
    assert ours == "| ours | 0.80 ! < | 3.00 ! |"
    assert others[-2:] == ["| AIMD | 0.90 | 3.00 |", "| gradient2 | 0.80 | 3.00 |"]
    assert list(tuner_mount_table.missed([ALONE, RATIO], found)) == [
        "knee24, alone: share: 0.80, wanted at least 0.85",
        "knee24, by 2: ratio: 3.00, wanted at most 1.3",
    ]


def test_ratios_are_compared_among_those_who_get_as_much() -> None:
    ours = {OURS: share(0.8, 120.0, 100.0)}
    assert tuner_mount_table.marks(RATIO, {**ours, "fixed 64": share(0.2, 30.0, 30.0)}) == ""
    assert tuner_mount_table.marks(RATIO, {**ours, "fixed 64": share(0.8, 100.0, 100.0)}) == " <"


class FakeControl:
    """A mount whose metrics say how often they were read."""

    def __init__(self) -> None:
        self.limits: list[int | None] = []
        self.samples = 0

    def sample(self) -> SourceSample:
        self.samples += 1
        none = (0,) * SIZE_CLASSES
        return SourceSample(time.monotonic(), time.time(), none, none, none, none, self.samples, 0.0, 1)

    def set_limit(self, limit: int | None) -> None:
        self.limits.append(limit)


class Climbing:
    """One more each time, up to four."""

    def step(self, sample: SourceSample) -> LimitDecision:
        return LimitDecision(min(4, int(sample.under_way_seconds)), Reason.MORE, 0.001)


def test_a_rival_sets_the_limit_when_it_changes_and_no_more_once_it_is_stopped() -> None:
    control = FakeControl()
    with tuned_mounts.tuned(control, Climbing):  # type: ignore[arg-type]
        assert wait_until(lambda: control.samples >= 8)
    assert control.limits == [1, 2, 3, 4], "1 at first, until what was under way has ended"
    with tuned_mounts.tuned(control, None):  # type: ignore[arg-type]
        pass
    assert control.limits == [1, 2, 3, 4, None]


def test_what_stops_a_rival_is_raised_where_it_is_stopped() -> None:
    class Broken:
        def step(self, sample: SourceSample) -> LimitDecision:
            raise lab.LabError("no metrics")

    tuner = OutsideTuner(FakeControl(), Broken())  # type: ignore[arg-type]
    tuner.start()
    with pytest.raises(lab.LabError, match="no metrics"):
        tuner.stop()


def test_an_endless_reader_reads_in_circles_until_its_stdin_is_closed(tmp_path: Path) -> None:
    listing = tmp_path / "list"
    (tmp_path / "file").write_bytes(b"x")
    listing.write_text(f"{tmp_path / 'file'}\n")
    command = [sys.executable, lab.SCRIPTS / "readers" / "endless.py", listing]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as reader:
        time.sleep(0.2)
        assert reader.poll() is None
        assert reader.stdin is not None
        reader.stdin.close()
        assert reader.wait(20) == 0


def test_a_reader_that_fails_is_an_error(tmp_path: Path) -> None:
    listing = tmp_path / "list"
    listing.write_text(f"{tmp_path / 'missing'}\n")
    with pytest.raises(lab.LabError, match="exit 1"), tuned_mounts.endless_reader(listing) as reader:
        reader.wait(20)


@pytest.mark.slow
@pytest.mark.mount
def test_two_small_mounts_are_tuned_by_all_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuned_mounts, "FILES", 2000)
    monkeypatch.setattr(tuned_mounts, "RAM", "4M")
    monkeypatch.setattr(tuned_mounts, "YOUNG_S", 0.0)
    monkeypatch.setattr(tuned_mounts, "await_drain", lambda: None)
    monkeypatch.setattr(lab, "BUILD", tmp_path)
    # Eight at a time bring six times as much as one.
    monkeypatch.setitem(tuned_mounts.CURVES, "knee4", Curve(0.04, 200.0))
    record = tmp_path / "table.json"
    assert tuner_mount_table.main(["--curve", "knee4", "--seconds", "1", "--record", str(record)]) in (0, 1)
    out = capsys.readouterr().out
    assert all(f"\n| {who} | " in out for who in WHO), out
    assert record.exists()
    monkeypatch.setattr(bench_tuned_mount, "FIXED", (1, 8))
    monkeypatch.setattr(bench_tuned_mount, "ROUNDS", 1)
    found = {entry.name: entry.value for entry in bench_tuned_mount.entries("knee4")}
    assert found["tuner/mount/knee4/fixed_8/share"] > 1.5 * found["tuner/mount/knee4/fixed_1/share"]
    assert not subprocess.run(["findmnt", "-rn", "-R", tmp_path], capture_output=True, check=False).stdout
