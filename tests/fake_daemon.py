"""A stand-in for the daemon of a mount: two files and the control socket. Run as a program by the tests.

It uses the product's own mounting, so that what the commands meet is a real mount.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import stat
import sys
from dataclasses import replace

import pyfuse3
import trio

from nopfsfs.config import MountConfig
from nopfsfs.control.client import SOCKET_NAME
from nopfsfs.control.process_list import write_pids
from nopfsfs.fuse.mount_table import Mount
from nopfsfs.fuse.mounting import mount_fuse, unmount
from nopfsfs.system.state_dirs import StateDir, make_state_dir, state_dir_for

ROOT, HELLO, SLOW = 1, 2, 3
NAMES = {b"hello": HELLO, b"slow": SLOW}
DATA = b"hello world\n"

RECORD = {
    "state": "running",
    "plan": {
        "state": "locked", "sampler": "distributed", "seed": 42, "epoch": 1, "position": 5, "length": 10
    },
    "opens": {"total": 200, "predicted": 198, "k": 512},
    "served": {
        "page_cache": {"files": 150, "bytes": 150 << 20},
        "ram": {"files": 40, "bytes": 40 << 20},
        "disk": {"files": 0, "bytes": 0},
        "peer": {"files": 0, "bytes": 0},
        "source": {"files": 10, "bytes": 10 << 20},
    },
    "budget": {"ram": 4 << 30, "disk": 0},
    "page_cache": {"measured": True, "resident_share": 0.998, "looked_at": 40_000, "evicted": 1234},
    "used": {"ram": 1 << 30, "disk": 0},
    "wait_seconds": 1.25,
    "processes": [{"role": "supervisor", "pid": 1}],
}  # fmt: skip


class Tree(pyfuse3.Operations):
    supports_dot_lookup = False
    enable_writeback_cache = False

    async def getattr(self, inode, ctx=None):
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = stat.S_IFDIR | 0o755 if inode == ROOT else stat.S_IFREG | 0o644
        entry.st_nlink = 1
        entry.st_size = 0 if inode == ROOT else len(DATA)
        entry.entry_timeout = entry.attr_timeout = 1e9
        return entry

    async def lookup(self, parent_inode, name, ctx=None):
        if name not in NAMES:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(NAMES[name])

    async def opendir(self, inode, ctx):
        return inode

    async def readdir(self, fh, start_id, token):
        for name, inode in list(NAMES.items())[start_id:]:
            if not pyfuse3.readdir_reply(token, name, await self.getattr(inode), inode - 1):
                break

    async def open(self, inode, flags, ctx):
        return pyfuse3.FileInfo(fh=inode)

    async def read(self, fh, off, size):
        if fh == SLOW:
            await trio.sleep_forever()
        return DATA[off : off + size]

    async def statfs(self, ctx):
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = 4096
        data.f_namemax = 255
        return data


class Daemon:
    """Serves the control socket; `ended` is set when the mount has ended."""

    def __init__(self, config: MountConfig, mount: Mount, deaf: bool) -> None:
        self.config, self.mount = config, mount
        self.deaf = deaf
        self.ended = trio.Event()
        self.told = trio.Event()  # the final record went out, or nobody asked for it
        self.waiting = 0
        self.asked: list[str] = []

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            line = bytearray()
            async for chunk in stream:
                line += chunk
                if line.endswith(b"\n"):
                    await self.answer(stream, json.loads(line)["command"])
                    line.clear()

    async def answer(self, stream: trio.SocketStream, command: str) -> None:
        self.asked.append(command)
        if command == "wait-final":
            self.waiting += 1
            await self.ended.wait()
        if command == "stop" and not self.deaf:
            pyfuse3.terminate()
        record = {**RECORD, "asked": self.asked, "state": "ended" if self.ended.is_set() else "running"}
        try:
            await stream.send_all(json.dumps({"ok": True, "record": record}).encode() + b"\n")
        finally:
            if command == "wait-final":
                self.told.set()

    async def listen(self, sock: trio.socket.SocketType) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                client, _ = await sock.accept()
                nursery.start_soon(self.serve, trio.SocketStream(client))

    async def on_sigterm(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                if not self.deaf:
                    unmount(self.mount, lazy=True)

    async def run(self) -> None:
        sock = trio.socket.socket(trio.socket.AF_UNIX)
        await sock.bind(os.path.join(self.config.state_dir, SOCKET_NAME))
        sock.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.listen, sock)
            nursery.start_soon(self.on_sigterm)
            print("ready", flush=True)
            await pyfuse3.main()
            if self.deaf:
                await trio.sleep_forever()
            self.ended.set()
            if self.waiting:
                with trio.move_on_after(2):
                    await self.told.wait()
            nursery.cancel_scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("mountpoint")
    parser.add_argument("run_dir")
    parser.add_argument("--deaf", action="store_true", help="never end, neither by umount nor by SIGTERM")
    parser.add_argument("--noexec", action="store_true")
    options = parser.parse_args()
    config = MountConfig(
        source=options.source,
        mountpoint=options.mountpoint,
        run_dir=options.run_dir,
        allow_other=True,
        mount_options=("noexec",) if options.noexec else (),
    )
    fd, mount = mount_fuse(config)
    state_dir = state_dir_for(config.mountpoint, mount.minor, config.run_dir)
    config = replace(config, state_dir=state_dir)
    make_state_dir(state_dir, os.geteuid(), lambda made: write_pids(made, {"supervisor": os.getpid()}))
    state = StateDir(state_dir)
    os.set_inheritable(fd, True)
    pyfuse3.init(Tree(), f"/dev/fd/{fd}", set())
    trio.run(Daemon(config, mount, options.deaf).run)
    pyfuse3.close(unmount=False)
    state.remove()


if __name__ == "__main__":
    sys.exit(main())
