"""`nopfs simulate --from-mount`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nopfsfs.performance.cluster_file import write_cluster
from nopfsfs.system.state_dirs import calibration_path
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, fill, module, run
from tests.sim.clusters import TINY, with_nodes

pytestmark = pytest.mark.mount


def simulated(m: Mounted, *words: str) -> tuple[str, str]:
    """What `nopfs simulate` prints, on stdout and stderr."""
    index = ["--index-dir", str(m.path.parent / "index")]
    done = run([*module("nopfs"), "simulate", "--from-mount", str(m.path), *index, *words])
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.long
def test_a_running_mount_is_simulated(tmp_path: Path, mounting: Mounting) -> None:
    source = tmp_path / "few"
    made = fill(source, 300, 20_000)
    total = sum(map(len, made.values()))
    with mounting(source, "--seed", "42", "--ram", "64M") as m:
        text, _ = simulated(m, "--policy", "staging,homes")
        out, err = simulated(m, "--json", "--policy", "staging,homes", "--epochs", "3")
        write_cluster(with_nodes(1), calibration_path(str(tmp_path / "index"), str(source)))
        measured, quiet = simulated(m, "--json", "--policy", "staging", "--epochs", "1")
        write_cluster(with_nodes(2), str(tmp_path / "other.toml"))
        other, _ = simulated(m, "--json", "--policy", "staging", "--calibration", str(tmp_path / "other.toml"))

        bought, _ = simulated(m, "--json", "--sweep-disk", "0,100M", "--nodes", "2", "--epochs", "2")
    note, header, *_ = [line for line in text.splitlines() if line]
    assert note.startswith("note: nobody measured the source (nopfs calibrate), these are defaults: ")
    assert header.startswith("defaults, 1 node x 1 rank; few, 300 samples, ")
    assert "10 epochs, batch 64" in header
    staging, homes = json.loads(out)
    assert "these are defaults" in err
    assert staging["source_reads_per_epoch"] == [300, 300, 300]
    assert homes["source_reads_per_epoch"] == [300, 0, 0]
    [real] = json.loads(measured)
    assert quiet == ""
    assert real["cluster"] == "tiny"
    assert real["bound_seconds"] == pytest.approx(total / TINY.source.most(1))
    assert json.loads(other)[0]["cluster"] == "tiny"
    assert [one["disk_bytes"] for one in json.loads(bought)] == [0, 100 << 20]


def test_what_is_no_mount(tmp_path: Path) -> None:
    def code(*words: Any) -> int:
        return run([*module("nopfs"), "simulate", "--from-mount", str(tmp_path), *words]).returncode

    assert code() == 9
