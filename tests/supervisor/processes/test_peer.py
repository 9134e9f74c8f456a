"""The supervisor's side of the socket to the peer process, without one."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest
import trio
import trio.testing

from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.supervisor_peer import AllMounted, NewsOf, NodeOver, PeerStatus
from nopfsfs.supervisor.processes import peer as module
from nopfsfs.supervisor.processes.peer import ClusterEvent, PeerHandle


async def nothing(*_: object) -> bool:
    """Stand for what the handle calls."""
    return True


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
                    nursery.start_soon(peering.mounted)
                    await trio.testing.wait_all_tasks_blocked()
                    assert len(nursery.child_tasks) == 2
                    theirs.send(b"garbage")
                    theirs.send(encode(PeerStatus(7, 0, 0, 0, 0, 0, 0, 0, {}, [])))
                    if agreed:
                        theirs.send(encode(AllMounted()))
                    theirs.shutdown(socket.SHUT_RDWR)
            assert peering.status()["fetched_files"] == 7
            return peering.lost

    assert trio.run(main)
    assert unmounted == ([] if agreed else [True])


def test_what_other_nodes_send_comes_in_order_until_the_peer_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVENTS_MOST", 3)

    async def main() -> list[ClusterEvent]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            peer = PeerHandle(ours.detach(), 0, nothing, nothing)  # type: ignore[arg-type]
            for number in range(5):
                theirs.send(encode(NewsOf(1, b"%d" % number)))
            theirs.send(b"garbage")
            theirs.send(encode(NodeOver(2, "left")))
            theirs.shutdown(socket.SHUT_RDWR)
            with trio.fail_after(10):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(peer.run)
                    await trio.testing.wait_all_tasks_blocked()
                    return [event async for event in peer.events]

    assert trio.run(main) == [*(ClusterEvent(1, b"%d" % number) for number in range(3)), ClusterEvent(2, None)]


def test_when_nobody_listens_any_more_nothing_waits(tmp_path: Path) -> None:
    async def main() -> bool:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            peer = PeerHandle(ours.detach(), 0, nothing, nothing)  # type: ignore[arg-type]
            peer.events.close()
            for message in (NewsOf(1, b"news"), NodeOver(1, "left"), AllMounted()):
                theirs.send(encode(message))
            theirs.shutdown(socket.SHUT_RDWR)
            with trio.fail_after(10):
                await peer.run()
        return peer.lost

    assert trio.run(main)


@pytest.mark.parametrize("told", [True, False])
def test_a_peer_process_that_is_not_told_of_another_arena_is_given_up(
    told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no message, and would write to the arena before when it does."""
    monkeypatch.setattr(module, "SEND_LIMIT_S", 0.1)

    async def main() -> bool:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arena = os.memfd_create("arena")
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(os.close, arena)
            peer = PeerHandle(ours.detach(), arena, nothing, nothing)  # type: ignore[arg-type]
            stack.callback(peer._socket.close)
            if not told:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        peer._socket.send(bytes(1024))
            await peer.use_arena(arena)
            return peer.lost

    assert trio.run(main) is not told
