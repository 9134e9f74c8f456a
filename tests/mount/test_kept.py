"""A cache that outlives its mount: what the next mount reads of the source, after any end, beside another mount."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nopfsfs.control.client import call
from nopfsfs.control.process_list import read_pids
from nopfsfs.stager.young_files import LOCAL_S
from tests.conftest import place_for_all
from tests.mount.harness import Mounted, fill, module, mounted, read_all, run
from tests.mount.reading import comparing
from tests.tiers.kept import copies
from tests.waiting import wait_until

pytestmark = pytest.mark.mount

FILES = 60
SMALL = ("--ram", "4M", "--page-cache", "1M", "--passthrough", "off")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 6 MB in 60 files, all so old that their bytes are sure when they are read."""
    root = place_for_all(tmp_path_factory, "data") / "source"
    fill(root, FILES, 100_000)
    time.sleep(LOCAL_S + 1)
    return root


@contextlib.contextmanager
def keeping(data: Path, disk: Path, work: Path, *flags: str, size: str = "100M") -> Iterator[Mounted]:
    work.mkdir(exist_ok=True)
    with mounted(data, "--disk", f"{disk}:{size}", "--disk-keep", "yes", *flags, work=work) as m:
        yield m


def keep_all(data: Path, disk: Path, work: Path, *flags: str) -> None:
    """Mount, read everything, unmount; the disk has a copy of each file then. A file that found no room on its way was
    not staged, and gets its copy in a later epoch."""

    def all_kept() -> bool:
        read_all(m, readers=2)
        return len(copies(disk)) == FILES

    with keeping(data, disk, work, *flags) as m:
        assert wait_until(all_kept, 30), (len(copies(disk)), m.log.read_text())
        assert wait_until(lambda: not [path for path in copies(disk) if path.suffix], 20)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), SMALL, ("--ram", "4M", "--page-cache", "1M", "--passthrough", "on")])
def test_a_second_mount_opens_nothing_at_the_source_that_is_kept(
    data: Path, disk: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    """With memory for all, with memory for some, and where the kernel reads the copies by itself."""
    keep_all(data, disk, tmp_path / "a", *flags)
    before = copies(disk)
    with keeping(data, disk, tmp_path / "b", *flags) as m:
        read_all(m, readers=2)
        read_all(m, readers=2)
        stager = m.status()["stager"]
        assert (stager["source_opens"], stager["source_read_bytes"]) == (0, 0)
        assert (stager["corrupt_copies"], stager["disk_errors"]) == (0, 0)
        assert (m.status()["served"]["source"]["files"], m.status()["direct_reads"]) == (0, 0)
        assert stager["kept_files"] == FILES
        said = run([*module("nopfs"), "status", str(m.path)]).stdout
        assert f"disk       copies of {FILES} files were there from earlier mounts" in said
    assert copies(disk) == before


@pytest.mark.slow
def test_of_a_source_that_does_not_fit_a_second_mount_reads_what_is_not_kept(
    data: Path, disk: Path, tmp_path: Path
) -> None:
    """Memory and disk hold two thirds, also where the files come first there that the mount before had on disk."""
    flags = ("--ram", "2M", "--page-cache", "0.5M", "--passthrough", "off")
    files = sorted(path.relative_to(data) for path in data.rglob("*.jpg"))

    def read_at_source(m: Mounted, step: int) -> int:
        before = m.status()["stager"]["source_opens"]
        for name in files[::step]:
            assert (m.path / name).read_bytes() == (data / name).read_bytes()
        return int(m.status()["stager"]["source_opens"] - before)

    with keeping(data, disk, tmp_path / "a", *flags, size="3M") as m:
        assert wait_until(lambda: read_at_source(m, 1) < FILES // 2, 30)
        assert wait_until(lambda: not [path for path in copies(disk) if path.suffix], 20)
    with keeping(data, disk, tmp_path / "b", *flags, size="3M") as m:
        later = [read_at_source(m, -1) for _ in range(5)]
    assert later[0] <= FILES - 0.4 * FILES, later
    assert sorted(later[1:])[1] <= FILES // 2, later


@pytest.mark.slow
def test_a_file_that_changed_between_mounts_is_read_anew(tmp_path: Path, data: Path, disk: Path) -> None:
    keep_all(data, disk, tmp_path / "a", *SMALL)
    changed = sorted(data.rglob("*.jpg"))[7]
    before, times = changed.read_bytes(), changed.stat()
    try:
        changed.write_bytes(before[::-1])  # in place: the directory stays as it was, and the index with it
        os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
        with keeping(data, disk, tmp_path / "a", *SMALL) as m:
            shown = m.path / changed.relative_to(data)

            def read() -> bytes | None:
                with contextlib.suppress(OSError):
                    return shown.read_bytes()
                return None

            seen: list[bytes] = []
            assert wait_until(lambda: bool(seen.append(found) or True) if (found := read()) else False, 10)
            assert seen == [before[::-1]]
            read_all(m, readers=2)
            assert 1 <= m.status()["stager"]["source_opens"] <= 3
    finally:
        changed.write_bytes(before)


@pytest.mark.slow
def test_after_a_kill_of_all_processes_the_next_mount_goes_on(data: Path, disk: Path, tmp_path: Path) -> None:
    """Killed in the midst of writing, at several moments; a power loss cuts what was written last."""
    shuffled = random.Random(5)
    for moment, share in (0.0, 0.0), (0.1, 0.0), (0.3, 0.0), (0.0, 0.2), (0.0, 0.5):
        with keeping(data, disk, tmp_path / "a", *SMALL) as m:
            m.errors_expected = True
            with comparing(m, 2, 1) as readers:
                time.sleep(moment)
                assert wait_until(lambda least=share * FILES: len(copies(disk)) >= least, 20)
                for reader in readers:
                    reader.process.kill()
                    reader.result = lambda limit_s=0.0: {"wrong": [], "errors": []}  # type: ignore[method-assign]
            for process in read_pids(m.state_dir):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            m.umount()
        for path in shuffled.sample(copies(disk), min(3, len(copies(disk)))):
            os.truncate(path, shuffled.randrange(path.stat().st_size + 1))
    files = {path.read_bytes() for path in data.rglob("*.jpg")}
    whole = [path for path in copies(disk) if not path.suffix and path.read_bytes() in files]
    assert len(whole) >= FILES // 4, "or there is nothing to lose"
    with keeping(data, disk, tmp_path / "a", *SMALL) as m:
        m.errors_expected = True
        read_all(m, readers=2)
        assert not list(disk.rglob("*.part"))
        assert m.status()["read_errors"] == 0
        source = call(m.state_dir, "metrics")["source"]
        assert source["opens"] - source["second_reads"] <= FILES - len(whole), "only what had no copy"


@pytest.mark.slow
def test_two_mounts_share_a_directory_under_load(data: Path, disk: Path, tmp_path: Path) -> None:
    """With room for half of the copies, and files that come and go in the directory."""
    with (
        keeping(data, disk, tmp_path / "a", *SMALL, size="3M") as first,
        keeping(data, disk, tmp_path / "b", *SMALL) as second,
    ):
        first.errors_expected = second.errors_expected = True
        with comparing(first, 2, 4), comparing(second, 2, 4):
            for number in range(40):
                there = [path for path in copies(disk) if not path.suffix]
                if there:
                    with contextlib.suppress(FileNotFoundError):
                        victim = there[number % len(there)]
                        victim.unlink() if number % 2 else os.truncate(victim, 1000)
                time.sleep(0.05)
        assert first.status()["read_errors"] == second.status()["read_errors"] == 0


@pytest.mark.slow
def test_a_cache_of_another_user_is_refused_before_the_mount(data: Path, disk: Path, tmp_path: Path) -> None:
    own = disk / f"nopfs-cache-{os.geteuid()}"
    own.mkdir(mode=0o755)
    with pytest.raises(AssertionError, match="chmod 700"), keeping(data, disk, tmp_path / "a"):
        pass
    assert os.listdir(own) == []
