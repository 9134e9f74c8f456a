"""A target of the source that does not answer: whatever lies elsewhere is read as if nothing were."""

from __future__ import annotations

import errno
import hashlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slow_source import SlowSource

from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, content, fill

pytestmark = pytest.mark.mount

SIZE = 5000
SOON_S = 15.0  # a healthy file, on a busy machine; one that waits for the stuck ones takes `--io-timeout`


@pytest.fixture
def backing(tmp_path: Path) -> Path:
    path = tmp_path / "backing"
    fill(path / "healthy", 60, SIZE)
    (path / "sick").mkdir()
    return path


@pytest.fixture
def source(backing: Path, request: pytest.FixtureRequest) -> Iterator[SlowSource]:
    """With as many files on the sick target as the test says."""
    for number in range(request.param):
        (backing / "sick" / f"{number:04}").write_bytes(content(number, SIZE))
    with SlowSource(backing, concurrent=4096) as slow:
        yield slow


def healthy(m: Mounted) -> list[Path]:
    return sorted(path for path in (m.path / "healthy").rglob("*") if path.is_file())


def read_in_time(m: Mounted, paths: list[Path], backing: Path) -> None:
    began = time.monotonic()
    with Reader("read", *paths) as reader:
        outcomes = reader.result(SOON_S)
    assert time.monotonic() - began < SOON_S
    expected = [(backing / path.relative_to(m.path)).read_bytes() for path in paths]
    assert outcomes == [[len(data), hashlib.sha256(data).hexdigest()] for data in expected]


def server_kib(m: Mounted) -> int:
    """What a server holds in memory."""
    status = Path(f"/proc/{m.pid('server')}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]


@pytest.mark.long
@pytest.mark.parametrize("source", [80], indirect=True)
@pytest.mark.parametrize("operation", ["read", pytest.param("open", marks=pytest.mark.slow)])
def test_eighty_stuck_reads_leave_hits_and_other_misses_alone(
    mounting: Mounting, source: SlowSource, backing: Path, operation: str
) -> None:
    with mounting(source.path) as m:
        files = healthy(m)
        read_in_time(m, files[:20], backing)
        source.stall(operation, "sick/*")
        with Reader("many", m.path / "sick") as stuck:
            source.wait_stalled(80)
            read_in_time(m, files[:20], backing)  # hits
            read_in_time(m, files[20:40], backing)  # misses
            status = m.wait_status(lambda s: s["stager"]["stuck_reads"] == 80)
            # On a busy machine a healthy read may take a second as well. Each counts once.
            assert 80 <= status["stager"]["stuck_ever"] <= 80 + len(files)
            read_in_time(m, files[40:], backing)
            source.release()
            data = [content(number, SIZE) for number in range(80)]
            assert stuck.result() == [[SIZE, hashlib.sha256(one).hexdigest()] for one in data]
        m.wait_status(lambda s: (s["stager"]["stuck_reads"], s["stager"]["spare_workers"]) == (0, 0))


@pytest.mark.long
@pytest.mark.parametrize("source", [80], indirect=True)
def test_eighty_stuck_reads_of_the_servers_own_leave_others_alone(
    mounting: Mounting, source: SlowSource, backing: Path
) -> None:
    """Nothing finds room in memory: servers read the source themselves."""
    with mounting(source.path, "--ram", "64K") as m:
        files = healthy(m)
        source.stall("read", "sick/*")
        with Reader("many", m.path / "sick") as stuck:
            source.wait_stalled(80)
            read_in_time(m, files, backing)
            source.release()
            assert {size for size, _ in stuck.result()} == {SIZE}


@pytest.mark.slow
@pytest.mark.parametrize("source", [2000], indirect=True)
def test_two_thousand_stuck_reads_leave_hits_alone_and_end_at_the_time_limit(
    mounting: Mounting, source: SlowSource, backing: Path
) -> None:
    with mounting(source.path, "--io-timeout", "12s") as m:
        m.errors_expected = True
        files = healthy(m)
        read_in_time(m, files[:20], backing)
        before = server_kib(m)
        source.stall("read", "sick/*")
        with Reader("many", m.path / "sick") as stuck:
            source.wait_stalled(300)
            read_in_time(m, files[:20], backing)
            assert m.status()["state"] == "running"
            assert server_kib(m) - before < 200 << 10
            assert set(stuck.result(40)) == {errno.EIO}
        source.release()
        m.wait_status(lambda s: s["stager"]["stuck_reads"] == 0)
        read_in_time(m, files, backing)
