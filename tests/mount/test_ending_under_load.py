"""A mount that ends, in every way, while several processes read as fast as they can: each read is whole and right, or
an error that says what has happened; nothing is left."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from nopfsfs.errors import Exit
from nopfsfs.fuse.mount_table import abort_connection
from tests.conftest import slow
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, fill, run

pytestmark = pytest.mark.mount

READERS = 3
ENOUGH = 300  # opens, before it is ended: all are in full swing
GONE = {
    errno.ENOENT,
    errno.ENOTCONN,
    errno.ECONNABORTED,
}  # the mountpoint is an empty directory again, or has no daemon


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "source", 200, 80_000)
    return tmp_path / "source"


def asked(m: Mounted) -> None:
    assert m.umount("--timeout", "1").returncode in (Exit.OK, Exit.LAZY)


def lazily(m: Mounted) -> None:
    assert run(["umount", "-l", str(m.path)]).returncode == 0


def lazily_by_the_helper(m: Mounted) -> None:
    if shutil.which("fusermount3") is None:
        pytest.skip("no fusermount3")
    assert run(["fusermount3", "-u", "-z", str(m.path)]).returncode == 0


def told_to_end(m: Mounted) -> None:
    m.kill("supervisor", signal.SIGTERM)


def forced(m: Mounted) -> None:
    """umount(8) ends the connection, whether it then can unmount or not."""
    m.errors_expected = True
    run(["umount", "-f", str(m.path)])
    m.umount()


def aborted(m: Mounted) -> None:
    m.errors_expected = True
    assert abort_connection(m.minor)
    assert m.umount().returncode in (Exit.OK, Exit.REPORT)


WAYS = (asked, lazily, lazily_by_the_helper, told_to_end, forced, aborted)
OTHER_MODES = ("--servers 2", "--no-fast-path")
CASES = [
    *((way, "--seed 42") for way in WAYS), (asked, "--no-fast-path"), slow(asked, "--servers 2"),
    *(slow(way, flags) for way in (told_to_end, aborted) for flags in OTHER_MODES),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(("end", "flags"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_reads_end_whole_or_with_an_error(
    mounting: Mounting, data: Path, flags: str, end: Callable[[Mounted], None]
) -> None:
    with mounting(data, "--ram", "8M", *flags.split()) as m, ExitStack() as stack:
        readers = [stack.enter_context(Reader("until", m.path, data, str(seed))) for seed in range(READERS)]
        assert [reader.line() for reader in readers] == ["ready"] * READERS
        m.wait_status(lambda s: s["opens"]["total"] > ENOUGH)

        end(m)

        for reader in readers:
            said = reader.result()
            assert said["wrong"] == []
            assert said["done"] > 0
            assert said["errno"] in GONE, os.strerror(said["errno"])
        m.wait_gone()
