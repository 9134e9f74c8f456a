"""Files that grew while they were mounted: what they take of memory is counted at their new size."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from nopfsfs.tiers import page_cache
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, content
from tests.waiting import wait_until

pytestmark = pytest.mark.mount

BUDGET = 64 << 20
GROWN = 40 << 20
FILES = 2


def held(m: Mounted, names: list[str]) -> int:
    """Bytes that the mount has in memory: arena and page cache."""
    return int(m.status()["used"]["ram"]) + sum(page_cache.cached(None, os.fsencode(m.path / name)) for name in names)


def found(path: Path) -> object:
    """[length, sha256] of what a reader gets, or an errno."""
    with Reader("read", path) as reader:
        (one,) = reader.result()
    return one


@pytest.mark.long
def test_files_that_grew_from_4_kib_to_40_mb_stay_within_the_budget(mounting: Mounting, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    names = [f"{number}" for number in range(FILES)]
    for number, name in enumerate(names):
        (source / name).write_bytes(content(number, 4096))
    try:
        # at the source: an open in the mount would have the other file staged, whose old version may then be shown
        page_cache.cached(None, os.fsencode(source / names[0]))
    except page_cache.Unmeasurable:
        pytest.skip("this system has no cachestat")
    with mounting(source, "--ram", "64M") as m:
        for number, name in enumerate(names):
            (source / name).write_bytes(content(number + 10, GROWN))
        for number, name in enumerate(names):
            right = [GROWN, hashlib.sha256(content(number + 10, GROWN)).hexdigest()]
            assert wait_until(lambda name=name, right=right: found(m.path / name) == right, 30), "when it has settled"
        assert wait_until(lambda: held(m, names) <= BUDGET), held(m, names)
