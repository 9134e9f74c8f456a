"""`nopfs doctor SOURCE`: each line, for a node that is well and for one that is not."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nopfsfs.cli import nopfs
from nopfsfs.doctor.before_mount import NodeFacts, look_at_node, look_at_place, look_at_source
from nopfsfs.doctor.bounded_parts import ERROR
from nopfsfs.doctor.lines_before_mount import LINES, LineVerdict, NodeLine, judge_node
from nopfsfs.errors import Exit
from nopfsfs.system.node_memory import Memory

G = 1 << 30
SOURCE = {"directory": True, "readable": True, "entries": 7, "seconds": 0.01, "network": True, "closed": None}
WELL = NodeFacts(
    uid=0, release="6.12.1-generic", missing_calls={}, machine="x86_64", python=(3, 11), dev_fuse=None, may_mount=True,
    helper="/usr/bin/fusermount3", helper_is_root=True, user_allow_other=True, source=SOURCE,
    memory=Memory(64 * G, 32 * G), node_memory=64 * G, processors=16, clock=True, mpi4py=True,
    launcher="/usr/bin/mpirun", worlds=((1, (0,)),), index={"path": "/i", "writable": True, "free": 9 * G},
    state={"path": "/run/nopfs", "writable": True, "free": G}, session=False, site_rules=False,
)  # fmt: skip
USER = {"uid": 1000, "may_mount": False}


def line(title: str, **changes: Any) -> NodeLine:
    """A line for a node that differs from a well one by these facts."""
    found = LINES[title](replace(WELL, **changes))
    assert found is not None
    return found


def test_a_node_that_is_well() -> None:
    assert [title for title, one in judge_node(WELL).items() if one.verdict is not LineVerdict.GOOD] == []
    assert list(judge_node(WELL)) == list(LINES)


CASES: list[tuple[str, dict[str, Any], LineVerdict, str, Exit]] = [
    ("source", {"source": {ERROR: "nothing within 10 s"}}, LineVerdict.MISSING, "nothing within 10 s", Exit.SOURCE),
    ("source", {"source": {"missing": True}}, LineVerdict.MISSING, "does not exist", Exit.SOURCE),
    ("source", {"source": {"directory": False}}, LineVerdict.MISSING, "not a directory", Exit.SOURCE),
    ("source", {"source": SOURCE | {"readable": False}}, LineVerdict.MISSING, "may not read", Exit.SOURCE),
    ("source", {"source": SOURCE | {"entries": 0}}, LineVerdict.WEAKER, "empty", Exit.OK),
    ("source", {"source": SOURCE | {"entries": 1000}}, LineVerdict.GOOD, "more than 1000 entries", Exit.OK),
    ("source's system", {"source": SOURCE | {"seconds": 4.0}}, LineVerdict.WEAKER, "4.0 s", Exit.OK),
    ("source's system", {"source": SOURCE | {"network": False}}, LineVerdict.GOOD, "a local file system", Exit.OK),
    ("above the source", {"source": SOURCE | {"closed": "/a"}}, LineVerdict.MISSING, "/a keeps out", Exit.SOURCE),
    ("above the source", USER | {"source": SOURCE | {"closed": "/a"}}, LineVerdict.WEAKER, "/a keeps out", Exit.OK),
    ("/dev/fuse", {"dev_fuse": "/dev/fuse is missing: modprobe fuse"}, LineVerdict.MISSING, "is missing", Exit.NO_FUSE),
    ("right to mount", USER, LineVerdict.GOOD, "through fusermount3", Exit.OK),
    ("right to mount", USER | {"helper": None}, LineVerdict.MISSING, "no fusermount3", Exit.NO_RIGHT),
    ("fusermount3", {"helper": None}, LineVerdict.GOOD, "not needed", Exit.OK),
    ("fusermount3", USER | {"helper": None}, LineVerdict.MISSING, "is missing", Exit.NO_RIGHT),
    ("fusermount3", USER | {"helper_is_root": False}, LineVerdict.MISSING, "not setuid root", Exit.NO_RIGHT),
    ("other users", USER, LineVerdict.GOOD, "with --allow-other", Exit.OK),
    ("other users", USER | {"user_allow_other": False}, LineVerdict.WEAKER, "only you", Exit.OK),
    ("processor", {"machine": "aarch64"}, LineVerdict.MISSING, "out of order", Exit.START),
    ("python", {"python": (3, 9)}, LineVerdict.MISSING, "3.9", Exit.START),
    ("kernel", {"release": "5.14.0-503.el9"}, LineVerdict.GOOD, "in shared memory", Exit.OK),
    ("kernel", {"release": "4.18.0-553.el8_10.x86_64"}, LineVerdict.GOOD, "in shared memory", Exit.OK),
    ("kernel", {"release": "4.15.0-20-generic"}, LineVerdict.WEAKER, "may be too old", Exit.OK),
    ("kernel", {"release": "strange"}, LineVerdict.GOOD, "strange", Exit.OK),
    ("large files", {"release": "6.8.0"}, LineVerdict.WEAKER, "through the mount", Exit.OK),
    ("large files", USER, LineVerdict.WEAKER, "through the mount", Exit.OK),
    ("system calls", {"missing_calls": {"cachestat": "a"}}, LineVerdict.WEAKER, "no cachestat: a", Exit.OK),
    ("memory", {"memory": Memory(G, G)}, LineVerdict.WEAKER, "up to 512 MiB", Exit.OK),
    ("memory limit", {"node_memory": 256 * G}, LineVerdict.WEAKER, "64.0 GiB of 256 GiB", Exit.OK),
    ("clock", {"clock": False}, LineVerdict.WEAKER, "not synchronised", Exit.OK),
    ("MPI", {"mpi4py": False}, LineVerdict.WEAKER, "no mpi4py", Exit.OK),
    ("MPI", {"launcher": None}, LineVerdict.WEAKER, "neither mpirun nor srun", Exit.OK),
    ("ranks", {"worlds": ((8, (0, 1)),)}, LineVerdict.GOOD, "8 in all, 2 here", Exit.OK),
    ("index", {"index": {ERROR: "slow"}}, LineVerdict.WEAKER, "slow", Exit.OK),
    ("index", {"index": WELL.index | {"writable": False}}, LineVerdict.MISSING, "/i cannot be made", Exit.INTERNAL),
    ("index", {"index": WELL.index | {"free": 1 << 20}}, LineVerdict.WEAKER, "1.0 MiB free", Exit.OK),
    ("state", {"state": WELL.state | {"writable": False}}, LineVerdict.MISSING, "cannot be made", Exit.START),
    ("state", {"session": True}, LineVerdict.WEAKER, "last session", Exit.OK),
    ("site's rules", {"site_rules": True}, LineVerdict.GOOD, "nopfs policy check", Exit.OK),
]  # fmt: skip


@pytest.mark.parametrize(("title", "changes", "verdict", "says", "code"), CASES)
def test_a_line(title: str, changes: dict[str, Any], verdict: LineVerdict, says: str, code: Exit) -> None:
    found = line(title, **changes)

    assert (found.verdict, found.code) == (verdict, code)
    assert says in found.says
    assert bool(found.do) == (verdict is not LineVerdict.GOOD)


def test_every_line_has_a_case() -> None:
    assert {title for title, *_ in CASES} == set(LINES)


def test_a_look_at_a_source(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert look_at_source(str(tmp_path / "none")) == {"missing": True}
    assert look_at_source(str(tmp_path / "file")) == {"directory": False}
    found = look_at_source(str(tmp_path))
    assert (found["readable"], found["entries"]) == (True, 1)


def test_a_look_at_a_place_that_is_not_there_yet(tmp_path: Path) -> None:
    found = look_at_place(str(tmp_path / "a/b"))
    assert (found["path"], found["writable"], found["free"] > 0) == (str(tmp_path / "a/b"), True, True)
    assert os.listdir(tmp_path) == []


def test_this_node(open_to_all: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (open_to_all / "a").write_bytes(b"a")
    facts = look_at_node(str(open_to_all), {})
    assert facts.source["entries"] == 1

    code = nopfs.main(["doctor", str(open_to_all)])

    said = capsys.readouterr().out
    assert said.startswith(f"{open_to_all} is no nopfs mount.")
    assert all(f" {title} " in said for title in LINES)
    assert code == next((one.code for one in judge_node(facts).values() if one.verdict is LineVerdict.MISSING), Exit.OK)


def test_a_source_that_is_missing_and_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nopfs.main(["doctor", str(tmp_path / "none")]) == Exit.SOURCE
    assert "missing  source           it does not exist" in capsys.readouterr().out
    assert nopfs.main(["doctor", str(tmp_path), "--output", "a.tar.gz"]) == Exit.USAGE
    assert "leave out --output" in capsys.readouterr().err
