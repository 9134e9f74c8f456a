"""Real mounts of which the kernel opens files by itself: followed by tripwires, and right to the byte."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nopfsfs.plan import registry
from nopfsfs.plan.spec import Spec
from tests.conftest import wait_until
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, content, fill, read_all

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

FILES, SIZE, SEED = 1200, 3000, 42
SHUFFLED = Spec("distributed", SEED)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "source", FILES, SIZE)
    return tmp_path / "source"


def paths(m: Mounted) -> list[Path]:
    """As ImageFolder lists them, without a stat: of a tripwire that would count as an open."""
    return sorted(Path(directory, name) for directory, _, names in os.walk(m.path) for name in names)


def read_epoch(m: Mounted, files: list[Path], epoch: int) -> None:
    """As a job with that seed reads; all bytes right."""
    for sample in registry.order(SHUFFLED, len(files), epoch).tolist():
        path = files[sample]
        assert path.read_bytes() == (m.source / path.relative_to(m.path)).read_bytes()


def opens(m: Mounted) -> dict[str, int]:
    found: dict[str, int] = m.status()["opens"]
    return found


def test_progress_is_seen_by_tripwires(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--seed", str(SEED), "--signal", "tripwire") as m:
        files = paths(m)
        for epoch in range(3):
            read_epoch(m, files, epoch)
        record = m.wait_status(lambda s: s["opens"]["predicted"] >= 0.9 * s["opens"]["total"])
        assert record["plan"]["state"] == "locked"
        assert record["opens"]["estimated"]
        assert record["served"]["page_cache"]["estimated"]
        assert record["opens"]["unobserved"] == 0
        assert abs(record["opens"]["total"] - 3 * FILES) <= 0.15 * 3 * FILES
        asked = sum(tier["files"] for name, tier in record["served"].items() if name != "page_cache")
        assert asked + record["served"]["page_cache"]["files"] == record["opens"]["total"]
        assert record["stager"]["source_opens"] == FILES


def test_auto_goes_over_when_the_plan_is_certain(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--seed", str(SEED), "--signal", "auto") as m:
        files = paths(m)
        read_epoch(m, files, 0)
        assert m.wait_status(lambda s: s["opens"]["total"] >= FILES)["opens"]["total"] == FILES
        epoch = 1
        while not opens(m)["estimated"]:  # the loader is this process: K cannot be learned
            assert epoch < 20
            read_epoch(m, files, epoch)
            epoch += 1
        before = opens(m)["total"]
        read_epoch(m, files, epoch)
        read_epoch(m, files, epoch + 1)
        record = m.wait_status(lambda s: s["opens"]["predicted"] >= 0.9 * s["opens"]["total"])
        assert record["plan"]["state"] == "locked"
        assert record["plan"]["epoch"] in (epoch + 1, epoch + 2)
        assert abs(record["opens"]["total"] - before - 2 * FILES) <= 0.15 * 2 * FILES


@pytest.mark.parametrize("signal", ["tripwire", "auto"])
def test_little_memory(mounting: Mounting, data: Path, signal: str) -> None:
    """Nothing tells that a file is closed: what was read makes room all the same."""
    with mounting(data, "--seed", str(SEED), "--signal", signal, "--ram", "3M") as m:
        files = paths(m)
        for epoch in range(3):
            read_epoch(m, files, epoch)
            record = m.wait_status(lambda s: sum(s["used"].values()) <= 3 << 20)  # pages are dropped a moment later
            assert record["used"]["ram"] <= record["budget"]["ram"]
        read_all(m, readers=2)


def test_a_file_that_changes_is_seen_anew(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--signal", "tripwire", "--ram", "1M") as m:
        files = paths(m)
        for path in files:
            path.read_bytes()
        # one that is held nowhere, nor fetched next by who reads in order: what is held is not read again
        target = next(path for path in files[FILES // 2 :] if os.getxattr(path, "user.nopfs.tiers") == b"source")
        (m.source / target.relative_to(m.path)).write_bytes(new := content(FILES + 1, 5000))
        found: list[bytes] = []

        def seen() -> bool:
            try:
                found.append(target.read_bytes())
            except OSError as error:
                return error.errno != errno.ESTALE
            return True

        assert wait_until(seen, 30)
        assert found == [new], "neither the old bytes nor a mixture"
