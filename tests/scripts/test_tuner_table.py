"""The table of the tuner and its rivals: its marks, and that the benchmarks have its figures by name."""

from __future__ import annotations

import math
from pathlib import Path

import bench
import pytest
import tuner_table
from tuner_bars import CLOCKS, COMPANY, Column

from nopfsfs.sim.tuning import trials

SHARE = Column("share", trials.alone, "wide", "share", least=0.9)
TIME = Column("seconds", trials.alone, "wide", "seconds to 90 %", most=5.0)
P99 = Column("p99", trials.alone, "wide", "p99")


def marked(columns: list[Column], table: dict[str, list[float]]) -> list[str]:
    return [tuner_table.marks(columns, at, table) for at in range(len(columns))]


def test_a_row_for_each_that_tunes() -> None:
    table = {"fixed 64": [0.5, math.inf], "ours": [0.95, 3.0]}
    assert list(tuner_table.lines("alone", [SHARE, TIME], table)) == [
        "| alone | share | seconds |",
        "|---|---|---|",
        "| fixed 64 | 0.50 | never |",
        "| ours | 0.95 | 3.00 |",
    ]


def test_marks_of_what_falls_short_and_of_rivals_that_are_better_by_far() -> None:
    columns = [SHARE, TIME, P99]
    table = {"PRISMA": [0.1, math.inf, 1.0], "AIMD": [0.99, 3.0, 2.5]}
    assert marked(columns, {**table, "ours": [0.89, 12.3, 2.4]}) == [" ! <", " ! <", ""]
    assert marked(columns, {**table, "ours": [0.98, 3.0, 3.0]}) == ["", "", " <"]
    assert marked([SHARE, TIME], {"fixed 64": [0.5, math.inf], "ours": [0.95, 3.0]}) == ["", ""]
    twice = Column("share", trials.company, "wide", "share", over_fixed=2.0)
    assert marked([twice], {"fixed 64": [0.5], "ours": [0.95]}) == [" !"]


def test_bars_that_are_missed_are_named() -> None:
    assert list(tuner_table.missed([SHARE, TIME], {"ours": [0.8, 3.0]})) == ["alone, share: 0.80, wanted at least 0.9"]
    ours, fixed = [1.0, 0.9, 3.0] * 3, [1.0, 0.7, 9.0] * 3
    found = list(tuner_table.missed(COMPANY, {"ours": ours, "fixed 64": fixed}))
    assert [line.partition(" times")[0] for line in found] == [
        "company, wide: share: 1.29", "company, small: share: 1.29",
    ]  # fmt: skip
    found = list(tuner_table.missed(CLOCKS, {"ours": ours, "fixed 64": [1.0, 0.91, 9.0] * 3}))
    assert found == [
        f"any_clocks, {source}: share: 0.99 times that of a fixed 64, wanted at least 1" for source in trials.SOURCES
    ]


def test_it_measures_and_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [one for one in tuner_table.ALONE if one.source == "small"]
    monkeypatch.setattr(tuner_table, "TABLES", {"alone": small})
    record = tmp_path / "table.json"
    tuner_table.main(["--who", "PRISMA", "--seeds", "1", "--jobs", "1", "--record", str(record)])
    assert "| PRISMA | 0." in capsys.readouterr().out
    assert record.exists()


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("tuner/*", 7), ("tuner/small/share_of_best", 1), ("fair/*", 4), ("fair/8/jain", 1), ("tuner/mount/*", 4),
        ("tuner/mount/knee4/share_of_best", 1),
    ],
)
def test_the_benchmarks_are_found_by_their_names(pattern: str, chosen: int) -> None:
    assert len(bench.selected([pattern])) == chosen
