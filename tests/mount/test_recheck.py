"""A right that is withdrawn at the source holds no longer in the mount, for root, owner, group and others alike."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from slow_source import SlowSource

from nopfsfs.cli.recheck import look_now
from nopfsfs.control.client import call
from nopfsfs.errors import Exit
from nopfsfs.fuse.connection import WITHOUT
from nopfsfs.stager.rights_recheck import LOOKERS
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, content, mount_command, run, write
from tests.mount.modes import Mode
from tests.mount.users import GROUP, GROUP_TAG, NOBODY, OTHER, USER, acl_for, may
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be several users"),
]
ACL = "system.posix_acl_access"
WHO: dict[str, tuple[int, list[int]]] = {
    "root": (0, []), "owner": (OTHER, []), "group": (NOBODY, [GROUP]), "other": (NOBODY, []),
}  # fmt: skip


def closed(path: Path) -> None:
    os.chmod(path, 0o700 if path.is_dir() else 0o600)


def given_away(path: Path) -> None:
    """To another owner and group; nothing for others."""
    os.chmod(path, 0o750 if path.is_dir() else 0o640)
    os.chown(path, 4711, 4711)


def acl_set(path: Path) -> None:
    os.setxattr(path, ACL, acl_for(GROUP_TAG, GROUP, 5))


def acl_removed(path: Path) -> None:
    os.removexattr(path, ACL)
    os.chmod(path, 0o711 if path.is_dir() else 0o600)


CHANGES: dict[str, Callable[[Path], None]] = {
    "chmod": closed, "chown": given_away, "setfacl": acl_set, "setfacl -b": acl_removed,
}  # fmt: skip


@pytest.fixture
def tree(open_to_all: Path) -> Path:
    """For each change a file, and a directory two levels above a file."""
    source = open_to_all / "source"
    for number, name in enumerate(CHANGES):
        write(source, {f"{name}/f": content(number, 5000), f"{name}/d/two/g": content(9 + number, 5000)})
    for path in (source, *source.rglob("*")):
        os.chown(path, OTHER, GROUP)
        path.chmod(0o755 if path.is_dir() else 0o644)
    for path in (source / "setfacl -b/f", source / "setfacl -b/d"):
        os.setxattr(path, ACL, acl_for(USER, NOBODY, 5))
    return source


def rights(root: Path, names: list[str]) -> dict[str, dict[str, bool]]:
    return {who: may(root, names, uid, groups) for who, (uid, groups) in WHO.items()}


def as_the_source(m: Mounted, names: list[str]) -> bool:
    return rights(m.path, names) == rights(m.source, names)


def withdrawn(m: Mounted, names: list[str]) -> None:
    """Assert that at once nobody may what they may not at the source, and soon all is as there."""
    at_source, here = rights(m.source, names), rights(m.path, names)
    more = [(who, name) for who in WHO for name in names if here[who][name] and not at_source[who][name]]
    assert more == []
    assert wait_until(lambda: as_the_source(m, names)), (rights(m.path, names), at_source)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param("", id="open", marks=pytest.mark.long),
        pytest.param("--signal tripwire", id="tripwire", marks=pytest.mark.slow),
        pytest.param("--no-fast-path", id="pyfuse3", marks=pytest.mark.slow),
    ],
)
def test_who_was_kept_out_since(mounting: Mounting, tree: Path, flags: str) -> None:
    names = [f"{name}/{below}" for name in CHANGES for below in ("f", "d/two/g")]
    with mounting(tree, *flags.split()) as m:
        before = rights(m.path, names)
        assert before == rights(tree, names)
        assert sum(before["other"].values()) == len(names)  # by the ACL, too
        for name, change in CHANGES.items():
            for below in ("f", "d"):
                change(tree / name / below)
        found = look_now(m.state_dir, 20.0)
        withdrawn(m, names)
        assert m.status()["recheck"]["found"] >= 2 * len(CHANGES)  # some by looks that were due anyhow
        assert found["looked"] >= found["files"] + found["directories"]
        assert found["failed"] == 0
        again = look_now(m.state_dir, 20.0)
        assert again["found"] == 0
        for name in CHANGES:  # and back
            for below in ("f", "d"):
                os.chown(tree / name / below, OTHER, GROUP)
                os.chmod(tree / name / below, 0o755)
        look_now(m.state_dir, 20.0)
        withdrawn(m, names)
        assert (m.path / "chmod/f").read_bytes() == content(0, 5000)


@pytest.mark.long
def test_a_directory_above_the_source_that_is_closed(mounting: Mounting, open_to_all: Path) -> None:
    outer = open_to_all / "outer"
    write(outer, {"source/f": b"x"})
    for path in (outer, *outer.rglob("*")):
        path.chmod(0o755)
    with mounting(outer / "source") as m:
        m.errors_expected = True
        assert may(m.path, ["f"], NOBODY, []) == {"f": True}
        outer.chmod(0o700)
        look_now(m.state_dir, 20.0)
        assert may(m.path, ["f"], NOBODY, []) == {"f": False}
        assert may(m.path, ["f"], 0, []) == {"f": True}
        assert m.status()["recheck"]["shut"]
        outer.chmod(0o755)
        look_now(m.state_dir, 20.0)
        assert may(m.path, ["f"], NOBODY, []) == {"f": True}
    outer.chmod(0o700)
    refused = run(mount_command(m))
    assert refused.returncode == Exit.SOURCE
    assert f"{outer}, which not all may enter" in refused.stderr
    with mounting(outer / "source", "--expose") as m:
        m.errors_expected = True  # the log is that of the first mount, too
        assert may(m.path, ["f"], NOBODY, []) == {"f": True}


@pytest.mark.slow
def test_of_a_remount_with_the_index_that_was_kept(mounting: Mounting, tree: Path) -> None:
    """Its directories are unchanged, so no file is asked for at the scan. Whoever reads one finds out."""
    names = [f"{name}/f" for name in CHANGES]
    with mounting(tree) as m:
        assert as_the_source(m, names)
    for name, change in CHANGES.items():
        change(tree / name / "f")
    with mounting(tree, "--recheck", "no") as m:
        withdrawn(m, names)  # by reading alone
    with mounting(tree) as m:
        look_now(m.state_dir, 20.0)
        assert as_the_source(m, names)


@pytest.mark.long
def test_when_the_stager_died_in_between(mounting: Mounting, tree: Path) -> None:
    names = [f"{name}/{below}" for name in CHANGES for below in ("f", "d/two/g")]
    with mounting(tree) as m:
        m.errors_expected = True
        assert sum(may(m.path, names, NOBODY, []).values()) == len(names)
        m.kill("stager", signal.SIGSTOP)
        for name, change in CHANGES.items():
            for below in ("f", "d"):
                change(tree / name / below)
        asked = call(m.state_dir, "recheck")
        assert not asked["done"]
        m.kill("stager")
        assert wait_until(lambda: call(m.state_dir, "recheck", number=asked["number"])["done"])
        withdrawn(m, names)
        m.kill("stager")  # what it had published stays
        withdrawn(m, names)
        assert wait_until(lambda: look_now(m.state_dir, 20.0)["found"] == 0)


@pytest.mark.slow
def test_without_acls_in_the_kernel_only_the_owner_may(mounting: Mounting, tree: Path) -> None:
    names = [f"{name}/f" for name in CHANGES]
    with mounting(tree, mode=Mode("no acl", environment={WITHOUT: "acl"})) as m:
        expected = {name: name != "setfacl -b/f" for name in names}
        assert may(m.path, names, NOBODY, []) == expected
        acl_set(tree / "chmod/f")
        look_now(m.state_dir, 20.0)
        assert may(m.path, names, NOBODY, [GROUP]) == expected | {"chmod/f": False}
        assert wait_until(lambda: may(m.path, names, OTHER, []) == dict.fromkeys(names, True))


@pytest.mark.long
def test_the_first_acl_of_a_tree_lets_only_the_owner_in_until_a_rescan(mounting: Mounting, open_to_all: Path) -> None:
    source = open_to_all / "source"
    write(source, {"f": b"x"})
    for path in (source, source / "f"):
        os.chown(path, OTHER, GROUP)
        path.chmod(0o755)
    with mounting(source) as m:
        assert may(m.path, ["f"], NOBODY, [GROUP]) == {"f": True}
        acl_set(source / "f")
        look_now(m.state_dir, 20.0)
        assert may(m.path, ["f"], NOBODY, [GROUP]) == {"f": False}
        assert wait_until(lambda: may(m.path, ["f"], OTHER, []) == {"f": True})
    with mounting(source, "--rescan") as m:
        assert rights(m.path, ["f"]) == rights(source, ["f"])
        assert may(m.path, ["f"], NOBODY, [GROUP]) == {"f": True}


@pytest.mark.slow
def test_what_is_found_without_being_asked_for(mounting: Mounting, tree: Path) -> None:
    """A directory within a minute. The promise; the first look comes at once, and the rest in a moment."""
    with mounting(tree, hangs_s=120.0) as m:
        assert may(m.path, ["chmod/d/two/g"], NOBODY, []) == {"chmod/d/two/g": True}
        (tree / "chmod/d").chmod(0o700)
        assert wait_until(lambda: not may(m.path, ["chmod/d/two/g"], NOBODY, [])["chmod/d/two/g"], 75.0)
        record = m.status()["recheck"]
        assert record["period_seconds"] == 900
        assert record["found"] == 1


@pytest.mark.long
def test_a_source_that_does_not_answer_keeps_nobody_waiting(mounting: Mounting, open_to_all: Path) -> None:
    """Each looker waits for the source; what is held is read on, and the look ends when the source is back."""
    backing, place = open_to_all / "backing", open_to_all / "pfs"
    write(backing, {f"f{number}": content(number, 5000) for number in range(60)})
    place.mkdir()
    with SlowSource(backing, place) as source, mounting(place, "--io-timeout", "20s", "--expose") as m:
        assert (m.path / "f1").read_bytes() == content(1, 5000)
        source.stall("getattr")
        asked = call(m.state_dir, "recheck")
        source.wait_stalled(LOOKERS)
        with Reader("read", m.path / "f1") as reader:
            assert reader.result()[0][0] == 5000  # who waits for the source gets EIO after --io-timeout
        assert not call(m.state_dir, "recheck", number=asked["number"])["done"]
        source.release()
        assert wait_until(lambda: call(m.state_dir, "recheck", number=asked["number"])["done"], 40.0)
