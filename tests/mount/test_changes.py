"""A source that changes while mounted: the old bytes whole, or an errno; no mixture, no hang. Then the new bytes."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import long, slow
from tests.mount.conftest import Mounting
from tests.mount.harness import COMMAND_S, Mounted, Reader, content, run, write
from tests.mount.modes import Mode, mostly
from tests.mount.readers import digest
from tests.waiting import wait_until

pytestmark = pytest.mark.mount

SIZE = 3_000_000
OLD, NEW = content(1, SIZE), content(2, SIZE)
LONGER, SHORTER = content(3, SIZE + 500_000), content(4, SIZE // 3)
Change = Callable[[Path], bytes | None]  # what it holds from then on


def overwrite(path: Path) -> bytes:
    with path.open("r+b") as file:
        file.write(NEW)
    return NEW


def overwrite_a_part(path: Path) -> bytes:
    with path.open("r+b") as file:
        file.seek(2_000_000)
        file.write(b"changed")
    return path.read_bytes()


def grow(path: Path) -> bytes:
    path.write_bytes(LONGER)
    return LONGER


def append(path: Path) -> bytes:
    with path.open("ab") as file:
        file.write(b"more")
    return OLD + b"more"


def shrink(path: Path) -> bytes:
    os.truncate(path, SIZE // 2)
    return OLD[: SIZE // 2]


def empty(path: Path) -> bytes:
    path.write_bytes(b"")
    return b""


def replace(path: Path) -> bytes:
    other = path.with_name("other")
    other.write_bytes(SHORTER)
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.replace(other, path)
    return SHORTER


def replace_alike(path: Path) -> bytes:
    """Another file of the same size and mtime."""
    other = path.with_name("other")
    other.write_bytes(NEW)
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.replace(other, path)
    return NEW


def vanish(path: Path) -> None:
    path.unlink()


def become_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_link_out(path: Path) -> None:
    path.unlink()
    outside = path.parent.parent / "secret"
    outside.write_bytes(b"secret")
    path.symlink_to(outside)


CHANGES = [overwrite, overwrite_a_part, grow, append, shrink, empty, replace, replace_alike, vanish, become_a_directory,
           become_a_link_out]  # fmt: skip


@pytest.fixture(params=[long(""), "--ram 4M"], ids=["whole", "ranges"])
def flags(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read(path: Path) -> Any:
    """[length, sha256] or the errno, by a process of its own: a hang is an error."""
    with Reader("read", path) as reader:
        return reader.result()[0]


@pytest.fixture
def changing(source: Path) -> Path:
    """A file that will change."""
    write(source, {"f.jpg": OLD, **{f"others/{n}.jpg": content(100 + n, 50_000) for n in range(20)}})
    return source / "f.jpg"


@pytest.fixture
def files(source: Path) -> dict[str, Change]:
    """A file for each way to change. Beside them so many others that the opens of a test are no epoch. After an epoch
    in no known order the mount stages what is left: it would find changes before their readers do."""
    made = {f"{change.__name__}/f.jpg": change for change in CHANGES}
    write(source, {**dict.fromkeys(made, OLD), **{f"others/{n}.jpg": content(100 + n, 100) for n in range(100)}})
    return made


def check_new(m: Mounted, name: str, expected: bytes | None, version: bytes = b"1") -> None:
    """New opens see the new version, attributes too; or there is an errno where there is no such file any more."""
    path = m.path / name
    if expected is None:
        assert read(path) == errno.ESTALE, name
        return
    assert wait_until(lambda: read(path) == digest(expected)), (name, read(path), digest(expected))
    there, here = (m.source / name).stat(), path.stat()
    fields = ("st_size", "st_mtime_ns", "st_ctime_ns", "st_mode")
    assert [getattr(here, f) for f in fields] == [getattr(there, f) for f in fields], name
    assert os.getxattr(path, "user.nopfs.version") == version, name


@pytest.mark.long
def test_before_they_were_read(mounting: Mounting, source: Path, files: dict[str, Change], flags: str) -> None:
    with mounting(source, *flags.split()) as m:
        assert {(m.path / name).stat().st_size for name in files} == {SIZE}
        expected = {name: change(m.source / name) for name, change in files.items()}
        for name in files:
            assert read(m.path / name) == errno.ESTALE, name
        for name in files:
            check_new(m, name, expected[name])


@pytest.mark.long
@mostly("passthrough")
def test_in_each_mode(mounting: Mounting, source: Path, files: dict[str, Change], mode: Mode) -> None:
    """An open handle and a new one, of files that are read by ranges."""
    with mounting(source, "--ram", "4M", mode=mode) as m, ExitStack() as stack:
        readers = {name: stack.enter_context(Reader("hold", m.path / name)) for name in files}
        assert [reader.line() for reader in readers.values()] == [4096] * len(files)
        expected = {name: change(m.source / name) for name, change in files.items()}
        with Reader("read", *[m.path / name for name in files]) as reader:
            assert set(reader.result()) == {errno.ESTALE}
        for name, reader in readers.items():
            check_new(m, name, expected[name])
            reader.go("again")
            assert reader.line() == errno.ESTALE, name


def test_while_they_are_open_and_partly_read(
    mounting: Mounting, source: Path, files: dict[str, Change], flags: str
) -> None:
    with mounting(source, *flags.split()) as m:
        for name, change in files.items():
            with Reader("hold", m.path / name) as reader:
                assert reader.line() == 4096
                change(m.source / name)
                reader.go("again")
                assert reader.line() in (digest(OLD), errno.ESTALE), name
                reader.go("end")
                assert reader.result() == "ended"


@pytest.mark.long
def test_an_old_handle_never_gets_bytes_of_the_new_version(
    mounting: Mounting, source: Path, files: dict[str, Change]
) -> None:
    """Somebody else opens the file, notices the change, and has the new version cached; then the first reads on."""
    with mounting(source, "--ram", "4M") as m, ExitStack() as stack:
        readers = {name: stack.enter_context(Reader("hold", m.path / name)) for name in files}
        assert [reader.line() for reader in readers.values()] == [4096] * len(files)
        expected = {name: change(m.source / name) for name, change in files.items()}
        assert {read(m.path / name) for name in files} == {errno.ESTALE}
        for name, reader in readers.items():
            check_new(m, name, expected[name])
            for _ in range(2):
                reader.go("again")
                assert reader.line() == errno.ESTALE, name
            check_new(m, name, expected[name])
            reader.go("end")
            assert reader.result() == "ended"
        log = m.log.read_text()
        assert log.count("changed at the source") == len(files) - 1, log  # vanish: nothing is there to be told of
        assert m.status()["stager"]["changed_files"] == len(files) - 3  # those that are still files


@pytest.mark.long
def test_what_is_staged_is_served_as_it_was(mounting: Mounting, source: Path, files: dict[str, Change]) -> None:
    with mounting(source, "--ram", "400M") as m:
        for name, change in files.items():
            assert read(m.path / name) == digest(OLD)
            change(m.source / name)
            assert read(m.path / name) == digest(OLD), name


@pytest.mark.long
def test_a_file_that_is_being_written_is_taken_up_when_it_has_settled(mounting: Mounting, changing: Path) -> None:
    """Its writer is in the middle: the times have changed, all bytes have not yet."""
    with mounting(changing.parent) as m:
        with changing.open("r+b", buffering=0) as file:
            file.write(NEW[:1000])
            with Reader("wait", m.path / "f.jpg") as reader:
                assert [reader.line(), reader.line()] == ["open", {"errno": errno.ESTALE}]
                # at once, before that process ends: what stays the same for a second is taken up
                before = changing.stat()
                file.write(NEW[1000:])
                os.utime(changing, ns=(before.st_atime_ns, before.st_mtime_ns))
        check_new(m, "f.jpg", NEW)


@pytest.mark.long
def test_it_changes_again_and_again(mounting: Mounting, changing: Path) -> None:
    with mounting(changing.parent, "--ram", "4M") as m:
        for number in range(1, 4):
            data = content(10 + number, SIZE + number)
            changing.write_bytes(data)
            with pytest.raises(OSError, match="Stale"):
                read_past_the_cache(m.path / "f.jpg")
            check_new(m, "f.jpg", data, b"%d" % number)


def read_past_the_cache(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 4096) as memory:
            for at in range(0, SIZE, 1 << 19):
                os.preadv(fd, [memory], at)
    finally:
        os.close(fd)


@pytest.mark.long
def test_a_mapping_of_a_changed_file_gets_a_signal_not_a_mixture(mounting: Mounting, changing: Path) -> None:
    program = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
    memory.madvise(mmap.MADV_RANDOM)
    memory[:8]
    print("mapped", flush=True)
    input()
    memory[2_500_000:2_500_008]
"""
    with mounting(changing.parent, "--ram", "4M") as m:
        with subprocess.Popen(
            [sys.executable, "-c", program, m.path / "f.jpg"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline() == b"mapped\n"
            expected = overwrite(changing)
            process.communicate(b"\n", timeout=COMMAND_S)
            assert process.returncode == -7  # SIGBUS
        check_new(m, "f.jpg", expected)


@pytest.mark.long
def test_hard_links_change_together(mounting: Mounting, changing: Path) -> None:
    os.link(changing, changing.parent / "g.jpg")
    with mounting(changing.parent) as m:
        overwrite(changing)
        assert read(m.path / "g.jpg") == errno.ESTALE

        assert wait_until(lambda: read(m.path / "f.jpg") == read(m.path / "g.jpg") == digest(NEW))


@pytest.mark.long
def test_a_vanished_file_that_comes_back_is_read_again(mounting: Mounting, changing: Path) -> None:
    kept = changing.with_name("kept")
    with mounting(changing.parent) as m:
        os.rename(changing, kept)
        assert read(m.path / "f.jpg") == errno.ESTALE
        os.rename(kept, changing)

        assert wait_until(lambda: read(m.path / "f.jpg") == digest(OLD))


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_file_that_turns_unreadable(mounting: Mounting, changing: Path, open_to_all: Path) -> None:
    changing.parent.chmod(0o755)
    with mounting(changing.parent, "--user", "65534") as m:
        changing.chmod(0o600)
        assert read(m.path / "f.jpg") in (errno.EACCES, errno.ESTALE)
        changing.chmod(0o644)

        assert wait_until(lambda: read(m.path / "f.jpg") == digest(OLD))


@pytest.mark.long
def test_a_directory_that_vanishes(mounting: Mounting, changing: Path) -> None:
    with mounting(changing.parent) as m:
        run(["rm", "-r", str(changing.parent / "others")])

        assert sorted(os.listdir(m.path / "others"))  # what is indexed is shown
        assert read(m.path / "others/1.jpg") == errno.ESTALE
        assert read(m.path / "f.jpg") == digest(OLD)


def is_one_of(result: Any, digests: set[str]) -> bool:
    """Whether a reader got all the bytes of one of these versions."""
    return isinstance(result, list) and result[0] == 50_000 and result[1] in digests


@pytest.mark.long
@pytest.mark.parametrize("flags", [slow("--seed 42"), "--ram 4M --seed 42", slow("--ram 4M")])
def test_changes_under_four_readers(mounting: Mounting, changing: Path, flags: str) -> None:
    """Every file is read whole as one version; each is overwritten in place once meanwhile."""
    names = [f"others/{n}.jpg" for n in range(20)]
    versions = {name: {hashlib.sha256(content(key + n, 50_000)).hexdigest() for key in (100, 200)}
                for n, name in enumerate(names)}  # fmt: skip
    with mounting(changing.parent, *flags.split()) as m:
        for n, name in enumerate(names):
            readers = [Reader("read", *[m.path / name] * 20) for _ in range(1 if n % 4 else 4)]
            with (m.source / name).open("r+b") as file:
                file.write(content(200 + n, 50_000))
            for reader in readers:
                for result in reader.result():
                    assert is_one_of(result, versions[name]) or result == errno.ESTALE, result
        for name in names:  # what was staged before may be served as it was
            assert wait_until(lambda name=name: is_one_of(read(m.path / name), versions[name]), 30), name
