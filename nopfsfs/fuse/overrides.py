"""What the shared columns say about rows, in the words of the vfs: refreshed attributes, and where the bytes are."""

from __future__ import annotations

from collections.abc import Mapping

from nopfsfs.dataset.index import Index
from nopfsfs.tiers.columns import Columns, Tier
from nopfsfs.vfs.tree import RefreshedAttributes

_PAGED = {0: b"", 1: b"page_cache", 2: b"page_cache(part)", 3: b"page_cache(part)"}


class ColumnOverrides:
    """Reads the columns; writes nothing."""

    def __init__(self, columns: Columns, index: Index) -> None:
        self._columns = columns
        self._index = index
        self._version = columns.version.data

    def get(self, row: int, /) -> RefreshedAttributes | None:
        """The attributes of a row whose file has changed since it was indexed."""
        if not self._version[row]:
            return None
        c = self._columns
        return RefreshedAttributes(
            mode=int(c.new_mode[row]), uid=int(c.new_uid[row]), gid=int(c.new_gid[row]),
            nlink=int(self._index.nlink[row]), size=int(c.new_size[row]),
            mtime_ns=int(c.new_mtime_ns[row]), ctime_ns=int(c.new_ctime_ns[row]),
        )  # fmt: skip

    def own_attributes(self, row: int) -> Mapping[bytes, bytes]:
        """user.nopfs.tiers: where the bytes of a file are now, fastest first; user.nopfs.version: how often it was
        seen to change."""
        if row < self._index.n_dirs:
            return {}
        c = self._columns
        tiers = [_PAGED[int(c.paged[row])]] if c.paged[row] else []
        tiers += [b"ram"] if c.tier[row] == Tier.RAM else []
        tiers += [b"disk"] if c.disk[row] else []
        return {b"user.nopfs.tiers": b",".join([*tiers, b"source"]), b"user.nopfs.version": b"%d" % c.version[row]}
