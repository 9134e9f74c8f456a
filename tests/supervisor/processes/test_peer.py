"""The supervisor's side of the socket to the peer process, without one."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest
import trio

from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.supervisor_peer import AllMounted, PeerStatus
from nopfsfs.supervisor.processes.peer import PeerHandle


@pytest.mark.parametrize("agreed", [True, False])
def test_a_mount_stays_without_its_peers_only_where_all_ranks_had_mounted(tmp_path: Path, agreed: bool) -> None:
    """A peer process that ends before has been killed by MPI, and could not unmount."""
    unmounted: list[bool] = []

    async def unmount() -> None:
        unmounted.append(True)

    async def tell_stager(_: socket.socket) -> bool:
        return True

    async def main() -> bool:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arena = os.memfd_create("arena")
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(os.close, arena)
            peering = PeerHandle(ours.detach(), arena, tell_stager, unmount)
            await peering.begin(str(tmp_path))
            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(peering.run)
                    theirs.send(b"garbage")
                    theirs.send(encode(PeerStatus(7, 0, 0, 0, 0, 0, 0, 0, {}, [])))
                    if agreed:
                        theirs.send(encode(AllMounted()))
                    theirs.shutdown(socket.SHUT_RDWR)
            assert peering.status()["fetched_files"] == 7
            return peering.lost

    assert trio.run(main)
    assert unmounted == ([] if agreed else [True])
