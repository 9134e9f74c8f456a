"""Index files: damaged in any way, and with columns that make no sense under checksums that are right."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from random import Random

import xxhash

from fuzzing.core import Input, Wrong
from fuzzing.mutate import garbage, mutated, number
from fuzzing.trees import make_tree
from nopfsfs.dataset import index_cache, index_file
from nopfsfs.dataset.index import Index
from nopfsfs.dataset.index_check import IndexDamaged
from nopfsfs.dataset.tree_scan import scan
from nopfsfs.vfs.tree import RefreshedAttributes, Tree
from nopfsfs.vfs.tree_errors import TreeError

A_CASE = 8  # files
LISTED_MOST = 10_000  # entries of a damaged directory that are looked at


class NoOverrides:
    def get(self, row: int, /) -> RefreshedAttributes | None:
        return None

    def acl(self, row: int, /) -> bytes | None:
        return b""


class NoSource:
    def getxattr(self, row: int, name: bytes, /) -> bytes:
        raise OSError(errno.ENODATA, "nowhere")

    def listxattr(self, row: int, /) -> list[bytes]:
        return []


class IndexInput(Input):
    """Loads files as `cache` does. What is accepted must answer every question, as after an undamaged file."""

    name = "index"

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        self.root = work / "source"
        self.root.mkdir()
        self.index = make_tree(self.root)
        self.path = work / "one.index"
        index_file.save(self.index, self.path)
        self.valid = self.path.read_bytes()
        counts = index_file._counts(self.index)
        self.places = index_file._places(counts)[0]

    def play(self, rng: Random) -> None:
        for _ in range(A_CASE):
            self._load(self._one(rng))
        if rng.random() < 0.1:
            self._scan_over(self._one(rng))

    def _one(self, rng: Random) -> bytes:
        match rng.randrange(5):
            case 0:
                return garbage(rng, 4096)
            case 1:
                return mutated(rng, self.valid)
            case 2:
                return self._header(rng)
            case 3:
                return self.valid[: rng.randrange(len(self.valid) + 1)]
        return self._columns(rng)

    def _header(self, rng: Random) -> bytes:
        """A header with other counts, and the right checksum."""
        values = list(index_file.HEADER.unpack_from(self.valid))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(2, len(values) - 2)
            values[at] = number(rng) if rng.random() < 0.5 else (values[at] + rng.randint(-2, 2)) % (1 << 64)
        return self._signed(index_file.HEADER.pack(*values), self.valid)

    def _signed(self, header: bytes, data: bytes) -> bytes:
        head = header + index_file.SUM.pack(xxhash.xxh3_64_intdigest(header))
        return head + data[len(head) :]

    def _columns(self, rng: Random) -> bytes:
        """Columns with other values, and the right checksums: what only a fault of a program makes."""
        data = bytearray(self.valid)
        for _ in range(rng.randint(1, 3)):
            _, dtype, length, offset = rng.choice([place for place in self.places if place[2]])
            width = int(dtype[-1])
            at = offset + width * rng.randrange(length)
            value = rng.randrange(64) if rng.random() < 0.5 else number(rng, 8 * width)
            data[at : at + width] = struct.pack("<Q", value)[:width]
        digest = xxhash.xxh3_64()
        for _, dtype, length, offset in self.places:
            digest.update(data[offset : offset + length * int(dtype[-1])])
        values = list(index_file.HEADER.unpack_from(data))
        values[-2] = digest.intdigest()
        return self._signed(index_file.HEADER.pack(*values), bytes(data))

    def _load(self, data: bytes) -> None:
        self.path.write_bytes(data)
        try:
            index = index_file.load(self.path)
        except IndexDamaged as e:
            self.tell_error(e)
            return
        use(index)
        self.tell("accepted")

    def _scan_over(self, data: bytes) -> None:
        """A mount that finds the file, and scans with what it says."""
        directory = self.work / "kept"
        directory.mkdir(exist_ok=True)
        path = index_cache._place(os.fsencode(self.root), str(directory), False)
        assert path is not None
        Path(path).write_bytes(data)
        opened = index_cache.open_or_scan(str(self.root), str(directory))
        os.close(opened.fd)
        use(opened.index)
        fresh = scan(str(self.root)).index
        if set(paths(opened.index)) != set(paths(fresh)) and opened.result.dirs_reused == 0:
            raise Wrong("another tree than a scan finds")
        self.tell("scanned over it")


def paths(index: Index) -> list[bytes]:
    return [index.path(row) for row in range(index.n)]


def use(index: Index) -> None:
    """Ask everything that a mount asks of an index."""
    tree = Tree(index, NoSource(), NoOverrides())
    for row in range(index.n):
        tree.attributes(row)
        index.path(row)
        index.parent(row)
        try:
            tree.readlink(row)
        except TreeError:
            pass
    for row in range(index.n_dirs):
        for listed, (_, name, entry) in enumerate(tree.entries(row)):
            if not 0 <= entry < index.n:
                raise Wrong(f"entry of row {entry} of {index.n}")
            if listed > LISTED_MOST:
                raise Wrong("a directory without end")
            index.lookup(row, name)
