"""Build an index of the size of ImageNet-22k without a source, and measure it.

python scripts/bench_index.py [--files N] [--dirs N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import stat
import tempfile
import time
from collections.abc import Iterator

import numpy as np

from nopfsfs.dataset import index_file
from nopfsfs.dataset.index import COLUMNS, Index
from nopfsfs.dataset.index_build import RECORD, Listing, build

FILES, DIRS = 14_197_122, 21_841  # ImageNet-22k, winter 2021 release before its clean-up
LOOKUPS = 100_000


def listings(files: int, dirs: int) -> Iterator[Listing]:
    """Directories like n01440764 with files like n01440764_10026.JPEG."""
    wnids = [b"n%08d" % (1_440_764 + 617 * i) for i in range(dirs)]
    root = records(dirs, stat.S_IFDIR | 0o755)
    yield Listing(b"", root[:1], b"".join(wnids), np.full(dirs, 9, np.uint32), root)
    for i, wnid in enumerate(wnids):
        count = files // dirs + (i < files % dirs)
        names = sorted(b"%s_%d.JPEG" % (wnid, j * 13 + i % 13) for j in range(count))
        lengths = np.fromiter(map(len, names), np.uint32, count)
        yield Listing(wnid, root[:1], b"".join(names), lengths, records(count, stat.S_IFREG | 0o644))


def records(count: int, mode: int) -> np.ndarray:
    records = np.zeros(count, RECORD)
    records["mode"], records["nlink"], records["size"] = mode, 1, 110_000
    return records


def lookup_us(index: Index, rng: random.Random) -> float:
    """Microseconds for the lookup of a name that is there, the loop included."""
    asked = [rng.randrange(index.n_entries) for _ in range(LOOKUPS)]
    names = [(index.at.entry_parent[entry], index.name(entry)) for entry in asked]
    start = time.perf_counter()
    for parent, name in names:
        index.lookup(parent, name)
    return (time.perf_counter() - start) / LOOKUPS * 1e6


def path_us(index: Index, rng: random.Random) -> float:
    """Microseconds for the path of a row."""
    rows = [rng.randrange(index.n) for _ in range(LOOKUPS)]
    start = time.perf_counter()
    for row in rows:
        index.path(row)
    return (time.perf_counter() - start) / LOOKUPS * 1e6


def measure(files: int, dirs: int) -> dict[str, float]:
    found = list(listings(files, dirs))
    start = time.perf_counter()
    index = build(found)
    build_s = time.perf_counter() - start
    del found
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "index")
        start = time.perf_counter()
        index_file.save(index, path)
        save_s = time.perf_counter() - start
        start = time.perf_counter()
        index = index_file.load(path)
        load_s = time.perf_counter() - start
        file_bytes = os.path.getsize(path)
    rng = random.Random(0)
    flat = build(listings_flat(100_000))
    return {
        "files": files,
        "dirs": dirs,
        "bytes_per_file": sum(getattr(index, name).nbytes for name, _, _ in COLUMNS) / files,
        "file_bytes": file_bytes,
        "build_s": build_s,
        "save_s": save_s,
        "load_verified_s": load_s,
        "lookup_us": lookup_us(index, rng),
        "lookup_us_in_100000": lookup_us(flat, rng),
        "path_us": path_us(index, rng),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def listings_flat(files: int) -> list[Listing]:
    """One directory."""
    names = sorted(b"ILSVRC2012_val_%08d.JPEG" % i for i in range(files))
    lengths = np.fromiter(map(len, names), np.uint32, files)
    own = records(1, stat.S_IFDIR | 0o755)
    return [Listing(b"", own, b"".join(names), lengths, records(files, stat.S_IFREG | 0o644))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--dirs", type=int, default=DIRS)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    measured = measure(options.files, options.dirs)
    if options.json:
        print(json.dumps(measured))
    else:
        for name, value in measured.items():
            print(f"{name:20} {value:,.2f}")


if __name__ == "__main__":
    main()
