"""Who may read what: the mount grants exactly what the source grants, to root, to users, by mode and by ACL."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slow_source import SlowSource

from nopfsfs.stager.changed_files import SETTLE_S
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, mounted, write
from tests.mount.users import (
    GROUP,
    GROUP_TAG,
    NOBODY,
    OTHER,
    USER,
    acl_for,
    may,
)
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be several users"),
]

USERS = (0, NOBODY, OTHER)


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


@pytest.mark.long
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


def test_nobody_is_led_elsewhere_by_who_owns_a_directory(mounting: Mounting, open_to_all: Path) -> None:
    """The owner of a directory puts a link to one that only root may enter in its place."""
    source, secret = open_to_all / "source", open_to_all / "secret"
    write(source, {"a/d/f": b"open to all", "a/d/g": b"open to all"})
    write(secret, {"f": b"of root alone", "g": b"of root alone"})
    secret.chmod(0o700)
    os.setxattr(secret / "g", "user.label", b"of root alone")
    for path in (source, source / "a", source / "a/d"):
        path.chmod(0o755)
        os.chown(path, OTHER, OTHER)

    def swap(*, back: bool) -> None:
        pid = os.fork()
        if pid == 0:
            os.setresgid(OTHER, OTHER, OTHER)
            os.setresuid(OTHER, OTHER, OTHER)
            if back:
                os.unlink(source / "a/d")
                os.rename(source / "a/away", source / "a/d")
            else:
                os.rename(source / "a/d", source / "a/away")
                os.symlink(secret, source / "a/d")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0

    with mounting(source, "--signal", "open") as m:
        swap(back=False)
        until = time.monotonic() + 2.5 * SETTLE_S  # a change would be taken up by then
        while time.monotonic() < until:
            for name in ("f", "g"):
                with pytest.raises(OSError) as raised:
                    (m.path / "a/d" / name).read_bytes()
                assert raised.value.errno == errno.ESTALE
                with pytest.raises(OSError) as raised:
                    os.getxattr(m.path / "a/d" / name, "user.label")
                assert raised.value.errno == errno.ESTALE
        assert os.listdir(m.path / "a/d") == ["f", "g"]
        swap(back=True)
        assert wait_until(lambda: may(m.path, ["a/d/f"], NOBODY, []) == {"a/d/f": True})
        assert (m.path / "a/d/f").read_bytes() == b"open to all"
