"""Opens that show while OPEN is refused: by LOOKUPs of tripwires, or by attributes of all files."""

from __future__ import annotations

import errno
from pathlib import Path

import pyfuse3
import pytest
import trio

from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.inode_numbers import inode_of
from nopfsfs.protocol.ring import Event
from nopfsfs.protocol.tripwires import Shown, Tripwires
from nopfsfs.server.shown_opens import FOREVER_S
from tests.asynchronous import in_trio
from tests.server.rig import ATTRIBUTES, COUNT, ENTRY, READER, SIZE, Mounted, errno_of, mounted
from tests.stager.rig import PAGE
from tests.waiting import wait_until


async def pusher_of(m: Mounted) -> int:
    """The thread of the stager whose opens are the mount's own."""
    assert await trio.to_thread.run_sync(wait_until, lambda: m.base.metrics[Metric.PUSHER_THREAD])
    return int(m.base.metrics[Metric.PUSHER_THREAD])


@in_trio
async def test_lookups_of_tripwires_tell_what_is_opened_when_open_is_refused(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE, tripwires=True) as m:
        pusher = await pusher_of(m)
        assert m.operations.shown_opens.refusing
        for pid in (READER.pid, pusher):  # the mount's own do not count
            for number in range(COUNT):
                entry = ENTRY.unpack(m.operations.looked_up(1, f"f{number:02}".encode(), pid) or b"")
                assert entry[2] == 0, "so few files are all tripwires"
                assert (await m.operations.lookup(1, f"f{number:02}".encode(), READER)).entry_timeout == 0
        assert m.events() == [(Event.TRIPWIRE, m.row(number), READER.pid) for number in range(COUNT)]
        assert m.metrics[Metric.TRIPWIRES] == COUNT
        assert m.metrics[Metric.TRIPWIRE_BYTES] == COUNT * SIZE
        m.operations.refused(m.inode(COUNT - 1), READER.pid)
        assert m.events() == [], "it was looked up a moment ago"
        m.operations.refused(m.inode(5), READER.pid)  # it was looked up before
        assert m.events() == [(Event.TRIPWIRE, m.row(5), READER.pid)]
        fh = m.files.handle(m.inode(3))
        assert bytes(await m.operations.read(fh, 10, 100)) == (root / "f03").read_bytes()[10:110]


@in_trio
async def test_the_supervisor_says_how_many_files_are_tripwires(root: Path) -> None:
    async with mounted(root, budget=64 * PAGE, tripwires=True) as m:
        few = Tripwires(1, 1 + COUNT, apart=4)
        m.supervisor[Metric.TRIPWIRES_APART] = 4
        for number in range(COUNT):
            entry = ENTRY.unpack(m.operations.looked_up(1, f"f{number:02}".encode(), 4711) or b"")
            assert entry[2] == (0 if m.row(number) in few else FOREVER_S)
        shown = [m.row(number) for number in range(COUNT) if m.row(number) in few]
        assert m.events() == [(Event.TRIPWIRE, row, 4711) for row in shown]
        assert 0 < len(shown) < COUNT


@in_trio
async def test_all_opens_show_by_attributes_that_the_kernel_may_not_remember(root: Path) -> None:
    """OPEN cannot be answered again once it was refused."""
    async with mounted(root, budget=64 * PAGE) as m:
        m.supervisor[Metric.SHOWN] = Shown.TRIPWIRES
        pusher = await pusher_of(m)
        m.operations.shown_opens._tripwires = Tripwires(1, 1 << 20)  # so many that few of these are
        name, inode, row = b"f03", m.inode(3), m.row(3)
        assert row not in m.operations.shown_opens._tripwires

        def known_for(pid: int = 4711, *, is_open: bool = False) -> tuple[float, float]:
            """For how many seconds the kernel may know attributes after a LOOKUP, and after a GETATTR."""
            entry = ENTRY.unpack(m.operations.looked_up(1, name, pid) or b"")
            assert entry[2] == FOREVER_S, "the name stays"
            found = ATTRIBUTES.unpack(m.operations.looked_at(inode, pid, is_open=is_open) or b"")
            assert (found[3], found[4]) == (inode, SIZE)
            return entry[3] + entry[5] / 1e9, found[0] + found[1] / 1e9

        assert known_for() == (FOREVER_S, FOREVER_S)
        m.supervisor[Metric.SHOWN] = Shown.FORGETTING
        assert all(0 < seconds < 0.1 for seconds in known_for())
        assert m.events() == [], "not before all show"
        m.supervisor[Metric.SHOWN] = Shown.ALL
        assert all(0 < seconds < 0.1 for seconds in known_for())
        assert m.events() == [(Event.OPEN, row, 4711)], "an fstat that comes late is none"
        for number, pid in ((3, 4711), (3, 4712), (4, 4711), (3, 4711)):
            m.operations.looked_at(m.inode(number), pid, is_open=False)
        assert m.events() == [(Event.OPEN, row, 4712), (Event.OPEN, m.row(4), 4711), (Event.OPEN, row, 4711)]
        assert all(0 < seconds < 0.1 for seconds in known_for(is_open=True)), "asked for at a read"
        assert m.events() == [(Event.OPEN, row, 4711)], "the look-up"
        assert known_for(pusher) == (0, 0), "a reader that comes after the mount's own is seen"
        assert m.events() == []
        counted = [m.metrics[name] for name in (Metric.OPENS, Metric.OPENED_BYTES, Metric.TRIPWIRES)]
        assert counted == [5, 5 * SIZE, 0]
        assert (await m.operations.lookup(1, name, READER)).attr_timeout == 0, "as a listing has it"
        assert (await m.operations.getattr(1, READER)).attr_timeout == FOREVER_S, "directories show nothing"
        with pytest.raises(pyfuse3.FUSEError) as caught:
            m.operations.looked_at(inode_of(row, 1), 4711, is_open=False)
        assert errno_of(caught) == errno.ESTALE
