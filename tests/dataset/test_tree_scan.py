"""The scan against the source it scans."""

import errno
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from nopfsfs.dataset import directory_scan
from nopfsfs.dataset.index import FOLLOWED, HAS_ACL
from nopfsfs.dataset.symlinks import resolve
from nopfsfs.dataset.tree_scan import ScanResult, scan
from nopfsfs.errors import Exit, NopfsError
from tests.dataset.scanned import fill, find, later, left_out, links_leaving, paths


def test_attributes_are_those_of_the_source(tmp_path) -> None:
    fill(tmp_path, "a/x.jpg", "a/b/y", "z", content=b"hello")
    os.chmod(tmp_path / "z", 0o640)
    os.utime(tmp_path / "a/x.jpg", ns=(1, 1_234_567_890_123_456_789))
    index = scan(str(tmp_path)).index
    assert paths(index) == {b"a", b"a/b", b"a/b/y", b"a/x.jpg", b"z"}
    for row in range(index.n):
        st = os.lstat(os.fsencode(tmp_path) + b"/" + index.path(row))
        for column in ("mode", "uid", "gid", "nlink", "size", "mtime_ns", "ctime_ns"):
            assert int(getattr(index, column)[row]) == getattr(st, f"st_{column}"), column
        assert int(index.src_ino[row]) == st.st_ino
        assert int(index.devices[index.src_dev[row]]) == st.st_dev


def test_names_that_are_no_text(tmp_path) -> None:
    names = [b"\xff\xfe", "ä".encode(), b"a\nb", b"\x80" * 255]
    for name in names:
        with open(os.path.join(os.fsencode(tmp_path), name), "wb"):
            pass
    index = scan(os.fsencode(tmp_path)).index
    assert [name for _, name, _ in index.entries(0)] == sorted(names)
    assert [index.path(index.lookup(0, name)) for name in names] == names


def test_the_same_tree_gives_the_same_index_with_any_number_of_threads(tmp_path) -> None:
    fill(tmp_path, *(f"d{i % 7}/e{i % 3}/f{i}" for i in range(100)))
    prints = {scan(str(tmp_path), threads=threads).index.fingerprint for threads in (1, 2, 16)}
    assert len(prints) == 1


def test_hard_links(tmp_path) -> None:
    fill(tmp_path, "b/one", "other")
    (tmp_path / "a").mkdir()
    os.link(tmp_path / "b/one", tmp_path / "a/two")
    index = scan(str(tmp_path)).index
    assert find(index, "b/one") == find(index, "a/two")
    assert index.nlink[find(index, "b/one")] == 2
    assert index.n == 5


def test_special_files_are_presented(tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo")
    index = scan(str(tmp_path)).index
    assert stat.S_ISFIFO(int(index.mode[find(index, "fifo")]))
    assert index.total_bytes == 0


def test_progress_tells_the_number_of_entries(tmp_path) -> None:
    fill(tmp_path, "a", "b/c")
    told: list[int] = []
    scan(str(tmp_path), progress=told.append)
    assert told[-1] == 3


@pytest.mark.parametrize(("threads", "least"), [(1, 1), (16, 5)])
def test_a_slow_source_is_read_by_more_threads(tmp_path, monkeypatch, threads: int, least: int) -> None:
    fill(tmp_path, *(f"d{i}/x" for i in range(40)))
    real, inside, most = os.open, [0], [0]

    def slow(*args, **kwargs):
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        inside[0] -= 1
        return real(*args, **kwargs)

    monkeypatch.setattr(os, "open", slow)
    assert len(paths(scan(str(tmp_path), threads=threads).index)) == 80
    assert least <= most[0] <= threads


class TestRoot:
    @pytest.mark.parametrize("name", ["missing", "file", "file/below"])
    def test_no_directory(self, tmp_path, name: str) -> None:
        fill(tmp_path, "file")
        with pytest.raises(NopfsError) as caught:
            scan(str(tmp_path / name))
        assert caught.value.exit_code is Exit.SOURCE
        assert name in caught.value.message
        assert "\n" not in caught.value.message

    def test_reached_by_a_link(self, tmp_path) -> None:
        fill(tmp_path, "real/x")
        os.symlink("x", tmp_path / "real/inside")
        os.symlink("real", tmp_path / "link")
        result = scan(str(tmp_path / "link"))
        assert paths(result.index) == {b"x", b"inside"}
        assert links_leaving(result) == 0


class TestLinks:
    @pytest.mark.parametrize(
        ("at", "target", "presented"),
        [
            ("l", "d/x", b"d/x"),
            ("l", "{}/d/x", b"d/x"),
            ("d/l", "x", b"x"),
            ("d/l", "../d/./x", b"../d/./x"),
            ("d/l", "{}/d/x", b"x"),
            ("d/e/l", "{}", b"../.."),
            ("d/l", "../../{base}/d/x", b"x"),  # leaves and comes back: would leave the mount
            ("l", "d/missing", b"d/missing"),
            ("l", "{}/d/missing", b"d/missing"),
            ("l", "l", b"l"),
        ],
    )
    def test_inside(self, tmp_path, at: str, target: str, presented: bytes) -> None:
        fill(tmp_path, "d/x", "d/e/y")
        os.symlink(target.replace("{base}", tmp_path.name).format(tmp_path), tmp_path / at)
        result = scan(str(tmp_path))
        row = find(result.index, at)
        assert result.index.readlink(row) == presented
        assert stat.S_ISLNK(int(result.index.mode[row]))
        assert result.warnings == ()

    def test_leaving_stay_links_and_are_counted(self, tmp_path) -> None:
        fill(tmp_path, "outside/x", "src/d/y")
        os.symlink(tmp_path / "outside/x", tmp_path / "src/file")
        os.symlink("../outside", tmp_path / "src/dir")
        os.symlink("../../nowhere", tmp_path / "src/d/dangling")
        result = scan(str(tmp_path / "src"))
        assert links_leaving(result) == 3
        assert len(result.warnings) == 1
        assert result.index.readlink(find(result.index, "file")) == os.fsencode(tmp_path / "outside/x")
        assert result.index.readlink(find(result.index, "dir")) == b"../outside"

    def test_a_source_whose_name_begins_like_another(self, tmp_path) -> None:
        fill(tmp_path, "src2/x", "src/y")
        os.symlink("../src2/x", tmp_path / "src/l")
        assert links_leaving(scan(str(tmp_path / "src"))) == 1

    def test_followed(self, tmp_path) -> None:
        fill(tmp_path, "outside/sub/x", "outside/y", "src/d/z", content=b"abc")
        os.symlink(tmp_path / "outside", tmp_path / "src/dir")
        os.symlink("../../outside/y", tmp_path / "src/d/file")
        os.symlink("d/z", tmp_path / "src/inside")
        os.symlink("../nowhere", tmp_path / "src/dangling")
        os.symlink("../src/d/z", tmp_path / "outside/back")
        os.symlink("y", tmp_path / "outside/near")
        result = scan(str(tmp_path / "src"), follow_symlinks=True)
        index = result.index
        kinds = {p: stat.S_IFMT(int(index.mode[find(index, os.fsdecode(p))])) for p in paths(index)}
        assert kinds == {
            b"d": stat.S_IFDIR,
            b"dir": stat.S_IFDIR,
            b"dir/sub": stat.S_IFDIR,
            b"d/z": stat.S_IFREG,
            b"d/file": stat.S_IFREG,
            b"dir/y": stat.S_IFREG,
            b"dir/near": stat.S_IFREG,
            b"dir/sub/x": stat.S_IFREG,
            b"dir/back": stat.S_IFLNK,
            b"inside": stat.S_IFLNK,
            b"dangling": stat.S_IFLNK,
        }
        followed = {p for p in kinds if index.flags[find(index, os.fsdecode(p))] & FOLLOWED}
        assert followed == {b"dir", b"dir/sub", b"dir/sub/x", b"dir/y", b"dir/near", b"d/file"}
        assert index.readlink(find(index, "dir/back")) == b"../d/z"
        assert links_leaving(result) == 1
        for path in followed:
            st = os.stat(os.fsencode(tmp_path / "src") + b"/" + path)
            assert index.src_ino[find(index, os.fsdecode(path))] == st.st_ino

    def test_followed_loops_end(self, tmp_path) -> None:
        fill(tmp_path, "src/d/x", "y")
        os.symlink(tmp_path, tmp_path / "src/d/up")
        result = scan(str(tmp_path / "src"), follow_symlinks=True)
        assert paths(result.index) == {b"d", b"d/x", b"d/up", b"d/up/y"}
        assert left_out(result) == 1

    @pytest.mark.parametrize(
        ("target", "leads_to"),
        [
            ("d/x", "d/x"),
            ("./d//x", "d/x"),
            ("d/../d/e", "d/e"),
            ("d/e/..", "d"),
            ("second", "d/x"),
            ("through/x", "d/x"),
            ("d/x/y", None),
            ("no", None),
            ("loop", None),
        ],
    )
    def test_resolved_in_the_index(self, tmp_path, target: str, leads_to: str | None) -> None:
        fill(tmp_path, "d/x", "d/e/y")
        for name, to in (("second", "d/x"), ("loop", "loop"), ("through", "d"), ("link", target)):
            os.symlink(to, tmp_path / name)
        index = scan(str(tmp_path)).index
        assert resolve(index, find(index, "link")) == (-1 if leads_to is None else find(index, leads_to))


class TestTrouble:
    def test_an_unreadable_directory_is_left_out(self, tmp_path, monkeypatch) -> None:
        fill(tmp_path, "good/x", "bad/y", "bad/deep/z")
        refuse(monkeypatch, "open_beneath", "bad", errno.EACCES)
        result = scan(str(tmp_path))
        assert paths(result.index) == {b"good", b"good/x"}
        assert (left_out(result), len(result.warnings)) == (1, 1)
        assert "bad: Permission denied" in result.warnings[0]

    def test_it_is_tried_again_though_nothing_changed(self, tmp_path, monkeypatch) -> None:
        fill(tmp_path, "good/x", "bad/y")
        with monkeypatch.context() as patch:
            refuse(patch, "open_beneath", "bad", errno.EIO)
            first = scan(str(tmp_path), clock_ns=later)
        again = scan(str(tmp_path), previous=first.index, clock_ns=later)
        assert b"bad/y" in paths(again.index)
        assert again.dirs_reused == 1

    @pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
    def test_a_root_that_cannot_be_read(self, tmp_path) -> None:
        os.chmod(tmp_path, 0)
        try:
            with pytest.raises(NopfsError, match="Permission denied"):
                scan(str(tmp_path))
        finally:
            os.chmod(tmp_path, 0o700)

    def test_a_root_that_fails(self, tmp_path, monkeypatch) -> None:
        refuse(monkeypatch, "open_absolute", tmp_path.name, errno.EACCES)
        with pytest.raises(NopfsError, match="Permission denied") as caught:
            scan(str(tmp_path))
        assert caught.value.exit_code is Exit.SOURCE

    def test_an_error_of_ours_ends_the_scan(self, tmp_path) -> None:
        def broken() -> int:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            scan(str(tmp_path), clock_ns=broken)
        assert not [t for t in threading.enumerate() if t.name.startswith("scan-")]

    def test_a_file_and_a_directory_that_vanish_meanwhile(self, tmp_path) -> None:
        fill(tmp_path, "a/x", *(f"f{i}" for i in range(5)))

        def vanish() -> int:  # asked after the directory was opened, before it is listed
            (tmp_path / "a/x").unlink(missing_ok=True)
            if (tmp_path / "a").exists():
                (tmp_path / "a").rmdir()
            return later()

        result = scan(str(tmp_path), clock_ns=vanish)
        assert paths(result.index) == {b"f%d" % i for i in range(5)}

    def test_entries_that_vanish_between_listing_and_stat(self, tmp_path, monkeypatch) -> None:
        fill(tmp_path, "keep", "gone", "dir/x")
        real = os.scandir

        class Scandir:
            def __init__(self, fd: int) -> None:
                self.entries = real(fd)

            def __enter__(self):
                found = list(self.entries)
                (tmp_path / "gone").unlink(missing_ok=True)
                return iter(found)

            def __exit__(self, *_: object) -> None:
                self.entries.close()

        monkeypatch.setattr(os, "scandir", Scandir)
        result = scan(str(tmp_path))
        assert paths(result.index) == {b"keep", b"dir", b"dir/x"}
        assert left_out(result) == 1
        assert "gone: No such file" in result.warnings[0]

    def test_a_link_that_is_no_link_any_more(self, tmp_path, monkeypatch) -> None:
        fill(tmp_path, "keep")
        os.symlink("keep", tmp_path / "link")
        refuse(monkeypatch, "readlink", "link", errno.EINVAL)
        result = scan(str(tmp_path))
        assert (paths(result.index), left_out(result)) == ({b"keep"}, 1)


def refuse(monkeypatch, function: str, ending: str, code: int) -> None:
    """Let a function of the scan, or of os, fail for paths that end so."""
    where = directory_scan if hasattr(directory_scan, function) else os
    real = getattr(where, function)

    def failing(*args, **kwargs):
        for path in args:
            if not isinstance(path, int) and os.fsdecode(path).endswith(ending):
                raise OSError(code, os.strerror(code), path)
        return real(*args, **kwargs)

    monkeypatch.setattr(where, function, failing)


class TestAcl:
    def scanned(self, tmp_path: Path, monkeypatch, answer: int) -> tuple[ScanResult, list[str]]:
        fill(tmp_path, "a", "b", "d/c")
        asked: list[str] = []

        def getxattr(path, name):
            assert name == "system.posix_acl_access"
            asked.append(os.path.basename(os.readlink(path)))
            if asked[-1] == "b":
                return b"acl"
            raise OSError(answer, os.strerror(answer))

        monkeypatch.setattr(os, "getxattr", getxattr)
        return scan(str(tmp_path), threads=1), asked

    def test_found(self, tmp_path, monkeypatch) -> None:
        result, asked = self.scanned(tmp_path, monkeypatch, errno.ENODATA)
        assert sorted(asked) == sorted(["a", "b", "c", "d", tmp_path.name])
        index = result.index
        assert [index.path(row) for row in range(index.n) if index.flags[row] & HAS_ACL] == [b"b"]
        assert index.any_acl

    def test_not_asked_again_where_there_are_none(self, tmp_path, monkeypatch) -> None:
        result, asked = self.scanned(tmp_path, monkeypatch, errno.ENOTSUP)
        assert asked == [tmp_path.name]
        assert not result.index.any_acl


class TestAgain:
    def test_nothing_changed_gives_the_index_itself(self, tmp_path) -> None:
        fill(tmp_path, "a/x", "a/b/y", "c/z")
        first = scan(str(tmp_path), clock_ns=later)
        again = scan(str(tmp_path), previous=first.index)
        assert again.index is first.index
        assert again.dirs_reused == 4

    def test_a_directory_that_changed_just_now_is_listed_again(self, tmp_path) -> None:
        fill(tmp_path, "a/x")
        first = scan(str(tmp_path))
        assert scan(str(tmp_path), previous=first.index).dirs_reused == 0

    def test_a_directory_that_changed_while_it_was_listed_is_listed_again(self, tmp_path) -> None:
        fill(tmp_path, "x")

        def change() -> int:  # asked after the directory's own times were read, before it is listed
            time.sleep(0.02)  # more than one tick of the file system's clock
            fill(tmp_path, "new")
            return later()

        first = scan(str(tmp_path), clock_ns=change)
        assert paths(first.index) == {b"x", b"new"}
        assert scan(str(tmp_path), previous=first.index).dirs_reused == 0

    def test_only_what_changed_is_listed(self, tmp_path, monkeypatch) -> None:
        fill(tmp_path, "a/x", "a/b/y", "c/z", "c/e/w")
        os.symlink("../a/x", tmp_path / "c/l")
        os.link(tmp_path / "a/x", tmp_path / "c/hard")
        first = scan(str(tmp_path), clock_ns=later)
        fill(tmp_path, "a/b/new", "a/b/deep/er")
        (tmp_path / "a/b/y").unlink()
        again = scan(str(tmp_path), previous=first.index, clock_ns=later)
        assert again.dirs_reused == 4
        afresh = scan(str(tmp_path), clock_ns=later)
        assert again.index.fingerprint == afresh.index.fingerprint
        for column in ("mode", "size", "mtime_ns", "ctime_ns", "src_ino", "flags", "nlink", "primary"):
            assert getattr(again.index, column).tolist() == getattr(afresh.index, column).tolist(), column

    def test_links_that_leave_are_still_counted(self, tmp_path) -> None:
        fill(tmp_path, "src/x")
        os.symlink("../else", tmp_path / "src/l")
        first = scan(str(tmp_path / "src"), clock_ns=later)
        assert links_leaving(scan(str(tmp_path / "src"), previous=first.index)) == 1

    def test_a_directory_that_was_removed_and_one_that_became_a_file(self, tmp_path) -> None:
        fill(tmp_path, "a/x", "b/y", "c/z")
        first = scan(str(tmp_path), clock_ns=later)
        (tmp_path / "a/x").unlink()
        (tmp_path / "a").rmdir()
        (tmp_path / "b/y").unlink()
        (tmp_path / "b").rmdir()
        fill(tmp_path, "b")
        again = scan(str(tmp_path), previous=first.index, clock_ns=later)
        assert paths(again.index) == {b"b", b"c", b"c/z"}
        assert again.dirs_reused == 1

    def test_followed_directories_are_checked_where_they_lead(self, tmp_path) -> None:
        fill(tmp_path, "out/sub/x", "src/y")
        os.symlink("../out", tmp_path / "src/l")
        first = scan(str(tmp_path / "src"), follow_symlinks=True, clock_ns=later)
        same = scan(str(tmp_path / "src"), follow_symlinks=True, previous=first.index, clock_ns=later)
        assert same.index.fingerprint == first.index.fingerprint
        assert same.dirs_reused == 2  # but not the one with the link: what it leads to may change without a trace there
        fill(tmp_path, "out/sub/new")
        again = scan(str(tmp_path / "src"), follow_symlinks=True, previous=first.index, clock_ns=later)
        assert b"l/sub/new" in paths(again.index)
        assert again.dirs_reused == 1
