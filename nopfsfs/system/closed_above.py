"""Directories above a source that keep out users who could reach the source's files through a mount.

The kernel checks every directory of a path. A user who mounts a source for all users gives them what lies below a
directory that they may not enter. The mount leads there by another path.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

_ACL = "system.posix_acl_access"
_NO_ACL = (errno.ENODATA, errno.ENOTSUP, errno.ENOSYS)


class Gate(NamedTuple):
    """A directory, and who may enter it. `acl`: there is an ACL, so the mode alone does not say who may enter."""

    path: str
    mode: int
    uid: int
    gid: int
    acl: bool
    place: tuple[int, int]  # device and inode


def gate(path: str) -> Gate:
    """Read who may enter the directory `path`. Raises OSError."""
    st = os.stat(path)
    try:
        os.getxattr(path, _ACL)
        acl = True
    except OSError as error:
        if error.errno not in _NO_ACL:
            raise
        acl = False
    return Gate(path, st.st_mode, st.st_uid, st.st_gid, acl, (st.st_dev, st.st_ino))


def gates_above(path: str) -> list[Gate]:
    """The directories above an absolute path without links, nearest first. Raises OSError."""
    found = []
    while path != "/":
        path = os.path.dirname(path)
        found.append(gate(path))
    return found


def keeps_out(root: Gate, above: Sequence[Gate], shared: Sequence[Gate] = ()) -> Gate | None:
    """The first directory of `above` that some user who may enter `root` may not enter; None where there is none.
    `shared`: directories above the mountpoint, which every user of the mount has entered. In doubt a directory counts
    as closed."""
    passed = {one.place for one in shared}
    for one in above:
        if one.place not in passed and not _all_enter(root, one):
            return one
    return None


def _all_enter(root: Gate, one: Gate) -> bool:
    """True when all users who may list or enter `root` may enter `one`."""
    if one.acl or root.acl:
        return one.mode & 0o111 == 0o111 and not one.acl
    others, group, owner = (bool(root.mode & mask) for mask in (0o005, 0o050, 0o500))
    if others and one.mode & 0o111 != 0o111:
        return False
    if group and not (one.mode & 0o111 == 0o111 or (one.mode & 0o010 and one.gid == root.gid)):
        return False
    return not owner or root.uid == 0 or one.mode & 0o111 == 0o111 or bool(one.mode & 0o100 and one.uid == root.uid)
