"""Random source trees with awkward names."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from hypothesis import strategies as st

NAMES = [
    "a",
    "a b",
    "a-b",
    "a.b",
    "a0",
    "A",
    "b",
    "B",
    "ä",
    "é",
    "z",
    "-",
    ".hid",
    "\U0001f600",
    "\ue000",
    "ﬀ",
]
RAW = [b"\xff", b"\x80a", b"a\xff", b"\xc3"]
SUFFIXES = [
    "",
    ".jpg",
    ".JPG",
    ".jpeg",
    ".Png",
    ".tif",
    ".tIFF",
    ".webp",
    ".txt",
    ".jpgx",
    "jpg",
    ".tİf",
    ".\x0epg",
]

texts = st.tuples(st.sampled_from(NAMES), st.sampled_from(SUFFIXES)).map(lambda t: os.fsencode("".join(t)))
raws = st.tuples(st.sampled_from(RAW), st.sampled_from(SUFFIXES)).map(lambda t: t[0] + os.fsencode(t[1]))
names = st.one_of(texts, texts, raws)


def paths(names: st.SearchStrategy[bytes] = names, most: int = 25) -> st.SearchStrategy[list[bytes]]:
    """Relative paths of files up to four levels deep."""
    path = st.lists(names, min_size=1, max_size=4).map(b"/".join)
    return st.lists(path, max_size=most, unique=True)


@contextmanager
def tree(files: Iterable[bytes], links: Iterable[tuple[bytes, bytes]] = ()) -> Iterator[bytes]:
    """A directory with these files and (path, target) links, as far as none is in the way of another."""
    root = os.fsencode(tempfile.mkdtemp())
    try:
        for size, path in enumerate(files):
            with suppress(OSError), open(_place(root, path), "xb") as file:
                file.write(b"x" * size)
        for path, target in links:
            with suppress(OSError):
                os.symlink(target, _place(root, path))
        yield root
    finally:
        shutil.rmtree(root)


def _place(root: bytes, path: bytes) -> bytes:
    full = root + b"/" + path
    os.makedirs(os.path.dirname(full), exist_ok=True)
    return full
