"""`nopfs cache`: what is kept is listed, verified, pruned and removed, also while it is used."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from nopfsfs.cli import nopfs
from nopfsfs.errors import Exit
from nopfsfs.tiers.kept_disk import KeptDisk
from tests.tiers.kept import BLOCK, Rows, copies


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = tmp_path / "disk"
    made.mkdir()
    return made


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(tmp_path / "source")


@pytest.fixture
def mounted(rows: Rows, place: Path) -> KeptDisk:
    """Four copies, of a mount that lives."""
    disk = rows.disk(place)
    for number in range(4):
        rows.write(disk, number)
    return disk


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> dict[str, object]:
    assert nopfs.main(["cache", *map(str, words), "--json"]) == Exit.OK
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.usefixtures("mounted")
def test_what_is_kept_is_listed(place: Path, rows: Rows, capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = run(capsys, "ls", place)["sources"]  # type: ignore[misc]
    assert (source["path"], source["in_use"], source["files"], source["bytes"]) == (
        str(rows.root), True, 4, 4 * BLOCK,
    )  # fmt: skip
    assert nopfs.main(["cache", "ls", str(place)]) == Exit.OK
    assert f"{rows.root} (mounted)" in capsys.readouterr().out


def test_rotten_copies_are_found_and_counted(
    place: Path, mounted: KeptDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    copies(place)[1].write_bytes(b"rot" * 1000)
    os.truncate(copies(place)[2], 7)
    assert run(capsys, "verify", place) == {"looked": 4, "files": 2, "bytes": 2 * BLOCK, "in_use": []}
    assert mounted._shared().total() == 2 * BLOCK
    assert run(capsys, "verify", place)["files"] == 0


@pytest.mark.usefixtures("mounted")
def test_pruning_leaves_what_was_used_last(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for age, path in enumerate(copies(place)):
        os.utime(path, (time.time() - 1000 * age,) * 2)
    first = copies(place)
    assert run(capsys, "prune", place, "--to", str(3 * BLOCK))["files"] == 1
    assert copies(place) == first[:3]
    assert run(capsys, "prune", place, "--older", "500s")["files"] == 2
    assert copies(place) == first[:1]


def test_what_is_mounted_is_not_removed(
    place: Path, mounted: KeptDisk, rows: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nopfs.main(["cache", "rm", str(place)]) == Exit.DISK
    assert "it is mounted; unmount it first" in capsys.readouterr().err
    mounted.close()
    assert run(capsys, "rm", place, "--source", "/elsewhere")["files"] == 0
    assert run(capsys, "rm", place, "--source", rows.root)["files"] == 4
    assert copies(place) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("prune",), "prune needs --to or --older"),
        (("ls", "--to", "1G"), "prune needs --to or --older"),
        (("verify", "--source", "/x"), "--source is for rm"),
        (("prune", "--older", "soon"), "is not a time"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    place: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nopfs.main(["cache", words[0], str(place), *words[1:]]) == Exit.USAGE
    assert said in capsys.readouterr().err


def test_where_nothing_is_kept_a_line_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nopfs.main(["cache", "ls", str(place)]) == Exit.DISK
    assert "holds no kept copies of user" in capsys.readouterr().err
    assert list(place.iterdir()) == []
    (place / f"nopfs-cache-{os.geteuid()}").mkdir(mode=0o755)
    assert nopfs.main(["cache", "rm", str(place)]) == Exit.DISK
    assert "chmod 700" in capsys.readouterr().err
