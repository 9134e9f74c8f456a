"""Users, groups and ACLs, for tests of rights."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.mount.harness import Reader

NOBODY, OTHER, GROUP = 65534, 54321, 54322


def acl(*entries: tuple[int, int, int]) -> bytes:
    """A POSIX ACL as the kernel stores it: (tag, permissions, id) each (linux/posix_acl_xattr.h)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
USER_OBJ, USER, GROUP_OBJ, GROUP_TAG, MASK, EVERYBODY = 1, 2, 4, 8, 16, 32
NO_ID = 0xFFFFFFFF


def acl_for(tag: int, who: int, permissions: int, mask: int = 7) -> bytes:
    return acl(
        (USER_OBJ, 7, NO_ID), *([(USER, permissions, who)] if tag == USER else []), (GROUP_OBJ, 0, NO_ID),
        *([(GROUP_TAG, permissions, who)] if tag == GROUP_TAG else []), (MASK, mask, NO_ID), (EVERYBODY, 0, NO_ID),
    )  # fmt: skip


def may(root: Path, paths: list[str], uid: int, groups: list[int]) -> dict[str, bool]:
    who = ("as", str(uid), ",".join(map(str, groups)))
    with Reader(*who, "may", *(root / path for path in paths), cwd="/") as reader:
        return dict(zip(paths, reader.result(), strict=True))
