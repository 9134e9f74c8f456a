"""Never a wrong byte: the whole tree read by four processes at once, with less memory and disk than there is data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import place_for_all, slow, tmpfs
from tests.mount.conftest import Mounting
from tests.mount.harness import fill, read_all
from tests.mount.modes import Mode, mostly
from tests.tiers.makers import kill, start_maker

pytestmark = pytest.mark.mount

MIB = 1 << 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 MB in 300 files, and one that is read by ranges whatever the budget."""
    root = place_for_all(tmp_path_factory, "data") / "source"
    fill(root, 300, 100_000)
    fill(root / "large", 1, 6_000_000, classes=1)
    return root


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 24 MiB."""
    with tmpfs(tmp_path / "tiny", "24m") as path:
        yield path


@pytest.mark.parametrize(
    "flags", ["", slow("--ram 8M"), slow("--ram 8M --seed 42"), slow("--seed 42"), slow("--ram 1M")]
)
def test_four_readers(mounting: Mounting, data: Path, flags: str) -> None:
    with mounting(data, *flags.split()) as m:
        read_all(m, rounds=2)
        status = m.status()
        budget, used = status["budget"], status["used"]

    assert used["ram"] <= budget["ram"]
    assert m.report["opens"]["total"] == 4 * 2 * 301
    assert m.report["read_errors"] == 0


@pytest.mark.long
@mostly("no fast path", "passthrough")
def test_three_readers_in_each_mode(mounting: Mounting, data: Path, mode: Mode) -> None:
    """Of files that are staged, read by ranges, pushed and dropped."""
    with mounting(data, "--ram", "8M", "--seed", "42", mode=mode) as m:
        read_all(m, readers=3)
        record = m.status()

    assert record["used"]["ram"] <= record["budget"]["ram"]
    assert m.report["read_errors"] == 0
    assert m.report["opens"]["unobserved"] == 0


@pytest.mark.long
@pytest.mark.parametrize("seed", [slow(()), ("--seed", "42")])
def test_four_readers_with_a_disk_tier(mounting: Mounting, data: Path, tmp_path: Path, seed: tuple[str, ...]) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with mounting(data, "--ram", "8M", "--disk", f"{disk}:20M", *seed, disks=[disk]) as m:
        read_all(m, rounds=3)
        record = m.status()

    assert record["stager"]["corrupt_copies"] == 0
    assert record["used"]["disk"] <= 20 * MIB
    assert record["served"]["disk"]["files"] > 0


@pytest.mark.long
def test_four_readers_while_the_disk_is_full(mounting: Mounting, data: Path, tiny: Path) -> None:
    with mounting(data, "--ram", "8M", "--disk", f"{tiny}:23M", disks=[tiny]) as m:
        (tiny / "someone else's").write_bytes(bytes(16 * MIB))
        read_all(m, rounds=2)
        record = m.wait_status(lambda s: s["stager"]["disk_errors"] > 0)  # a thread writes, for which nobody waits

    assert record["read_errors"] == 0


@pytest.mark.long
def test_copies_on_disk_that_rot_are_not_served(mounting: Mounting, data: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    flags = ("--ram", "8M", "--disk", f"{disk}:30M", "--disk-keep", "no", "--passthrough", "off")  # the kernel is blind
    with mounting(data, *flags, disks=[disk]) as m:
        m.errors_expected = True
        read_all(m, readers=1)
        m.wait_status(lambda s: s["stager"]["disk_writes"] > 20)
        for copy in disk.glob(".nopfs-tier-*/copies/*/*"):
            with copy.open("r+b") as file:
                file.write(b"rotten")
        for copy in disk.glob(".nopfs-tier-*/copies/0*/*"):
            copy.unlink()
        read_all(m)
        record = m.status()

    assert record["stager"]["corrupt_copies"] > 0
    assert record["read_errors"] == 0


def test_leftovers_of_a_killed_run_on_disk_are_cleared(mounting: Mounting, data: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    dead, _ = start_maker(disk)
    kill(dead)

    with mounting(data, "--disk", f"{disk}:30M", "--disk-keep", "no", disks=[disk]):
        pass

    assert list(disk.iterdir()) == []
