"""Status records as text."""

from __future__ import annotations

from typing import Any

import pytest

from nopfsfs.cli.error_exit import printable
from nopfsfs.cli.status_text import final_table, in_words, status_text

ALL = {**dict.fromkeys(("fast_path", "resend", "passthrough", "privileged"), True), "signal": "tripwire", "servers": 2}
NONE = {**dict.fromkeys(("fast_path", "resend", "passthrough", "privileged"), False), "signal": "open", "servers": 1}


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (ALL, "modes      fast path, resend, passthrough, signal tripwire, mount(2)"),
        (NONE, "modes      no fast path, no resend, no passthrough, signal open, fusermount3"),
    ],
    ids=["all", "none"],
)
def test_the_modes_are_told(found: dict[str, object], line: str) -> None:
    assert line in status_text({"state": "running", "modes": found}, "/s", "/m").splitlines()


def test_a_record_without_modes_is_printed_without_them() -> None:
    assert "modes" not in status_text({"state": "running"}, "/s", "/m")


def test_copies_of_earlier_mounts_are_told() -> None:
    told = status_text({"stager": {"kept_files": 1200}}, "/s", "/m").splitlines()
    assert "disk       copies of 1,200 files were there from earlier mounts" in told
    assert "earlier" not in status_text({"stager": {"kept_files": 0}}, "/s", "/m")


def test_the_last_epochs_are_told() -> None:
    one = {
        "epoch": 7, "files": 1200, "seconds": 2.3, "stall_seconds": 0.4, "ended": True, "counts": "exact",
        "served": {"page_cache": 0.95, "ram": 0.0, "source": 0.05},
    }  # fmt: skip
    later = {**one, "epoch": None, "ended": False, "counts": "estimated", "served": {}}
    lines = status_text({"epochs": [one, one, one, later]}, "/s", "/m").splitlines()
    assert [line for line in lines if line.startswith("epoch")] == [
        *["epoch 7    1,200 files in 2.3 s, readers waited 400 ms; page cache 95.0%, source 5.0%"] * 2,
        "epoch ?    about 1,200 files so far, in 2.3 s, readers waited 400 ms; nothing was served",
    ]


@pytest.mark.parametrize(
    "record",
    [
        {"served": 3},
        {"epochs": 7},
        {"epochs": [{"files": "x"}]},
        {"opens": {"total": "x"}},
        {"wait_seconds": "long"},
        {"processes": [1]},
        {"budget": {"ram": 10**400}},
        {"off": [{}]},
        {"off": [{"what": "x", "why": "y", "since": 1e300}]},
    ],
)
def test_a_record_that_another_release_or_anybody_made_otherwise(record: dict[str, Any]) -> None:
    for text in (lambda: status_text(record, "/s", "/m"), lambda: final_table(record)):
        assert in_words(text)
    assert "is not understood" in in_words(lambda: status_text(record, "/s", "/m"))


def test_nothing_that_a_terminal_acts_upon_is_printed() -> None:
    assert printable("a\x1b[2J\tb\r\n\u202eµ é\udcff") == "a\\x1b[2J\\tb\\r\n\\u202eµ é\\udcff"
