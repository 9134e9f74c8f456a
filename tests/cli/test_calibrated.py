"""What a calibration changes of a mount, and that a dead source is noticed before it is looked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nopfsfs.calibrate import calibrated
from nopfsfs.cli import mount, nopfs, preflight, simulate
from nopfsfs.cli.mount import MountSteps, main
from nopfsfs.config import FIRST_CONCURRENCY, DiskSpec, MountConfig
from nopfsfs.errors import Exit
from nopfsfs.fuse.mount_table import Mount
from nopfsfs.performance.cluster_file import write_cluster
from nopfsfs.performance.model import Curve
from nopfsfs.system.state_dirs import calibration_path
from tests.dead import dead
from tests.sim.clusters import with_nodes

OTHER = 54321  # nobody's uid
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
NONE = MountSteps(lambda config, progress: "index", lambda config, index: Exit.START)  # mounts nothing
Ask = Callable[..., MountConfig]


@pytest.fixture
def ask(source: Path, mountpoint: Path, tmp_path: Path) -> Ask:
    """Return a function that gives `nopfs-mount` words, and returns what it would start."""

    def started(*words: object) -> MountConfig:
        configs: list[MountConfig] = []

        def launch(config: MountConfig, index: str | int) -> int:
            configs.append(config)
            return Exit.START

        parts = MountSteps(lambda config, progress: "index", launch)
        given = [source, mountpoint, "--index-dir", tmp_path / "index", *words]
        assert main([str(word) for word in given], lambda: parts) == Exit.START
        return configs[0]

    return started


@pytest.fixture
def calibration(source: Path, tmp_path: Path) -> Path:
    """A calibration where it is found: the source works on 20 files at once, the second disk is faster."""
    one = with_nodes(1)
    tier = replace(one.classes[0], read=Curve.flat(1e8))
    disks = [replace(tier, name=str(tmp_path / name), read=Curve.flat(rate)) for name, rate in (("a", 1e8), ("b", 2e8))]
    for disk in disks:
        Path(disk.name).mkdir()
    (tmp_path / "index").mkdir()
    path = calibration_path(str(tmp_path / "index"), str(source))
    write_cluster(replace(one, source=replace(one.source, at_once=20), classes=(tier, *disks)), path)
    return Path(path)


def test_what_was_calibrated_is_taken(ask: Ask, calibration: Path, tmp_path: Path) -> None:
    found = ask("--disk", tmp_path / "a", "--disk", tmp_path / "b")

    assert found.calibration == str(calibration)
    assert (found.source_concurrency, found.first_limit) == (0, 40), "the tuner begins there"
    assert found.disks == (DiskSpec(str(tmp_path / "b")), DiskSpec(str(tmp_path / "a")))


def test_what_is_said_comes_first(ask: Ask, calibration: Path) -> None:
    assert ask("--source-concurrency", 3).first_limit == 3


def test_without_a_calibration(ask: Ask, tmp_path: Path) -> None:
    found = ask()

    assert (found.calibration, found.first_limit) == (None, FIRST_CONCURRENCY)
    with pytest.raises(AssertionError):
        ask("--calibration", tmp_path / "none.toml")


def test_one_that_cannot_be_read(ask: Ask, calibration: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Found, it is passed over; named, it is refused."""
    calibration.write_text("nodes = 0")

    assert ask().calibration is None
    with pytest.raises(AssertionError):
        ask("--calibration", calibration)
    assert f"nopfs-mount: {calibration}:1: nodes: 0 is not allowed" in capsys.readouterr().err


@root_only
def test_someone_elses_is_believed_only_where_it_is_named(
    ask: Ask, calibration: Path, source: Path, tmp_path: Path
) -> None:
    os.chown(calibration, OTHER, OTHER)

    assert (ask().calibration, ask().first_limit) == (None, FIRST_CONCURRENCY)
    assert simulate._calibration(None, str(tmp_path / "index"), str(source)) is None
    assert ask("--calibration", calibration).first_limit == 40


@root_only
def test_that_of_the_reader_is_believed(calibration: Path, source: Path, tmp_path: Path) -> None:
    os.chown(calibration, OTHER, OTHER)
    config = MountConfig(source=str(source), mountpoint="", index_dir=str(tmp_path / "index"), uid=OTHER)

    assert calibrated.apply(config).calibration == str(calibration)


def test_a_link_is_followed_where_it_is_named(ask: Ask, calibration: Path) -> None:
    """In a directory that is shared, anyone can have made it."""
    link = link_to(calibration)
    assert ask("--calibration", link).calibration == str(calibration)

    moved = calibration.rename(calibration.with_name("moved"))
    calibration.symlink_to(moved)
    assert ask().calibration is None


def link_to(path: Path) -> Path:
    link = path.parent.parent / "link"
    link.unlink(missing_ok=True)
    link.symlink_to(path)
    return link


@pytest.mark.mount
def test_a_dead_source_is_not_waited_for(
    source: Path,
    mountpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight, "SOURCE_S", 0.5)
    with dead(source) as path:
        words = [str(path), str(mountpoint), "--index-dir", str(tmp_path)]
        assert main(words, lambda: NONE) == Exit.SOURCE

    assert "did not answer within" in capsys.readouterr().err


@pytest.mark.mount
def test_nor_is_that_of_a_mount_which_is_simulated(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "SOURCE_S", 0.5)
    with dead(source) as path:
        located = SimpleNamespace(call=lambda *words, **more: {"source": str(path)})
        monkeypatch.setattr(simulate, "locate_living", lambda path, env: located)
        assert nopfs.main(["simulate", "--from-mount", "/mnt"]) == Exit.SOURCE

    assert "did not answer within" in capsys.readouterr().err


@pytest.mark.mount
def test_nor_where_a_mount_could_be_taken_over(
    source: Path, mountpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "SOURCE_S", 0.5)
    there = Mount(1, 0, 1, "/", str(mountpoint), (), "fuse.nopfs", str(source), (f"user_id={os.geteuid()}",))
    monkeypatch.setattr(mount, "find_mount", lambda path: there)
    monkeypatch.setattr(mount, "is_orphaned", lambda state_dir, owner: True)
    with dead(source) as path:
        assert main([str(path), str(mountpoint)], lambda: NONE) == Exit.SOURCE

    assert "did not answer within" in capsys.readouterr().err
