"""The page of a run: whole in itself, within its size, and safe whatever names the run has."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nopfsfs.errors import Exit, NopfsError
from nopfsfs.monitor import run_curves, run_words
from nopfsfs.monitor.report_page import page
from nopfsfs.monitor.run_record import COLUMNS, read_report
from tests.monitor.runs import BEGIN, epoch, history, report, waited

LARGEST = 2 << 20  # bytes of a page
VOID = {"meta", "br"}


class Reading(HTMLParser):
    """Elements, attributes and text of a page; fails where elements do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.said).replace("\xa0", " ").split())


def made(tmp_path: Path, record: dict[str, Any]) -> str:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(record))
    return page(read_report(str(file)), BEGIN + 1000)


def assert_whole_in_itself(found: Reading, text: str) -> None:
    assert not [tag for tag, _ in found.elements if tag in ("script", "link", "img", "iframe", "object", "image")]
    for tag, attributes in found.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action"):
                assert (value or "").startswith("#"), (tag, name, value)
    names = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(names) == len(set(names))
    used = set(re.findall(r'url\(#([^)"]*)\)', text)) | set(re.findall(r'href="#([^"]*)"', text))
    assert used <= set(names)
    assert not re.search(r"@import|url\((?!#)|https?://(?!www\.w3\.org/)", text)


def test_a_run_of_two_epochs(tmp_path: Path) -> None:
    record = report(waited(0, 0, 60, 30, source=1.0), epoch(1, 60, 40), drains=[BEGIN + 30.0])
    text = made(tmp_path, record)
    found = Reading(text)
    assert_whole_in_itself(found, text)
    assert "Readers waited for the source, for 50 % of epoch 0, and hardly at all later." in found.text
    assert "Sampler distributed, seed 7, ranks 0-1 of 4, certain." in found.text
    for said in ("/pfs/data", "/mnt/fast", "epoch 1", "limit", "drain", "slowdown", "lead", "median", "budget"):
        assert said in found.text, said
    assert [attributes.get("aria-label") for tag, attributes in found.elements if tag == "svg"] == [
        "Files a second, by what served them", "Waiting", "The tuner", "Read from the source", "Ahead of the reader",
        "Waits by epoch",
    ]  # fmt: skip
    assert sum(tag == "tr" for tag, _ in found.elements) == 3
    assert not re.search(r"#0[1-5]0[0-9a-f]0", text), "a stand-in for a colour is left"


def test_the_longest_run_is_within_the_size(tmp_path: Path) -> None:
    """A week with as many epochs as a mount keeps, and drawn from noise."""
    noise = np.random.default_rng(1).random(10_080)
    rows = history(60, 10_080, **{
        name: (noise * size).tolist() for name, size in {
            "page_cache": 1e4, "ram": 1e4, "disk": 1e4, "peer": 1e4, "source": 1e4, "wait_share": 9, "wait_p50": 1,
            "wait_p99": 9, "limit": 256, "slowdown": 9, "lead": 99, "source_bytes": 1e9, "ram_bytes": 1e12,
            "fetches_in_flight": 9999, "disk_bytes": 1e12, "page_cache_bytes": 1e12,
        }.items()
    })  # fmt: skip
    epochs = [waited(n, 4725 * n, 4725, 9 + n, source=0.5) | {"dataset": f"{n}" + "d" * 5000} for n in range(128)]
    drains = [BEGIN + 60.0 * n for n in range(1440)]
    text = made(tmp_path, report(*epochs, history=[rows], drains=drains))
    assert len(text.encode()) <= LARGEST
    assert_whole_in_itself(Reading(text), text)


@pytest.mark.parametrize(
    "record",
    [
        report(),
        report(epoch(0, 0, 0.5), history=[]),
        report(epoch(None, 0, 2)),
        report(epoch(0, 0, 50), history=[history(1, 50, limit=[None] * 50, lead=[None] * 50)]),
        report(epoch(0, 0, 50), history=[history(1, 50)]),
        report(waited(0, 0, 1e300, 1e300, source=1e300), history=[history(1, 50, **dict.fromkeys(COLUMNS, 1e300))]),
        report(epoch(0, 0, 50), history=[history(1, 50, **dict.fromkeys(COLUMNS, -5.0))]),
    ],
    ids=["nothing read", "no history", "two rows", "figures not known", "all zero", "absurd", "negative"],
)
def test_runs_of_which_little_is_known(record: dict[str, Any], tmp_path: Path) -> None:
    text = made(tmp_path, record)
    assert_whole_in_itself(Reading(text), text)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=st.text(max_size=30) | st.sampled_from(['"><script>alert(1)</script>', "a&amp;b", "\udcff", "\x1b[31m"]))
def test_names_are_shown_and_never_act(name: str, tmp_path: Path) -> None:
    one = epoch(0, 0, 9, dataset=f"{name}1", sampler=name)
    other = epoch(0, 9, 9, dataset=f"{name}2", sampler=name)
    plan = {"state": "locked", "sampler": name, "seed": 1}
    record = report(one, other, source=name, mountpoint=f"/{name}", plan=plan, explanation={"text": name}, history=[])
    text = made(tmp_path, record)
    text.encode()
    assert_whole_in_itself(Reading(text), text)
    assert "\x1b" not in text


def test_the_finest_history_of_the_whole_run_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    late = history(1, 600, opens=1.0) | {"begin": BEGIN + 3000}
    record = report(epoch(0, 5, 3595), history=[late, history(10, 360, opens=2.0), history(60, 60, opens=3.0)])
    file.write_text(json.dumps(record))
    found = run_curves.curves(read_report(str(file)))
    assert found is not None
    assert len(found.time) == 360
    assert found["opens"].tolist() == [2.0] * 360


def test_many_rows_become_means_and_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    rows = 3 * run_curves.POINTS_MOST
    columns: dict[str, Any] = {"opens": [1.0, 2.0, 6.0] * (rows // 3), "lead": [None, 4.0, None] * (rows // 3),
                               "wait_p99": [1.0, 5.0, None] * (rows // 3)}  # fmt: skip
    file.write_text(json.dumps(report(epoch(0, 0, rows), history=[history(1, rows, **columns)])))
    found = run_curves.curves(read_report(str(file)))
    assert found is not None
    assert [set(found[name].tolist()) for name in ("opens", "lead", "wait_p99")] == [{3.0}, {4.0}, {5.0}]


# ---- what is no report -----------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(NopfsError) as caught:
        read_report(str(path))
    assert caught.value.exit_code == Exit.USAGE
    assert "\n" not in caught.value.message
    return caught.value.message


def test_files_that_are_no_report(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    for data, said in (
        (b"", "it is not JSON"), (b"\xff\xfe", "it is not JSON"), (b'{"state": "end', "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"), (b"[]", "a value of another kind"), (b"{}", "no plan"),
        (b'{"plan": 1, "budget": 2}', "a value of another kind"),
    ):  # fmt: skip
        file.write_bytes(data)
        assert said in refused(file), data[:20]
    assert "neither a nopfs mount nor a report" in refused(tmp_path)
    assert "no report: No such file" in refused(tmp_path / "none")


@given(data=st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_reports_with_anything_anywhere_are_refused_or_understood(data: st.DataObject, tmp_path: Path) -> None:
    """Some value of a report is another one. Whatever is not refused makes curves and words; drawing is as above."""
    record = report(waited(0, 0, 5, 2, source=1.0), epoch(1, 5, 5))
    at: Any = record
    strange = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})
    while True:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            at[key] = data.draw(strange)
            break
        at = at[key]
    file = tmp_path / "report.json"
    file.write_text(json.dumps(record))
    try:
        run = read_report(str(file))
    except NopfsError:
        refused(file)
        return
    run_curves.curves(run)
    assert run_words.headline(run).endswith(".")
    assert [*run_words.wait_lines(run), run_words.plan_line(run), *run_words.remarks(run)]
    assert len(run_words.totals(run)) == 7
