"""What a training job enumerates: the file list of a data set, in the order in which its loader lists it.
Pure.

Sample s of a data set is the s-th row of such a list. Text is compared as Python compares it: by code points,
with bytes that are no UTF-8 as lone surrogates. For UTF-8 that is the order of the bytes, which is the order
of the index.
"""

from __future__ import annotations

import os
import stat

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.build import LINK
from nopfsfs.dataset.index import NO_ENTRY, Index
from nopfsfs.dataset.links import resolve

# torchvision 0.29, datasets/folder.py: IMG_EXTENSIONS
IMAGE_SUFFIXES = (b".jpg", b".jpeg", b".png", b".ppm", b".bmp", b".pgm", b".tif", b".tiff", b".webp")
# More siblings than this that hold files themselves are taken for classes; fewer may be train, val, test and
# extra.
MOST_SPLITS = 4
# ASCII is enough: the lower case of no other character is a letter of the suffixes.
LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)


def image_folder(index: Index, dir_row: int) -> NDArray[np.uint32]:
    """Rows of `torchvision.datasets.ImageFolder(directory).samples` (torchvision 0.29, datasets/folder.py:
    find_classes, make_dataset); uint32, one per sample, empty if there is none.

    Class directories by name; in each `sorted(os.walk(class, followlinks=True))`; in each of these the names
    sorted, image suffixes only. A link stands for what it leads to; one that leads to nothing in the mount
    stands for itself, for ImageFolder lists it too. A directory is not entered again below itself (os.walk
    goes round such a loop of links 40 times)."""
    view = _View(index)
    dirs = [row for _, child in view.children(dir_row) for row in view.walk(child)]
    entries = view.sorted_entries(dirs)
    return view.rows(entries[_has_image_suffix(index, entries)])


def sorted_files(index: Index, dir_row: int) -> NDArray[np.uint32]:
    """Rows of all regular files below the directory, sorted by full path as text; uint32.

    A link to a file counts as that file's row; links to directories are not entered."""
    view = _View(index)
    rows = view.rows(view.entries_by_path(dir_row))
    is_file: NDArray[np.bool_] = index.mode[rows] & 0o170000 == stat.S_IFREG
    return rows[is_file]


def candidate_roots(index: Index, *, classes: bool = True) -> NDArray[np.uint32]:
    """Directory rows that may be the root of a data set, likeliest first; uint32. Links are not followed.

    First those whose child directories hold files (parents of classes), by how many; then directories that
    hold files themselves and have few such siblings (flat splits), by how many; then what is above all these,
    deepest first; then, with `classes`, the other directories of files, which look like classes."""
    parents = _parents(index)
    own = np.bincount(index.entry_parent[index.entry_row >= index.n_dirs], minlength=index.n_dirs)
    holds = np.flatnonzero(own)
    children = holds[holds > 0]  # the root is nobody's child
    in_children = np.bincount(parents[children], weights=own[children], minlength=index.n_dirs)
    siblings = np.bincount(parents[children], minlength=index.n_dirs)
    of_classes = np.flatnonzero(in_children)
    flat = holds[(siblings[parents[holds]] <= MOST_SPLITS) | (holds == 0)]
    groups = (
        of_classes[np.argsort(-in_children[of_classes], kind="stable")],
        flat[np.argsort(-own[flat], kind="stable")],
        _above(parents, np.concatenate([of_classes, flat])),
        holds[np.argsort(-own[holds], kind="stable")] if classes else holds[:0],
    )
    every = np.concatenate(groups)
    _, first = np.unique(every, return_index=True)
    return every[np.sort(first)].astype(np.uint32)


class _View:
    """An index as Python's listing functions see it: names as text, links followed."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.is_text = _is_text(index)
        self.ends = _subtree_ends(_parents(index))
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

    def walk(self, dir_row: int) -> list[int]:
        """The directory and all below it, links followed, sorted by path: those of
        sorted(os.walk(directory))."""
        if not self.dir_links and self.ends[dir_row] == dir_row + 1:
            return [dir_row]
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

    def sorted_entries(self, dirs: list[int]) -> NDArray[np.int64]:
        """The entries of the directories, one directory after the other, in each sorted by name."""
        index = self.index
        first = index.first_entry.astype(np.int64)
        rows = np.array(dirs, np.int64)
        entries = _ranges(first[rows], first[rows + 1])
        if self.is_text:
            return entries
        place = np.repeat(np.arange(len(rows)), first[rows + 1] - first[rows]).tolist()
        keys = [(p, os.fsdecode(index.name(e))) for p, e in zip(place, entries.tolist(), strict=True)]
        return entries[sorted(range(len(keys)), key=keys.__getitem__)]

    def entries_by_path(self, dir_row: int) -> NDArray[np.int64]:
        """All entries below the directory, sorted by full path."""
        index, at = self.index, self.index.at
        end = self.ends[dir_row]
        if not self.is_text:
            entries = np.arange(at.first_entry[dir_row], at.first_entry[end])
            above = {row: index.path(row) + b"/" if row else b"" for row in range(dir_row, end)}
            keys = [os.fsdecode(above[at.entry_parent[e]] + index.name(e)) for e in entries.tolist()]
            return entries[sorted(range(len(keys)), key=keys.__getitem__)]
        pieces: list[tuple[int, int]] = []  # of the entry table
        opened = [[dir_row, at.first_entry[dir_row]]]  # directories we are inside, and what of each comes next
        for row in range(dir_row + 1, end):  # sorted by path + "/": as they come between the files of their parents
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
        return _ranges(bounds[:, 0], bounds[:, 1])

    def rows(self, entries: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Rows of the entries, links resolved, directories left out."""
        index = self.index
        rows = index.entry_row[entries]
        if len(index.link_row):
            is_link = index.mode[rows] >> 12 == LINK
            rows[is_link] = self.target[np.searchsorted(index.link_row, rows[is_link])]
        return rows[rows >= index.n_dirs]


def _ranges(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """arange(start, stop) of each pair, one after the other."""
    lengths = stops - starts
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())


def _has_image_suffix(index: Index, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each entry, whether its name ends with an image suffix in upper or lower case."""
    stops = index.name_start[entries + 1].astype(np.int64)
    lengths = stops - index.name_start[entries].astype(np.int64)
    longest = max(map(len, IMAGE_SUFFIXES))
    ending = np.zeros(len(entries), np.uint64)  # the last bytes of the name, the last of all lowest
    for back in range(min(longest, len(index.names))):
        byte = LOWER[index.names[np.maximum(stops - 1 - back, 0)]].astype(np.uint64)
        ending |= byte << np.uint64(8 * back)
    found = np.zeros(len(entries), np.bool_)
    for suffix in IMAGE_SUFFIXES:
        mask = np.uint64((1 << 8 * len(suffix)) - 1)
        found |= (ending & mask == np.uint64(int.from_bytes(suffix, "big"))) & (lengths >= len(suffix))
    return found


def _is_text(index: Index) -> bool:
    """Whether all names are UTF-8."""
    if not len(index.names) or int(index.names.max()) < 0x80:
        return True
    first = index.names[index.name_start[:-1].astype(np.int64)]
    if bool((first & 0xC0 == 0x80).any()):
        return False  # begins within a character; all the names in one could still be UTF-8
    try:
        index.names.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _parents(index: Index) -> NDArray[np.int64]:
    """The parent of each directory; the root's is the root."""
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


def _above(parents: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """All directories above the rows, the root always among them, deepest first."""
    depth = np.zeros(len(parents), np.int64)
    for row, parent in enumerate(parents.tolist()[1:], 1):
        depth[row] = depth[parent] + 1
    level = rows
    above = np.zeros(len(parents), np.bool_)
    above[0] = True
    while level.any():
        level = np.unique(parents[level])
        above[level] = True
    found = np.flatnonzero(above)
    return found[np.argsort(-depth[found], kind="stable")]
