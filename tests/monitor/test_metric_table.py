"""Metrics from answers, also from those that no honest daemon gives; docs and dashboard name those that there are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_prometheus

from nopfsfs.monitor.metric_table import METRICS, PREFIX, UP, MetricKind
from nopfsfs.monitor.openmetrics import openmetrics_text, prometheus_text
from nopfsfs.monitor.scrape import MountAnswer
from nopfsfs.protocol.durations import BUCKETS
from tests.examples import examples
from tests.monitor.figures import figures

DOCS = Path(__file__).parents[2] / "docs"
ANSWER = MountAnswer("/mnt/fast", figures())


def families(text: str) -> dict[str, Any]:
    return {family.name: family for family in parse_openmetrics(text)}


def sample_names(text: str) -> set[str]:
    return {sample.name for family in parse_openmetrics(text) for sample in family.samples}


def table() -> dict[str, tuple[str, tuple[str, ...], dict[str, set[str]]]]:
    """MetricKind, further labels, and the values that the page lists for them, by name."""
    rows = re.findall(r"^\| `([a-z_]+)` \| (\w+) \|(.*?)\|", (DOCS / "metrics.md").read_text(), re.MULTILINE)
    found = {}
    for name, kind, labels in rows:
        names = tuple(re.findall(r"`([a-z_]+)`", labels))
        listed = {names[0]: set(labels.partition(": ")[2].strip().split(", "))} if ": " in labels else {}
        found[name] = (kind, names, listed)
    return found


def test_the_page_lists_what_is_exported() -> None:
    expected = {line.name: (line.kind.value, line.labels) for line in (UP, *METRICS)}
    assert {name: row[:2] for name, row in table().items()} == expected


def test_each_metric_is_exported_with_the_labels_of_the_page() -> None:
    found = families(openmetrics_text([ANSWER]))
    for name, (kind, labels, listed) in table().items():
        family = found[PREFIX + name.removesuffix("_total").removesuffix("_info")]
        assert family.type == kind
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == {"mountpoint", *labels}
        for label, values in listed.items():
            assert {sample.labels[label] for sample in family.samples} <= values, name


def test_both_formats_say_the_same() -> None:
    for text, parse in (
        (openmetrics_text([ANSWER]), parse_openmetrics), (prometheus_text([ANSWER]).decode(), parse_prometheus)
    ):  # fmt: skip
        samples = [one for family in parse(text) for one in family.samples]
        values = {(one.name, tuple(sorted(one.labels.items()))): one.value for one in samples}
        assert len(values) == len(samples)
        mount = ("mountpoint", "/mnt/fast")
        assert values["nopfs_opens_total", (mount,)] == 150
        assert values["nopfs_served_files_total", (mount, ("tier", "source"))] == 50
        assert values["nopfs_reader_wait_seconds_count", (mount,)] == 2 * BUCKETS
        assert values["nopfs_reader_wait_seconds_sum", (mount,)] == 1.5
        assert values["nopfs_plan_state", (mount, ("state", "locked"))] == 1
        assert values["nopfs_plan_state", (mount, ("state", "watching"))] == 0
        assert values["nopfs_up", (mount,)] == 1


@pytest.mark.skipif(
    shutil.which("promtool") is None and "NOPFSFS_SITE" not in os.environ, reason="make test-site has promtool"
)
def test_promtool_finds_nothing_wrong() -> None:
    done = subprocess.run(["promtool", "check", "metrics"], input=prometheus_text([ANSWER]), capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    done = subprocess.run(["promtool", "check", "rules", DOCS / "alarms.yml"], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b""), done.stdout


def test_buckets_add_up() -> None:
    found = families(openmetrics_text([ANSWER]))["nopfs_reader_wait_seconds"]
    counts = [one.value for one in found.samples if one.name.endswith("_bucket")]
    assert counts == [2.0 * (n + 1) for n in range(BUCKETS)]


def test_a_mount_that_does_not_answer_is_not_up_and_has_nothing_else() -> None:
    text = openmetrics_text([ANSWER, MountAnswer("/mnt/dead", None)])
    values = {one.labels["mountpoint"]: one.value for one in families(text)["nopfs_up"].samples}
    assert values == {"/mnt/fast": 1, "/mnt/dead": 0}
    assert "/mnt/dead" not in text.replace('nopfs_up{mountpoint="/mnt/dead"}', "")


def test_no_mount_has_no_metrics() -> None:
    assert openmetrics_text([]) == "# EOF\n"
    assert prometheus_text([]) == b""


def test_what_has_no_figure_is_left_out() -> None:
    found = figures(lead_seconds=None)
    del found["peers"]
    names = sample_names(openmetrics_text([MountAnswer("/mnt/fast", found)]))
    assert "nopfs_lead_seconds" not in names
    assert not [name for name in names if "peers" in name or "lent" in name]


@pytest.mark.parametrize("path", ["/mnt/a\n#b", '/mnt/"x"', "/mnt/\udcff", "/mnt/\\"])
def test_paths_of_any_kind_can_be_read_back(path: str) -> None:
    (sample,) = families(openmetrics_text([MountAnswer(path, figures())]))["nopfs_opens"].samples
    assert sample.labels["mountpoint"] == path.encode("utf-8", "backslashreplace").decode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 80), 1 << 80) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=17) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


MOST = {line.name: len(list(line.read(figures()))) for line in METRICS}


@given(st.dictionaries(st.sampled_from(sorted(figures())), JSON, max_size=3))
@settings(max_examples=examples(50))
def test_whatever_a_daemon_says_labels_stay_few_and_the_text_can_be_read(said: dict[str, Any]) -> None:
    for line in METRICS:
        found = list(line.read({**figures(), **said}))
        assert len(found) <= MOST[line.name]
        assert all(len(labels) == len(line.labels) for labels, _ in found)
    assert families(openmetrics_text([MountAnswer("/mnt/theirs", said)]))["nopfs_up"].samples[0].value == 1


def test_thirty_two_mounts_fit_into_a_scrape() -> None:
    """64 KiB for a mount were planned; a scrape of 32 mounts is compressed on its way."""
    assert len(openmetrics_text([ANSWER])) <= 64 << 10


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    names = sample_names(openmetrics_text([ANSWER]))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [one["query"]["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    asked = {name for expression in expressions for name in re.findall(r"\bnopfs_[a-z_]+", expression)}
    assert len(asked) > 20
    assert asked <= names
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_alarms_look_at_metrics_that_there_are() -> None:
    text = (DOCS / "operations.md").read_text()
    asked = set(re.findall(r"\bnopfs_[a-z_]+", text))
    assert asked <= sample_names(openmetrics_text([ANSWER]))


def test_the_rules_are_the_alarms_of_the_page() -> None:
    text = (DOCS / "operations.md").read_text().partition("### Alarms")[2]
    page = {}
    for name, condition in re.findall(r"^\| ([a-z][^|]*) \| (.*?) \| ", text, re.MULTILINE)[1:]:
        expressions = [one for one in re.findall("`([^`]+)`", condition) if "nopfs" in one]
        wait = re.search(r" for (\d+) (m|h)", condition)
        page[name] = " or ".join(expressions), f"{wait[1]}{wait[2]}" if wait else None
    rules = {}
    for rule in (DOCS / "alarms.yml").read_text().split("- alert: ")[1:]:
        (summary,) = re.findall("summary: '(.*?)'", rule)
        (expression,) = re.findall(r"expr: '(.*)'$", rule, re.MULTILINE)
        rules[summary] = expression, next(iter(re.findall(r"for: (\w+)", rule)), None)
    assert len(rules) > 15
    assert rules == page


def test_kinds_are_named_as_openmetrics_wants_it() -> None:
    for line in METRICS:
        assert line.name.endswith("_total") == (line.kind is MetricKind.COUNTER), line.name
        assert line.name.endswith("_info") == (line.kind is MetricKind.INFO), line.name
