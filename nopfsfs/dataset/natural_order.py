"""Natural order: paths in lower case, runs of digits as numbers (timm 1.0.31, utils/misc.py: natural_key). Pure.

Millions of plain names are compared as bytes. A run of digits becomes a zero byte, the number of its digits plus one,
and the digits without leading zeros. These bytes compare as timm's lists of texts and numbers do. The key of a path is
the keys of its parts one after the other, so that each directory can be sorted by itself. Whole paths are compared
where that fails: names beyond ASCII, links to directories, directories that differ in case or leading zeros only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.index import Index
from nopfsfs.dataset.index_walk import LOWER, IndexWalk, ranges

_DIGITS = re.compile(r"(\d+)")
_AT_ONCE = 1 << 16  # names turned into keys at a time: bounds the working memory at about 100 MiB
_GROUP = 1 << 20  # entries sorted at a time, except for a single larger directory
_RUN_MOST = 250  # digits of a run, so that their number plus one fits a byte
_SLASH = 0x2F


def natural_key(text: str) -> list[int | str]:
    """The key of a path: texts and numbers in turn, the first and the last a text."""
    parts = _DIGITS.split(text.lower())
    return [int(part) if i % 2 else part for i, part in enumerate(parts)]


def entries_naturally(view: IndexWalk, dir_row: int) -> NDArray[np.int64]:
    """All entries below the directory, links to directories followed, in the natural order of their paths; int64.

    Entries of equal keys stay in the order of `os.walk(topdown=False)` through the mount, whose listings are sorted by
    name."""
    if not _is_plain(view, dir_row):
        return _by_whole_paths(view, dir_row)
    index = view.index
    first, end = index.first_entry, view.ends[dir_row]
    bounds = np.asarray(first[dir_row : end + 1], np.int64)
    is_dir = index.entry_row[bounds[0] : bounds[-1]] < index.n_dirs
    sorted_entries = np.empty(bounds[-1] - bounds[0], np.int64)
    for low, high in _groups(bounds):
        group = slice(low - bounds[0], high - bounds[0])
        found = _sorted_group(index, low, high, is_dir[group])
        if found is None:
            return _by_whole_paths(view, dir_row)
        sorted_entries[group] = found
    return _in_tree_order(index, sorted_entries, bounds, dir_row)


def _is_plain(view: IndexWalk, dir_row: int) -> bool:
    """True when the byte keys apply: names are ASCII of at most `_RUN_MOST` bytes, and no link leads to a directory."""
    index = view.index
    starts = index.name_start
    low = int(starts[int(index.first_entry[dir_row])])
    high = int(starts[int(index.first_entry[view.ends[dir_row]])])
    if view.dir_links:
        return False
    step = _AT_ONCE * 64
    lengths = [np.diff(starts[i : i + step + 1]).max(initial=0) for i in range(0, len(starts) - 1, step)]
    return max(lengths, default=0) <= _RUN_MOST and all(
        int(index.names[i : min(i + step, high)].max()) < 0x80 for i in range(low, high, step)
    )


def _groups(bounds: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of entries of whole directories, about `_GROUP` entries each."""
    low = int(bounds[0])
    while low < bounds[-1]:
        last = int(np.searchsorted(bounds, low + _GROUP, side="right")) - 1
        high = int(bounds[last])
        if high <= low:
            high = int(bounds[np.searchsorted(bounds, low, side="right")])
        yield low, high
        low = high


def _sorted_group(index: Index, low: int, high: int, is_dir: NDArray[np.bool_]) -> NDArray[np.int64] | None:
    """The entries low..high sorted by directory and key; None where two directories of one parent have the same key."""
    pieces = [
        _keys(index, start, min(start + _AT_ONCE, high), is_dir[start - low : start - low + _AT_ONCE])
        for start in range(low, high, _AT_ONCE)
    ]
    flat = np.concatenate([keys for keys, _ in pieces])
    lengths = np.concatenate([counts for _, counts in pieces])
    begins = np.cumsum(lengths) - lengths
    parent = index.entry_parent[low:high]
    same = _common_prefix(flat, begins, lengths, parent)
    begins, lengths = begins + same, lengths - same
    words = _words(flat, begins, lengths)
    columns: list[NDArray[Any]] = [*reversed(words), parent]
    order = np.lexsort(columns)
    before, after = order[:-1], order[1:]
    tied = is_dir[before] & is_dir[after] & (parent[before] == parent[after])
    for word in words:
        tied &= word[before] == word[after]
    return None if tied.any() else order + low


def _keys(index: Index, low: int, high: int, is_dir: NDArray[np.bool_]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The keys of the names of entries low..high, one after the other, and their lengths. The key of a directory ends
    in "/"."""
    starts = index.name_start[low : high + 1].astype(np.int64)
    text = LOWER[index.names[starts[0] : starts[-1]]]
    starts -= starts[0]
    place = np.arange(len(text))
    begins = np.zeros(len(text), np.bool_)
    begins[starts[:-1]] = True
    digit = text - np.uint8(48) < 10
    follows = np.zeros(len(text), np.bool_)
    follows[1:] = digit[:-1]
    run = digit & (begins | ~follows)
    run_start = np.maximum.accumulate(np.where(run, place, -1))
    last_significant = np.maximum.accumulate(np.where(digit & (text != 48), place, -1))
    kept = ~(digit & (last_significant < run_start))  # not a leading zero
    run_id = np.cumsum(run) - 1
    significant = np.bincount(run_id[digit & kept], minlength=int(run.sum()))
    takes = kept + 2 * run.astype(np.int64)
    takes[starts[1:] - 1] += is_dir
    ends = np.cumsum(takes)
    keys = np.zeros(int(ends[-1]), np.uint8)
    slash = np.zeros(len(text), np.int64)
    slash[starts[1:] - 1] = is_dir
    keys[(ends - 1 - slash)[kept]] = text[kept]
    keys[(ends - takes)[run] + 1] = significant + 1
    keys[ends[starts[1:] - 1][is_dir] - 1] = _SLASH
    return keys, np.diff(np.concatenate([[0], ends[starts[1:] - 1]]))


def _common_prefix(
    flat: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64], parent: NDArray[np.uint32]
) -> NDArray[np.int64]:
    """The number of first bytes, for each entry, that the keys of all entries of its directory share. These bytes need
    not be compared."""
    heads = np.flatnonzero(np.concatenate([[True], parent[1:] != parent[:-1]]))
    counts = np.diff(np.append(heads, len(parent)))
    shortest = np.minimum.reduceat(lengths, heads)
    common = np.zeros(len(heads), np.int64)
    alive = np.ones(len(heads), np.bool_)
    at = 0
    while (alive := alive & (shortest > at)).any():
        members = np.repeat(alive, counts)
        byte = np.zeros(len(parent), np.uint8)
        byte[members] = flat[begins[members] + at]
        alive &= np.minimum.reduceat(byte, heads) == np.maximum.reduceat(byte, heads)
        at += 1
        common[alive] = at
    return np.repeat(common, counts)


def _words(flat: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[NDArray[np.uint64]]:
    """The keys as words of eight bytes, padded with zeros. A padded key equals no other key."""
    words = []
    for start in range(0, int(lengths.max(initial=0)), 8):
        word = np.zeros(len(begins), np.uint64)
        for at in range(start, start + 8):
            has = lengths > at
            byte = np.where(has, flat[np.where(has, begins + at, 0)], 0).astype(np.uint64)
            word |= byte << np.uint64(8 * (7 - at % 8))
        words.append(word)
    return words


def _in_tree_order(
    index: Index, entries: NDArray[np.int64], bounds: NDArray[np.int64], dir_row: int
) -> NDArray[np.int64]:
    """The entries of all directories, with those of each child directory in the place of the directory's entry."""
    offset = int(bounds[0])
    rows = index.entry_row[entries]
    stops = (bounds - offset).tolist()
    inner = np.flatnonzero(rows < index.n_dirs)
    inner_of = np.searchsorted(inner, bounds - offset).tolist()
    inner_rows, inner_list = rows[inner].tolist(), inner.tolist()
    pieces: list[tuple[int, int]] = []
    # (directory, next place in its entries, next of its child directories)
    stack = [(0, stops[0], inner_of[0])]
    while stack:
        i, start, child = stack.pop()
        if child == inner_of[i + 1]:
            pieces.append((start, stops[i + 1]))
            continue
        pieces.append((start, inner_list[child]))
        stack.append((i, inner_list[child] + 1, child + 1))
        below = inner_rows[child] - dir_row
        stack.append((below, stops[below], inner_of[below]))
    cut = np.array(pieces, np.int64)
    return entries[ranges(cut[:, 0], cut[:, 1])]


def _by_whole_paths(view: IndexWalk, dir_row: int) -> NDArray[np.int64]:
    """All entries, sorted by the keys of their whole paths as timm does it. Costs some microseconds and hundreds of
    bytes for each path."""
    index, at = view.index, view.index.at
    keyed: list[tuple[list[int | str], int, int]] = []
    for path, row in view.walk_bottom_up(dir_row):
        for entry in range(at.first_entry[row], at.first_entry[row + 1]):
            key = natural_key(os.fsdecode(path + index.name(entry)))
            keyed.append((key, len(keyed), entry))
    keyed.sort()
    return np.array([entry for _, _, entry in keyed], np.int64)
