"""Files larger than an eighth of the memory: on a mount with a disk, each is read once from the source, by a job of
three epochs, and right at each moment. Without a disk, blocks stay in memory as far as there is room."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import long, place_for_all
from tests.mount.harness import Mounted, Reader, content, mounted, read_all, write
from tests.tiers.kept import copies
from tests.waiting import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.timeout(200)]

COUNT, SIZE = 4, 25_000_000
FEW = 8  # requests that servers read at the source by themselves
FLAGS = ("--ram", "32M", "--disk-keep", "no")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = place_for_all(tmp_path_factory, "data") / "source"
    write(root, {f"class{n % 2}/{n:05}.bin": content(n + 1, SIZE + 1000 * n) for n in range(COUNT)})
    return root


def total(data: Path) -> int:
    return sum(path.stat().st_size for path in data.rglob("*.bin"))


def sampled(data: Path, work: Path, epochs: int) -> Path:
    """A file that tells a reader the order in which to read."""
    names = sorted(str(path.relative_to(data)) for path in data.rglob("*.bin"))
    orders = [np.random.default_rng(epoch).permutation(COUNT).tolist() for epoch in range(epochs)]
    listed = work / "order.json"
    listed.write_text(json.dumps({"names": names, "epochs": orders}))
    return listed


def read_of_source(m: Mounted) -> tuple[int, int]:
    """Bytes that the stager, and those that servers by themselves, have read."""
    status = m.status()
    return int(status["stager"]["source_read_bytes"]), int(status["served"]["source"]["bytes"])


@pytest.mark.parametrize("flags", [long(("--passthrough", "off")), ()], ids=["served", "passed"])
def test_a_job_of_three_epochs_reads_each_file_once(
    data: Path, disk: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    with mounted(data, *FLAGS, *flags, "--disk", f"{disk}:400M", work=tmp_path, disks=[disk]) as m:
        with Reader("follow", m.path, data, str(sampled(data, tmp_path, 3)), "0") as reader:
            assert reader.result(100.0) == {"wrong": []}
        assert read_of_source(m)[0] == total(data)
        status = m.status()
        assert status["direct_reads"] <= FEW, status
        assert status["used"]["disk"] >= total(data)


@pytest.mark.long
@pytest.mark.parametrize(
    ("ram", "room", "flags"), [("160M", 1.0, ()), ("96M", 0.5, ("--signal", "open", "--page-cache", "8M"))]
)
def test_without_a_disk_blocks_stay_in_memory(
    data: Path, tmp_path: Path, ram: str, room: float, flags: tuple[str, ...]
) -> None:
    """Of each epoch after the first, only what has no room is read from the source."""
    with mounted(data, "--ram", ram, *flags, work=tmp_path) as m:
        with Reader("follow", m.path, data, str(sampled(data, tmp_path, 3)), "0") as reader:
            assert reader.result(100.0) == {"wrong": []}
        status = m.status()
    assert status["direct_reads"] <= FEW, status
    assert total(data) <= status["served"]["source"]["bytes"] <= total(data) * (1 + 2 * (1 - room))
    assert status["used"]["ram"] >= room * total(data)


@pytest.mark.long
def test_readers_of_the_same_files_at_once_read_each_block_once(data: Path, disk: Path, tmp_path: Path) -> None:
    with mounted(data, *FLAGS, "--disk", f"{disk}:400M", work=tmp_path, disks=[disk]) as m:
        read_all(m, readers=4, rounds=2)
        assert read_of_source(m)[0] == total(data)
        # of 800 requests or more; on a busy machine a reader may have waited for as long as one waits for the disk
        assert m.status()["direct_reads"] <= 5 * FEW


@pytest.mark.long
def test_a_stager_that_dies_in_the_midst_costs_no_byte(data: Path, disk: Path, tmp_path: Path) -> None:
    flags = (*FLAGS, "--source-bandwidth", "40MB/s", "--disk", f"{disk}:400M")
    with mounted(data, *flags, work=tmp_path, disks=[disk]) as m:
        m.errors_expected = True
        # the job goes on until it is told to end: servers alone read four epochs in the time that a new stager may need
        with Reader("timed", m.path, data, str(sampled(data, tmp_path, 1000)), "0") as reader:
            for amount in (SIZE // 2, SIZE):
                before = read_of_source(m)[0]
                assert wait_until(lambda before=before, amount=amount: read_of_source(m)[0] - before > amount, 20)
                m.kill("stager", signal.SIGKILL)
            reader.go()
            assert reader.result(100.0)["wrong"] == []
        read_all(m, readers=2)


@pytest.mark.long
def test_a_second_mount_reads_nothing_that_is_kept(data: Path, disk: Path, tmp_path: Path) -> None:
    flags = ("--ram", "32M", "--disk-keep", "yes", "--disk", f"{disk}:400M")
    with mounted(data, *flags, work=tmp_path, hangs_s=120.0) as m:  # it waits for most of the usual minute
        read_all(m, readers=1)
        assert m.wait_status(lambda status: status["used"]["disk"] >= total(data))

        def all_named() -> bool:
            there = copies(disk)
            return len(there) == COUNT and not any(path.suffix for path in there)

        assert wait_until(all_named, 60), "young files get their names when they are old"
    with mounted(data, *flags, work=tmp_path) as m:
        read_all(m, readers=1, rounds=2)
        assert read_of_source(m) == (0, 0)
