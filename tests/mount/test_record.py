"""What a mount says of itself, and that a file is read from the source once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slow_source import SlowSource

from nopfsfs.plan.samplers.registry import order
from nopfsfs.plan.samplers.sampler import Spec
from tests.conftest import long
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, fill, read_all

pytestmark = pytest.mark.mount

COUNT = 400
EPOCHS = 2
BATCH = 64  # of these the plan is recognised


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowSource]:
    fill(tmp_path / "backing", COUNT, 30_000)
    with SlowSource(tmp_path / "backing", open_latency=0.002) as source:
        yield source


def bytes_of(m: Mounted) -> int:
    return sum(path.stat().st_size for path in m.source.rglob("*.jpg"))


def check(record: dict[str, Any], opens: int, size: int) -> None:
    """The fields are there, and agree with each other and with what was done."""
    assert set(record) >= {"state", "plan", "opens", "served", "budget", "used", "wait_seconds", "processes"}
    assert set(record["plan"]) >= {"state", "sampler", "seed", "epoch", "position", "length"}
    assert set(record["served"]) == {"page_cache", "ram", "disk", "peer", "source"}
    counted = record["opens"]["total"]
    assert abs(counted - opens) <= (0.05 * COUNT if record["opens"]["estimated"] else 0)
    assert record["opens"]["unobserved"] == 0
    assert sum(place["files"] for place in record["served"].values()) == counted
    read = sum(place["bytes"] for place in record["served"].values())
    assert abs(read - size) <= (0.1 * size if record["opens"]["estimated"] else 0)
    assert all(record["used"][tier] <= record["budget"][tier] for tier in record["used"]), record
    assert record["budget"]["page_cache"] + record["budget"]["ram"] <= record["budget"]["total"]
    assert record["read_errors"] == 0
    assert record["wait_seconds"] >= 0


@pytest.mark.parametrize("flags", [long(()), ("--seed", "42")], ids=["plain", "seed"])
def test_each_file_is_opened_once_at_the_source(mounting: Mounting, slow: SlowSource, flags: tuple[str, ...]) -> None:
    with mounting(slow.path, *flags) as m:
        read_all_of_mount(m, rounds=EPOCHS)
        size = bytes_of(m)
        # What the supervisor has not looked at yet is estimated by so few tripwires that it may be further off.
        record = m.wait_status(lambda s: abs(s["opens"]["total"] - EPOCHS * COUNT) <= 0.05 * COUNT)
        counters = slow.counters()

    check(record, EPOCHS * COUNT, EPOCHS * size)
    assert [p["role"] for p in record["processes"]] == ["supervisor", "server", "stager"]
    assert record["state"] == "running"
    assert {name: c.opens for name, c in counters.files.items() if c.opens != 1} == {}
    assert len(counters.files) == COUNT
    assert record["stager"]["source_opens"] == COUNT
    assert record["stager"]["source_read_bytes"] == size
    assert record["served"]["source"]["files"] <= COUNT
    assert m.report["state"] == "ended"
    assert m.report["final"] is True
    assert m.report["processes"] == []
    check(m.report, EPOCHS * COUNT, EPOCHS * size)


def read_all_of_mount(m: Mounted, rounds: int) -> None:
    for _ in range(rounds):
        for path in sorted(m.path.rglob("*.jpg")):
            path.read_bytes()


@pytest.mark.long
def test_four_readers_share_one_open_of_the_source(mounting: Mounting, slow: SlowSource, tmp_path: Path) -> None:
    with mounting(slow.path, "--seed", "7") as m:
        local = Mounted(tmp_path / "backing", m.path, m.log, m.test_id)
        read_all(local, rounds=2)
        counters = slow.counters()

    assert {name: c.opens for name, c in counters.files.items() if c.opens != 1} == {}
    assert m.report["opens"]["total"] == 4 * 2 * COUNT


def test_a_training_job_in_the_order_of_its_sampler(mounting: Mounting, slow: SlowSource) -> None:
    with mounting(slow.path, "--seed", "42") as m:
        files = sorted(m.path.rglob("*.jpg"))  # ImageFolder's order: class by class, names sorted
        m.wait_status(lambda s: s["plan"]["length"] == COUNT)
        epochs = [order(Spec("distributed", 42), COUNT, epoch).tolist() for epoch in range(EPOCHS)]
        total = sum(len(files[sample].read_bytes()) for sample in epochs[0][:BATCH])
        before = m.wait_status(lambda s: s["plan"]["state"] == "locked")["opens"]
        total += sum(len(files[sample].read_bytes()) for sample in epochs[0][BATCH:] + epochs[1])
        record = m.wait_status(lambda s: (s["plan"]["epoch"], s["plan"]["position"]) >= (EPOCHS - 1, COUNT))
        counters = slow.counters()

    assert record["plan"]["sampler"] == "distributed"
    assert record["plan"]["seed"] == 42
    predicted, total_opens = (record["opens"][key] - before[key] for key in ("predicted", "total"))
    assert predicted >= 0.99 * total_opens
    assert {name: c.opens for name, c in counters.files.items() if c.opens != 1} == {}
    check(record, EPOCHS * COUNT, total)
    check(m.report, EPOCHS * COUNT, total)


@pytest.mark.long
def test_a_plan_that_does_not_match_costs_no_correctness(mounting: Mounting, slow: SlowSource, tmp_path: Path) -> None:
    with mounting(slow.path, "--seed", "42", "--ram", "4M") as m:
        local = Mounted(tmp_path / "backing", m.path, m.log, m.test_id)
        read_all(local, readers=2)  # each in an order of its own
        record = m.wait_status(lambda s: s["plan"]["state"] in ("mismatch", "watching"))

    assert record["read_errors"] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "flags",
    [pytest.param("--ram 4M", id="plain", marks=pytest.mark.slow), pytest.param("--ram 4M --seed 42", id="seed")],
)
def test_budgets_hold_when_all_is_quiet(mounting: Mounting, slow: SlowSource, flags: str) -> None:
    with mounting(slow.path, *flags.split()) as m:
        read_all_of_mount(m, rounds=1)
        record = m.wait_status(lambda s: all(s["used"][tier] <= s["budget"][tier] for tier in s["used"]))

    assert record["used"]["ram"] <= record["budget"]["ram"]
