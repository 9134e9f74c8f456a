"""The slow source: shows its backing, is as slow as ordered, counts, fails on demand, leaves nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import slow_source
import slow_source_load
import trio
import trio.testing
from slow_source import FileCounters, SlowSource
from slow_source_load import Limits, Load, parse_duration, parse_rate

from tests.waiting import wait_until

pytestmark = pytest.mark.mount

SCRIPT = Path(slow_source.__file__)


@pytest.fixture
def backing(tmp_path: Path) -> Path:
    root = tmp_path / "backing"
    (root / "train" / "a").mkdir(parents=True)
    for number in range(8):
        (root / "train" / "a" / f"{number}.bin").write_bytes(bytes([number]) * 50_000)
    return root


@pytest.fixture
def source(backing: Path) -> Iterator[SlowSource]:
    with SlowSource(backing) as running:
        yield running


def read_directly(path: Path) -> bytes:
    """Past the page cache, which would repeat a readahead that failed."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("text", "seconds"), [("5ms", 0.005), ("200us", 0.0002), ("1s", 1.0), ("0.5", 0.5)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "rate"), [("400MB/s", 4e8), ("1GiB/s", 2**30), ("12", 12), ("8k", 8000)])
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("parse", [parse_duration, parse_rate])
def test_what_is_no_number_is_refused(parse: Callable[[str], float]) -> None:
    with pytest.raises(ValueError, match="soon"):
        parse("soon")


def test_shows_the_backing_tree(backing: Path, source: SlowSource) -> None:
    (backing / "link").symlink_to("train/a/0.bin")
    os.link(backing / "train" / "a" / "1.bin", backing / "hard")
    (backing / "empty").touch()
    os.symlink(b"caf\xe9", os.fsencode(backing) + b"/not-\xff-utf8")

    assert sorted(os.listdir(source.path)) == sorted(os.listdir(backing))
    assert sorted(os.listdir(source.path / "train" / "a")) == [f"{n}.bin" for n in range(8)]
    assert (source.path / "train/a/3.bin").read_bytes() == bytes([3]) * 50_000
    assert os.readlink(source.path / "link") == "train/a/0.bin"
    assert os.readlink(os.fsencode(source.path) + b"/not-\xff-utf8") == b"caf\xe9"
    hard, first = (source.path / "hard").stat(), (source.path / "train/a/1.bin").stat()
    assert (hard.st_ino, hard.st_nlink) == (first.st_ino, 2)
    assert (source.path / "empty").read_bytes() == b""
    assert os.statvfs(source.path).f_blocks == os.statvfs(backing).f_blocks


def test_shows_extended_attributes(backing: Path, source: SlowSource) -> None:
    try:
        os.setxattr(backing / "train", "user.note", b"hello")
    except OSError as error:
        pytest.skip(f"the temporary directory has no extended attributes: {error}")
    assert os.getxattr(source.path / "train", "user.note") == b"hello"
    assert "user.note" in os.listxattr(source.path / "train")
    with pytest.raises(OSError) as caught:
        os.getxattr(source.path / "train", "user.other")
    assert caught.value.errno == errno.ENODATA


def test_refuses_writes(source: SlowSource) -> None:
    with pytest.raises(OSError) as caught:
        (source.path / "new").write_bytes(b"")
    assert caught.value.errno == errno.EROFS


def test_counts_per_file_and_in_total(source: SlowSource) -> None:
    (source.path / "train/a/1.bin").read_bytes()
    (source.path / "train/a/1.bin").read_bytes()
    (source.path / "train/a/2.bin").read_bytes()
    counters = source.counters()
    assert (counters.opens, counters.bytes) == (3, 150_000)
    assert counters.files["train/a/1.bin"].opens == 2
    assert counters.files["train/a/2.bin"].bytes == 50_000
    source.reset()
    assert source.counters().files == {}


def test_a_second_read_pays_again(source: SlowSource) -> None:
    """The kernel keeps nothing over opens, or a direct second epoch would be a fast one."""
    for _ in range(2):
        source.reset()
        (source.path / "train/a/4.bin").read_bytes()
        assert source.counters().files["train/a/4.bin"] == FileCounters(opens=1, reads=1, bytes=50_000)


class VirtualTimer:
    """Sleeps in virtual time."""

    async def sleep_until(self, deadline: float) -> None:
        await trio.sleep_until(deadline)


@pytest.mark.parametrize(
    ("limits", "readers", "files", "seconds"),
    [
        (Limits(open_latency=0.03, read_latency=0.02), 1, 4, 0.2), (Limits(open_latency=0.1, concurrent=4), 8, 1, 0.2),
        (Limits(bandwidth=1e6), 1, 8, 0.4),
    ],
)  # fmt: skip
def test_takes_no_longer_than_ordered(
    limits: Limits, readers: int, files: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file system, in virtual time: real reads are late by what the machine is."""
    monkeypatch.setattr(slow_source_load, "time", SimpleNamespace(monotonic=trio.current_time))

    async def read(load: Load) -> None:
        for _ in range(files):
            await load.open()
            await load.read(50_000)

    async def main() -> float:
        load, began = Load(limits, VirtualTimer()), trio.current_time()  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            for _ in range(readers):
                nursery.start_soon(read, load)
        return trio.current_time() - began

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == pytest.approx(seconds)


def test_takes_its_time(backing: Path) -> None:
    with SlowSource(backing, open_latency=0.03, read_latency=0.02) as source:
        started = time.monotonic()
        for number in range(4):
            (source.path / f"train/a/{number}.bin").read_bytes()
        assert time.monotonic() - started >= 0.2


def test_requests_sleep_in_parallel_up_to_the_limit(backing: Path) -> None:
    def read(number: int) -> None:
        (source.path / f"train/a/{number}.bin").read_bytes()

    with SlowSource(backing, open_latency=0.1, concurrent=4) as source:
        threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - started >= 0.2
        assert source.counters().peak == 4


def test_all_reads_share_the_bandwidth(backing: Path) -> None:
    with SlowSource(backing, bandwidth=1e6) as source:
        started = time.monotonic()
        for number in range(8):
            (source.path / f"train/a/{number}.bin").read_bytes()
        assert time.monotonic() - started >= 0.35


@pytest.mark.parametrize("operation", ["open", "read"])
def test_fails_as_often_as_ordered(source: SlowSource, operation: str) -> None:
    source.fail(operation, errno.EIO, pattern="train/a/5.*", count=1)
    assert (source.path / "train/a/6.bin").read_bytes() == bytes([6]) * 50_000
    with pytest.raises(OSError) as caught:
        read_directly(source.path / "train/a/5.bin")
    assert caught.value.errno == errno.EIO
    assert (source.path / "train/a/5.bin").read_bytes() == bytes([5]) * 50_000


def test_stalls_until_released(source: SlowSource) -> None:
    done = threading.Event()

    def read() -> None:
        (source.path / "train/a/7.bin").read_bytes()
        done.set()

    source.stall("read", pattern="*/7.bin")
    reader = threading.Thread(target=read)
    reader.start()
    source.wait_stalled()
    assert (source.path / "train/a/6.bin").read_bytes()
    assert not done.is_set()
    source.release()
    reader.join(20)
    assert done.is_set()


def test_a_change_is_seen_at_once(backing: Path, source: SlowSource) -> None:
    shown, behind = source.path / "train/a/0.bin", backing / "train/a/0.bin"
    before = shown.stat()
    with shown.open("rb", buffering=0) as handle:
        behind.write_bytes(b"shorter")
        after = os.fstat(handle.fileno())
    assert (after.st_size, after.st_ino) == (7, before.st_ino)
    assert shown.read_bytes() == b"shorter"
    os.replace(backing / "train/a/1.bin", behind)
    assert shown.stat().st_ino != before.st_ino
    behind.unlink()
    assert not shown.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is squashed")
def test_squashes_root(backing: Path) -> None:
    (backing / "train/a/0.bin").chmod(0o600)
    with SlowSource(backing, root_squash=True) as source:
        with pytest.raises(PermissionError):
            (source.path / "train/a/0.bin").read_bytes()
        assert (source.path / "train/a/1.bin").read_bytes()


def test_says_why_it_did_not_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not a directory"), SlowSource(tmp_path / "missing"):
        pass


def test_leaves_nothing_even_with_a_stalled_reader_and_an_open_file(backing: Path) -> None:
    with SlowSource(backing) as source:
        path, pid = source.path, source.pid
        held = (path / "train/a/0.bin").open("rb", buffering=0)
        source.stall("open", pattern="*/1.bin")
        reader = subprocess.Popen(["cat", path / "train/a/1.bin"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        source.wait_stalled()
    assert reader.wait(20) != 0
    held.close()
    assert not path.parent.exists()
    assert not slow_source.is_mounted(path)
    assert not Path(f"/proc/{pid}").exists()


def test_ends_when_its_starter_is_killed(backing: Path, tmp_path: Path) -> None:
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    program = (
        f"import os, sys; sys.path.insert(0, {os.fspath(SCRIPT.parent)!r})\n"
        f"from slow_source import SlowSource\n"
        f"with SlowSource({os.fspath(backing)!r}, {os.fspath(mountpoint)!r}): os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "TMPDIR": os.fspath(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", program], check=False, env=environment)
    assert killed.returncode == -9
    assert wait_until(lambda: not slow_source.is_mounted(mountpoint))


def test_as_a_command(backing: Path, tmp_path: Path) -> None:
    mountpoint, control = tmp_path / "mnt", tmp_path / "c"
    mountpoint.mkdir()
    command = [sys.executable, SCRIPT, backing, mountpoint, "--open-latency", "1ms", "--control", control]
    subprocess.run(command, check=True, timeout=20)
    try:
        assert (mountpoint / "train/a/2.bin").read_bytes() == bytes([2]) * 50_000
    finally:
        subprocess.run(["fusermount3", "-u", mountpoint], check=True)
    assert wait_until(lambda: not control.exists())
