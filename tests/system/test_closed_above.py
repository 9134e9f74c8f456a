"""Who is kept out above a source, and could come in through a mount of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nopfsfs.system.closed_above import Gate, gates_above, keeps_out

D = 0o040000
U, G = 1000, 2000


def at(mode: int, uid: int = 0, gid: int = 0, acl: bool = False, place: int = 0) -> Gate:
    return Gate("/", D | mode, uid, gid, acl, (1, place))


@pytest.mark.parametrize(
    ("root", "above", "open_"),
    [
        (at(0o755), at(0o755), True),
        (at(0o755), at(0o711), True),
        (at(0o755, U), at(0o700, U), False),
        (at(0o755, U), at(0o744, U), False),
        (at(0o700, U), at(0o700, U), True),
        (at(0o700, U), at(0o700, U + 1), False),
        (at(0o700), at(0o700, U), True),  # root comes everywhere
        (at(0o750, U, G), at(0o750, U, G), True),
        (at(0o750, U, G), at(0o750, U, G + 1), False),
        (at(0o750, U, G), at(0o751, U, G + 1), True),
        (at(0o755, U, G), at(0o750, U, G), False),
        (at(0o750, U, G), at(0o705, U, G), False),  # the group is kept out
        (at(0o705, U, G), at(0o705, U, G), False),  # it could come in as others, by another group of the file
        (at(0o744, U), at(0o711, U), True),
        (at(0o755), at(0o755, acl=True), False),
        (at(0o700, U, acl=True), at(0o700, U), False),
        (at(0o700, U, acl=True), at(0o755), True),
    ],
)
def test_of_one_directory(root: Gate, above: Gate, open_: bool) -> None:
    assert (keeps_out(root, [above]) is None) == open_


def test_the_nearest_is_named_and_those_above_the_mountpoint_do_not_count() -> None:
    closed, nearer, fine = at(0o700, place=1), at(0o700, place=2), at(0o755, place=3)
    assert keeps_out(at(0o755), [fine, nearer, closed]) is nearer
    assert keeps_out(at(0o755), [fine, nearer, closed], [nearer]) is closed
    assert keeps_out(at(0o755), [fine, nearer, closed], [nearer, closed]) is None


def test_what_is_above_a_path(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    os.chmod(tmp_path / "a", 0o710)
    found = gates_above(str(below))
    assert [gate.path for gate in found][:2] == [str(tmp_path / "a"), str(tmp_path)]
    assert found[-1].path == "/"
    assert found[0].mode == D | 0o710
    assert gates_above("/") == []
