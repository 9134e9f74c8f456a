"""`nopfs tune`: its options, and what it prints of a record."""

from __future__ import annotations

from typing import Any

import pytest

from nopfsfs.cli import nopfs
from nopfsfs.cli.status_text import status_text
from nopfsfs.cli.tune import tune_text
from nopfsfs.errors import Exit

NONE: list[float | None] = [None] * 7
RECORD: dict[str, Any] = {
    "mode": "auto", "asked": False, "limit": 37, "under_way": 31, "demands": 2, "slowdown": 1.4187, "reason": "more",
    "ended": [0, 0, 0, 1200, 0, 0, 7], "mean_seconds": [None, None, None, 0.0115, None, None, 0.2], "errors": 0,
    "under_way_seconds": 12.0, "waited_seconds": 3.0, "aim": 64.0, "base_seconds": [*NONE[:3], 0.0081, None, None, 0.1],
    "evidence": [0.0, 0.0, 0.0, 120.0, 0.0, 0.0, 0.0], "knee": None, "lead_seconds": None, "disciplined": True,
    "decisions": [
        {"time": 1.0, "limit": 4, "reason": "hold", "slowdown": 1.0, "under_way": 4},
        {"time": 2.0, "limit": 37, "reason": "more", "slowdown": 1.1, "under_way": 31},
    ],
}  # fmt: skip
LINE = "31 of at most 37 requests under way, readers wait for 2, slowdown 1.42, last change: more"


def test_state_bases_and_the_last_decisions_are_shown_the_latest_first() -> None:
    lines = tune_text(RECORD).splitlines()
    assert lines[:2] == [f"source     {LINE}", "tuner      aim 64"]
    assert [line.split() for line in lines[3:5]] == [
        ["<=", "256", "KiB", "1,200", "11.5", "ms", "8.1", "ms", "shown", "by", "a", "drain"],
        ["larger", "7", "200", "ms", "100", "ms", "a", "guess"],
    ]
    assert [line.split()[1:] for line in lines[6:]] == [["37", "more", "1.10", "31"], ["4", "hold", "1.00", "4"]]


def test_a_mount_that_keeps_a_number_says_so_and_shows_no_tuner() -> None:
    fixed = RECORD | {"mode": "fixed", "slowdown": None, "reason": None, "demands": 0}
    assert tune_text(fixed).splitlines()[0] == "source     31 of at most 37 requests under way, not tuned"
    assert "decisions" not in tune_text(fixed)
    assert "as a command asked" in tune_text(fixed | {"asked": True})


def test_a_weight_other_than_one_is_shown() -> None:
    assert "weight" not in tune_text(RECORD | {"weight": 1.0})
    assert tune_text(RECORD | {"weight": 0.25}).splitlines()[1] == "tuner      weight 0.25, aim 64"


def test_before_anything_was_read_there_is_little_to_say() -> None:
    fresh = RECORD | {"ended": [0] * 7, "mean_seconds": NONE, "base_seconds": None, "evidence": None, "decisions": []}
    assert tune_text(fresh).splitlines() == [f"source     {LINE}", "tuner      aim 64"]


def test_status_has_a_line_on_the_source() -> None:
    assert f"source     {LINE}" in status_text({"state": "running", "tuning": RECORD}, "/s", "/m").splitlines()
    assert "under way" not in status_text({"state": "running"}, "/s", "/m"), "of another release"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--concurrency", "0"], "--concurrency: '0' is neither auto nor a whole number from 1 to 1024"),
        (["--concurrency", "many"], "--concurrency: 'many' is neither auto nor"),
        (["--concurrency", "8", "--hold"], "--hold: keeps the present number"),
        (["--weight", "0"], "--weight: '0' is not a weight: write 0.01 to 100, or none"),
        (["--weight", "nan"], "--weight: 'nan' is not a weight"),
        (["--weight", "heavy"], "--weight: 'heavy' is not a weight"),
        (["--bandwidth", "much"], "--bandwidth: 'much' is not a"),
    ],
)
def test_options_that_make_no_sense(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert nopfs.main(["tune", "/mnt", *words]) == Exit.USAGE
    assert error in capsys.readouterr().err
