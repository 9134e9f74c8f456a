"""A scan by several ranks against the scan by one, and against sources that differ."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.dataset.directory_scan import RACY_NS, DirectoryScan, DirectoryTask
from nopfsfs.dataset.index import COLUMNS, Index
from nopfsfs.dataset.index_cache import open_or
from nopfsfs.dataset.tree_scan import ScanResult, scan
from nopfsfs.errors import AlreadyReported, Exit, NopfsError
from nopfsfs.peer.scan_messages import Devices, pack_found, pack_tasks, unpack_found, unpack_tasks
from nopfsfs.peer.shared_scan import LOOKED_AT, ScanOptions, check_same, check_view, owner, sample, scan_together
from tests.dataset import trees
from tests.dataset.scanned import fill, find, later, paths
from tests.examples import examples
from tests.peer.threads import Rank, on_ranks


def by_ranks(size: int, source: str, previous: Index | None = None, **how: Any) -> list[Any]:
    return on_ranks(size, lambda rank: scan_together(rank, ScanOptions(source, **how), previous))


def assert_same(index: Index, other: Index) -> None:
    assert index.fingerprint == other.fingerprint
    for name, _, _ in COLUMNS:
        assert np.array_equal(getattr(index, name), getattr(other, name)), name


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    """Who (by its Look) listed what."""
    found: list[tuple[int, bytes]] = []
    real = DirectoryScan._list

    def noted(self: DirectoryScan, task: DirectoryTask, fd: int) -> Any:
        found.append((id(self), task.path))
        return real(self, task, fd)

    monkeypatch.setattr(DirectoryScan, "_list", noted)
    return found


links = st.lists(st.tuples(trees.names, trees.names), max_size=4)


@settings(max_examples=examples(25))
@given(trees.paths(), links, st.integers(1, 5))
def test_any_number_of_ranks_makes_the_index_of_one(files: list[bytes], links: Any, size: int) -> None:
    with trees.tree(files, links) as root:
        alone = scan(root)
        results = by_ranks(size, os.fsdecode(root))

    for result in results:
        assert_same(result.index, alone.index)
        assert result.dirs_reused == 0
    assert results[0].warnings == alone.warnings
    assert all(result.warnings == () for result in results[1:])  # one says it for all


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_every_directory_has_one_owner(path: bytes, size: int) -> None:
    assert 0 <= owner(path, size) < size


def test_directories_are_dealt_out_evenly() -> None:
    dealt = Counter(owner(b"train/n%08d" % n, 8) for n in range(8000))

    assert min(dealt.values()) > 850


def test_each_directory_is_listed_once_by_its_owner(tmp_path: Path, listed: list[tuple[int, bytes]]) -> None:
    fill(tmp_path, *(f"d{i % 7}/e{i % 3}/f{i}" for i in range(100)))

    results = by_ranks(4, str(tmp_path))

    assert len({path for _, path in listed}) == len(listed) == results[0].index.n_dirs == 1 + 7 + 21
    looks = {owner(path, 4): look for look, path in listed}
    assert all(looks[owner(path, 4)] == look for look, path in listed)


def test_links_and_hard_links_over_directories_of_several_ranks(tmp_path: Path) -> None:
    fill(tmp_path, "outside/sub/x", "src/a/one", *(f"src/d{i}/f" for i in range(9)))
    for i in range(9):
        os.link(tmp_path / "src/a/one", tmp_path / f"src/d{i}/two")
        os.symlink("../../outside", tmp_path / f"src/d{i}/out")
        os.symlink("../a", tmp_path / f"src/d{i}/in")
    os.symlink("..", tmp_path / "outside/sub/up")  # a loop, once outside

    for follow in (False, True):
        alone = scan(str(tmp_path / "src"), follow_symlinks=follow)
        results = by_ranks(3, str(tmp_path / "src"), follow_symlinks=follow)
        assert results[0].warnings == alone.warnings
        for result in results:
            assert_same(result.index, alone.index)
    assert len({find(alone.index, f"d{i}/two") for i in range(9)}) == 1
    assert find(alone.index, "d3/out/sub/x") > 0


class TestWithAKeptIndex:
    def test_nothing_changed(self, tmp_path: Path, listed: list[tuple[int, bytes]]) -> None:
        fill(tmp_path, *(f"d{i % 7}/f{i}" for i in range(30)))
        kept = scan(str(tmp_path), clock_ns=later).index
        listed.clear()

        for result in by_ranks(3, str(tmp_path), kept):
            assert result.index is kept
            assert result.dirs_reused == 8
        assert listed == []

    def test_some_directories_changed(self, tmp_path: Path, listed: list[tuple[int, bytes]]) -> None:
        fill(tmp_path, *(f"d{i % 7}/e/f{i}" for i in range(30)))
        os.symlink("e", tmp_path / "d1/link")
        kept = scan(str(tmp_path), clock_ns=later).index
        fill(tmp_path, "d2/new", "d3/e/new", "d9/new/x")
        shutil.rmtree(tmp_path / "d5/e")
        listed.clear()

        results = by_ranks(3, str(tmp_path), kept, clock_ns=later)

        assert sorted(path for _, path in listed) == [b"", b"d2", b"d3/e", b"d5", b"d9", b"d9/new"]
        for result in results:
            assert_same(result.index, scan(str(tmp_path), clock_ns=later).index)

    def test_it_is_of_use_only_where_all_have_the_same(self, tmp_path: Path, listed: list[tuple[int, bytes]]) -> None:
        fill(tmp_path, "a/x", "b/y")
        kept = scan(str(tmp_path), clock_ns=later).index
        (tmp_path / "a/x").chmod(0o600)  # no directory tells
        another = scan(str(tmp_path), clock_ns=later).index
        options = ScanOptions(str(tmp_path))
        for have in ([kept, None, kept], [kept, another, kept]):
            listed.clear()

            results = on_ranks(3, lambda rank, have=have: scan_together(rank, options, have[rank.rank]))

            assert sorted(path for _, path in listed) == [b"", b"a", b"b"]
            assert all(result.dirs_reused == 0 for result in results)

    def test_ranks_share_a_directory_of_indexes(self, tmp_path: Path) -> None:
        fill(tmp_path, *(f"src/d{i}/f" for i in range(20)))
        source, index_dir = str(tmp_path / "src"), str(tmp_path / "index")
        past = time.time() - 3600
        for path in (tmp_path / "src").iterdir():
            os.utime(path, (past, past))

        def open_index(rank: Rank) -> ScanResult:
            how = ScanOptions(source, clock_ns=later)
            opened = open_or(lambda previous: scan_together(rank, how, previous), source, index_dir)
            os.close(opened.fd)
            return opened.result

        first, second = on_ranks(4, open_index), on_ranks(4, open_index)

        assert [result.dirs_reused for result in first] == [0] * 4
        assert [result.dirs_reused for result in second] == [21] * 4
        assert len(os.listdir(index_dir)) == 1
        assert not any(result.warnings for result in (*first, *second))


class TestTrouble:
    def test_the_root_is_gone(self, tmp_path: Path) -> None:
        results = by_ranks(3, str(tmp_path / "none"))

        assert all(error.exit_code is Exit.SOURCE for error in results)
        assert all("cannot read the source" in error.message for error in results)

    def test_the_root_cannot_be_listed_by_its_owner(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(tmp_path, "a/x")
        monkeypatch.setattr(DirectoryScan, "_list", refuse)

        results = by_ranks(3, str(tmp_path))

        [mine] = [error for error in results if not isinstance(error, AlreadyReported)]
        assert results.index(mine) == owner(b"", 3)
        assert {error.message for error in results} == {mine.message}
        assert mine.exit_code is Exit.SOURCE

    def test_what_cannot_be_read_is_counted_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(tmp_path, *(f"d{i}/f" for i in range(9)))
        real = DirectoryScan._list

        def failing(self: DirectoryScan, task: DirectoryTask, fd: int) -> Any:
            return refuse() if task.path in (b"d3", b"d4") else real(self, task, fd)

        monkeypatch.setattr(DirectoryScan, "_list", failing)

        results = by_ranks(3, str(tmp_path))

        assert "2 left out" in results[0].warnings[0]
        assert results[1].warnings == results[2].warnings == ()
        assert b"d3" not in paths(results[1].index)

    def test_a_rank_that_waits_for_the_source_is_waited_for_a_while(self, tmp_path: Path) -> None:
        fill(tmp_path, "a/x")
        beats = on_ranks(2, lambda rank: (scan_together(rank, ScanOptions(str(tmp_path))), rank.beats)[1])
        silent = on_ranks(2, lambda rank: (scan_together(rank, ScanOptions(str(tmp_path), idle_s=0.0)), rank.beats)[1])

        assert all(count > 0 for count in beats)
        assert silent == [0, 0]


def refuse(*_: object) -> Any:
    raise PermissionError(13, "Permission denied")


class TestOtherTrees:
    def view(self, sources: list[str], index: Index) -> list[Any]:
        return on_ranks(len(sources), lambda rank: check_view(rank, sources[rank.rank], index))

    def test_the_same_tree(self, tmp_path: Path) -> None:
        fill(tmp_path, *(f"d{i}/f" for i in range(200)))
        index = scan(str(tmp_path)).index

        assert self.view([str(tmp_path)] * 3, index) == [None] * 3
        chosen = [sample(index, rank) for rank in range(3)]
        assert all(40 < len(set(rows)) <= LOOKED_AT + 1 and rows[0] == 0 for rows in chosen)
        assert all(0 <= row < index.n_dirs for rows in chosen for row in rows)
        assert len({tuple(rows) for rows in chosen}) == 3

    def test_a_copy_of_it(self, tmp_path: Path) -> None:
        fill(tmp_path / "a", "d/f")
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        index = scan(str(tmp_path / "a")).index
        sources = [str(tmp_path / ("a" if rank == owner(b"", 2) else "b")) for rank in range(2)]

        results = self.view(sources, index)

        assert {error.exit_code for error in results} == {Exit.SOURCE}
        told = f"rank {1 - owner(b'', 2)} sees another tree than rank {owner(b'', 2)}: "
        assert results[0].message.startswith(told)
        assert "is another directory (another inode number)" in results[0].message
        assert [type(error) for error in results] == [NopfsError, AlreadyReported]

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ("gone", "cannot be looked at: No such file"),
            ("no directory", "is no directory"),
            ("another time", "was changed at another time"),
        ],
    )
    def test_one_directory_differs(self, tmp_path: Path, how: str, message: str) -> None:
        fill(tmp_path, *(f"d{i}/f" for i in range(20)))
        index = scan(str(tmp_path)).index
        path, root = tmp_path / "d7", tmp_path.stat()
        if how == "another time":
            os.utime(path, ns=(1, 1))
        else:
            shutil.rmtree(path)
            if how == "no directory":
                path.touch()
        os.utime(tmp_path, ns=(root.st_atime_ns, root.st_mtime_ns))

        results = self.view([str(tmp_path)] * 3, index)

        assert {error.exit_code for error in results} == {Exit.SOURCE}
        assert {error.message for error in results} == {results[0].message}
        assert f": {path} {message}" in results[0].message

    def test_indexes_that_differ(self, tmp_path: Path) -> None:
        fill(tmp_path, *(f"d{i}/f" for i in range(9)))
        first = scan(str(tmp_path)).index
        os.utime(tmp_path / "d5/f", ns=(1, 1))
        second = scan(str(tmp_path)).index

        results = on_ranks(3, lambda rank: check_same(rank, second if rank.rank == 1 else first))

        assert [type(error) for error in results] == [NopfsError, AlreadyReported, AlreadyReported]
        assert "ranks 0 and 1 have different indexes of the source, first at d5" in results[0].message
        assert on_ranks(2, lambda rank: check_same(rank, first)) == [None, None]

    def test_an_index_that_has_more(self, tmp_path: Path) -> None:
        fill(tmp_path, "a/x")
        first = scan(str(tmp_path)).index
        fill(tmp_path, "b/y")
        second = scan(str(tmp_path)).index

        results = on_ranks(2, lambda rank: check_same(rank, second if rank.rank else first))

        assert "first at ." in results[0].message


class TestParcels:
    """Device numbers are each machine's own."""

    def devices(self, source: int) -> Devices:
        return Devices(source, ())

    def test_tasks(self) -> None:
        first, last = DirectoryTask(b"a\xff/b", 7, b"/e\xff", ((5, 1), (9, 2))), DirectoryTask(b"", 0)
        tasks = [first, DirectoryTask(b"c", -1, b"", ((5, 1),)), last]

        found = unpack_tasks(pack_tasks(tasks, self.devices(5)), self.devices(6))

        moved = DirectoryTask(b"a\xff/b", 7, b"/e\xff", ((6, 1), (9, 2)))
        assert found == [moved, DirectoryTask(b"c", -1, b"", ((6, 1),)), last]

    def test_what_was_found(self, tmp_path: Path) -> None:
        fill(tmp_path, "x", "y")
        number = os.stat(tmp_path).st_dev
        look = DirectoryScan(os.fsencode(tmp_path), os.fsencode(tmp_path), False, None, later)

        data = pack_found([look(DirectoryTask(b""))], [(b"\xff", "gone")], self.devices(number))
        [found], failures = unpack_found(bytearray(data), self.devices(77), None)

        assert failures == [(b"\xff", "gone")]
        assert found.listing is not None
        assert found.listing.own["dev"].tolist() == [77]
        assert found.listing.records["dev"].tolist() == [77, 77]
        assert (found.listing.names, found.listing.lengths.tolist()) == (b"xy", [1, 1])

    def test_followed_links(self, tmp_path: Path) -> None:
        fill(tmp_path, "out/f", "S/x")
        (tmp_path / "S/dir").symlink_to("../out")
        (tmp_path / "S/file").symlink_to("../out/f")
        look = DirectoryScan(os.fsencode(tmp_path / "S"), os.fsencode(tmp_path / "S"), True, None, later)
        here = look(DirectoryTask(b""))

        [found], _ = unpack_found(bytearray(pack_found([here], [], self.devices(1))), self.devices(1), None)

        out = os.fsencode(tmp_path / "out")
        assert found.listing is not None
        assert found.listing.led == {0: out, 1: out + b"/f"}
        assert [task.at for task in here.children] == [out]

    def test_nothing(self) -> None:
        assert unpack_found(pack_found([], [], self.devices(1)), self.devices(2), None) == ([], [])

    def test_mounts_are_known_by_where_they_are(self, tmp_path: Path) -> None:
        here = Devices.here(os.fsencode(tmp_path))
        proc = os.stat("/proc").st_dev
        names = here.names([here.source, proc, 12345678])

        assert names["source"] == here.source
        assert names["number 12345678"] == 12345678
        assert "at /proc" in names
        assert here.moves(names) == {}
        assert here.moves({"at /proc": 4, "source": 3, "at /nowhere": 2}) == {4: proc, 3: here.source}


def test_racy_directories_are_listed_again(tmp_path: Path) -> None:
    fill(tmp_path, "a/x")
    kept = scan(str(tmp_path)).index  # made a moment ago: not to be relied upon

    assert RACY_NS > 0
    assert all(result.dirs_reused == 0 for result in by_ranks(2, str(tmp_path), kept))
