"""The files of Hugging Face's `load_dataset("imagefolder", data_dir=...)`, datasets 5.2: data_files.py (the patterns
of splits, hidden files) and packaged_modules/folder_based_builder (the suffixes). Pure.
"""

from __future__ import annotations

import os
import re

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.index import Index
from nopfsfs.dataset.index_walk import IndexWalk, has_suffix

# packaged_modules/imagefolder/imagefolder.py: IMAGE_EXTENSIONS
SUFFIXES = tuple(
    b"." + word
    for word in (
        b"blp bmp dib bufr cur pcx dcx dds ps eps fit fits fli flc ftc ftu gbr gif grib png apng jp2 j2k jpc jpf jpx "
        b"j2c icns ico im iim tif tiff jfif jpe jpg jpeg mpg mpeg msp pcd pxr pbm pgm ppm pnm psd bw rgb rgba sgi ras "
        b"tga icb vda vst webp wmf emf xbm xpm"
    ).split()
)
_IGNORED = (
    b"README.md", b"config.json", b"dataset_info.json", b"dataset_infos.json", b"dummy_data.zip", b"dataset_dict.json",
)  # fmt: skip
# A metadata file holds an order of the images that their names do not show; with the others, the directory is no folder
# of images.
_OTHER = re.compile(rb"metadata\.(csv|jsonl|parquet)|.*\.eval|task\.toml|instruction\.md")
_SHARD = re.compile(rb".*-[0-9]{5}-of-[0-9]{5}.*\..*", re.DOTALL)
_SPLITS = ((b"train", b"training"), (b"validation", b"valid", b"dev", b"val"),
           (b"test", b"testing", b"eval", b"evaluation"))  # fmt: skip
_WORD = re.compile(b"|".join(re.escape(word) for words in _SPLITS for word in words))
_SEP = rb"[-._ 0-9]"
_DIR_PATTERNS = (rb"%b", rb"%b" + _SEP + rb".*", rb".*" + _SEP + rb"%b", rb".*" + _SEP + rb"%b" + _SEP + rb".*")
_FILE_PATTERNS = (rb"%b" + _SEP + rb".*", rb".*" + _SEP + rb"%b" + _SEP + rb".*")


def image_entries(view: IndexWalk, dir_row: int) -> NDArray[np.int64]:
    """Entries of the images of the first split that the directory has (train, validation, test), in order; int64. Empty
    where a metadata file holds the order, or the files are no folder of images."""
    index = view.index
    entries = _shown(view, view.entries_by_path(dir_row), dir_row)
    if _is_something_else(index, entries, dir_row):
        return entries[:0]
    entries = _first_split(index, entries, dir_row, view.ends[dir_row])
    return entries[_is_image(index, entries)]


def first_split(view: IndexWalk, entries: NDArray[np.int64], dir_row: int) -> NDArray[np.int64]:
    """The part of some entries below the directory that belongs to its first split, in order, without hidden files;
    int64."""
    return _first_split(view.index, _shown(view, entries, dir_row), dir_row, view.ends[dir_row])


def _shown(view: IndexWalk, entries: NDArray[np.int64], dir_row: int) -> NDArray[np.int64]:
    """The entries that `datasets` considers: regular files that are neither hidden nor ignored."""
    index = view.index
    hidden = _hidden_dirs(index, dir_row, view.ends[dir_row])
    entries = entries[_is_file(view, entries) & ~hidden[index.entry_parent[entries] - dir_row]]
    return entries[~_ignored(index, entries)]


def _hidden_dirs(index: Index, dir_row: int, end: int) -> NDArray[np.bool_]:
    """True for each directory from `dir_row` to `end` that `datasets` does not enter."""
    hidden = np.zeros(end - dir_row, np.bool_)
    for row in range(dir_row + 1, end):
        name = index.name(index.at.primary[row])
        hidden[row - dir_row] = _is_hidden(name) or name.startswith(b"__") or hidden[index.parent(row) - dir_row]
    return hidden


def _is_hidden(name: bytes) -> bool:
    return name.startswith(b".") and bool(name.strip(b"."))


def _is_file(view: IndexWalk, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for each entry that is a regular file or a link to a regular file."""
    index = view.index
    rows = view.targets(entries)
    found: NDArray[np.bool_] = index.mode[rows] & 0o170000 == 0o100000
    return found


def _ignored(index: Index, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for each entry that is hidden or has one of the ignored names."""
    if not len(entries):
        return np.zeros(0, np.bool_)
    ignored: NDArray[np.bool_] = index.names[index.name_start[entries].astype(np.int64)] == ord(".")
    ignored[ignored] = [_is_hidden(index.name(e)) for e in entries[ignored].tolist()]
    for i in np.flatnonzero(has_suffix(index, entries, (b".md", b".json", b".zip"))).tolist():
        ignored[i] |= index.name(int(entries[i])) in _IGNORED
    return ignored


def _is_something_else(index: Index, entries: NDArray[np.int64], dir_row: int) -> bool:
    rare = entries[has_suffix(index, entries, (b".csv", b".jsonl", b".parquet", b".eval", b".toml", b".md"))]
    if any(_OTHER.fullmatch(index.name(entry)) for entry in rare.tolist()):
        return True
    data = index.lookup(dir_row, b"data")
    if not 0 <= data < index.n_dirs:
        return False
    return any(_SHARD.fullmatch(index.name(e)) for e in entries[index.entry_parent[entries] == data].tolist())


def _first_split(index: Index, entries: NDArray[np.int64], dir_row: int, end: int) -> NDArray[np.int64]:
    """The entries of the first split, each as often as the split's patterns name it; all entries without splits."""
    for masks, patterns in (
        (_dir_masks(index, dir_row, end)[index.entry_parent[entries] - dir_row], _DIR_PATTERNS),
        (_file_masks(index, entries), _FILE_PATTERNS),
    ):
        bit = 0
        for words in _SPLITS:
            bits = range(bit, bit + len(words) * len(patterns))
            bit = bits.stop
            found = np.concatenate([entries[masks >> np.uint64(b) & np.uint64(1) != 0] for b in bits])
            if len(found):
                return found
    return entries


def _bits(name: bytes, patterns: tuple[bytes, ...]) -> int:
    """The patterns that a name matches: a bit for each word of each split and each pattern, in their order."""
    if not _WORD.search(name):
        return 0
    bits = bit = 0
    for words in _SPLITS:
        for word in words:
            for pattern in patterns:
                bits |= bool(re.fullmatch(pattern % word, name, re.DOTALL)) << bit
                bit += 1
    return bits


def _dir_masks(index: Index, dir_row: int, end: int) -> NDArray[np.uint64]:
    """The bits of the name of each directory and of the names above it, without that of `dir_row`; uint64."""
    masks = [0]
    for row in range(dir_row + 1, end):
        masks.append(masks[index.parent(row) - dir_row] | _bits(index.name(index.at.primary[row]), _DIR_PATTERNS))
    return np.array(masks, np.uint64)


def _file_masks(index: Index, entries: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The bits of the name of each file; uint64."""
    masks = np.zeros(len(entries), np.uint64)
    if not len(entries):
        return masks
    low, high = int(index.name_start[entries.min()]), int(index.name_start[entries.max() + 1])
    at = np.fromiter((m.start() + low for m in _WORD.finditer(index.at.names[low:high])), np.int64)
    place = np.full(int(entries.max()) + 1, -1, np.int64)
    place[entries] = np.arange(len(entries))
    found = np.unique(np.searchsorted(index.name_start, at.astype(np.uint64), side="right").astype(np.int64) - 1)
    for entry in found.tolist():
        if place[entry] >= 0:
            masks[place[entry]] = _bits(index.name(entry), _FILE_PATTERNS)
    return masks


def _is_image(index: Index, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for each entry whose last suffix, or the one before it (`x.jpg.gz`), is that of an image."""
    found = has_suffix(index, entries, SUFFIXES)
    for i in np.flatnonzero(~found).tolist():
        before = os.path.splitext(index.name(int(entries[i])))[0]
        found[i] = os.path.splitext(before)[1].lower() in SUFFIXES
    return found
