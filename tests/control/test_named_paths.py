"""Paths of a mount that a person names, on the command line or in a list."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nopfsfs.control.client import MAX_REQUEST
from nopfsfs.control.named_paths import LINE_MOST, batches, named_paths
from nopfsfs.errors import Exit, NopfsError

MOUNT: Any = SimpleNamespace(path="/data/mnt")


def named(*paths: str, listed: Path | str | None = None, word: str = "/link/mnt") -> list[str]:
    return list(named_paths(MOUNT, word, paths, None if listed is None else str(listed)))


def refused(*paths: str, listed: Path | str | None = None) -> str:
    with pytest.raises(NopfsError) as caught:
        named(*paths, listed=listed)
    assert caught.value.exit_code == Exit.USAGE
    assert "\n" not in caught.value.message
    return caught.value.message


def test_paths_are_below_the_mountpoint() -> None:
    assert named() == [""]
    assert named("a/b", "./c//d/", "/data/mnt/e", "/link/mnt/f/", "/data/mnt", ".") == ["a/b", "c/d", "e", "f", "", ""]


@pytest.mark.parametrize("path", ["/data/mntx/a", "/etc/passwd", "../a", "a/../../b", "/data/mnt/../x"])
def test_a_path_outside_the_mount(path: str) -> None:
    assert path in refused(path)
    assert "/data/mnt" in refused(path)


def test_a_list_has_a_path_on_each_line(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_bytes(b"a/b\n\n/data/mnt/c\n\xff\xfe\n with blanks \nof Windows\r\nlast")
    assert named(listed=listed) == ["a/b", "c", os.fsdecode(b"\xff\xfe"), " with blanks ", "of Windows", "last"]


def test_a_list_that_is_none(tmp_path: Path) -> None:
    pipe, listed = tmp_path / "pipe", tmp_path / "list"
    os.mkfifo(pipe)
    assert "is not a regular file; write the paths to one" in refused(listed=pipe)
    assert "Is a directory; name a list" in refused(listed=tmp_path)
    assert "name a list that can be read" in refused(listed=tmp_path / "no")
    assert "leave the paths out" in refused("a", listed=listed)
    for content, said in {
        b"": "names no file",
        b"\n\n": "names no file",
        b"a\n../b": ":2: ../b is outside",
        b"a\n\n/etc/x\n": ":3: /etc/x is not below",
        b"x" * (LINE_MOST + 1): ":1: is no path",
        b"a\0b\n": ":1: is no path",
    }.items():
        listed.write_bytes(content)
        assert said in refused(listed=listed)


def test_a_long_list_is_read_in_requests_that_fit(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_text("".join(f"class{number % 1000}/é{number}\n" for number in range(50_000)))
    found = list(batches(named_paths(MOUNT, "/link/mnt", [], str(listed))))
    assert sum(map(len, found)) == 50_000
    assert max(len(json.dumps({"command": "warm", "paths": batch})) for batch in found) < MAX_REQUEST
    assert len(found) < 60
    assert [len(batch) for batch in batches(["\udcff" * 4000] * 3)] == [2, 1]
