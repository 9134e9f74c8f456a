"""The server process: pyfuse3 on the FUSE descriptor it was given. It holds no state that another could not rebuild.

It ends when the mount is gone (pyfuse3's loop returns), or when the supervisor's socket closes.
"""

from __future__ import annotations

import array
import contextlib
import gc
import logging
import os
import socket
import sys

import pyfuse3
import trio

from nopfsfs.dataset.index import Index
from nopfsfs.fetch.source import Source
from nopfsfs.fuse.adapter import Adapter
from nopfsfs.fuse.fastpath import FastPath, make_pair
from nopfsfs.fuse.misses import StagerLink
from nopfsfs.fuse.overrides import ColumnOverrides
from nopfsfs.process import Handoff, become_reader, begin
from nopfsfs.tiers import shared
from nopfsfs.tiers.columns import Columns, Gauges
from nopfsfs.tiers.ring import Ring
from nopfsfs.vfs.tree import Tree

log = logging.getLogger(__name__)
MAX_TASKS = 1024  # requests under way; a slow read must not keep a lookup from being read


class Server:
    """Owns the pyfuse3 session and the link to the stager."""

    def __init__(self, handoff: Handoff) -> None:
        fds = handoff.fds
        self._fuse_fd = fds["fuse"]
        self._control = trio.socket.from_stdlib_socket(socket.socket(fileno=fds["control"]))
        index = Index.load_fd(fds["index"])
        columns = Columns(fds["columns"], index.n, writable=False)
        root = os.fsencode(handoff.config.source)
        overrides = ColumnOverrides(columns, index)
        self._pair = make_pair() if handoff.config.fast_path else None  # before root is given up
        self._adapter = Adapter(
            tree=Tree(index, root, overrides, overrides.own_attributes),
            columns=columns,
            arena=memoryview(shared.attach(fds["arena"], writable=False)),
            gauges=Gauges(fds["gauges"], writable=True),
            stager_gauges=Gauges(fds["stager_gauges"], writable=False),
            ring=Ring(fds["ring"], writable=True),
            source=Source(root, index, columns),
            stager=StagerLink(socket.socket(fileno=fds["demands"])),
            io_timeout=handoff.config.io_timeout,
        )

    async def run(self) -> None:
        """Answer requests until the mount is gone."""
        # libfuse takes "/dev/fd/N" for a descriptor that is mounted already, and mounts nothing.
        requests = self._pair[1].detach() if self._pair is not None else self._fuse_fd
        pyfuse3.init(self._adapter, f"/dev/fd/{requests}", {"default_permissions"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._adapter.stager.run)
            nursery.start_soon(self._obey, nursery)
            if self._pair is not None:
                nursery.start_soon(self._stand_before, self._pair[0])
            await self._control.send(b"ready")
            try:
                await pyfuse3.main(max_tasks=MAX_TASKS)
                log.info("the connection has ended")
            finally:
                nursery.cancel_scope.cancel()
        pyfuse3.close(unmount=False)

    async def _stand_before(self, pair: socket.socket) -> None:
        """Run the fast path; when the connection has ended, so has pyfuse3's part."""
        await FastPath(self._fuse_fd, pair, self._adapter, self._watched).run()
        pyfuse3.terminate()

    def _watched(self) -> list[int]:
        """Where messages of the supervisor and the stager arrive."""
        return [fd for fd in (self._control.fileno(), self._adapter.stager.fileno()) if fd >= 0]

    async def _obey(self, nursery: trio.Nursery) -> None:
        """Messages from the supervisor: `stager` with a descriptor is a new stager's socket; the end means: end."""
        while True:
            message, fds = await self._receive()
            if not message:
                log.info("the supervisor is gone; ending")
                pyfuse3.terminate()
                return
            if message == b"stager" and fds:
                before, self._adapter.stager = self._adapter.stager, StagerLink(socket.socket(fileno=fds[0]))
                nursery.start_soon(self._adapter.stager.run)
                nursery.start_soon(self._confirm, before)

    async def _confirm(self, before: StagerLink) -> None:
        """Say that nothing here reads arena bytes that the stager before had named: another may reuse them now."""
        await before.drained.wait()
        with contextlib.suppress(OSError):  # the supervisor is gone: its socket says so to _obey
            await self._control.send(b"drained")

    async def _receive(self) -> tuple[bytes, list[int]]:
        size = socket.CMSG_SPACE(array.array("i").itemsize)
        message, ancillary, _, _ = await self._control.recvmsg(64, size)
        fds = array.array("i")
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        return message, list(fds)


def _worth_telling(record: logging.LogRecord) -> bool:
    """That a reader was killed before its answer came, or the mount ended, is no error."""
    return not ("fuse_reply_" in str(record.msg) and "No such file" in record.getMessage())


def main() -> None:
    handoff = begin(sys.argv)
    logging.getLogger("pyfuse3").addFilter(_worth_telling)
    server = Server(handoff)
    become_reader(handoff.config)
    # What was imported and made until now stays: looking it over again and again costs the hits their caches.
    gc.collect()
    gc.freeze()
    trio.run(server.run)


if __name__ == "__main__":
    main()
