"""A source that is unmounted and mounted again below a mount of ours."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.conftest import Mounting
from tests.mount.harness import content, write
from tests.waiting import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")]

LARGE = 6_000_000  # read by ranges, so never staged before somebody asks


def umount(path: Path) -> bool:
    return subprocess.run(["umount", path], capture_output=True, check=False).returncode == 0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A source that is a mount of its own, and another way to its file system."""
    keep, source = tmp_path / "keep", tmp_path / "source"
    keep.mkdir()
    source.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", keep], capture_output=True, check=False).returncode != 0:
        pytest.skip("tmpfs cannot be mounted here")
    subprocess.run(["mount", "--bind", keep, source], check=True)
    yield source, keep
    for path in (source, keep):
        while os.path.ismount(path):
            subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.long
def test_it_can_be_unmounted_and_all_goes_on_when_it_is_back(mounting: Mounting, place: tuple[Path, Path]) -> None:
    source, keep = place
    write(source, {"d/small": b"small", "d/large": content(1, LARGE), "d/other": content(2, LARGE)})
    with mounting(source, "--ram", "16M") as m:
        held = (m.path / "d/large").open("rb", buffering=0)
        assert held.read(1000) == content(1, LARGE)[:1000]
        assert (m.path / "d/small").read_bytes() == b"small"
        assert wait_until(lambda: umount(source)), "the mount holds the source"
        assert (m.path / "d/small").read_bytes() == b"small"  # held here
        with pytest.raises(OSError) as raised:
            (m.path / "d/other").read_bytes()
        assert raised.value.errno == errno.ESTALE
        # Another one of the same kind is there for a while, with a file of the same name.
        subprocess.run(["mount", "-t", "tmpfs", "none", source], check=True)
        write(source, {"d/other": b"of another file system"})
        with pytest.raises(OSError) as raised:
            (m.path / "d/other").read_bytes()
        assert raised.value.errno == errno.ESTALE
        assert wait_until(lambda: umount(source))  # after ESTALE the source is looked at once more
        subprocess.run(["mount", "--bind", keep, source], check=True)
        assert (m.path / "d/other").read_bytes() == content(2, LARGE)
        held.seek(LARGE - 1000)
        assert held.read(1000) == content(1, LARGE)[-1000:]
        held.close()
        assert os.getxattr(m.path / "d/other", "user.nopfs.version") == b"0"  # nothing was taken for a change
