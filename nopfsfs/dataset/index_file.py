"""The file form of an index: a checksummed header, then the columns, each at a multiple of 64 bytes.

Offsets follow from the counts in the header, so there is no table of them that could be wrong.

A file is never mapped. A process that reads a mapped file ends by SIGBUS when the file is truncated. The server of a
network file system may truncate it as well as this machine. The file is copied into sealed memory; the copy is verified
and mapped.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from nopfsfs.dataset.index import COLUMNS, Index
from nopfsfs.dataset.index_check import IndexDamaged, check
from nopfsfs.system.atomic_file import whole_file
from nopfsfs.system.descriptors import closed_on_error, closing_fd

MAGIC = b"NOPFSIDX"
LAYOUT = 3  # increase it when COLUMNS or their meaning changes: then sources with older files are scanned anew
ALIGN = 64
HEADER = struct.Struct("<8sI4x12QQQ16s")  # magic, layout, counts, file size, checksum of body, fingerprint
SUM = struct.Struct("<Q")  # xxh3 of the header
BODY = -(-(HEADER.size + SUM.size) // ALIGN) * ALIGN
CHUNK = 1 << 26  # bytes for one write or checksum step


def _counts(index: Index) -> dict[str, int]:
    return {
        "n": index.n,
        "m": index.n_entries,
        "d": index.n_dirs,
        "l": len(index.link_row),
        "v": len(index.devices),
        "t": len(index.names),
        "u": len(index.link_targets),
        "f": len(index.led_row),
        "w": len(index.led_places),
        "a": len(index.acl_row),
        "k": len(index.acl_start) - 1,
        "x": len(index.acls),
    }


def _places(counts: dict[str, int]) -> tuple[list[tuple[str, str, int, int]], int]:
    """(column, dtype, length, offset) of each column, and the size of the file."""
    places = []
    offset = BODY
    for name, dtype, how_many in COLUMNS:
        letter, _, extra = how_many.partition("+")
        length = counts[letter] + int(extra or 0)
        places.append((name, dtype, length, offset))
        offset += -(-length * int(dtype[-1]) // ALIGN) * ALIGN
    return places, offset


def write(index: Index, fd: int) -> None:
    """Write the index to an empty file, the header last, so that a file cut short has none. Raises OSError."""
    counts = _counts(index)
    places, file_size = _places(counts)
    os.ftruncate(fd, file_size)
    digest = xxhash.xxh3_64()
    for name, _, length, offset in places:
        data = memoryview(getattr(index, name)).cast("B") if length else memoryview(b"")
        for start in range(0, len(data), CHUNK):
            _pwrite(fd, data[start : start + CHUNK], offset + start)
        digest.update(data)
    body = digest.intdigest()
    values = (*counts.values(), file_size, body, bytes.fromhex(index.fingerprint))
    header = HEADER.pack(MAGIC, LAYOUT, *values)
    _pwrite(fd, memoryview(header + SUM.pack(xxhash.xxh3_64_intdigest(header))), 0)


def _pwrite(fd: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(fd, data, offset)
        data = data[done:]
        offset += done


def save(index: Index, path: str | os.PathLike[str]) -> None:
    """Do the work of `Index.save`. The temporary file is a hidden sibling (`atomic_file.TEMPORARY`), removed on any
    failure."""
    with whole_file(os.fspath(path), 0o600) as file:
        write(index, file.fileno())


def to_memfd(index: Index) -> int:
    """A sealed memfd with the index, for `Index.load_fd` in another process. The caller closes it. Raises
    OSError."""
    return _sealed(lambda fd: write(index, fd))


def copy_sealed(file: int) -> int:
    """A sealed memfd with a copy of an index file. The copy is not verified: a file that changes meanwhile gives a
    damaged one. The caller closes both. Raises OSError, or IndexDamaged where the file ends early."""

    def copy(fd: int) -> None:
        at, size = 0, os.fstat(file).st_size
        os.ftruncate(fd, size)
        while at < size:
            done = os.sendfile(fd, file, at, min(CHUNK, size - at))
            if done == 0:
                raise IndexDamaged("cut short while it was read")
            at += done

    return _sealed(copy)


def _sealed(fill: Callable[[int], None]) -> int:
    """A memfd that `fill` writes, sealed afterwards so that no process can change it."""
    with closed_on_error(os.memfd_create("nopfs-index", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)) as fd:
        fill(fd)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def load(path: str | os.PathLike[str]) -> Index:
    """Do the work of `Index.load`."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as file, closing_fd(copy_sealed(file)) as fd:
        return load_fd(fd, verify=True)


def load_fd(fd: int, *, verify: bool = False) -> Index:
    """Do the work of `Index.load_fd`."""
    if os.fstat(fd).st_size < BODY:
        raise IndexDamaged("shorter than its header")
    # Private: before Linux 6.7, sealed memory cannot be mapped as shared, not even to be read (mm/shmem.c, shmem_mmap).
    mapped = memoryview(mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)).toreadonly()
    head = bytes(mapped[: HEADER.size])
    magic, layout, *numbers, file_size, body, print_ = HEADER.unpack(head)
    if magic != MAGIC:
        raise IndexDamaged("not an index file")
    if layout != LAYOUT:
        raise IndexDamaged(f"layout {layout}, this version reads {LAYOUT}")
    if SUM.unpack_from(mapped, HEADER.size)[0] != xxhash.xxh3_64_intdigest(head):
        raise IndexDamaged("wrong checksum of the header")
    places, expected = _places(dict(zip("nmdlvtufwakx", numbers, strict=True)))
    if not len(mapped) == file_size == expected:
        raise IndexDamaged(f"{len(mapped)} bytes long, not {expected}")
    columns: dict[str, NDArray[Any]] = {
        name: np.frombuffer(mapped, dtype, length, offset) for name, dtype, length, offset in places
    }
    if verify:
        if _checksum(columns) != body:
            raise IndexDamaged("wrong checksum of the columns")
        check(columns)
    return Index(**columns, fingerprint=print_.hex())


def _checksum(columns: dict[str, NDArray[Any]]) -> int:
    digest = xxhash.xxh3_64()
    for name, _, _ in COLUMNS:
        digest.update(columns[name].data)
    return digest.intdigest()
