"""What was measured, as a cluster, as text and in its file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.calibrate.result import Measured, disk_of, memory_of, source_of
from nopfsfs.cli.calibration_text import table
from nopfsfs.performance.cluster_file import class_name, format_cluster, parse_cluster, read_cluster, write_cluster
from nopfsfs.text import toml_table

GIB = 1 << 30
SOURCE = {
    "seen": 1000, "whole": False, "read": 300, "skipped": 2, "why": "/pfs/x: Permission denied",
    "median": 100_000.0, "smallest": 50_000, "largest": 200_000,
    "alone": [[50_000 + 1000 * n, 0.005 + (50_000 + 1000 * n) / 1e8] for n in range(100)],
    "first": [0.005, 0.006],
    "levels": [[1, 160.0, 16e6], [2, 318.0, 31.8e6], [4, 600.0, 60e6], [8, 610.0, 61e6]],
    "heads": [8, 1500.0, 1500.0],
    "large": None,
}  # fmt: skip
MEMORY = {"piece": 102_400, "read": [[1, 5e9], [2, 9e9], [4, 9.2e9]], "write": [[1, 1e9], [2, 2e9], [4, 3e9]]}
SLOW = {"size": 100_000, "capacity": 100 * GIB, "read": [[1, 1e8], [2, 1.5e8]], "write": [[1, 0.9e8], [2, 1e8]]}
FAST = {"size": 100_000, "capacity": 50 * GIB, "read": [[1, 1e9], [2, 1.9e9]], "write": [[1, 1e9], [2, 1e9]]}


@pytest.fixture
def measured() -> Measured:
    disks = disk_of(SLOW, "/hdd", False), disk_of(FAST, "/nvme", True)
    return Measured(source_of(SOURCE), memory_of(MEMORY, 32 * GIB), disks)


def test_a_cluster_of_what_was_measured(measured: Measured) -> None:
    cluster = measured.cluster("node1")

    assert (cluster.name, cluster.nodes, cluster.ranks) == ("node1", 1, 1)
    assert cluster.source.latency == pytest.approx(0.005)
    assert (cluster.source.at_once, cluster.source.share(1)) == (4, 61e6)
    assert [one.name for one in cluster.classes] == ["ram", "/nvme", "/hdd"]
    assert [one.threads for one in cluster.classes] == [2, 2, 2]
    assert cluster.staging.capacity[0] + cluster.classes[0].capacity[0] == 32 * GIB
    assert cluster.classes[2].write_rate == 1e8
    assert cluster.compute == cluster.classes[0].read_rate == 9e9


def test_the_file_gives_the_cluster_back(measured: Measured, tmp_path: Path) -> None:
    cluster = measured.cluster("node1")

    write_cluster(cluster, str(tmp_path / "c.toml"), 'a "note"')

    assert read_cluster(str(tmp_path / "c.toml")) == cluster


def test_what_lies_beside_the_file_is_not_touched(measured: Measured, tmp_path: Path) -> None:
    """Others may have been there first."""
    path, victim = tmp_path / "c.toml", tmp_path / "victim"
    victim.write_text("mine")
    for name in f"c.toml.{os.getpid()}.new", "c.toml":
        os.link(victim, tmp_path / name)

    write_cluster(measured.cluster("node1"), str(path))

    assert victim.read_text() == "mine"
    assert read_cluster(str(path)).name == "node1"
    assert path.stat().st_mode & 0o777 == 0o600


def test_who_is_interrupted_leaves_what_was_there(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(old: str, new: str, **directories: int) -> None:
        raise KeyboardInterrupt

    (tmp_path / "c.toml").write_text("old")
    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_cluster(measured.cluster("node1"), str(tmp_path / "c.toml"))

    assert os.listdir(tmp_path) == ["c.toml"]
    assert (tmp_path / "c.toml").read_text() == "old"


@given(st.lists(st.floats(1e-300, 1e18), min_size=8, max_size=8), st.floats(1e-9, 1e4), st.integers(1, 1 << 60))
def test_any_figures_fit_into_a_file(rates: list[float], took: float, ram: int) -> None:
    source = source_of({**SOURCE, "alone": [], "first": [took], "levels": [[1, rates[0], rates[1]]], "heads": None})
    memory = {**MEMORY, "read": [[1, max(1.0, rates[2])], [2, max(1.0, rates[3])]]}
    disk = {**SLOW, "read": [[1, max(1.0, rates[4])]], "write": [[1, max(1.0, rates[5])], [8, max(1.0, rates[6])]]}
    cluster = Measured(source, memory_of(memory, ram), (disk_of(disk, "/" + "x" * 100, False),)).cluster("node1")

    assert parse_cluster(format_cluster(cluster), "") == cluster


def test_the_name_of_a_disk_tier_is_its_path_where_that_is_a_name() -> None:
    long = ["/scratch/" + "x" * 100 + end for end in ("/a", "/b", " ", "\n", "\udcff")]
    names = [class_name(path) for path in long]

    assert class_name("/scratch") == "/scratch"
    assert names[0].startswith("...xxx")
    assert "x/a " in names[0]
    assert len(set(names)) == len(names)
    assert all(toml_table.name(name) == name for name in names)


def test_text_for_people(measured: Measured) -> None:
    lines = table(measured, "/pfs/x").splitlines()

    assert lines[0] == "source     /pfs/x"
    assert lines[1] == "files      1,000 files found, 300 read, 2 skipped; 48.8 KiB to 195 KiB, median 97.7 KiB"
    assert lines[2].startswith("latency    5 ms a file (± ")
    assert lines[2].endswith(", beside its bytes at 95.4 MiB/s")
    assert ["4", "600", "57.2", "MiB/s"] in [line.split() for line in lines]
    assert ["8,", "first", "byte", "1,500", "1.5", "KiB/s"] in [line.split() for line in lines]
    assert "at_once    4 reach 95% of the most files/s" in lines
    assert "rate       58.2 MiB/s" in lines
    assert "           /nvme is no disk: its files lie in memory" in lines


def test_a_bound_is_called_one(measured: Measured) -> None:
    source = source_of({**SOURCE, "heads": None, "levels": SOURCE["levels"][:1]})
    text = table(Measured(source, measured.ram, ()), "/pfs/x")

    assert "at_once    1 reach 95% of the most files/s; there are too few files for more" in text
    assert "rate       at least 15.3 MiB/s: the bytes were not the limit" in text


def test_json_for_machines(measured: Measured) -> None:
    found = json.loads(json.dumps(measured.as_dict(), allow_nan=False))

    assert found["source"]["at_once"] == 4
    assert found["source"]["overlap"] == pytest.approx(610 / 160)
    assert found["source"]["rate_is_least"] is False
    assert found["source"]["levels"][0] == {"at_once": 1, "files": 160.0, "bytes": 16e6}
    assert found["ram"]["read"] == {"1": 5e9, "2": 9e9, "4": 9.2e9}
    assert [disk["in_memory"] for disk in found["disks"]] == [False, True]
