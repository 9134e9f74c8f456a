"""Disk directories that the mount shares: with people, with another mount, with a user who owns them."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.conftest import place_for_all
from tests.mount.conftest import Mounting
from tests.mount.harness import fill, mounted, read_all
from tests.waiting import wait_until

pytestmark = pytest.mark.mount

NOBODY = 65534
GONE = ("--disk-keep", "no")  # copies end with their mount
SMALL = ("--ram", "4M", "--page-cache", "1M", "--passthrough", "off")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 9 MB in 90 files."""
    root = place_for_all(tmp_path_factory, "data") / "source"
    fill(root, 90, 100_000)
    return root


def copies(disk: Path) -> list[Path]:
    return list(disk.glob(".nopfs-tier-*/copies/*/*"))


def test_what_people_keep_in_the_directory_of_a_tier_stays(mounting: Mounting, data: Path, disk: Path) -> None:
    """Directories that are called like a mount's, empty or not, with a lock or without."""
    for name in ("nopfs-data/ab/x", "nopfs-mine/lock", "nopfs-ab_cd3fg/lock", ".nopfs-tier-x/marker"):
        (disk / name).parent.mkdir(parents=True)
        (disk / name).write_text(name)
    (disk / "nopfs-out").mkdir()
    before = sorted(disk.rglob("*"))
    with mounting(data, "--disk", f"{disk}:100M", *GONE) as m:
        read_all(m, readers=1)
        assert wait_until(lambda: "nopfs-ab_cd3fg was left by an earlier release" in m.log.read_text())
    assert sorted(disk.rglob("*")) == before
    assert (disk / "nopfs-data/ab/x").read_text() == "nopfs-data/ab/x"


@pytest.mark.slow
def test_two_mounts_of_one_source_share_a_disk_directory(data: Path, tmp_path: Path, disk: Path) -> None:
    works = [tmp_path / "a", tmp_path / "b"]
    for work in works:
        work.mkdir()
    with mounted(data, *SMALL, "--disk", f"{disk}:100M", *GONE, work=works[0]) as first:
        read_all(first, readers=1)
        first.wait_status(lambda s: s["stager"]["disk_writes"] > 10)
        kept = set(copies(disk))
        with mounted(data, *SMALL, "--disk", f"{disk}:100M", *GONE, work=works[1]) as second:
            read_all(second, readers=1)
            second.wait_status(lambda s: s["stager"]["disk_writes"] > 10)
            assert kept <= set(copies(disk))
            assert len(list(disk.iterdir())) == 2
        assert kept <= set(copies(disk)), "the first one's stay when the second ends"
        assert len(list(disk.iterdir())) == 1
        read_all(first, readers=2)
        stager = first.status()["stager"]
        assert (stager["corrupt_copies"], stager["disk_errors"]) == (0, 0)
    assert os.listdir(disk) == []


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be several users")
@pytest.mark.parametrize("owner", [0, NOBODY])
def test_with_user_the_copies_are_that_user_s_and_root_clears_up(
    mounting: Mounting, open_to_all: Path, disk: Path, owner: int
) -> None:
    """A stager that gave up its rights cannot remove its directory; nor can one that was killed."""
    source = open_to_all / "source"
    fill(source, 90, 100_000)
    for path in (source, *source.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    os.chown(disk, owner, owner)
    with mounting(source, *SMALL, "--disk", f"{disk}:100M", *GONE, "--user", str(NOBODY)) as m:
        m.errors_expected = True
        read_all(m, readers=1)
        m.wait_status(lambda s: s["stager"]["disk_writes"] > 10)
        (home,) = disk.iterdir()
        rights = [(p.stat().st_uid, p.stat().st_mode & 0o777) for p in (home, home / "copies", copies(disk)[0])]
        assert rights == [(0, 0o700), (NOBODY, 0o700), (NOBODY, 0o600)]
        m.kill("stager", signal.SIGKILL)
        assert wait_until(lambda: not home.exists() and len(list(disk.iterdir())) == 1, 30), "another took its place"
        read_all(m, readers=1)
    assert os.listdir(disk) == []


@pytest.mark.long
def test_a_tier_whose_directory_is_removed_costs_nobody_a_read(mounting: Mounting, data: Path, disk: Path) -> None:
    with mounting(data, *SMALL, "--disk", f"{disk}:100M", *GONE) as m:
        m.errors_expected = True
        read_all(m, readers=1)
        m.wait_status(lambda s: s["stager"]["disk_writes"] > 10)
        (home,) = disk.iterdir()
        # what the mount still writes there while it is removed is removed next
        assert wait_until(lambda: shutil.rmtree(home, ignore_errors=True) or not home.exists())
        read_all(m, readers=2)
        record = m.wait_status(lambda s: s["used"]["disk"] == 0)
        assert record["read_errors"] == 0
        assert "lost its directory" in m.log.read_text()
