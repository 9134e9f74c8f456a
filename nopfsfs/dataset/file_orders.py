"""The file list of a data set, in the order in which the loader of a training job lists it. Pure.

Sample s of a data set is the s-th row of such a list. Text is compared as Python compares it: by code points,
with bytes that are no UTF-8 as lone surrogates. For UTF-8 that is the order of the bytes, which is the order
of the index.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.hf_imagefolder import image_entries
from nopfsfs.dataset.index import Index
from nopfsfs.dataset.index_walk import IndexWalk, has_suffix, parents_of
from nopfsfs.dataset.natural_order import entries_naturally
from nopfsfs.dataset.shards import shard_entries, split_entries

# torchvision 0.29, datasets/folder.py: IMG_EXTENSIONS
IMAGE_SUFFIXES = (b".jpg", b".jpeg", b".png", b".ppm", b".bmp", b".pgm", b".tif", b".tiff", b".webp")
# keras 3.15, utils/image_dataset_utils.py: ALLOWLIST_FORMATS
KERAS_SUFFIXES = (b".bmp", b".gif", b".jpeg", b".jpg", b".png")
# timm 1.0.31, data/readers/img_extensions.py: IMG_EXTENSIONS
TIMM_SUFFIXES = (b".png", b".jpg", b".jpeg")
# DALI 2.4, dali/operators/reader/loader/discover_files.cc: kKnownExtensionsGlob
DALI_SUFFIXES = tuple(b".flac .ogg .wav .jpg .jpeg .png .bmp .tif .tiff .pnm .ppm .pgm .pbm .jp2 .webp".split())
# Siblings that hold files themselves are taken for classes where there are more than these; fewer may be train, val,
# test and extra.
MOST_SPLITS = 4

Rows = NDArray[np.uint32]
FileOrder = Callable[[Index, int, "IndexWalk | None"], Rows]


def image_folder(index: Index, dir_row: int, view: IndexWalk | None = None) -> Rows:
    """Rows of `torchvision.datasets.ImageFolder(directory).samples` (torchvision 0.29, datasets/folder.py:
    find_classes, make_dataset); uint32, one per sample, empty without samples. `view`: a walk of the index, if the
    caller has one.

    Class directories come by name; in each `sorted(os.walk(class, followlinks=True))`; in each of these the sorted
    names with image suffixes. A link stands for the file that it leads to. A link that leads to nothing in the mount
    stands for itself, for ImageFolder lists it too. A directory is not entered again below itself (os.walk goes round
    such a loop of links 40 times)."""
    view = view or IndexWalk(index)
    dirs = [row for _, child in view.children(dir_row) for row in view.walk(child)]
    entries = view.sorted_entries(dirs)
    return view.rows(entries[has_suffix(index, entries, IMAGE_SUFFIXES)])


def class_sizes(index: Index, dir_row: int, view: IndexWalk | None = None) -> tuple[int, ...]:
    """The number of samples of each class of `image_folder`, possibly 0, in the sequence in which the classes follow
    one another there."""
    view = view or IndexWalk(index)
    classes = [view.walk(child) for _, child in view.children(dir_row)]
    dirs = np.array([row for below in classes for row in below], np.int64)
    entries = view.entries_of(dirs.tolist())
    first = index.first_entry.astype(np.int64)
    of_dir = np.repeat(np.arange(len(classes)), [len(below) for below in classes])
    of_entry = np.repeat(of_dir, first[dirs + 1] - first[dirs])
    is_sample = has_suffix(index, entries, IMAGE_SUFFIXES) & (view.targets(entries) >= index.n_dirs)
    return tuple(np.bincount(of_entry[is_sample], minlength=len(classes)).tolist())


def sorted_files(index: Index, dir_row: int, view: IndexWalk | None = None) -> Rows:
    """Rows of all regular files below the directory, sorted by full path as text; uint32.

    A link to a file counts as that file's row; links to directories are not entered."""
    view = view or IndexWalk(index)
    return _regular(view, view.entries_by_path(dir_row))


def listed(index: Index, dir_row: int, view: IndexWalk | None = None) -> Rows:
    """Rows of all regular files as `os.walk`, `glob.glob` and (Python 3.11) `Path.rglob` meet them in the mount;
    uint32. The mount's listings are sorted by name. The files of a directory come first, then those of its directories
    one after the other."""
    view = view or IndexWalk(index)
    return _regular(view, view.entries_of(view.walk_as_listed(dir_row)))


def timm(index: Index, dir_row: int, view: IndexWalk | None = None) -> Rows:
    """Rows of `timm.data.ImageDataset(directory)` (timm 1.0.31, data/readers/reader_image_folder.py): the images below,
    links followed, in natural order of their paths in lower case; uint32."""
    view = view or IndexWalk(index)
    entries = entries_naturally(view, dir_row)
    return view.rows(entries[has_suffix(index, entries, TIMM_SUFFIXES) & ~_only_suffix(index, entries)])


def keras_images(index: Index, dir_row: int, view: IndexWalk | None = None) -> Rows:
    """Rows of `keras.utils.image_dataset_from_directory(directory, shuffle=False)` with inferred labels (keras 3.15,
    utils/dataset_utils.py: index_directory); uint32. Directories that begin with a dot are no classes. A link to a
    directory is followed where it is a class, not below."""
    view = view or IndexWalk(index)
    classes = [row for name, row in view.children(dir_row) if not name.startswith(b".")]
    entries = view.sorted_entries([row for child in classes for row in view.walk(child, links=False)])
    return view.rows(entries[has_suffix(index, entries, KERAS_SUFFIXES)])


def dali_files(index: Index, dir_row: int, view: IndexWalk | None = None) -> Rows:
    """Rows of `nvidia.dali.fn.readers.file(file_root=directory)` without shuffling (DALI 2.4, discover_files.cc);
    uint32. The child directories come by name as bytes, links followed, hidden ones too. Each gives the files directly
    in it, by name, with known suffixes only."""
    view = view or IndexWalk(index)
    entries = view.entries_of([row for _, row in sorted(view.children(dir_row))])
    return view.rows(entries[has_suffix(index, entries, DALI_SUFFIXES)])


def hf_imagefolder(index: Index, dir_row: int, view: IndexWalk | None = None) -> Rows:
    """Rows of the first split (train, validation or test) of `datasets.load_dataset("imagefolder", data_dir=directory)`
    (datasets 5.2, see `hf_imagefolder.py`); uint32. Empty where a metadata file holds the order."""
    view = view or IndexWalk(index)
    return view.rows(image_entries(view, dir_row))


def shards(index: Index, dir_row: int, view: IndexWalk | None = None) -> Rows:
    """Rows of the shards below the directory (`dataset/shards.py`), sorted by full path as text; uint32. The order of
    WebDataset over a brace pattern, of MosaicML Streaming, of
    `datasets.load_dataset(data_files="*.tar", streaming=True)`."""
    view = view or IndexWalk(index)
    return _regular(view, shard_entries(view, dir_row))


def hf_shards(index: Index, dir_row: int, view: IndexWalk | None = None) -> Rows:
    """Rows of the shards of the first split (train, validation or test) of `datasets.load_dataset(directory,
    streaming=True)` (datasets 5.2); uint32."""
    view = view or IndexWalk(index)
    return _regular(view, split_entries(view, dir_row))


# The orders by name, likeliest first.
ORDERS: Mapping[str, FileOrder] = MappingProxyType(
    {
        "image_folder": image_folder,
        "sorted_files": sorted_files,
        "timm": timm,
        "keras_images": keras_images,
        "hf_imagefolder": hf_imagefolder,
        "dali_files": dali_files,
        "listed": listed,
        "shards": shards,
        "hf_shards": hf_shards,
    }
)


def _regular(view: IndexWalk, entries: NDArray[np.int64]) -> Rows:
    rows = view.rows(entries)
    is_file: NDArray[np.bool_] = view.index.mode[rows] & 0o170000 == stat.S_IFREG
    return rows[is_file]


def _only_suffix(index: Index, entries: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True for each name of only dots and a suffix (`.jpg`), which os.path.splitext takes for a name without suffix."""
    found: NDArray[np.bool_] = index.names[index.name_start[entries].astype(np.int64)] == ord(".")
    found[found] = [b"." not in index.name(entry).lstrip(b".") for entry in entries[found].tolist()]
    return found


def first_list(names: Sequence[str], index: Index, root: int) -> tuple[str, Rows]:
    """The first of these orders in which the directory `root` has files: its name, and the rows. Raises ValueError."""
    for name in names:
        rows = ORDERS[name](index, root, None)
        if len(rows):
            return name, rows
    where = index.path(root).decode(errors="backslashreplace") or "the data set"
    raise ValueError(f"files: {' or '.join(names)} finds none in {where}; name another order or root")


def candidate_roots(index: Index) -> NDArray[np.uint32]:
    """Directory rows that may be the root of a data set, likeliest first; uint32. Links are not followed.

    First come directories whose child directories hold files (parents of classes), most files first. Then come
    directories that hold files themselves and have few such siblings (flat splits), most files first. Then come the
    directories above all these, deepest first. Other directories of files look like classes, and are left out."""
    parents = parents_of(index)
    own = np.bincount(index.entry_parent[index.entry_row >= index.n_dirs], minlength=index.n_dirs)
    holds = np.flatnonzero(own)
    children = holds[holds > 0]  # the root is no child
    in_children = np.bincount(parents[children], weights=own[children], minlength=index.n_dirs)
    siblings = np.bincount(parents[children], minlength=index.n_dirs)
    of_classes = np.flatnonzero(in_children)
    flat = holds[(siblings[parents[holds]] <= MOST_SPLITS) | (holds == 0)]
    groups = (
        of_classes[np.argsort(-in_children[of_classes], kind="stable")],
        flat[np.argsort(-own[flat], kind="stable")],
        _above(parents, np.concatenate([of_classes, flat])),
    )
    every = np.concatenate(groups)
    _, first = np.unique(every, return_index=True)
    return every[np.sort(first)].astype(np.uint32)


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
