"""Small files beside the index, kept for the next mount: a line with kind, version and checksum, then JSON."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple, NoReturn

import xxhash

from nopfsfs.system.atomic_file import whole_file
from nopfsfs.system.trusted_path import make_directories, read_own


class KeptFile(NamedTuple):
    """A kind of such files, of at most `most` bytes."""

    kind: str
    version: int
    most: int

    def encode(self, body: bytes) -> bytes:
        """Return the bytes of a file with this body."""
        return self._head(body) + b"\n" + body

    def decode(self, data: bytes) -> Any:
        """Return the JSON value in the bytes of a file. Raises ValueError."""
        head, _, body = data.partition(b"\n")
        if len(data) > self.most or head != self._head(body):
            raise ValueError("too long, damaged, or of another version")
        try:
            return json.loads(body, parse_constant=_refused)
        except RecursionError as error:
            raise ValueError(f"not as it was written: {error}") from error

    def read(self, path: str) -> bytes:
        """Return the bytes of this user's file. Raises ValueError for a file of another user or kind, OSError."""
        return read_own(path, self.most)

    def write(self, path: str, data: bytes) -> None:
        """Replace the file. Raises OSError."""
        make_directories(os.path.dirname(path), 0o700)
        with whole_file(path, 0o600) as file:
            file.write(data)

    def _head(self, body: bytes) -> bytes:
        return b"nopfs-%s %d %016x" % (self.kind.encode(), self.version, xxhash.xxh3_64_intdigest(body))


def _refused(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")
