"""Every metric of docs/metrics.md moves when what it shows happens: here, or where `ELSEWHERE` says."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from slow_source import SlowSource

import nopfsfs
from nopfsfs.errors import NopfsError
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, content, fill, module, run
from tests.mount.readers import digest
from tests.mount.reading import following
from tests.waiting import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.long]

REPOSITORY = Path(__file__).parents[2]
FILES, SIZE, SEED = 400, 6000, 42
LOOK_S = 0.02
PAUSE_S = 0.0005  # of the job, after each file
# What moves in other tests: metrics of the exporter, of the signal, of what comes once a minute or later, of nodes that
# fetch from each other.
ELSEWHERE = {
    "up": "tests/mount/test_seeing.py", "counts_estimated": "tests/mount/test_seeing.py",
    "source_base_seconds": "tests/mount/test_tuning.py",
    "policy_files": "tests/mount/test_tuning.py", "policy_files_refused": "tests/mount/test_tuning.py",
    "source_compared_opens_total": "tests/stager/test_young_files.py",
    "source_compared_bytes_total": "tests/stager/test_young_files.py",
    "peers_connected": "tests/peer/test_sharing.py", "peer_fetches_total": "tests/peer/test_sharing.py",
    "lent_bytes_total": "tests/peer/test_sharing.py", "fetches_rerouted_total": "tests/peer/test_hung_node.py",
}  # fmt: skip
CONSTANT = {"mount_info", "tier_budget_bytes", "epoch_length"}  # where options say the budgets and the seed


def listed() -> set[str]:
    """The metrics of the page's table."""
    return set(re.findall(r"^\| `(\w+)` \| \w+ \|", (REPOSITORY / "docs/metrics.md").read_text(), re.MULTILINE))


class Watch:
    """The values that each metric of a mount has had."""

    def __init__(self, m: Mounted) -> None:
        self._mount, self._over = nopfsfs.Mount(m.path), threading.Event()
        self.values: dict[str, set[object]] = {name: set() for name in listed()}
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            with suppress(NopfsError):
                self._look()

    def _look(self) -> None:
        seen: dict[str, list[object]] = {name: [] for name in self.values}
        for one in self._mount.metrics():
            seen[one.name.removeprefix("nopfs_")].append((tuple(one.labels.values()), one.value))
        for name, values in seen.items():
            self.values[name].add(repr(values))

    def stays(self) -> set[str]:
        """What has had one value all the time, of what is to move here."""
        return {name for name, values in self.values.items() if len(values) == 1} - ELSEWHERE.keys() - CONSTANT

    def moves(self, *names: str) -> bool:
        return wait_until(lambda: not self.stays() & set(names))


def job(m: Mounted, backing: Path, epochs: range) -> None:
    orders = [registry.order(Spec("distributed", SEED), FILES, epoch).tolist() for epoch in epochs]
    with following(m, backing, orders, PAUSE_S) as reader:
        assert reader.result() == {"wrong": []}


def outcome(path: Path) -> Any:
    """Length and sum, or the errno."""
    with Reader("read", path) as reader:
        return reader.result()[0]


def outcomes(m: Mounted) -> list[Any]:
    with Reader("read", *sorted(m.path.rglob("*.jpg"))) as reader:
        return list(reader.result())


def dropped(m: Mounted) -> None:
    """The kernel drops the pages of all files that nobody has open."""
    for path in m.path.rglob("*.jpg"):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def removed(disk: Path) -> bool:
    """Remove `disk`. True: it is gone. A stager that has just begun may make a directory of its own there."""
    shutil.rmtree(disk, ignore_errors=True)
    return not disk.exists()


def test_every_metric_moves(mounting: Mounting, tmp_path: Path) -> None:
    backing, disk = tmp_path / "backing", tmp_path / "disk"
    fill(backing, FILES, SIZE)
    disk.mkdir()
    changed = min(backing.rglob("*.jpg"))
    room = ("--ram", "1M", "--page-cache", "512K", "--disk", f"{disk}:1500K", "--disk-keep", "no")
    with (
        SlowSource(backing, open_latency=0.002) as source,
        mounting(source.path, "--seed", str(SEED), "--signal", "open", *room, hangs_s=120.0) as m,
        Watch(m) as watch,
    ):
        m.errors_expected = True
        job(m, backing, range(4))
        dropped(m)  # the kernel has taken what was pushed
        tuned = run([*module("nopfs"), "tune", str(m.path), "--bandwidth", "50MB/s", "--concurrency", "5"])
        assert tuned.returncode == 0, tuned.stderr
        job(m, backing, range(4, 6))
        assert watch.moves("page_cache_evicted_files_total", "source_bandwidth_limit_bytes_per_second")
        assert watch.moves("source_aim", "source_limit")

        source.fail("read", errno.EIO)
        assert wait_until(lambda: errno.EIO in outcomes(m))
        source.release()
        assert watch.moves("read_errors_total", "fetch_errors_total")

        assert outcome(m.path / changed.relative_to(backing)) == digest(changed.read_bytes())
        changed.write_bytes(content(9, SIZE))
        now = digest(content(9, SIZE))
        rechecked = run([*module("nopfs"), "recheck", str(m.path)])  # the mount may hold the old version
        assert rechecked.returncode == 0, rechecked.stderr
        assert wait_until(lambda: outcome(m.path / changed.relative_to(backing)) == now)
        assert watch.moves("source_changed_files_total")

        source.stall("read")
        with ExitStack() as stack:  # more at a time than memory has room for
            readers = [stack.enter_context(Reader("many", path)) for path in sorted(m.path.iterdir())]
            assert watch.moves("source_stuck_reads")
            source.release()
            for reader in readers:
                assert all(isinstance(one, list) for one in reader.result())
        assert watch.moves("direct_reads_total")

        def seen_without_stager() -> bool:
            with suppress(ProcessLookupError):
                m.kill("stager")  # the next one is there after a moment; the pause grows
            return "tier_usable" not in watch.stays()

        assert wait_until(seen_without_stager)
        assert watch.moves("process_restarts_total")
        assert wait_until(lambda: removed(disk))
        assert wait_until(lambda: outcomes(m) and "parts_off" not in watch.stays())
        assert watch.moves(*listed()), watch.stays()
    assert all((REPOSITORY / test).exists() for test in ELSEWHERE.values())
