"""Orders that a user gives instead of a sampler: arrays of indices, or lists of paths. Reads and checks them.

A faulty file costs bounded memory and raises an error of one line. Files are read, not mapped: a mapped file that its
owner cuts short would end the process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.index import Index
from nopfsfs.dataset.index_build import LINK
from nopfsfs.dataset.symlinks import resolve

EPOCHS_MOST = 64  # epochs of the whole data set that one order may hold: 8 bytes a sample
SMALLEST = 1024  # files: an order of fewer may be longer than EPOCHS_MOST epochs of them
PATH_MOST = 4096  # bytes of a line: PATH_MAX
_NPY = b"\x93NUMPY"
_SHOWN = 120  # characters of a path in a message

Samples = NDArray[np.int64]


class ExplicitOrder(NamedTuple):
    """A file list (rows, int64[k]) and, for each epoch, samples of that list (int64[m])."""

    rows: NDArray[np.int64]
    epochs: tuple[Samples, ...]


class Places(NamedTuple):
    """The places that paths may start from: a directory row, the absolute paths of source and mount ("": none)."""

    root: int = 0
    source: str = ""
    mountpoint: str = ""


def directory(index: Index, root: str) -> int:
    """The row of a directory below the source, links followed; "" is the source itself. Raises ValueError."""
    row = _find(index, 0, os.fsencode(root)) if root else 0
    if not 0 <= row < index.n_dirs:
        why = "is not a directory" if row >= 0 else "is not there"
        raise ValueError(f"{_show(root)} {why}; name a directory below the source, relative to it")
    return row


def read_order(
    paths: Sequence[str],
    index: Index,
    places: Places,
    files: Callable[[], NDArray[np.integer]],
    *,
    repeats: bool = False,
) -> ExplicitOrder:
    """The order in the files `paths`: a .npy file of integers for each epoch, or one with an epoch in each row. Text
    files with a path in each line do as well. `files` gives the file list (rows) that indices refer to.

    Text may take some 10 microseconds a line. Raises ValueError with one line that begins with the file. The file may
    be unreadable, of the wrong format, empty or too large. An index or path may not exist, or may come twice in an
    epoch without `repeats`."""
    if not paths:
        raise ValueError("no file is named; name a .npy or a text file")
    kinds = {_is_npy(path) for path in paths}
    if len(kinds) > 1:
        raise ValueError(f"{_show(paths[0])}: index arrays and lists of paths are mixed; name files of one kind")
    if kinds.pop():
        rows = np.asarray(files(), np.int64)
        return ExplicitOrder(rows, tuple(_arrays(paths, len(rows), repeats)))
    return _lists(paths, index, places, repeats)


def _is_npy(path: str) -> bool:
    """True when `path` is a .npy file by its first bytes. Raises ValueError for a file that cannot be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError(f"{_show(path)}: not a regular file; name a .npy or a text file")
        with open(path, "rb") as file:
            head = file.read(len(_NPY))
    except OSError as error:
        raise ValueError(f"{_show(path)}: {error.strerror}; name a file that the user who mounted can read") from error
    if path.endswith(".npy") and head != _NPY:
        raise ValueError(f"{_show(path)}: not a .npy file; write it with numpy.save")
    return head == _NPY


def _arrays(paths: Sequence[str], n: int, repeats: bool) -> Iterator[Samples]:
    """The epochs of .npy files, checked against a file list of length n."""
    left = EPOCHS_MOST * max(n, SMALLEST)
    for path in paths:
        array = _load(path, left)
        left -= array.size
        for epoch, samples in enumerate(np.atleast_2d(array)):
            where = f"{_show(path)}, row {epoch}" if array.ndim == 2 else _show(path)
            yield _checked(samples, n, where, repeats)


def _load(path: str, left: int) -> NDArray[np.integer]:
    """The array of a .npy file of at most `left` integers."""
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)  # only for its dtype and shape
        if mapped.dtype.kind not in "iu" or mapped.ndim not in (1, 2):
            words = f"{mapped.dtype} in {mapped.ndim} dimensions"
            raise ValueError(f"{_show(path)}: holds {words}; whole numbers in 1 or 2 dimensions are needed")
        if not mapped.size:
            raise ValueError(f"{_show(path)}: is empty; an order has at least one sample")
        if mapped.size > left:
            words = f"{mapped.size} samples, more than {EPOCHS_MOST} epochs of all files"
            raise ValueError(f"{_show(path)}: too large: {words}")
        del mapped
        array: NDArray[np.integer] = np.load(path, allow_pickle=False)
        return array
    except Exception as error:  # numpy reads the header as an expression of Python: it may raise nearly anything
        if isinstance(error, ValueError) and str(error).startswith(_show(path)):
            raise
        why = " ".join(str(error).split())[:_SHOWN] or type(error).__name__
        raise ValueError(f"{_show(path)}: cannot be read as a .npy file of numbers: {why}") from error


def _checked(samples: NDArray[np.integer], n: int, where: str, repeats: bool) -> Samples:
    wrong = (samples < 0) | (samples >= n)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(f"{where}, position {at}: {int(samples[at])} is no index of {n} files: 0 to {n - 1}")
    found = samples.astype(np.int64)
    if not repeats:
        _no_repeats(found, lambda at, first: f"{where}, position {at}: {int(found[at])} again, after position {first}")
    return found


def _no_repeats(samples: Samples, say: Callable[[int, int], str]) -> None:
    """Raise ValueError for the first repeated sample; `say` makes the text from its position and the earlier one."""
    if np.bincount(samples).max(initial=0) < 2:
        return
    order = np.argsort(samples, kind="stable")
    again = np.flatnonzero(samples[order[1:]] == samples[order[:-1]])
    first = again[np.argmin(order[again + 1])]
    at, before = int(order[first + 1]), int(order[first])
    raise ValueError(f"{say(at, before)}; say repeats = true if that is meant")


def _lists(paths: Sequence[str], index: Index, places: Places, repeats: bool) -> ExplicitOrder:
    """The epochs of text files. The file list has the files that they name, each at its first mention."""
    sample_of: dict[int, int] = {}
    epochs = []
    find = _Finder(index, places)
    left = EPOCHS_MOST * max(index.n, SMALLEST)
    for path in paths:
        samples, numbers = [], []
        for number, line in _lines(path):
            row = find(line, f"{_show(path)}:{number}")
            samples.append(sample_of.setdefault(row, len(sample_of)))
            numbers.append(number)
            left -= 1
            if left < 0:
                raise ValueError(f"{_show(path)}:{number}: too large: more than {EPOCHS_MOST} epochs of all files")
        if not samples:
            raise ValueError(f"{_show(path)}: is empty; write a path in each line")
        epoch = np.array(samples, np.int64)
        if not repeats:
            _no_repeats(epoch, _repeated_line(path, numbers))
        epochs.append(epoch)
    return ExplicitOrder(np.fromiter(sample_of, np.int64, len(sample_of)), tuple(epochs))


def _repeated_line(path: str, numbers: list[int]) -> Callable[[int, int], str]:
    return lambda at, before: f"{_show(path)}:{numbers[at]}: the same file as in line {numbers[before]}"


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """(number, text) of each line that is not empty."""
    try:
        with open(path, "rb") as file:
            number = 0
            while line := file.readline(PATH_MOST + 2):
                number += 1
                text = line.rstrip(b"\r\n")
                if len(text) > PATH_MOST or b"\0" in text:
                    raise ValueError(f"{_show(path)}:{number}: not a path; write a path in each line, as text")
                if text:
                    yield number, text
    except OSError as error:
        raise ValueError(f"{_show(path)}: {error.strerror}; name a file that the user who mounted can read") from error


class _Finder:
    """A function from paths to rows of regular files; remembers directories."""

    def __init__(self, index: Index, places: Places) -> None:
        self._index = index
        self._tops = [places.root, 0] if places.root else [0]
        self._above = [os.fsencode(path).rstrip(b"/") + b"/" for path in (places.source, places.mountpoint) if path]
        self._known: dict[bytes, tuple[int, ...]] = {}

    def __call__(self, path: bytes, where: str) -> int:
        """The row of the file at `path`. Raises ValueError with a text that begins with `where`."""
        tops: tuple[int, ...] = tuple(self._tops)
        if path.startswith(b"/"):
            below = [path[len(above) :] for above in self._above if path.startswith(above)]
            if not below:
                words = "is not below the source or its mount; write paths relative to it"
                raise ValueError(f"{where}: {_show(path)} {words}")
            path, tops = below[0], (0,)
        head, _, name = path.rpartition(b"/")
        index = self._index
        for dir_row in self._directories(head, tops):
            row = index.lookup(dir_row, name)
            row = _followed(index, row) if row >= 0 else _find(index, dir_row, name)
            if row >= 0:
                if index.at.mode[row] & 0o170000 == stat.S_IFREG:
                    return row
                kind = "a directory" if row < index.n_dirs else "no regular file"
                raise ValueError(f"{where}: {_show(path)} is {kind}; an order has files only")
        raise ValueError(f"{where}: {_show(path)} is not there; write paths relative to the data set or to the source")

    def _directories(self, head: bytes, tops: tuple[int, ...]) -> tuple[int, ...]:
        key = head if len(tops) == len(self._tops) else b"/" + head
        known = self._known.get(key)
        if known is None:
            found = (_find(self._index, top, head) for top in tops)
            known = self._known[key] = tuple(row for row in found if 0 <= row < self._index.n_dirs)
        return known


def _find(index: Index, dir_row: int, path: bytes) -> int:
    """The row of a path relative to a directory, links followed; -1 where there is no such file."""
    row = dir_row
    for part in path.split(b"/"):
        if part in (b"", b"."):
            continue
        if not 0 <= row < index.n_dirs:
            return -1
        if part == b"..":
            if row == 0:
                return -1
            row = index.parent(row)
            continue
        row = index.lookup(row, part)
        if row < 0:
            return -1
        row = _followed(index, row)
    return row


def _followed(index: Index, row: int) -> int:
    return resolve(index, row) if index.at.mode[row] >> 12 == LINK else row


def _show(path: str | bytes) -> str:
    """A path for people, in one line of at most `_SHOWN` characters."""
    text = os.fsdecode(path).encode("utf-8", "backslashreplace").decode()
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= _SHOWN else f"...{text[3 - _SHOWN :]}"
