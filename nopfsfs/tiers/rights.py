"""Rights of rows that are no longer those of the index: mode, owner, group and POSIX ACL, in shared memory.

The stager renews them; servers read them without a lock, and never wait. Each row has two places, and `renewed` counts.
The rights of count c stand in place c & 1, so the other place is free to be written. A reader that finds the count
unchanged after the read has read one state whole, never the mode of one and the owner of another.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from nopfsfs.protocol.columns import ACL_BYTES, Columns

ACL_MAX = 4096  # bytes of one ACL; the kernel asks FUSE for no more, and refuses access where there is more
_NO_ACL, _UNKNOWN = 0, 0xFFFF_FFFF  # in `right_acl`; else 1 + the place in `acls`
_LENGTH = struct.Struct("<I")
_TRIES = 1000  # reads of rights that change meanwhile: the stager changes those of a row once in a second at most


class Rights(NamedTuple):
    """The rights of a row. `mode`: type and permission bits. `acl`: the POSIX access ACL as the kernel gives it, b""
    for none. `acl` None: there is an ACL that is not known, and nobody may be let in by the mode alone."""

    mode: int
    uid: int
    gid: int
    acl: bytes | None = b""


class RenewedRights:
    """The columns of rights; only the stager calls `renew`."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._renewed = columns.renewed.data
        self._mode, self._uid, self._gid = columns.right_mode.data, columns.right_uid.data, columns.right_gid.data
        self._acl, self._acls = columns.right_acl.data, columns.acls.data
        self._known: dict[bytes, int] | None = None  # in the stager: where each ACL stands

    def get(self, row: int) -> Rights | None:
        """The rights of a row that has others than the index says. Raises OSError when they never stand still."""
        for _ in range(_TRIES):
            count = self._renewed[row]
            if not count:
                return None
            at = 2 * row + (count & 1)
            mode, uid, gid, acl = self._mode[at], self._uid[at], self._gid[at], self._acl[at]
            if self._renewed[row] == count:
                return Rights(mode, uid, gid, self._value(acl))
        raise OSError(f"the rights of row {row} change all the time")

    def _value(self, number: int) -> bytes | None:
        if number == _NO_ACL:
            return b""
        if number == _UNKNOWN:
            return None
        start = number - 1 + _LENGTH.size
        return bytes(self._acls[start : start + _LENGTH.unpack_from(self._acls, number - 1)[0]])

    def renew(self, row: int, rights: Rights) -> None:
        """Publish the rights of a row. An ACL that there is no room for becomes one that is not known."""
        number = _NO_ACL if rights.acl == b"" else _UNKNOWN if rights.acl is None else self._keep(rights.acl)
        columns = self._columns
        count = int(columns.renewed[row]) + 1
        at = 2 * row + (count & 1)
        columns.right_mode[at], columns.right_uid[at], columns.right_gid[at] = rights.mode, rights.uid, rights.gid
        columns.right_acl[at] = number
        columns.renewed[row] = count

    def _keep(self, acl: bytes) -> int:
        """The number by which this ACL is found, or _UNKNOWN."""
        if self._known is None:
            self._known = self._stored()  # also those of a stager before this one
        number = self._known.get(acl)
        if number is not None:
            return number
        used = int(self._columns.acls_used[0])
        end = used + _LENGTH.size + len(acl)
        if len(acl) > ACL_MAX or end > ACL_BYTES:
            return _UNKNOWN
        self._columns.acls[used:end].data[:] = _LENGTH.pack(len(acl)) + acl
        self._columns.acls_used[0] = end
        self._known[acl] = used + 1
        return used + 1

    def _stored(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        at, used = 0, int(self._columns.acls_used[0])
        while at < used:
            (length,) = _LENGTH.unpack_from(self._acls, at)
            found[bytes(self._acls[at + _LENGTH.size : at + _LENGTH.size + length])] = at + 1
            at += _LENGTH.size + length
        return found
