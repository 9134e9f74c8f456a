"""A source of a few files, with disks over it that keep copies, for tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import xxhash

from nopfsfs.dataset.tree_scan import scan
from nopfsfs.protocol.columns import Columns
from nopfsfs.tiers.kept_disk import KeptDisk
from nopfsfs.tiers.kept_names import KeptRows
from nopfsfs.tiers.source import Source

BLOCK = 4096


class Rows:
    """A source of some files, and disks over them, each as if of a mount of its own."""

    def __init__(self, root: Path, count: int = 6, size: int = 3000) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        for number in range(count):
            if not (root / f"f{number}").exists():
                (root / f"f{number}").write_bytes(self.content(number, size))
        self.count, self.size = count, size
        self.scan()

    def scan(self) -> None:
        self.index = scan(self.root).index
        self.columns = Columns(Columns.create(self.index.n), self.index.n, writable=True)
        self.source = Source(os.fsencode(self.root), self.index, self.columns)

    @staticmethod
    def content(number: int, size: int) -> bytes:
        return bytes([number + 1]) * size

    def row(self, number: int) -> int:
        return self.index.lookup(0, f"f{number}".encode())

    def disk(
        self, path: Path, limit: int | None = 1 << 20, sure: Callable[[int, int], bool] = lambda row, version: True
    ) -> KeptDisk:
        kept = KeptRows(os.fsencode(self.root), self.index, self.columns, self.source, None)
        disk = KeptDisk(str(path), limit, kept, sure)
        disk.open()
        self.count_all(disk)
        return disk

    @staticmethod
    def count_all(disk: KeptDisk) -> None:
        for _ in disk.count():
            pass

    def write(self, disk: KeptDisk, number: int) -> None:
        data = (self.root / f"f{number}").read_bytes()
        self.columns.check[self.row(number)] = xxhash.xxh3_64_intdigest(data)
        disk.write(self.row(number), memoryview(data))

    def read(self, disk: KeptDisk, number: int) -> bytes:
        into = bytearray(self.size)
        disk.read(self.row(number), memoryview(into))
        return bytes(into)

    def found(self, disk: KeptDisk) -> dict[int, int]:
        """The sums of what was kept, by row."""
        return {row: check for rows, checks in disk.found() for row, check in zip(rows, checks, strict=True)}


def copies(place: Path) -> list[Path]:
    """The copies in a disk tier that keeps them, with those that are being written or are not sure yet."""
    return sorted(place.glob("nopfs-cache-*/v1/sources/*/??/*"))
