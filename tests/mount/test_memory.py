"""What a mount takes of the machine's memory: no more than its budget at any moment, and no more after many epochs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nopfsfs.control.client import call
from nopfsfs.plan.samplers.registry import order
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.system import node_memory
from tests.conftest import long, slow, tmpfs
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, fill
from tests.mount.memory import MemoryGroup, arena_bytes, memory_group, private_bytes, processor_wait_s
from tests.waiting import wait_until

pytestmark = pytest.mark.mount

MIB = 1 << 20
SEED = 42
FILES, SIZE = 300, 100_000  # 30 MB
LOOKS = 20  # at least, or nothing was seen
PAUSE_S = 0.002  # of the reader after a file
LAG = 4 * MIB  # read and not dropped yet, as drops take time
TINY, TINY_SIZE = 200, 300
STEP, WARM, EPOCHS = 5, 20, 50  # the plan is looked for, once, in the first epochs: that takes some MiB
GROWTH = 2 * MIB  # of a process: allocators do not give everything back


def orders(source: Path, epochs: int) -> Path:
    """A file for `follow`: what a sampler has a job read."""
    names = sorted(str(path.relative_to(source)) for path in source.rglob("*.jpg"))
    listed = [order(Spec("distributed", SEED), len(names), epoch).tolist() for epoch in range(epochs)]
    path = source.parent / "orders.json"
    path.write_text(json.dumps({"names": names, "epochs": listed}))
    return path


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A source whose pages are shared memory, so that what else is in the page cache is the mount's."""
    with tmpfs(tmp_path / "source", "64m") as path:
        fill(path, FILES, SIZE)
        yield path


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    with memory_group() as made:
        if made is None:
            pytest.skip("needs the right to make a memory cgroup")
        yield made


class Watch:
    """Looks at a mount's budget again and again; keeps the worst. While the mount waits for a processor, it drops
    nothing, and its reader reads on: the pages of that are not counted as `late`."""

    def __init__(self, m: Mounted, group: MemoryGroup) -> None:
        self._m, self._group = m, group
        self._before = group.page_cache()
        self._within = processor_wait_s(m)  # when the pages were within the budget the last time
        self.looks, self.late = 0, 0
        self.over: dict[str, int] = {}
        self.budget: dict[str, int] = {}

    def look(self) -> None:
        record: dict[str, Any] = call(self._m.state_dir, "status")
        self.budget, used = record["budget"], record["used"]
        found = {
            "ram": used["ram"] - self.budget["ram"],
            "arena": arena_bytes(self._m) - self.budget["ram"],
            "page cache": used["page_cache"] - self.budget["page_cache"],
            "pages": self._group.page_cache() - self._before - self.budget["page_cache"],
        }
        self.over = {name: max(value, self.over.get(name, value)) for name, value in found.items()}
        waited, pages = processor_wait_s(self._m), max(found["page cache"], found["pages"])
        self.late = max(self.late, pages - int((waited - self._within) / PAUSE_S) * SIZE)
        if pages <= 0:
            self._within = waited
        self.looks += 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("flags", [slow("--ram 12M"), "--ram 12M --page-cache 4M"])
@pytest.mark.parametrize("known", [True, long(False)], ids=["in the order of the plan", "in another"])
def test_no_budget_is_exceeded_at_any_look(
    mounting: Mounting, in_memory: Path, group: MemoryGroup, flags: str, known: bool
) -> None:
    with mounting(in_memory, *flags.split(), "--seed", str(SEED), preexec_fn=group.join) as m:
        watch = Watch(m, group)
        words = ["follow", m.path, m.source, orders(in_memory, 3), str(PAUSE_S)]
        if not known:
            words = ["compare", m.path, m.source, "1", "2", str(PAUSE_S)]
        while watch.looks < LOOKS:  # on a busy machine a look may take longer than the reading of many files
            with Reader(*words, preexec_fn=group.join) as reader:

                def ended(reader: Reader = reader) -> bool:
                    watch.look()
                    return reader.process.poll() is not None

                assert wait_until(ended, 40)
                assert reader.result()["wrong"] == []

    assert 0 < watch.budget["page_cache"] <= 4 * MIB
    assert watch.budget["page_cache"] + watch.budget["ram"] <= 12 * MIB
    assert max(watch.over["ram"], watch.over["arena"]) <= 0, watch.over
    assert watch.late <= LAG, watch.over


def position(m: Mounted) -> int:
    """How many files of the plan have been read, as far as the mount knows."""
    plan: dict[str, Any] = call(m.state_dir, "status")["plan"]
    return int(plan["epoch"] * TINY + plan["position"])


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["", "--ram 1M"], ids=["all stays", "some stays"])
def test_the_processes_do_not_grow_over_fifty_epochs(mounting: Mounting, tmp_path: Path, flags: str) -> None:
    fill(tmp_path / "source", TINY, TINY_SIZE)
    with mounting(tmp_path / "source", "--seed", str(SEED), *flags.split()) as m:
        listed = orders(m.source, EPOCHS)
        m.wait_status(lambda s: s["plan"]["length"] == TINY)
        stops = range(STEP, EPOCHS + 1, STEP)
        found = []
        with Reader("follow", m.path, m.source, listed, "0", *map(str, stops)) as reader:
            for epochs in stops:
                assert reader.line() == epochs
                # All of it taken up: how much there is to take at once is not what is measured.
                assert wait_until(lambda epochs=epochs: position(m) >= epochs * TINY, 20)
                found.append(private_bytes(m))
                reader.go()
            assert reader.result() == {"wrong": []}

    grown = {role: [at[role] - found[0][role] for at in found] for role in found[0]}
    assert grown.keys() == {"supervisor", "server", "stager"}
    warm = WARM // STEP - 1
    assert all(sizes[-1] - sizes[warm] <= GROWTH for sizes in grown.values()), str(grown)


@pytest.mark.long
def test_two_mounts_are_not_promised_the_same_memory(mounting: Mounting, tmp_path: Path) -> None:
    """Of a data set that is larger than the memory; neither has filled anything yet."""
    (source := tmp_path / "source").mkdir()
    for number in range(64):
        with open(source / f"{number}.bin", "wb") as file:
            file.truncate((node_memory.of_node() or 0) // 16)
    works = [tmp_path / name for name in ("one", "other", "third")]
    for work in works:
        work.mkdir()
    available = node_memory.measure().available
    with mounting(source, work=works[0]) as one, mounting(source, work=works[1]) as other:
        budgets = [m.status()["budget"]["total"] for m in (one, other)]
        assert budgets[0] > 0.4 * available  # half of it
        assert 0.15 * available < budgets[1] < 0.3 * available  # half of what is left
        one.umount()
        with mounting(source, work=works[2]) as third:
            assert third.status()["budget"]["total"] > 0.3 * available, "what was unmounted is promised nothing"
