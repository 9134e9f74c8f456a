"""A run in words: what readers waited for, and how the plan was found."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nopfsfs.monitor import run_words
from nopfsfs.monitor.run_record import RunRecord, checked
from tests.monitor.runs import BEGIN, epoch, history, report, waited


def run(*epochs: dict[str, Any], **further: Any) -> RunRecord:
    made = json.loads(json.dumps(report(*epochs, **further)))
    return checked(made, made["history"], made.get("explanation"), made, live=False)


def test_the_first_epoch_waits_for_the_source() -> None:
    found = run(waited(0, 0, 100, 83, source=0.9, ram=0.1), epoch(1, 100, 50), epoch(2, 150, 50))
    assert run_words.headline(found) == "Readers waited for the source, for 83 % of epoch 0, and hardly at all later."
    assert list(run_words.wait_lines(found)) == [
        "Epoch 0: readers waited for the source, for 83 % of the time.", "Epochs 1 and 2: readers waited for nothing.",
    ]  # fmt: skip


def test_several_readers_wait_at_a_time() -> None:
    found = run(waited(0, 0, 100, 320, source=1.0), waited(1, 100, 100, 40, source=0.2))
    assert run_words.headline(found) == (
        "Readers waited for the source, 3.2 of them at a time in epoch 0, and at most 40 % of any other."
    )
    assert next(run_words.wait_lines(found)) == "Epoch 0: readers waited for the source, 3.2 readers at a time."


def test_nobody_waited_or_nothing_was_read() -> None:
    assert run_words.headline(run()) == "Nothing was read through this mount."
    assert run_words.headline(run(epoch(0, 0, 100))) == "Readers waited for nothing."
    assert run_words.headline(run(waited(0, 0, 100, 0.1, source=0.1))) == "Readers hardly waited."
    assert run_words.totals(run())[2] == ("–", "files, on average")


@pytest.mark.parametrize(
    ("served", "named"),
    [
        ({"source": 0.5, "ram": 0.5}, "the source"),
        ({"disk": 0.3, "ram": 0.7}, "a local disk"),
        ({"peer": 0.3, "page_cache": 0.7}, "other nodes"),
        ({"source": 0.3, "peer": 0.1}, "the source (75 %) and other nodes (25 %)"),
        ({"source": 0.95, "peer": 0.01}, "the source"),
        ({"ram": 1.0}, "memory"),
    ],
)
def test_causes_by_what_served_the_epoch(served: dict[str, float], named: str) -> None:
    found = run(waited(0, 0, 100, 50, **served), history=[])
    assert run_words.waits(found)[0].named == named


def test_causes_by_what_served_while_readers_waited() -> None:
    """The disk served most files, but nobody waited then."""
    rows = history(
        1, 100, opens=10.0, wait_share=[0.9] * 20 + [0.0] * 80, source=[5.0] * 20 + [0.0] * 80,
        disk=[0.0] * 20 + [50.0] * 80,
    )  # fmt: skip
    found = run(waited(0, 0, 100, 18, source=0.03, disk=0.97), history=[rows])
    assert run_words.waits(found)[0].causes == (("source", 1.0),)


def test_a_history_that_began_later_says_nothing_of_an_epoch() -> None:
    rows = history(1, 50, wait_share=1.0, disk=5.0) | {"begin": BEGIN + 60}
    assert run_words.waits(run(waited(0, 0, 100, 50, source=1.0), history=[rows]))[0].named == "the source"


def test_the_plan_in_one_line() -> None:
    assert run_words.plan_line(run(epoch(0, 0, 10))) == "Sampler distributed, seed 7, ranks 0-1 of 4, certain."
    text = "Files are read\nin order. Known after 6 opens."
    explained = run(epoch(0, 0, 10), explanation={"text": text})
    assert run_words.plan_line(explained) == "Files are read in order. Known after 6 opens."
    none = run(epoch(None, 0, 10), plan={"state": "unknown", "sampler": None})
    assert run_words.plan_line(none).startswith("No plan was found")


def test_what_is_worth_a_look() -> None:
    assert list(run_words.remarks(run(epoch(0, 0, 10)))) == []
    bad = run(
        epoch(None, 0, 10, read_errors=3, source_errors=5),
        epoch(1, 10, 10, source_reads=100, second_reads=40, counts="estimated"),
    )
    said = list(run_words.remarks(bad))
    assert [line.partition(":")[0] for line in said] == [
        "40 of 100 reads of the source read a file again", "3 reads failed, so that readers got errors.",
        "The source failed 5 times.", "In 1 of 2 epochs no plan was certain.",
        "Files are estimates where the kernel opened files by itself",
    ]  # fmt: skip


def test_the_figures_of_the_whole_run() -> None:
    read = run(waited(0, 0, 50, 5, source=0.5, ram=0.5), epoch(1, 50, 50))
    found = {name: value for value, name in run_words.totals(read)}
    assert found == {
        "epochs": "2", "files read": "2,000", "files, on average": "20/s", "read": "0.2 GB",
        "ready before their reader": "75.0 %", "waited, all readers": "5.0 s", "read from the source": "0.50 ×",
    }  # fmt: skip
