"""Real mounts of which the kernel opens files by itself: followed by tripwires, and right to the byte."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from tests.conftest import long, slow
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, content, fill, read_all, write
from tests.waiting import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

FILES, SIZE, SEED = 1200, 3000, 42
EPOCHS = 6  # some three seconds: a plan of which nothing is said is to be found within two
VALIDATED, SEEN_BY = 600, 256
ESTIMATED = 0.05  # of an epoch
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


def test_a_mount_goes_over_when_the_plan_is_certain(mounting: Mounting, data: Path) -> None:
    with mounting(data, "--seed", str(SEED)) as m:
        modes = m.status()["modes"]
        assert (modes["signal"], modes["signal_because"]) == ("open", "the plan is not certain yet")
        files = paths(m)
        for epoch in range(4):
            read_epoch(m, files, epoch)
        record = m.wait_status(lambda s: s["opens"]["predicted"] >= 0.98 * s["opens"]["total"])
        assert (record["modes"]["signal"], record["modes"]["signal_because"]) == ("tripwire", "")
        assert record["plan"]["state"] == "locked"
        assert record["plan"]["epoch"] in (3, 4)
        assert abs(record["opens"]["total"] - 4 * FILES) <= ESTIMATED * 4 * FILES


def missed_by_job(m: Mounted, files: Sequence[Path], epochs: Sequence[Sequence[int]]) -> int:
    """Opens that were not foreseen of a job that never waits, in a process of its own, which compares all bytes."""
    before = opens(m)
    orders = m.log.with_suffix(".orders")
    names = [str(path.relative_to(m.path)) for path in files]
    orders.write_text(json.dumps({"names": names, "epochs": [list(order) for order in epochs]}))
    with Reader("follow", m.path, m.source, orders, "0.0003") as reader:
        assert reader.result() == {"wrong": []}
    last: list[int] = []

    def looked_at() -> bool:
        """Whether the mount has seen to all events: it sleeps for less than a tenth of a second."""
        last.append(opens(m)["predicted"])
        return len(last) > 10 and len(set(last[-10:])) == 1

    assert wait_until(looked_at)
    after, read = opens(m), sum(len(order) for order in epochs)
    assert abs(after["total"] - before["total"] - read) <= ESTIMATED * read
    return after["total"] - before["total"] - after["predicted"] + before["predicted"]


def orders(seed: int, epochs: range) -> list[list[int]]:
    return [registry.order(Spec("distributed", seed), FILES, epoch).tolist() for epoch in epochs]


def read_until_refused(m: Mounted, files: Sequence[Path], chosen: Sequence[int] = range(FILES)) -> int:
    """Read epochs of the chosen files, two at least, until the mount refuses OPEN; how many. A plan of which nothing is
    said is found within the first epoch where the machine is idle, and later on a busy one."""
    read = 0

    def refuses() -> bool:
        nonlocal read
        two = orders(SEED, range(read, read + 2))
        missed_by_job(m, files, [[chosen[at] for at in order] for order in two])
        read += 2
        return bool(m.status()["modes"]["signal"] == "tripwire")

    assert wait_until(refuses, 40)
    return read


def in_last_epoch(plan: dict[str, Any]) -> bool:
    """Whether the plan is where the job with seed 5000 has ended, or one further: the next epoch is the next seed's."""
    return plan["seed"] is not None and plan["seed"] + plan["epoch"] in (5000 + EPOCHS - 1, 5000 + EPOCHS)


@pytest.mark.long
def test_a_second_job_in_another_order_on_a_mount_that_refuses_open(mounting: Mounting, data: Path) -> None:
    with mounting(data) as m:
        files = paths(m)
        read_until_refused(m, files)
        missed_by_job(m, files, orders(5000, range(EPOCHS)))
        # At once where the machine is idle; the order is searched for at low priority, so later on a busy one.
        plan = m.wait_status(lambda s: in_last_epoch(s["plan"]))["plan"]
        assert plan["state"] == "locked"
        assert missed_by_job(m, files, orders(5000, range(EPOCHS, EPOCHS + 2))) <= 0.02 * 2 * FILES
        # who reads in no order at all is seen whole, too, and the kernel is not told wrong attributes
        read_all(m, readers=2, rounds=2)
        m.wait_status(lambda s: s["modes"]["signal"] == "attributes")
        for path in files[::50]:
            here, there = path.stat(), (m.source / path.relative_to(m.path)).stat()
            for one in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns"):
                assert getattr(here, one) == getattr(there, one)


@pytest.mark.long
def test_a_validation_that_begins_late_is_seen_from_its_beginning(mounting: Mounting, tmp_path: Path) -> None:
    data = tmp_path / "source"
    fill(data / "train", FILES, SIZE)
    write(data, {f"val/{n:04}.jpg": content(n + FILES + 1, 2000) for n in range(VALIDATED)})
    with mounting(data) as m:
        files = paths(m)
        training = [at for at, path in enumerate(files) if path.parent.name != "val"]
        validation = [at for at, path in enumerate(files) if path.parent.name == "val"]
        read = read_until_refused(m, files, training)
        one, other = ([training[k] for k in order] for order in orders(SEED, range(read, read + 2)))
        missed = missed_by_job(m, files, [one, validation, other, validation])
        assert missed <= SEEN_BY + 0.02 * 2 * (FILES + VALIDATED)


@pytest.mark.parametrize("signal", [slow("tripwire"), long("auto")])
def test_little_memory(mounting: Mounting, data: Path, signal: str) -> None:
    """Nothing tells that a file is closed: what was read makes room all the same."""
    with mounting(data, "--seed", str(SEED), "--signal", signal, "--ram", "3M") as m:
        files = paths(m)
        for epoch in range(3):
            read_epoch(m, files, epoch)
            record = m.wait_status(lambda s: sum(s["used"].values()) <= 3 << 20)  # pages are dropped a moment later
            assert record["used"]["ram"] <= record["budget"]["ram"]
        read_all(m, readers=2)


@pytest.mark.long
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
