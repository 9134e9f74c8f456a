"""What a mount reads of its source over several epochs, with room for a part of the files: as little as can be."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from nopfsfs.control.client import call
from nopfsfs.placement.belady import NEVER
from nopfsfs.plan.samplers.registry import order
from nopfsfs.plan.samplers.registry import sampler as family
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.policy import budget
from tests.conftest import slow
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, fill
from tests.mount.rooms import charges, memory_for
from tests.policy.belady import Belady
from tests.waiting import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.timeout(200)]

SEED, FILES, SIZE = 42, 800, 24_000
PAGE_CACHE = 1 << 20
PAUSE_S = "0.001"  # of a reader, for each file
WORLD, RANK, EPOCHS = 4, 1, 8
LOOKS = 6


def orders_of(source: Path, epochs: list[np.ndarray]) -> Path:
    names = sorted(str(path.relative_to(source)) for path in source.rglob("*.jpg"))
    path = source.parent / "orders.json"
    path.write_text(json.dumps({"names": names, "epochs": [one.tolist() for one in epochs]}))
    return path


def opens(m: Mounted) -> int:
    """Of the source, when nothing more is fetched ahead: no fetch is ordered, and none came in several looks of the
    mount at its reader."""
    found: list[int] = []

    def rests() -> bool:
        time.sleep(0.05)
        figures = call(m.state_dir, "metrics")
        found.append(figures["source"]["opens"])
        return not figures["fetches_in_flight"] and len(found) >= LOOKS and len(set(found[-LOOKS:])) == 1

    assert wait_until(rests, 20)
    return found[-1]


def read_epochs(m: Mounted, listed: Path, epochs: int) -> list[int]:
    """Opens of the source by the end of each epoch."""
    counted = []
    with Reader("follow", m.path, m.source, listed, PAUSE_S, *map(str, range(1, epochs + 1))) as reader:
        for number in range(1, epochs + 1):
            assert reader.line() == number
            counted.append(opens(m))
            reader.go()
        assert reader.result()["wrong"] == []
    return counted


@pytest.mark.long
@pytest.mark.parametrize("share", [slow(0.3), 0.5, slow(1.0)])
def test_what_has_a_home_leaves_the_source_once(mounting: Mounting, tmp_path: Path, share: float) -> None:
    fill(tmp_path / "source", FILES, SIZE)
    charged = charges(tmp_path / "source")
    data = int(charged.sum())
    listed = [order(Spec("distributed", SEED), FILES, epoch) for epoch in range(4)]
    ram = memory_for(int(data * share), data, PAGE_CACHE)
    missing = round((1 - share) * FILES)
    off = 0 if missing == 0 else 0.01 * FILES  # files are not of one size
    with mounting(tmp_path / "source", "--seed", str(SEED), "--ram", str(ram), "--page-cache", str(PAGE_CACHE)) as m:
        counted = read_epochs(m, orders_of(m.source, listed), 4)

    expected = FILES + missing * np.arange(4)
    # For the next epoch some are fetched ahead, as soon as it is known what that reads: at most what half the memory
    # without a home holds.
    ahead = min(missing, (ram - int(data * share)) // 2 // int(charged.min()))
    assert np.all(np.abs(np.diff(counted) - missing) <= off), counted
    assert np.all(counted >= expected - off), counted
    assert np.all(counted <= expected + ahead + off), counted


@pytest.mark.slow
def test_one_rank_of_several_keeps_what_it_reads_again_soonest(mounting: Mounting, tmp_path: Path) -> None:
    """Without peers: against the fewest opens there could be, and against keeping what came first."""
    fill(tmp_path / "source", FILES, SIZE)
    charged = charges(tmp_path / "source")
    data = int(charged.sum())
    spec = Spec("distributed", SEED)
    listed = [family("distributed").order(spec, FILES, epoch, WORLD, [RANK]) for epoch in range(3 * EPOCHS)]
    ram = memory_for(int(0.25 * data), data, PAGE_CACHE)
    homes = budget.split(ram, data, PAGE_CACHE).homes
    words = ["--seed", SEED, "--sampler", "distributed", "--world-size", WORLD, "--ranks", RANK, "--ram", ram]
    with mounting(tmp_path / "source", *map(str, words), "--page-cache", str(PAGE_CACHE)) as m:
        counted = read_epochs(m, orders_of(m.source, listed[:EPOCHS]), EPOCHS)

    least, first_come = fewest(listed, charged, homes), static(listed, charged, homes)
    assert least <= counted[-1] + 5
    assert counted[-1] < (2 * least + first_come) / 3, (counted, least, first_come)


def fewest(listed: list[np.ndarray], charged: np.ndarray, room: int) -> int:
    """Opens in the first epochs with Belady and bypass."""
    stream = np.concatenate(listed).tolist()
    later: dict[int, int] = {}
    uses = []
    for at in reversed(range(len(stream))):
        uses.append(later.get(stream[at], NEVER))
        later[stream[at]] = at
    uses.reverse()
    cache, missed = Belady(room), 0
    for at in range(EPOCHS * len(listed[0])):
        missed += stream[at] not in cache
        cache.read(stream[at], int(charged[stream[at]]), uses[at])
    return missed


def static(listed: list[np.ndarray], charged: np.ndarray, room: int) -> int:
    """The same where what came first stays."""
    kept: set[int] = set()
    missed = used = 0
    for row in np.concatenate(listed[:EPOCHS]).tolist():
        missed += row not in kept
        if row not in kept and used + charged[row] <= room:
            kept.add(row)
            used += int(charged[row])
    return missed


def test_a_calibration_is_taken_and_refined(mounting: Mounting, tmp_path: Path) -> None:
    fill(tmp_path / "source", 50, SIZE)
    # Half a second a file is far from what a local directory takes, on however busy a machine.
    (tmp_path / "c.toml").write_text(
        'name = "x"\nnodes = 1\ncompute = "1 GB/s"\n[source]\nlatency = "0.5s"\nat_once = 5\nrate = "50 MB/s"\n'
        '[staging]\ncapacity = "1 MB"\nthreads = 1\nread = "1 GB/s"\n'
        '[[class]]\nname = "ram"\ncapacity = "1 GB"\nthreads = 1\nread = "1 GB/s"\n'
    )
    # Without a seed nothing is fetched before the first open, and the rates are as the file says until then.
    with mounting(tmp_path / "source", "--calibration", str(tmp_path / "c.toml")) as m:
        before = m.status()["rates"]
        assert before["calibrated"]
        said = before["source"]["seconds_per_file"]
        assert said > 0.5, "no epoch has been read: what the file says"
        with Reader("follow", m.path, m.source, orders_of(m.source, [np.arange(50)]), "0") as reader:
            assert reader.result()["wrong"] == []
        # What the file says weighs as much as 64 fetches do: after 50 quick ones a little over half is left.
        after = m.wait_status(lambda s: s["rates"]["source"]["seconds_per_file"] < 0.7 * said)
        assert after["rates"]["disk_pays"]
