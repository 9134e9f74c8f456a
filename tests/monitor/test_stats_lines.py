"""Lines of statistics from two answers."""

from __future__ import annotations

import csv
import io

import pytest

from nopfsfs.monitor import stats_lines
from nopfsfs.protocol.durations import BUCKETS
from tests.monitor.figures import TIERS, figures

BEFORE = figures()
AFTER = figures(
    time=1002.0,
    counts="estimated",
    opens=350,
    served={tier: {"files": 10 * n + (100 if tier == "ram" else 0), "bytes": 0} for n, tier in enumerate(TIERS, 1)},
    reader_waits={"seconds": 2.0, "buckets": [2, 3, *[2] * (BUCKETS - 2)]},
    source={"opens": 80, "bytes": 6000 + 5_000_000, "second_reads": 0, "changed": 0, "stuck": 0},
    processes={"server": {"cpu_seconds": 4.0, "resident_bytes": 0, "restarts": 0}},
)


def test_a_line_has_what_happened_in_between() -> None:
    line = stats_lines.stats_line(BEFORE, AFTER)
    assert (line.opens, line.source_files, line.source_bytes) == (100, 10, 2_500_000)
    assert line.shares == (0, 1, 0, 0, 0)
    assert line.wait_p99_s == pytest.approx(0.00104, rel=0.02)
    assert (line.limit, line.slowdown, line.lead_s, line.cpu) == (24, 1.5, 2.5, 0.5)


def test_nothing_happened() -> None:
    line = stats_lines.stats_line(BEFORE, figures(time=1001.0))
    assert (line.opens, line.shares, line.wait_p99_s) == (0, (None,) * 5, None)
    assert stats_lines.text(line).split()[:7] == ["0", "-", "-", "-", "-", "-", "-"]


def test_sums_that_began_anew_are_no_negative_rates() -> None:
    assert stats_lines.stats_line(AFTER, {**BEFORE, "time": 1004.0}).opens == 0


def test_the_text_has_its_columns_under_the_headings() -> None:
    shown = stats_lines.text(stats_lines.stats_line(BEFORE, AFTER))
    assert len(shown) == len(stats_lines.heading()) <= 120
    assert shown.split() == [
        "~100", "0%", "100%", "0%", "0%", "0%", "1", "ms", "10", "2.5", "24", "1.5", "2.5", "s", "2.0", "K", "2.0", "K",
        "50%",
    ]  # fmt: skip


def test_csv_can_be_read_back() -> None:
    line = stats_lines.stats_line(BEFORE, AFTER)
    text = f"{stats_lines.csv_heading()}\n{stats_lines.csv(line, AFTER['time'])}\n"
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["time"], row["opens_per_second"], row["ram_share"], row["limit"]) == ("1002.000", "100", "1", "24")
    assert (row["source_bytes_per_second"], row["counts"]) == ("2500000", "estimated")


@pytest.mark.parametrize("lacking", ["opens", "served", "tiers", "tuner", "reader_waits"])
def test_an_answer_of_another_release(lacking: str) -> None:
    answer = {key: value for key, value in AFTER.items() if key != lacking}
    with pytest.raises((KeyError, TypeError)):
        stats_lines.stats_line(BEFORE, answer)
