"""A mount that knows from the one before what the job on this source reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nopfsfs.plan.samplers.registry import order
from nopfsfs.plan.samplers.sampler import Spec
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, fill

COUNT, SEED = 600, 4711
OPEN_S = 0.002  # between two opens: the plan is to be found meanwhile
FIRST_OPENS = 16  # 6 on an idle machine; each 2 ms in which the supervisor does not get a processor cost one


@pytest.fixture
def source(tmp_path: Path) -> Path:
    fill(tmp_path / "source", COUNT, 2000)
    return tmp_path / "source"


def paths(epoch: int, m: Mounted) -> list[Path]:
    """The files in the order of a DistributedSampler's epoch, as torchvision's ImageFolder lists them."""
    files = sorted(m.path.rglob("*.jpg"))
    return [files[sample] for sample in order(Spec("distributed", SEED), COUNT, epoch)]


def read(files: Sequence[Path]) -> None:
    for path in files:
        path.read_bytes()
        time.sleep(OPEN_S)


def assert_foreseen(m: Mounted, opens: int, but: int) -> None:
    """Of the mount's opens, which are so many, all but a few were foreseen. A mount that counts by tripwires estimates:
    docs/commands.md, estimates, promises 5 %."""

    def holds(status: dict[str, Any]) -> bool:
        found = status["opens"]
        away = opens * 0.05 if found["estimated"] else 0
        return abs(found["total"] - opens) <= away and found["total"] - found["predicted"] <= but

    m.wait_status(holds)


@pytest.mark.long
def test_a_job_that_was_ended_is_foreseen_from_its_first_opens_when_it_goes_on(
    mounting: Mounting, source: Path
) -> None:
    with mounting(source, "--seed", str(SEED)) as m:
        read([*paths(0, m), *paths(1, m)[: COUNT // 2]])
        m.wait_status(lambda s: (s["plan"]["state"], s["plan"]["epoch"]) == ("locked", 1))
    (kept,) = m.path.parent.glob("index/plans-*.json")
    assert kept.stat().st_mode & 0o777 == 0o600

    # nobody says the seed: staged before any open is what the job would read if it began anew
    with mounting(source) as m:
        m.wait_status(lambda s: s["plan"]["seed"] == SEED and s["stager"]["staged_files"] > 0)
        read(paths(1, m)[COUNT // 3 :])
        assert_foreseen(m, COUNT - COUNT // 3, FIRST_OPENS)

    # it begins at the next epoch, and then anew
    with mounting(source) as m:
        read(paths(2, m)[: COUNT // 2])
        assert_foreseen(m, COUNT // 2, FIRST_OPENS)
    with mounting(source) as m:
        m.wait_status(lambda s: s["plan"]["seed"] == SEED and s["stager"]["staged_files"] > 0)
        read(paths(0, m)[:100])
        assert_foreseen(m, 100, 0)

    with mounting(source, "--no-remember") as m:
        assert m.wait_status(lambda s: s["plan"]["state"] == "watching")["plan"]["seed"] is None
