"""Who may do what with a file by its mode, its owners and its ACL: the rules of acl(5), but for one case. Linux ignores
an ACL whose mask is empty, and goes by the mode alone (acl_permission_check in fs/namei.c)."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

READ, WRITE, SEARCH = 4, 2, 1
USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 1, 2, 4, 8, 16, 32
NO_ID = 0xFFFFFFFF
ACL = "system.posix_acl_access"


class Granted(NamedTuple):
    """What decides: permission bits, owners, the entries (tag, permissions, id) of the ACL."""

    mode: int
    uid: int
    gid: int
    acl: tuple[tuple[int, int, int], ...] = ()


def granted(path: str, st: os.stat_result) -> Granted:
    """Of what is there now."""
    try:
        raw = os.getxattr(path, ACL, follow_symlinks=False)
    except OSError:
        raw = b""
    return Granted(st.st_mode & 0o7777, st.st_uid, st.st_gid, tuple(struct.iter_unpack("<HHI", raw[4:])))


def may(uid: int, groups: tuple[int, ...], what: Granted, right: int) -> bool:
    """Whether a user may read a file or list a directory (READ), or go through a directory (SEARCH)."""
    if uid == 0:
        return True
    if uid == what.uid:
        return bool(what.mode >> 6 & right)
    if what.acl and what.mode & 0o070:
        return _by_acl(uid, groups, what, right)
    return bool((what.mode >> 3 if what.gid in groups else what.mode) & right)


def _by_acl(uid: int, groups: tuple[int, ...], what: Granted, right: int) -> bool:
    mask = next((bits for tag, bits, _ in what.acl if tag == MASK), 7)
    for tag, bits, who in what.acl:
        if tag == USER and who == uid:
            return bool(bits & mask & right)
    of_groups = [
        bits for tag, bits, who in what.acl
        if (tag == GROUP_OBJ and what.gid in groups) or (tag == GROUP and who in groups)
    ]  # fmt: skip
    if of_groups:
        return any(bits & mask & right for bits in of_groups)
    return any(bits & right for tag, bits, _ in what.acl if tag == OTHER)


def acl(*entries: tuple[int, int, int]) -> bytes:
    """The ACL as the kernel stores it (linux/posix_acl_xattr.h)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
