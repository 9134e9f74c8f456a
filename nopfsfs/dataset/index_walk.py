"""An index as Python's listing functions see it: names as text, links followed. Pure.

Owns the walks that the file orders (`file_orders.py`) are made of; knows no framework.
"""

from __future__ import annotations

import os
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.index import NO_ENTRY, Index
from nopfsfs.dataset.index_build import LINK
from nopfsfs.dataset.symlinks import resolve

# Lower case of each byte. ASCII is enough: the lower case of no other character is a letter of the suffixes.
LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)


class IndexWalk:
    """Walks through one index. The constructor reads all directories, links and names: use one object for several
    orders."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.is_text = is_text(index)
        self.ends = _subtree_ends(parents_of(index))
        links = index.link_row.tolist()
        leads_to = [resolve(index, row) for row in links]
        pairs = list(zip(links, leads_to, strict=True))
        self.target = np.array([row if to < 0 else to for row, to in pairs], np.uint32)  # for each of link_row
        self.dir_links = {row: to for row, to in pairs if 0 <= to < index.n_dirs}

    def children(self, dir_row: int) -> list[tuple[bytes, int]]:
        """(name, row) of the child directories, links to directories included, sorted by name."""
        index = self.index
        first, last = index.at.first_entry[dir_row], index.at.first_entry[dir_row + 1]
        rows = index.entry_row[first:last]
        is_dir = rows < index.n_dirs
        if self.dir_links:
            is_dir |= np.isin(rows, list(self.dir_links))
        found = []
        for i in np.flatnonzero(is_dir).tolist():
            row = int(rows[i])
            found.append((index.name(first + i), self.dir_links.get(row, row)))
        return found if self.is_text else sorted(found, key=lambda child: os.fsdecode(child[0]))

    def walk(self, dir_row: int, *, links: bool = True) -> list[int]:
        """The directory and all directories below it, sorted by path, as sorted(os.walk(directory, followlinks=links))
        gives them."""
        if not (links and self.dir_links):
            return self._walk_plain(dir_row)
        found: list[tuple[str, int]] = []
        waiting: list[tuple[bytes, int, tuple[int, ...]]] = [(b"", dir_row, ())]
        while waiting:
            path, row, above = waiting.pop()
            found.append((os.fsdecode(path), row))
            inside = (*above, row)
            waiting += [
                (path + b"/" + name, child, inside) for name, child in self.children(row) if child not in inside
            ]
        return [row for _, row in sorted(found)]

    def _walk_plain(self, dir_row: int) -> list[int]:
        rows = list(range(dir_row, self.ends[dir_row]))
        if len(rows) == 1:
            return rows
        # Rows are sorted by path + "/": a path that goes on with a byte below "/" comes before it there.
        paths = [self.index.path(row) for row in rows]
        return [row for _, row in sorted(zip(map(os.fsdecode, paths), rows, strict=True))]

    def walk_as_listed(self, dir_row: int) -> list[int]:
        """The directory and all directories below it, links not followed, as os.walk meets them where
        listings are sorted by name."""
        index = self.index
        below: dict[int, list[int]] = {}
        for row in range(dir_row + 1, self.ends[dir_row]):
            below.setdefault(index.parent(row), []).append(row)
        found = []
        waiting = [dir_row]
        while waiting:
            row = waiting.pop()
            found.append(row)
            waiting += sorted(below.get(row, ()), key=index.at.primary.__getitem__, reverse=True)
        return found

    def walk_bottom_up(self, dir_row: int) -> list[tuple[bytes, int]]:
        """(path below the directory with a slash at its end, row) of the directory and all directories below it, links
        followed. The order is that of os.walk(topdown=False, followlinks=True) when listings are sorted by name."""
        found = []
        waiting: list[tuple[bytes, int, tuple[int, ...]]] = [(b"", dir_row, ())]
        while waiting:  # from the top down, the last child first: the reverse of the result
            path, row, above = waiting.pop()
            found.append((path, row))
            inside = (*above, row)
            waiting += [
                (path + name + b"/", child, inside) for name, child in sorted(self.children(row)) if child not in inside
            ]
        return found[::-1]

    def entries_of(self, dirs: list[int]) -> NDArray[np.int64]:
        """The entries of the directories, one directory after the other, each sorted by name as bytes."""
        first = self.index.first_entry.astype(np.int64)
        rows = np.array(dirs, np.int64)
        return ranges(first[rows], first[rows + 1])

    def sorted_entries(self, dirs: list[int]) -> NDArray[np.int64]:
        """The entries of the directories, one directory after the other, each sorted by name as text."""
        index = self.index
        entries = self.entries_of(dirs)
        if self.is_text:
            return entries
        first = index.first_entry.astype(np.int64)
        rows = np.array(dirs, np.int64)
        place = np.repeat(np.arange(len(rows)), first[rows + 1] - first[rows]).tolist()
        keys = [(p, os.fsdecode(index.name(e))) for p, e in zip(place, entries.tolist(), strict=True)]
        return entries[sorted(range(len(keys)), key=keys.__getitem__)]

    def entries_by_path(self, dir_row: int) -> NDArray[np.int64]:
        """All entries below the directory, sorted by full path as text."""
        index, at = self.index, self.index.at
        end = self.ends[dir_row]
        if not self.is_text:
            entries = np.arange(at.first_entry[dir_row], at.first_entry[end])
            above = {row: index.path(row) + b"/" if row else b"" for row in range(dir_row, end)}
            keys = [os.fsdecode(above[at.entry_parent[e]] + index.name(e)) for e in entries.tolist()]
            return entries[sorted(range(len(keys)), key=keys.__getitem__)]
        pieces: list[tuple[int, int]] = []  # of the entry table
        opened = [[dir_row, at.first_entry[dir_row]]]  # directories that are entered, and the next entry of each
        for row in range(dir_row + 1, end):  # sorted by path + "/": the sequence in which full paths meet them
            parent = index.parent(row)
            while opened[-1][0] != parent:
                done, following = opened.pop()
                pieces.append((following, at.first_entry[done + 1]))
            name = index.name(at.primary[row])
            here = at.first_entry[parent] + index.position(parent, name + b"/")
            pieces.append((opened[-1][1], here))
            opened[-1][1] = here
            opened.append([row, at.first_entry[row]])
        pieces += [(following, at.first_entry[done + 1]) for done, following in reversed(opened)]
        bounds = np.array(pieces, np.int64)
        return ranges(bounds[:, 0], bounds[:, 1])

    def rows(self, entries: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Rows of the entries, links resolved, directories left out."""
        rows = self.targets(entries)
        return rows[rows >= self.index.n_dirs]

    def targets(self, entries: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The row of each entry; of a link, the row that the link leads to, or its own where it leads to nothing."""
        index = self.index
        rows = index.entry_row[entries]
        if len(index.link_row):
            is_link = index.mode[rows] >> 12 == LINK
            rows[is_link] = self.target[np.searchsorted(index.link_row, rows[is_link])]
        return rows


def ranges(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """arange(start, stop) of each pair, one after the other."""
    lengths = stops - starts
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def has_suffix(index: Index, entries: NDArray[np.int64], suffixes: Collection[bytes]) -> NDArray[np.bool_]:
    """True for each entry whose name ends with one of the suffixes, in upper or lower case. The suffixes are in lower
    case, at most 8 bytes each."""
    stops = index.name_start[entries + 1].astype(np.int64)
    lengths = stops - index.name_start[entries].astype(np.int64)
    longest = max(map(len, suffixes))
    ending = np.zeros(len(entries), np.uint64)  # the last bytes of the name, the last of all lowest
    for back in range(min(longest, len(index.names))):
        byte = LOWER[index.names[np.maximum(stops - 1 - back, 0)]].astype(np.uint64)
        ending |= byte << np.uint64(8 * back)
    found = np.zeros(len(entries), np.bool_)
    for suffix in suffixes:
        mask = np.uint64((1 << 8 * len(suffix)) - 1)
        found |= (ending & mask == np.uint64(int.from_bytes(suffix, "big"))) & (lengths >= len(suffix))
    return found


def is_text(index: Index) -> bool:
    """True when all names are UTF-8."""
    if not len(index.names) or int(index.names.max()) < 0x80:
        return True
    first = index.names[index.name_start[:-1].astype(np.int64)]
    if bool((first & 0xC0 == 0x80).any()):
        return False  # a name begins within a character; all names joined could still be UTF-8
    try:
        index.names.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def parents_of(index: Index) -> NDArray[np.int64]:
    """The parent row of each directory; the root is its own parent."""
    entries = index.primary[: index.n_dirs]
    parents = np.zeros(index.n_dirs, np.int64)
    named = entries != NO_ENTRY
    parents[named] = index.entry_parent[entries[named]]
    return parents


def _subtree_ends(parents: NDArray[np.int64]) -> list[int]:
    """The row after the last directory at or below each directory."""
    ends = list(range(1, len(parents) + 1))
    for row, parent in reversed(list(enumerate(parents.tolist()))):
        if ends[parent] < ends[row]:
            ends[parent] = ends[row]
    return ends
