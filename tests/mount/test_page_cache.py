"""The page cache of a real mount: its budget, and what the kernel takes of it."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slow_source import SlowSource

from nopfsfs.plan.samplers.registry import order
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.tiers import page_cache
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, fill
from tests.mount.memory import processor_wait_s

pytestmark = pytest.mark.mount

COUNT = 400
SIZE = 30_000  # of a file, more or less; some 13 MB in all, and the kernel's inodes
EPOCHS = 3
BATCH = 64  # of these the plan is recognised
PAGE_CACHE = 6 << 20
BEHIND = 16 * SIZE  # drops lag behind reads by so much, or by
LAG_S = 0.1  # what is read in so many seconds (docs/architecture.md)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowSource]:
    fill(tmp_path / "backing", COUNT, SIZE)
    with SlowSource(tmp_path / "backing", open_latency=0.0005) as source:
        yield source


@pytest.fixture
def measurable(tmp_path: Path) -> None:
    path = tmp_path / "any"
    path.write_bytes(b"x")
    try:
        page_cache.cached(None, os.fsencode(path))
    except page_cache.Unmeasurable:
        pytest.skip("this system has no cachestat")


def files_of(m: Mounted) -> list[Path]:
    """In the order in which ImageFolder lists them."""
    return sorted(m.path.rglob("*.jpg"))


def cached(files: list[Path]) -> int:
    """Bytes of them that the kernel holds, as an outsider sees it; who looks opens them."""
    return sum(page_cache.cached(None, os.fsencode(path)) for path in files)


def settled(m: Mounted) -> dict[str, Any]:
    """The status once nothing more is pushed."""
    done = -1
    while done != (done := m.status()["stager"]["pushes_done"]):
        time.sleep(0.3)
    return m.status()


class Witness:
    """Files beside the mount, read when its are: where the kernel has taken any of their pages by itself, as it does
    when memory is short and some systems do when it is not, it may have taken the mount's as well."""

    def __init__(self, source: Path) -> None:
        os.sync()  # what is dirty is not taken
        self._source = source
        self._read: list[Path] = []

    def read(self, name: Path) -> bytes:
        path = self._source / name
        page_cache.drop(None, os.fsencode(path))  # its pages are to be as old as the mount's
        self._read.append(path)
        return path.read_bytes()

    @property
    def is_whole(self) -> bool:
        return cached(self._read) == in_pages(self._read)


def in_pages(files: list[Path]) -> int:
    return sum(-(-path.stat().st_size // page_cache.PAGE) * page_cache.PAGE for path in files)


@pytest.mark.long
def test_a_bounded_page_cache_keeps_to_its_budget_for_epochs(
    mounting: Mounting, slow: SlowSource, tmp_path: Path, measurable: None
) -> None:
    with mounting(slow.path, "--seed", "42", "--ram", "40M", "--page-cache", str(PAGE_CACHE)) as m:
        files = files_of(m)
        m.wait_status(lambda s: s["plan"]["length"] == COUNT)
        waited = processor_wait_s(m)
        for epoch in range(EPOCHS):
            witness, ended = Witness(tmp_path / "backing"), list[float]()
            for at, sample in enumerate(order(Spec("distributed", 42), COUNT, epoch).tolist()):
                assert files[sample].read_bytes() == witness.read(files[sample].relative_to(m.path))
                ended.append(time.monotonic())
                if at % 100 == 99:
                    record = m.status()
                    # While the mount waits for a processor it drops nothing, and its reader reads on.
                    before, waited = waited, processor_wait_s(m)
                    lately = sum(when > ended[-1] - LAG_S - (waited - before) for when in ended)
                    assert record["budget"]["page_cache"] == PAGE_CACHE
                    assert record["used"]["page_cache"] <= PAGE_CACHE + max(BEHIND, lately * SIZE)
        record, held = settled(m), cached(files)
        while (now := settled(m))["stager"] != record["stager"]:  # who looks opens them, which is foreseen, too
            record, held = now, cached(files)
        assert held <= record["used"]["page_cache"] <= PAGE_CACHE
        record = m.wait_status(lambda s: s["page_cache"]["looked_at"] >= 32)
        is_whole = witness.is_whole

    assert record["budget"]["ram"] + PAGE_CACHE <= record["budget"]["total"] == 40 << 20
    kept = record["page_cache"]
    assert kept["measured"] is True
    assert (0.9 if is_whole else 0) <= kept["resident_share"] <= 1
    assert record["stager"]["source_opens"] == COUNT, "the arena is the home of all"
    if is_whole:
        assert record["stager"]["pushes_done"] < EPOCHS * COUNT, "some were still there"


class Mapped:
    """The files of an epoch, read in its order, and still open and mapped: what is mapped the kernel does not take, and
    what is open the mount does not push. `held`: bytes of them that were there before they were read."""

    def __init__(self, m: Mounted, epoch: int) -> None:
        files = files_of(m)
        self.held = 0
        self._open: list[tuple[int, mmap.mmap]] = []
        for at, sample in enumerate(order(Spec("distributed", 42), COUNT, epoch).tolist()):
            if epoch == 0 and at == BATCH:
                m.wait_status(lambda s: s["plan"]["state"] == "locked")
            fd = os.open(files[sample], os.O_RDONLY)
            self.held += page_cache.cached_of(fd)
            self._open.append((fd, mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)))
            assert len(os.read(fd, 1 << 20)) == len(bytes(self._open[-1][1])) == files[sample].stat().st_size

    @property
    def cached(self) -> int:
        return sum(page_cache.cached_of(fd) for fd, _ in self._open)

    def take_half(self) -> None:
        """Drop the pages of every other one, as the kernel would, and close it."""
        for fd, mapped in self._open[::2]:
            mapped.close()
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert self.cached < 0.6 * in_pages([Path(f"/proc/self/fd/{fd}") for fd, _ in self._open])
        for fd, _ in self._open[::2]:
            os.close(fd)
        del self._open[::2]

    def close(self) -> None:
        for fd, mapped in self._open:
            mapped.close()
            os.close(fd)


@pytest.mark.slow
def test_what_the_kernel_took_is_found_and_pushed_again(mounting: Mounting, slow: SlowSource, measurable: None) -> None:
    """Before it is read: unless the kernel takes more meanwhile, which it need not do again in another epoch."""
    many, held = COUNT // 2 - 80, 0.0
    with mounting(slow.path, "--seed", "42") as m:
        m.wait_status(lambda s: s["stager"]["pushes_done"] >= COUNT)  # what was pushed is what is looked for
        whole = in_pages(files_of(m))
        mapped, epoch = Mapped(m, 0), 0
        while held < 0.7 and epoch < EPOCHS:
            before = settled(m)
            assert mapped.cached == whole
            mapped.take_half()
            evicted = before["page_cache"]["evicted"] + many
            m.wait_status(lambda s, evicted=evicted: s["page_cache"]["evicted"] >= evicted, 50)
            record = settled(m)
            assert record["stager"]["pushes_done"] - before["stager"]["pushes_done"] >= many
            epoch += 1
            following = Mapped(m, epoch)
            mapped.close()
            mapped, held = following, following.held / whole
        mapped.close()

    assert held >= 0.7
    assert record["page_cache"]["resident_share"] < 0.95
    assert record["read_errors"] == 0
    assert record["stager"]["pushes_done"] <= COUNT + record["page_cache"]["evicted"], "what was gone"
    assert m.report["used"]["page_cache"] <= m.report["budget"]["page_cache"]


@pytest.mark.long
def test_a_page_cache_above_the_budget_is_refused_and_above_the_automatic_one_clipped(
    mounting: Mounting, slow: SlowSource
) -> None:
    with (
        pytest.raises(AssertionError, match="cannot take more than the memory"),
        mounting(slow.path, "--ram", "8M", "--page-cache", "9M"),
    ):
        pass
    with mounting(slow.path, "--page-cache", "4G") as m:
        record = m.status()
        text = m.log.read_text()
    assert record["budget"]["page_cache"] + record["budget"]["ram"] <= record["budget"]["total"]
    assert "--page-cache is more than the memory there is" in text
