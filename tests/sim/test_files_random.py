"""Cluster and data set files: every cluster comes back as it was, and anything at all has an answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.errors import Exit, NopfsError
from nopfsfs.performance.cluster_file import format_cluster, parse_cluster, read_cluster, write_cluster
from nopfsfs.performance.model import Cluster, Curve, SourceModel, StorageClass
from nopfsfs.sim.dataset_file import parse_dataset, read_dataset
from tests.examples import examples
from tests.sim.example_files import CLUSTER, DATASET

RAM = StorageClass("ram", (1,), 1, Curve.flat(1), Curve.flat(1))
STAGING = StorageClass("staging", (1,), 1, RAM.read, RAM.write)
ONE = Cluster("one", 1, 1.0, math.inf, SourceModel(Curve.flat(1)), STAGING)


@pytest.mark.parametrize(
    "values",
    [
        {"nodes": 0},
        {"nodes": 2},  # between which there is no limit
        {"compute": 0.0},
        {"compute": math.inf},
        {"preprocess": math.nan},
        {"name": "a\nb"},
        {"name": "\ud800"},
        {"staging": RAM},  # of another name
        {"classes": (RAM, RAM)},
        {"source": SourceModel(Curve(()))},
        {"source": SourceModel(Curve(((2, 1), (1, 1))))},
        {"source": SourceModel(Curve.flat(1), latency=math.nan)},
        {"source": SourceModel(Curve.flat(1), latency=math.inf)},
        {"source": SourceModel(Curve(((math.inf, 1),)))},
    ],
    ids=repr,
)
def test_what_no_file_describes_is_not_written(tmp_path: Path, values: dict[str, object]) -> None:
    made = {name: getattr(ONE, name) for name in ONE.__dataclass_fields__} | values

    with pytest.raises(ValueError, match=r"no file describes|is not a rate|surrogates|cannot convert"):
        write_cluster(Cluster(**made), str(tmp_path / "x.toml"))

    assert not list(tmp_path.iterdir())
    assert parse_cluster(format_cluster(ONE), "") == ONE


rates = st.floats(1, 1e18) | st.integers(1, 10**15).map(float)
points = st.floats(1, 1 << 20) | st.integers(1, 1 << 20).map(float)
curves = st.dictionaries(points, rates, min_size=1, max_size=5).map(lambda d: Curve(tuple(sorted(d.items()))))
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(
    lambda text: text.isprintable() and text == text.strip() and text != "staging"
)
capacities = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=3).map(tuple)


def storage(name: st.SearchStrategy[str]) -> st.SearchStrategy[StorageClass]:
    return st.builds(StorageClass, name, capacities, st.integers(1, 1 << 16), curves, curves)


clusters = st.builds(
    Cluster,
    name=names,
    nodes=st.integers(1, 1000),
    compute=rates,
    network=rates,
    source=st.builds(SourceModel, curves, rates | st.just(math.inf), st.floats(0, 1e6), st.integers(1, 1 << 16)),
    staging=storage(st.just("staging")),
    classes=st.lists(storage(names), max_size=3, unique_by=lambda one: one.name).map(tuple),
    preprocess=rates | st.just(math.inf),
    ranks=st.integers(1, 1000),
)


@given(clusters, st.text(st.characters(codec="utf-8")))
def test_every_cluster_comes_back(cluster: Cluster, note: str) -> None:
    assert parse_cluster(format_cluster(cluster, note), "") == cluster


def answers(read: Callable[[], object]) -> None:
    """It reads, or refuses in one line; it does nothing else."""
    refused = None
    try:
        read()
    except NopfsError as error:
        refused = error
    assert refused is None or refused.exit_code == Exit.USAGE
    assert refused is None or "\n" not in refused.message


@given(st.binary(max_size=200))
def test_any_bytes_have_an_answer(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(raw)

    answers(lambda: read_cluster(str(path)))
    answers(lambda: read_dataset(str(path)))


scraps = st.sampled_from(
    ["", "-1", "0", "nan", "inf", "true", "1e400", "9" * 30, "07:32:00", '"1 MB/s"', '"0 B"', "[1, -1]", "{ 1 = 2 }",
     "{ 1.5 = 2 }", "{}", "[[class]]", "class", '"', "'", '"""', "[", "]", "{", "}", "=", ".", ",", "\n", "#", "\\",
     "\x00", "é"]
) | st.text(max_size=5)


@settings(max_examples=examples(400))
@given(st.sampled_from([CLUSTER, DATASET]), st.data())
def test_a_spoiled_file_has_an_answer(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(text)))
        end = min(len(text), begin + data.draw(st.integers(0, 12)))
        text = text[:begin] + data.draw(scraps) + text[end:]

    answers(lambda: parse_cluster(text, "x"))
    answers(lambda: parse_dataset(text, "x"))


@settings(max_examples=examples(400))
@given(st.sampled_from([CLUSTER, DATASET]), st.data())
def test_a_spoiled_value_has_an_answer(text: str, data: st.DataObject) -> None:
    lines = text.splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    lines[number] = f"{lines[number].partition('=')[0]}= {data.draw(scraps)}"

    answers(lambda: parse_cluster("\n".join(lines), "x"))
    answers(lambda: parse_dataset("\n".join(lines), "x"))
