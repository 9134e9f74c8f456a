"""Names, attributes and errors as pyfuse3 and the fast path get them, called directly."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pyfuse3
import pytest

from nopfsfs.protocol.columns import Tier
from nopfsfs.protocol.inode_numbers import inode_of
from nopfsfs.vfs.tree import Attributes
from tests.asynchronous import in_trio
from tests.server.rig import COUNT, ENTRY, READER, SIZE, errno_of, mounted
from tests.stager.rig import PAGE


@in_trio
async def test_names(root: Path) -> None:
    async with mounted(root, budget=PAGE) as m:
        entry = await m.operations.lookup(1, b"f02", READER)
        assert entry.st_ino == m.inode(2)
        assert (await m.operations.getattr(entry.st_ino, READER)).st_size == SIZE
        missing = await m.operations.lookup(1, b"none", READER)
        assert missing.st_ino == 0
        assert missing.entry_timeout > 1e6
        for call, code in (
            (m.operations.lookup(entry.st_ino, b"x", READER), errno.ENOTDIR),
            (m.operations.getattr(10**6, READER), errno.ENOENT),
            (m.operations.readlink(entry.st_ino, READER), errno.EINVAL),
            (m.operations.getxattr(entry.st_ino, b"user.none", READER), pyfuse3.ENOATTR),
        ):
            with pytest.raises(pyfuse3.FUSEError) as caught:
                await call
            assert errno_of(caught) == code
        assert await m.operations.getxattr(entry.st_ino, b"user.nopfs.tiers", READER) == b"source"


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("when", ["before", "after"])
@in_trio
async def test_an_inode_has_the_size_of_its_own_version(
    root: Path, before: int, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the kernel gives an old handle the size of the new version. The next version comes just before the
    attributes are read, or just after."""
    async with mounted(root, budget=PAGE) as m:
        row, attributes = m.row(2), m.operations._tree.attributes

        def coming(asked: int) -> Attributes:
            monkeypatch.undo()
            if when == "before":
                m.base.new_version(row, 100 + int(m.base.columns.version[row]))
            found = attributes(asked)
            if when == "after":
                m.base.new_version(row, 100 + int(m.base.columns.version[row]))
            return found

        for _ in range(before):
            m.base.new_version(row, 100)
        monkeypatch.setattr(m.operations._tree, "attributes", coming)
        found = ENTRY.unpack(m.operations.looked_up(1, b"f02", READER.pid) or b"")
        assert (found[0], found[7]) == (inode_of(row, before + 1), 100 + before)
        monkeypatch.setattr(m.operations._tree, "attributes", coming)
        entry = await m.operations.lookup(1, b"f02", READER)
        assert (entry.st_ino, entry.st_size) == (inode_of(row, before + 2), 101 + before)

        async def looked_at(inode: int, reader: SimpleNamespace) -> None:
            m.operations.looked_at(inode, reader.pid, is_open=False)

        for call in (m.operations.getattr, looked_at):
            monkeypatch.setattr(m.operations._tree, "attributes", coming)
            with pytest.raises(pyfuse3.FUSEError) as caught:
                await call(m.inode(2), READER)
            assert errno_of(caught) == errno.ESTALE


@in_trio
async def test_an_error_that_nobody_foresaw_is_eio_and_logged(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        m.base.columns.tier[m.row(0)] = Tier.NONE
        fh = await m.open(0)

        async def ask(row: int, offset: int, length: int) -> None:
            raise ZeroDivisionError

        m.files.stager.ask = ask  # type: ignore[assignment,method-assign]
        with pytest.raises(pyfuse3.FUSEError) as caught:
            await m.operations.read(fh, 0, 10)
        assert errno_of(caught) == errno.EIO
        assert "ZeroDivisionError" in caplog.text


@in_trio
async def test_a_name_is_looked_up_alike_with_and_without_pyfuse3(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE) as m:
        for number in range(COUNT):
            name = f"f{number:02}".encode()
            entry = await m.operations.lookup(1, name, READER)
            found = m.operations.looked_up(1, name, READER.pid)
            assert found is not None
            inode, generation, known, attributes, _, _, ino, size, blocks, *rest = ENTRY.unpack(found)
            assert (inode, ino, generation) == (entry.st_ino, entry.st_ino, entry.generation)
            assert (known, attributes) == (entry.entry_timeout, entry.attr_timeout)
            assert (size, blocks) == (entry.st_size, entry.st_blocks)
            times = [entry.st_atime_ns, entry.st_mtime_ns, entry.st_ctime_ns]
            assert rest[:6] == [t // 10**9 for t in times] + [t % 10**9 for t in times]
            assert rest[6:12] == [
                entry.st_mode, entry.st_nlink, entry.st_uid, entry.st_gid, entry.st_rdev, entry.st_blksize
            ]  # fmt: skip
        assert m.operations.looked_up(1, b"nothing", READER.pid) is None
        assert m.operations.looked_up(m.inode(0), b"f00", READER.pid) is None
        assert m.operations.looked_up(1 << 62, b"f00", READER.pid) is None
        assert m.events() == []
