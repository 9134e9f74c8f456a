"""Who may read what: the mount grants exactly what the source grants, to root, to users, by mode and by ACL."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from slow_source import SlowSource

from tests.conftest import wait_until
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, mounted, write

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be several users"),
]

NOBODY, OTHER, GROUP = 65534, 54321, 54322
USERS = (0, NOBODY, OTHER)


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


def make(source: Path, with_acls: bool) -> list[str]:
    """Files and directories of many rights; their paths."""
    modes = {"f0600": 0o600, "f0640": 0o640, "f0644": 0o644, "f0000": 0, "f0004": 0o004, "f0044": 0o044}
    made = list(modes)
    for name, mode in modes.items():
        write(source, {name: b"x"})
        os.chown(source / name, OTHER if mode & 0o40 else 0, GROUP)
        os.chmod(source / name, mode)
    for name, mode in {"d0711": 0o711, "d0700": 0o700, "d0750": 0o750, "d0755": 0o755, "d0744": 0o744}.items():
        write(source, {f"{name}/inside": b"y"})
        os.chown(source / name, OTHER if name == "d0750" else 0, GROUP)
        os.chmod(source / name, mode)
        made += [name, f"{name}/inside"]
    if with_acls:
        acls = {
            "a_user": (USER, NOBODY, 4), "a_masked": (USER, NOBODY, 4, 0), "a_none": (USER, OTHER, 0),
            "a_group": (GROUP_TAG, GROUP, 4),
        }  # fmt: skip
        for name, (tag, who, permissions, *mask) in acls.items():
            write(source, {name: b"z", f"{name}_dir/inside": b"z"})
            os.setxattr(source / name, "system.posix_acl_access", acl_for(tag, who, permissions, *mask))
            for_dir = acl_for(tag, who, permissions | permissions >> 2, *mask)
            os.setxattr(source / f"{name}_dir", "system.posix_acl_access", for_dir)
            made += [name, f"{name}_dir", f"{name}_dir/inside"]
    return made


@pytest.fixture(scope="module", params=[False, True], ids=["modes", "acls"])
def granted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Mounted, list[str]]]:
    work = tmp_path_factory.mktemp("rights")
    for path in (work, *work.parents):
        if path not in (Path("/"), Path("/tmp")):
            path.chmod(path.stat().st_mode | 0o55)
    source = work / "source"
    source.mkdir()
    source.chmod(0o755)
    try:
        paths = make(source, request.param)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            pytest.skip("this file system knows no ACLs")
        raise
    with mounted(source, work=work) as m:
        yield m, paths


def may(root: Path, paths: list[str], uid: int, groups: list[int]) -> dict[str, bool]:
    who = ("as", str(uid), ",".join(map(str, groups)))
    with Reader(*who, "may", *(root / path for path in paths), cwd="/") as reader:
        return dict(zip(paths, reader.result(), strict=True))


@pytest.mark.parametrize("uid", USERS)
@pytest.mark.parametrize("groups", [[], [GROUP]], ids=["alone", "in group"])
def test_the_mount_grants_what_the_source_grants(
    granted: tuple[Mounted, list[str]], uid: int, groups: list[int]
) -> None:
    m, paths = granted
    at_source = may(m.source, paths, uid, groups)

    assert may(m.path, paths, uid, groups) == at_source
    assert may(m.path, paths, uid, groups) == at_source  # what root has read meanwhile is cached
    assert len(set(at_source.values())) == (1 if uid == 0 else 2)


def test_rights_hold_for_what_is_cached_already(granted: tuple[Mounted, list[str]]) -> None:
    m, _ = granted
    assert (m.path / "f0600").read_bytes() == b"x"

    assert may(m.path, ["f0600", "d0711/inside", "d0700/inside"], NOBODY, []) == {
        "f0600": False, "d0711/inside": True, "d0700/inside": False,
    }  # fmt: skip


def test_extended_attributes_are_the_sources_and_the_mounts_own(mounting: Mounting, source: Path) -> None:
    for name in ("a", "."):
        try:
            os.setxattr(source / name, "user.label", b"cat \x00\xff")
            os.setxattr(source / name, "user.nopfs.tiers", b"a lie")
        except OSError:
            pytest.skip("this file system knows no extended attributes")
    with mounting(source) as m:
        assert os.getxattr(m.path / "a", "user.label") == b"cat \x00\xff"
        assert os.getxattr(m.path, "user.label") == b"cat \x00\xff"
        assert os.getxattr(m.path / "a", "user.nopfs.tiers") == b"source"
        assert (m.path / "a").read_bytes() == b"a"
        assert wait_until(lambda: b"ram" in os.getxattr(m.path / "a", "user.nopfs.tiers").split(b","))
        assert os.getxattr(m.path / "a", "user.nopfs.version") == b"0"
        assert {"user.label", "user.nopfs.tiers", "user.nopfs.version"} <= set(os.listxattr(m.path / "a"))
        with pytest.raises(OSError) as raised:
            os.getxattr(m.path / "a", "user.nothing")
        assert raised.value.errno == errno.ENODATA


def test_another_reader_of_the_source(mounting: Mounting, open_to_all: Path) -> None:
    """A root-squashed source, read as the user who may."""
    backing = open_to_all / "backing"
    write(backing, {f"c/{n}.jpg": b"%d" % n * 1000 for n in range(20)})
    for path in (backing, backing / "c", *(backing / "c").iterdir()):
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o700 if path.is_dir() else 0o600)
    place = open_to_all / "pfs"
    place.mkdir()
    with SlowSource(backing, place, root_squash=True):
        with pytest.raises(PermissionError):
            os.listdir(place)
        with mounting(place, "--user", str(NOBODY), "--seed", "42") as m:
            with Reader("as", str(NOBODY), "", "compare", m.path, place, "1", "2") as reader:
                assert reader.result() == {"wrong": [], "errors": []}
            assert may(m.path, ["c", "c/1.jpg"], OTHER, []) == {"c": False, "c/1.jpg": False}
            # Root is root on this machine, whatever the source thinks of it.
            assert (m.path / "c/1.jpg").read_bytes() == b"1" * 1000


def test_a_user_who_may_not_read_a_file_of_the_source(mounting: Mounting, open_to_all: Path) -> None:
    source = open_to_all / "source"
    write(source, {"open": b"open", "closed": b"closed"})
    source.chmod(0o755)
    (source / "open").chmod(0o644)
    (source / "closed").chmod(0o600)

    with mounting(source, "--user", str(NOBODY), "--seed", "1") as m:
        assert (m.path / "open").read_bytes() == b"open"
        with pytest.raises(PermissionError):
            (m.path / "closed").read_bytes()
