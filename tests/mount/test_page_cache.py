"""The page cache of a real mount: its budget, and what the kernel takes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from slow_source import SlowSource

from nopfsfs.plan.registry import order
from nopfsfs.plan.spec import Spec
from nopfsfs.tiers import pages
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, fill

pytestmark = pytest.mark.mount

COUNT = 400
SIZE = 30_000  # of a file, more or less; some 13 MB in all, and the kernel's inodes
EPOCHS = 3
BATCH = 64  # of these the plan is recognised
PAGE_CACHE = 6 << 20


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
        pages.cached(None, os.fsencode(path))
    except pages.Unmeasurable:
        pytest.skip("this system has no cachestat")


def files_of(m: Mounted) -> list[Path]:
    """In the order in which ImageFolder lists them."""
    return sorted(m.path.rglob("*.jpg"))


def cached(files: list[Path]) -> int:
    """Bytes of them that the kernel holds, as an outsider sees it; who looks opens them."""
    return sum(pages.cached(None, os.fsencode(path)) for path in files)


def settled(m: Mounted) -> dict[str, Any]:
    """The status once nothing more is pushed."""
    done = -1
    while done != (done := m.status()["stager"]["pushes_done"]):
        time.sleep(0.3)
    return m.status()


def test_a_bounded_page_cache_keeps_to_its_budget_for_epochs(
    mounting: Mounting, slow: SlowSource, measurable: None
) -> None:
    with mounting(slow.path, "--seed", "42", "--ram", "40M", "--page-cache", str(PAGE_CACHE)) as m:
        files = files_of(m)
        m.wait_status(lambda s: s["plan"]["length"] == COUNT)
        for epoch in range(EPOCHS):
            for at, sample in enumerate(order(Spec("distributed", 42), COUNT, epoch).tolist()):
                assert files[sample].read_bytes() == (m.source / files[sample].relative_to(m.path)).read_bytes()
                if at % 100 == 99:
                    record = m.status()
                    assert record["used"]["page_cache"] <= record["budget"]["page_cache"] == PAGE_CACHE
        record = settled(m)
        assert cached(files) <= record["used"]["page_cache"] <= PAGE_CACHE
        record = m.wait_status(lambda s: s["page_cache"]["looked_at"] >= 32)

    assert record["budget"]["ram"] + PAGE_CACHE <= record["budget"]["total"] == 40 << 20
    kept = record["page_cache"]
    assert kept["measured"] is True
    assert 0.9 <= kept["resident_share"] <= 1
    assert record["stager"]["source_opens"] == COUNT, "the arena is the home of all"
    assert record["stager"]["pushes_done"] < EPOCHS * COUNT, "some were still there"


def test_what_the_kernel_took_is_found_and_pushed_again(mounting: Mounting, slow: SlowSource, measurable: None) -> None:
    with mounting(slow.path, "--seed", "42") as m, ExitStack() as stack:
        files = files_of(m)
        m.wait_status(lambda s: s["plan"]["length"] == COUNT)
        whole = sum(-(-path.stat().st_size // pages.PAGE) * pages.PAGE for path in files)
        opened = []
        for at, sample in enumerate(order(Spec("distributed", 42), COUNT, 0).tolist()):
            if at == BATCH:
                m.wait_status(lambda s: s["plan"]["state"] == "locked")
            opened.append(stack.enter_context(files[sample].open("rb")).fileno())
            assert len(os.read(opened[-1], 1 << 20)) == files[sample].stat().st_size
        before = settled(m)["stager"]["pushes_done"]
        assert sum(map(pages.cached_of, opened)) >= 0.99 * whole
        for fd in opened[::2]:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert sum(map(pages.cached_of, opened)) < 0.6 * whole
        stack.close()
        record = m.wait_status(lambda s: s["page_cache"]["evicted"] >= COUNT // 2 - 80, 50)
        pushed = settled(m)["stager"]["pushes_done"] - before
        held = cached(files)

    assert held >= 0.7 * whole
    assert record["page_cache"]["resident_share"] < 0.95
    assert record["read_errors"] == 0
    assert COUNT // 2 - 80 <= pushed <= COUNT, "what was gone"
    assert m.report["used"]["page_cache"] <= m.report["budget"]["page_cache"]


def test_a_page_cache_above_the_budget_is_refused_and_above_the_automatic_one_clipped(
    mounting: Mounting, slow: SlowSource
) -> None:
    with (
        pytest.raises(AssertionError, match="cannot take more than the memory"),
        mounting(slow.path, "--ram", "8M", "--page-cache", "9M"),
    ):
        pass
    with mounting(slow.path, "--page-cache", "1T") as m:
        record = m.status()
        text = m.log.read_text()
    assert record["budget"]["page_cache"] + record["budget"]["ram"] <= record["budget"]["total"]
    assert "--page-cache is more than the memory there is" in text
