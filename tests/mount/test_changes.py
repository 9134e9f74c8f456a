"""A source that changes while mounted: the old bytes whole, or an errno; never a mixture, never a hang; then the new."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.mount.conftest import Mounting
from tests.mount.harness import COMMAND_S, Mounted, Reader, content, run, write

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


def digest(data: bytes) -> list[object]:
    return [len(data), hashlib.sha256(data).hexdigest()]


def read(path: Path) -> Any:
    """[length, sha256] or the errno, by a process of its own: a hang is an error."""
    with Reader("read", path) as reader:
        return reader.result()[0]


@pytest.fixture
def changing(source: Path) -> Path:
    write(source, {"f.jpg": OLD, **{f"others/{n}.jpg": content(100 + n, 50_000) for n in range(20)}})
    return source / "f.jpg"


def check_new(m: Mounted, expected: bytes | None) -> None:
    """New opens see the new version, attributes too; or there is an errno where there is no such file any more."""
    path = m.path / "f.jpg"
    if expected is None:
        assert read(path) in (errno.ESTALE, errno.EIO)
        return
    assert wait_until(lambda: read(path) == digest(expected)), (read(path), digest(expected))
    there, here = (m.source / "f.jpg").stat(), path.stat()
    assert (here.st_size, here.st_mtime_ns, here.st_ctime_ns) == (there.st_size, there.st_mtime_ns, there.st_ctime_ns)
    assert os.getxattr(path, "user.nopfs.version") == b"1"
    assert read(path) == digest(expected)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("flags", ["", "--ram 4M"], ids=["whole", "ranges"])
def test_before_it_was_read(mounting: Mounting, changing: Path, change: Change, flags: str) -> None:
    with mounting(changing.parent, *flags.split()) as m:
        path = m.path / "f.jpg"
        assert path.stat().st_size == SIZE
        expected = change(changing)

        assert read(path) in (errno.ESTALE, expected is not None and digest(expected))
        check_new(m, expected)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("flags", ["", "--ram 4M"], ids=["whole", "ranges"])
def test_while_it_is_open_and_partly_read(mounting: Mounting, changing: Path, change: Change, flags: str) -> None:
    with mounting(changing.parent, *flags.split()) as m, Reader("hold", m.path / "f.jpg") as reader:
        assert reader.line() == 4096
        expected = change(changing)
        reader.go("again")
        assert reader.line() in (digest(OLD), errno.ESTALE)
        # Somebody else notices, if nobody has yet.
        read(m.path / "f.jpg")
        reader.go("end")
        reader.result()
        if flags:  # nothing of it stays in memory for long: the change is seen when it is read
            with Reader("read", m.path / "f.jpg") as other:
                other.result()


@pytest.mark.parametrize("change", [overwrite, shrink, replace, vanish])
def test_what_is_staged_is_served_as_it_was(mounting: Mounting, changing: Path, change: Change) -> None:
    with mounting(changing.parent) as m:
        assert read(m.path / "f.jpg") == digest(OLD)
        change(changing)

        assert read(m.path / "f.jpg") == digest(OLD)


@pytest.mark.parametrize("change", [overwrite, grow, shrink, empty, replace])
def test_what_was_cached_of_the_old_version_is_not_seen_again(mounting: Mounting, changing: Path, change: Change) -> None:
    """Pages of the beginning are cached; then the change is noticed where the rest is read."""
    with mounting(changing.parent, "--ram", "4M") as m, Reader("hold", m.path / "f.jpg") as reader:
        assert reader.line() == 4096
        expected = change(changing)
        reader.go("again")
        assert reader.line() == errno.ESTALE
        check_new(m, expected)
        reader.go("again")
        assert reader.line() == errno.ESTALE  # the old handle stays what it was
        reader.go("end")
        reader.result()
        assert [line for line in m.log.read_text().splitlines() if "changed at the source" in line and "f.jpg" in line]
        assert m.status()["stager"]["changed_files"] == 1


def test_it_changes_again_and_again(mounting: Mounting, changing: Path) -> None:
    with mounting(changing.parent, "--ram", "4M") as m:
        for key in range(10, 16):
            data = content(key, SIZE + key)
            changing.write_bytes(data)
            seen = read(m.path / "f.jpg")
            assert seen in (errno.ESTALE, digest(data)) or seen == digest(content(key - 1, SIZE + key - 1))
            os.posix_fadvise(fd := os.open(m.path / "f.jpg", os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
            assert wait_until(lambda data=data: read(m.path / "f.jpg") == digest(data))


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
        check_new(m, expected)


def test_hard_links_change_together(mounting: Mounting, changing: Path) -> None:
    os.link(changing, changing.parent / "g.jpg")
    with mounting(changing.parent) as m:
        overwrite(changing)
        read(m.path / "g.jpg")

        assert wait_until(lambda: read(m.path / "f.jpg") == read(m.path / "g.jpg") == digest(NEW))


def test_a_vanished_file_that_comes_back_is_read_again(mounting: Mounting, changing: Path) -> None:
    kept = changing.with_name("kept")
    with mounting(changing.parent) as m:
        os.rename(changing, kept)
        assert read(m.path / "f.jpg") == errno.ESTALE
        os.rename(kept, changing)

        assert wait_until(lambda: read(m.path / "f.jpg") == digest(OLD))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_file_that_turns_unreadable(mounting: Mounting, changing: Path, open_to_all: Path) -> None:
    changing.parent.chmod(0o755)
    with mounting(changing.parent, "--user", "65534") as m:
        changing.chmod(0o600)
        assert read(m.path / "f.jpg") in (errno.EACCES, errno.ESTALE)
        changing.chmod(0o644)

        assert wait_until(lambda: read(m.path / "f.jpg") == digest(OLD))


def test_a_directory_that_vanishes(mounting: Mounting, changing: Path) -> None:
    with mounting(changing.parent) as m:
        run(["rm", "-r", str(changing.parent / "others")])

        assert sorted(os.listdir(m.path / "others"))  # what is indexed is shown
        assert read(m.path / "others/1.jpg") == errno.ESTALE
        assert read(m.path / "f.jpg") == digest(OLD)


@pytest.mark.parametrize("flags", ["--seed 42", "--ram 4M --seed 42", "--ram 4M"])
def test_changes_under_four_readers(mounting: Mounting, changing: Path, flags: str) -> None:
    """Every file is read whole as one version; each is overwritten in place once meanwhile."""
    names = [f"others/{n}.jpg" for n in range(20)]
    versions = {name: {hashlib.sha256(content(key + n, 50_000)).hexdigest() for key in (100, 200)}
                for n, name in enumerate(names)}  # fmt: skip
    with mounting(changing.parent, *flags.split()) as m:
        for n, name in enumerate(names):
            readers = [Reader("read", *[m.path / name] * 20) for _ in range(1 if n % 4 else 4)]
            (m.source / name).write_bytes(content(200 + n, 50_000))
            for reader in readers:
                for result in reader.result():
                    assert result == errno.ESTALE or (result[0] == 50_000 and result[1] in versions[name]), result


