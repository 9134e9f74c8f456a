"""Attributes of rows that the shared columns give in place of the index, and the mount's own attributes of files."""

from __future__ import annotations

from collections.abc import Mapping

from nopfsfs.dataset.index import HAS_ACL, Index
from nopfsfs.protocol.columns import Columns, Tier, new_place
from nopfsfs.tiers.rights import RenewedRights, Rights
from nopfsfs.vfs.tree import RefreshedAttributes

_PAGED = {0: b"", 1: b"page_cache", 2: b"page_cache(part)", 3: b"page_cache(part)"}
_OF_OTHERS = 0o077  # permission bits


class ColumnOverrides:
    """Reads the columns. `acls`: True where the kernel asks for ACLs. Where it does not, only the owner may use a file
    that has an ACL: the mode alone would grant more."""

    def __init__(self, columns: Columns, index: Index, *, acls: bool = True) -> None:
        self._columns = columns
        self._index = index
        self._version = columns.version.data
        self._rights = RenewedRights(columns)
        self._renewed = columns.renewed.data
        self._flags = index.flags.data
        self._restricted = HAS_ACL if not acls else 0
        self._acls = acls

    def get(self, row: int, /) -> RefreshedAttributes | None:
        """The attributes of a row whose file or rights have changed since it was indexed."""
        version = self._version[row]
        if not version and not self._renewed[row] and not self._flags[row] & self._restricted:
            return None
        index, c = self._index.at, self._columns
        known = None if self._flags[row] & HAS_ACL else b""
        mode, uid, gid, acl = self._rights.get(row) or Rights(index.mode[row], index.uid[row], index.gid[row], known)
        if acl != b"" and not self._acls:
            mode &= ~_OF_OTHERS
        if not version:
            times = index.size[row], index.mtime_ns[row], index.ctime_ns[row]
        else:
            at = new_place(row, version)
            times = int(c.new_size[at]), int(c.new_mtime_ns[at]), int(c.new_ctime_ns[at])
        return RefreshedAttributes(mode, uid, gid, index.nlink[row], *times)

    def acl(self, row: int, /) -> bytes | None:
        """The POSIX access ACL of a row, b"" for none; None where the row has one that is not known."""
        rights = self._rights.get(row)
        return self._index.acl(row) if rights is None else rights.acl

    def own_attributes(self, row: int) -> Mapping[bytes, bytes]:
        """Attributes of a file: `user.nopfs.tiers`, where its bytes are now, fastest first, and `user.nopfs.version`,
        the number of changes that were seen."""
        if row < self._index.n_dirs:
            return {}
        c = self._columns
        tiers = [_PAGED[int(c.paged[row])]] if c.paged[row] else []
        tiers += [b"ram"] if int(c.tier[row]) == Tier.RAM else []
        tiers += [b"disk"] if c.disk[row] else []
        return {b"user.nopfs.tiers": b",".join([*tiers, b"source"]), b"user.nopfs.version": b"%d" % c.version[row]}
