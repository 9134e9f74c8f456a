"""All ways to read bytes: mmap, sendfile, splice, pread, O_DIRECT, files over 4 GiB."""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import place_for_all
from tests.mount.harness import Mounted, content, mounted, write
from tests.mount.modes import DEFAULT, MODES, Mode, case

pytestmark = pytest.mark.mount

GIB = 1 << 30
SIZES = [1, 4095, 4096, 4097, 131072, 131073, 1_000_003, (4 << 20) + 1, 9_000_001]
BIG = 4 * GIB + 123_457
MARKS = (0, GIB, 4 * GIB - 4, BIG - 8)  # where the sparse file has data


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = place_for_all(tmp_path_factory, "reads") / "source"
    write(source, {str(size): content(size, size) for size in SIZES})
    with open(source / "big", "wb") as file:
        for mark in MARKS:
            file.seek(mark)
            file.write(b"%08d" % (mark % 10**8))
        file.truncate(BIG)
    return source


# Of 16 MiB the larger files are read by ranges, the others whole.
BUDGETS = [(DEFAULT, ""), (DEFAULT, "4M"), *((mode, "16M") for mode in MODES)]


@pytest.fixture(
    scope="module",
    params=[case(one[0], one) for one in BUDGETS],
    ids=[f"{mode.name} {ram}" for mode, ram in BUDGETS],
)
def mode(request: pytest.FixtureRequest) -> Mode:
    mode, ram = request.param
    return replace(mode, flags=(*mode.flags, "--ram", ram)) if ram else mode


@pytest.fixture(scope="module")
def m(source: Path, mode: Mode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    with mounted(source, work=place_for_all(tmp_path_factory, "reads"), mode=mode) as made:
        yield made


@pytest.fixture(params=SIZES)
def size(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_read(m: Mounted, size: int) -> None:
    assert (m.path / str(size)).read_bytes() == content(size, size)


@pytest.mark.parametrize("kind", [mmap.MAP_SHARED, mmap.MAP_PRIVATE])
def test_mmap(m: Mounted, size: int, kind: int) -> None:
    with open(m.path / str(size), "rb") as file:
        with mmap.mmap(file.fileno(), 0, kind, mmap.PROT_READ) as memory:
            assert memory[:] == content(size, size)
        with mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as memory:
            memory[0:1] = b"?"  # a copy of one's own
    assert (m.path / str(size)).read_bytes() == content(size, size)


def test_a_shared_mapping_cannot_be_written(m: Mounted) -> None:
    with open(m.path / "4096", "rb") as file, pytest.raises(PermissionError):
        mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def test_sendfile_and_splice(m: Mounted, size: int, tmp_path: Path) -> None:
    with open(m.path / str(size), "rb") as file, open(tmp_path / "copy", "wb+") as copy:
        sent = 0
        while part := os.sendfile(copy.fileno(), file.fileno(), sent, 1 << 20):
            sent += part
        copy.seek(0)
        assert copy.read() == content(size, size)
    assert splice_all(m.path / str(size)) == content(size, size)


def splice_all(path: Path) -> bytes:
    taken = b""
    reader, writer = os.pipe()
    fd = os.open(path, os.O_RDONLY)
    try:
        while part := os.splice(fd, writer, 65536):
            while part:
                got = os.read(reader, part)
                taken += got
                part -= len(got)
    finally:
        for each in (fd, reader, writer):
            os.close(each)
    return taken


PLACES = [(0, 10), (4090, 10), (131_070, 10), (999_999, 100), (10**6 + 3, 10), (2 * 10**6, 1), (1 << 40, 1)]


@pytest.mark.parametrize(("offset", "length"), PLACES)
def test_pread(m: Mounted, offset: int, length: int) -> None:
    with open(m.path / "1000003", "rb") as file:
        assert os.pread(file.fileno(), length, offset) == content(1_000_003, 1_000_003)[offset : offset + length]


def test_direct_reads(m: Mounted, size: int) -> None:
    fd = os.open(m.path / str(size), os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 16 << 20) as memory:
            assert os.preadv(fd, [memory], 0) == size
            assert memory[:size] == content(size, size)
            if size > 8192:
                assert os.preadv(fd, [memoryview(memory)[:8192]], 4096) == min(8192, size - 4096)
                assert memory[: min(8192, size - 4096)] == content(size, size)[4096:12288]
    finally:
        os.close(fd)


def test_files_over_4_gib(m: Mounted) -> None:
    with open(m.path / "big", "rb") as file, open(m.source / "big", "rb") as same:
        assert os.fstat(file.fileno()).st_size == BIG
        for mark in (*MARKS, BIG, BIG + 1):
            for start in (max(0, mark - (1 << 20)), mark, mark + 5):
                assert os.pread(file.fileno(), 1 << 20, start) == os.pread(same.fileno(), 1 << 20, start)
        with mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
            assert [memory[mark : mark + 8] for mark in MARKS] == [b"%08d" % (mark % 10**8) for mark in MARKS]
            assert memory[4 * GIB + 5000 : 4 * GIB + 5008] == bytes(8)


def test_a_mapping_outlives_its_descriptor(m: Mounted) -> None:
    with open(m.path / "9000001", "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
    with memory:
        assert hashlib.sha256(memory).digest() == hashlib.sha256(content(9_000_001, 9_000_001)).digest()


def test_a_directory_is_not_read_as_a_file(m: Mounted) -> None:
    fd = os.open(m.path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            os.read(fd, 1)
    finally:
        os.close(fd)


def test_hundreds_of_reads_at_once(m: Mounted) -> None:
    """More than sockets between the mount's processes hold."""
    expected = content(9_000_001, 9_000_001)
    start = threading.Barrier(400)

    def read(number: int) -> bool:
        fd = os.open(m.path / "9000001", os.O_RDONLY | os.O_DIRECT)
        try:
            start.wait(20)
            with mmap.mmap(-1, 4096) as memory:
                at = number * 5 * 4096
                return os.preadv(fd, [memory], at) == 4096 and memory[:] == expected[at : at + 4096]
        finally:
            os.close(fd)

    with ThreadPoolExecutor(400) as pool:
        assert all(pool.map(read, range(400)))
