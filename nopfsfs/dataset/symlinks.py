"""Symbolic links: those that stay inside the source, their targets as the mount presents them, and the rows that they
lead to."""

from __future__ import annotations

import os

from nopfsfs.dataset.index import Index
from nopfsfs.dataset.index_build import LINK

MOST_LINKS = 40  # links that the kernel follows in one path before it gives up with ELOOP


def is_inside(real: bytes, real_root: bytes) -> bool:
    """True when a resolved path is the source or lies below it."""
    return real == real_root or real.startswith(real_root.rstrip(b"/") + b"/")


def presented(target: bytes, real: bytes, real_root: bytes, dir_path: bytes, moved: bool) -> bytes:
    """The target of a link that stays inside, as the mount presents it. A relative target that never climbs above the
    root is kept; any other is rewritten to lead to the same place within the mount.

    `real`: the resolved path that the link leads to; `dir_path`: the link's directory relative to the source. `moved`:
    this directory is itself reached through a followed link, so that relative targets mean other places at the
    source."""
    if not moved and not target.startswith(b"/") and not _climbs_out(dir_path, target):
        return target
    below = real[len(real_root.rstrip(b"/")) + 1 :]
    return os.path.relpath(b"/" + below, b"/" + dir_path)


def _climbs_out(dir_path: bytes, target: bytes) -> bool:
    """True when a relative target, read as written, goes above the root on its way."""
    depth = dir_path.count(b"/") + 1 if dir_path else 0
    for part in target.split(b"/"):
        depth += -1 if part == b".." else part not in (b"", b".")
        if depth < 0:
            return True
    return False


def resolve(index: Index, row: int) -> int:
    """The row that a symbolic link leads to within the mount, through further links; -1 if the link leads
    to nothing there."""
    dir_row = index.parent(row)
    parts = index.readlink(row).split(b"/")[::-1]
    absolute = not parts[-1] and len(parts) > 1
    followed = 1
    while parts and not absolute:
        part = parts.pop()
        if part in (b"", b"."):
            continue
        if dir_row >= index.n_dirs or (part == b".." and dir_row == 0):
            return -1
        found = index.parent(dir_row) if part == b".." else index.lookup(dir_row, part)
        if found < 0:
            return -1
        if index.at.mode[found] >> 12 != LINK:
            dir_row = found
            continue
        followed += 1
        target = index.readlink(found)
        if followed > MOST_LINKS or target.startswith(b"/"):
            return -1
        parts += target.split(b"/")[::-1]
    return -1 if absolute else dir_row
