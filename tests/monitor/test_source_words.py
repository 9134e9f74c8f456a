"""A reader of the page can tell whether the source, a bound or the job was the limit of what was read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nopfsfs.monitor import source_words
from nopfsfs.monitor.run_record import RunRecord, checked
from nopfsfs.monitor.source_words import ReadLimit
from tests.monitor.runs import BEGIN, epoch, history, report, waited


def run(rows: dict[str, Any], *epochs: dict[str, Any], live: bool = False, **further: Any) -> RunRecord:
    """A run of the epochs, of 100 s in all, or of one; `rows`: columns of its history."""
    said = epochs or (waited(0, 0, 100, 50, source=1.0),)
    made = json.loads(json.dumps(report(*said, **{"history": [history(1, 100, **rows)]} | further)))
    return checked(made, made["history"], None, made, live=live)


READ = {"source_bytes": 4e6, "source_expected": 5e6, "slowdown": 1.5, "slots_waited": 0.9}


@pytest.mark.parametrize(
    ("rows", "limit"),
    [
        ({}, ReadLimit.SOURCE),
        ({"slots_waited": 0.1}, ReadLimit.JOB),
        ({"slowdown": [None] * 100}, ReadLimit.REQUESTS),
        ({"slots_waited": 0.1, "source_cap": 4.2e6}, ReadLimit.BANDWIDTH),
        ({"source_cap": 9e6}, ReadLimit.SOURCE),
        ({"slots_waited": 0.1, "source_cap": 9e6}, ReadLimit.JOB),
        ({"slots_waited": 0.1, "source_cap": 1e6, "source_bytes": [4e6, 0, 0, 0] * 25}, ReadLimit.BANDWIDTH),
    ],
    ids=["slots are waited for", "nothing waits", "a fixed number", "at the cap", "below a cap", "nothing waits below "
         "a cap", "blocks that take seconds at a cap"],
)  # fmt: skip
def test_the_limit_of_an_epoch(rows: dict[str, Any], limit: ReadLimit) -> None:
    (use,) = source_words.source_uses(run(READ | rows))
    assert use is not None
    assert (use.limit, use.share > 0.95) == (limit, True)


@pytest.mark.parametrize(("most", "limit"), [(8, ReadLimit.REQUESTS), (9, ReadLimit.SOURCE), (1024, ReadLimit.SOURCE)])
def test_a_site_that_allows_few_requests_is_the_limit_and_not_the_source(most: int, limit: ReadLimit) -> None:
    (use,) = source_words.source_uses(run(READ | {"limit": 8}, policy={"concurrency": most}))
    assert use is not None
    assert use.limit is limit


def test_a_sentence_for_epochs_alike_with_what_was_read_expected_and_allowed() -> None:
    half = [0.9] * 50 + [0.0] * 50
    found = run(
        READ | {"slots_waited": half, "source_cap": 2e7}, waited(0, 0, 50, 9, source=1.0), waited(1, 50, 25, 9),
        waited(2, 75, 25, 9),
    )  # fmt: skip
    assert list(source_words.source_lines(found)) == [
        "Epoch 0: the source was the limit for all of the time in which it was read. 4 MB/s were read, 5 MB/s were "
        "expected of the source and 20 MB/s were allowed.",
        "Epochs 1 and 2: the job was the limit for 98 % of the time, as it asked for no more. 4 MB/s were read, 5 MB/s "
        "were expected of the source and 20 MB/s were allowed.",
    ]  # fmt: skip


def test_reading_ahead_that_is_limited_while_nobody_waits_slows_no_job() -> None:
    (line,) = source_words.source_lines(run(READ, waited(0, 0, 100, 0.1, source=0.1)))
    assert "the source was the limit" in line
    assert line.endswith("Readers hardly waited, so that the job was no slower for that.")


def test_of_what_was_not_read_nothing_is_said() -> None:
    assert list(source_words.source_lines(run({}, epoch(0, 0, 100)))) == []
    assert source_words.source_uses(run(READ, waited(0, 0, 2, 1, source=1.0))) == [None], "too few rows"
    late = [history(1, 50, **READ) | {"begin": BEGIN + 50}]
    assert source_words.source_uses(run({}, waited(0, 0, 100, 9), history=late)) == [None]


def test_the_rates_are_those_of_the_time_in_which_the_source_was_read() -> None:
    (use,) = source_words.source_uses(run(READ | {"source_bytes": [4e6] * 20 + [0.0] * 80}))
    assert use is not None
    assert use.rate == pytest.approx(4e6, rel=0.1)


@pytest.mark.parametrize(
    ("tuning", "policy", "said"),
    [
        ({}, {}, []),
        ({"mode": "auto", "bandwidth": None, "bandwidth_by": None}, {"files": [], "errors": []}, []),
        ({"bandwidth": 2_000_000, "bandwidth_by": "option"}, {},
         ["The bound on bytes was, at the end, 2 MB/s for this mount, set by --source-bandwidth."]),
        ({"mode": "auto"}, {"concurrency": 1024}, []),
        ({"mode": "auto"}, {"concurrency": 8, "files": [{"path": "/p", "rules": [1]}]},
         ["The number of requests was, at the end, at most 8, by the rules of the site.",
          "Rules of the site: /p: rules 1 apply."]),
        ({"bandwidth": 2_000_000, "bandwidth_by": "command", "mode": "fixed", "asked": True}, {},
         ["The bound on bytes was, at the end, 2 MB/s for this mount, set by nopfs tune.",
          "The number of requests was, at the end, fixed by nopfs tune."]),
        ({"bandwidth": 1500, "bandwidth_by": "site", "mode": "fixed"},
         {"files": [{"path": "/etc/nopfs/policy.toml", "rules": [1, 3]}, {"path": "/p", "rules": []}],
          "errors": ["/q: of user 5"]},
         ["The bound on bytes was, at the end, 1.5 KB/s for this mount, set by the rules of the site.",
          "The number of requests was, at the end, fixed by --source-concurrency.",
          "Rules of the site: /etc/nopfs/policy.toml: rules 1, 3 apply.", "Rules of the site: /p: only the default "
          "applies.", "Rules of the site that are refused: /q: of user 5."]),
    ],
)  # fmt: skip
def test_bounds_and_who_has_set_them(tuning: dict[str, Any], policy: dict[str, Any], said: list[str]) -> None:
    assert list(source_words.bound_lines(run({}, tuning=tuning, policy=policy))) == said
    assert [line.replace("was, at the end,", "is") for line in said] == list(
        source_words.bound_lines(run({}, tuning=tuning, policy=policy, live=True))
    )
