"""Shards: files that hold many samples each, as the streaming libraries list them (WebDataset, Hugging Face datasets
5.2 with streaming=True, MosaicML Streaming 0.13). Pure.

Of the kinds of shards below a directory, only the most frequent one is listed. Other files beside them (an index.json,
statistics, a README) are left out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.hf_imagefolder import first_split
from nopfsfs.dataset.index import Index
from nopfsfs.dataset.index_walk import LOWER, IndexWalk, has_suffix

# Ends of names, at most 8 bytes each. Of equally frequent kinds the first one is taken, for img2dataset writes a table
# beside each .tar.
KINDS: tuple[tuple[bytes, ...], ...] = (
    (b".tar", b".tar.gz", b".tgz", b"tar.zst"),
    (b".parquet",),
    (b".arrow",),
    (b".jsonl", b"jsonl.gz", b"onl.zst", b".json.gz", b"json.zst", b"onl.bz2", b"jsonl.xz"),
    (b".mds", b".mds.gz", b"mds.zstd", b".mds.br", b".mds.bz2"),
)
# True for the last letters of these names; few other files have one.
_LAST = np.isin(LOWER, np.array(sorted({suffix[-1] for kind in KINDS for suffix in kind}), np.uint8))


def shard_entries(view: IndexWalk, dir_row: int) -> NDArray[np.int64]:
    """Entries of the shards below the directory, sorted by full path as text; int64."""
    entries = _likely(view, dir_row)
    if not len(entries):
        return entries
    found = [entries[has_suffix(view.index, entries, kind)] for kind in KINDS]
    most = max(found, key=len)
    if not len(most) or (view.is_text and view.ends[dir_row] == dir_row + 1):
        return most  # all in a single directory, so sorted by name already
    by_path = view.entries_by_path(dir_row)
    return by_path[np.isin(by_path, most)]


def split_entries(view: IndexWalk, dir_row: int) -> NDArray[np.int64]:
    """Entries of the shards of the first split of `load_dataset(directory, streaming=True)`: train, validation or test;
    int64."""
    entries = shard_entries(view, dir_row)
    return first_split(view, entries, dir_row) if len(entries) else entries


def _likely(view: IndexWalk, dir_row: int) -> NDArray[np.int64]:
    """The entries below the directory that may be shards by their last letters. Takes some 10 ms for a million."""
    index: Index = view.index
    first = int(index.first_entry[dir_row])
    stops = index.name_start[first + 1 : int(index.first_entry[view.ends[dir_row]]) + 1].astype(np.int64)
    return np.flatnonzero(_LAST[index.names[stops - 1]]) + first
