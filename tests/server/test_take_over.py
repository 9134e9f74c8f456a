"""Requests that a dead server left: the fast path keeps what waits, and answers what another one has left."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio
import trio.testing

from nopfsfs.fuse import taken_requests
from nopfsfs.fuse.taken_requests import LONGEST, LeftBlock, OwnBlock
from nopfsfs.server.fast_path import FastPath
from tests.server.fast_path_bench import (
    DATA,
    GETATTR,
    IOCTL,
    LOOKUP,
    OPEN,
    READ,
    RELEASE,
    Bench,
    read_body,
    request,
    run,
)

OWN, OTHER = 0, 1  # blocks
RELEASED = struct.pack("<QIIQ", 7, 0, 0, 0)


@pytest.fixture
def fd() -> Iterator[int]:
    made = taken_requests.create()
    yield made
    os.close(made)


@pytest.fixture(autouse=True)
def in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastPath, "_sleep_here", lambda self: False)


def kept(fd: int) -> list[int]:
    """Requests that the server would leave in records, if it died now."""
    block = LeftBlock(fd, OWN)
    landed = block._words[1]
    found = [int.from_bytes(message[8:16], "little") for message in block.unanswered()]
    return [unique for unique in found if unique != landed]


def leave(fd: int, *messages: bytes) -> OwnBlock:
    """The block of a server that has taken these messages."""
    other = OwnBlock(fd, OTHER, 1)
    for message in messages:
        other.land(message)
        other.keep(int.from_bytes(message[8:16], "little"), len(message))
    other.landed[0] = 0
    return other


def with_block(fd: int, body: Callable[[Bench], Awaitable[None]]) -> None:
    run(body, own=OwnBlock(fd, OWN, 0))


def test_what_waits_is_kept_until_it_is_answered(fd: int) -> None:
    async def body(b: Bench) -> None:
        await b.answer(request(IOCTL, 2, 7, bytes(32)))
        await b.answer(request(READ, 4, 7, read_body(7, 0, 9)))
        assert kept(fd) == [], "hits leave nothing"
        b.send(request(READ, 6, 8, read_body(8, 0, 10)))
        b.send(request(GETATTR, 8, 1, bytes(16)))
        forwarded = await b.pyfuse3.recv(1 << 16)
        b.send(request(IOCTL, 10, 7, bytes(32)))
        assert (await b.reply())[0] == 10
        assert kept(fd) == [6, 8]
        await b.pyfuse3.send(struct.pack("<IiQ", 16, -errno.EPERM, 8))
        assert await b.reply() == (8, errno.EPERM, b"")
        b.handlers.arrived.set()
        assert await b.reply() == (6, 0, DATA[:10])
        await trio.testing.wait_all_tasks_blocked()
        assert kept(fd) == []
        assert forwarded == request(GETATTR, 8, 1, bytes(16))

    with_block(fd, body)


def test_the_heir_answers_as_if_the_kernel_had_just_delivered(fd: int) -> None:
    async def body(b: Bench) -> None:
        leave(
            fd, request(READ, 2, 7, read_body(7, 100, 50)), request(READ, 4, 8, read_body(8, 0, 10)),
            request(LOOKUP, 6, 1, b"seven\0"), request(GETATTR, 8, 1, bytes(16)), request(OPEN, 10, 7, bytes(8)),
            request(RELEASE, 12, 7, RELEASED),
        )  # fmt: skip
        await b.path.take_over(LeftBlock(fd, OTHER))
        found = [await b.reply() for _ in range(5)]
        assert found[:3] == [(2, 0, DATA[100:150]), (5, errno.EAGAIN, b""), (6, 0, b"entry")]
        assert [(unique, error) for unique, error, _ in found[3:]] == [(10, 0), (12, 0)]
        assert b.handlers.log == [("look up", 99), ("open", 99), ("close", 7)]
        assert await b.pyfuse3.recv(1 << 16) == request(GETATTR, 8, 1, bytes(16))
        b.send(request(IOCTL, 14, 7, bytes(32)))
        assert (await b.reply())[0] == 14
        assert kept(fd) == [4, 8], "they are the heir's now"
        b.handlers.arrived.set()
        assert await b.reply() == (4, 0, DATA[:10])

    with_block(fd, body)


def test_an_open_and_a_release_that_were_counted_are_not_counted_again(fd: int) -> None:
    async def body(b: Bench) -> None:
        other = leave(fd, request(OPEN, 2, 7, bytes(8)))
        other.mark_counted(2, 123, 5)
        await b.path.take_over(LeftBlock(fd, OTHER))
        unique, error, out = await b.reply()
        assert (unique, error, struct.unpack("<QIi", out)) == (2, 0, (123, 1 << 7, 5)), "the same handle"
        other = leave(fd, request(RELEASE, 4, 7, RELEASED))
        other.mark_counted(4, 7, 0)
        await b.path.take_over(LeftBlock(fd, OTHER))
        assert await b.reply() == (4, 0, b"")
        assert b.handlers.log == []
        assert b.handlers.over_with == [7]

    with_block(fd, body)


def test_opens_and_releases_are_marked_before_they_are_answered(fd: int) -> None:
    async def body(b: Bench) -> None:
        await b.answer(request(OPEN, 2, 7, bytes(8)))
        assert LeftBlock(fd, OWN).counted(2) == (7, 0)
        await b.answer(request(RELEASE, 4, 7, RELEASED))
        assert LeftBlock(fd, OWN).counted(4) == (7, 0)

    with_block(fd, body)


def test_a_message_that_cannot_be_kept_is_answered(fd: int) -> None:
    async def body(b: Bench) -> None:
        for opcode, number in ((IOCTL, errno.ENOTTY), (LOOKUP, errno.ENAMETOOLONG), (GETATTR, errno.EIO)):
            message = request(opcode, 2, 1, b"x" * LONGEST)
            assert await b.answer(message) == (2, number, b"")
        assert kept(fd) == []

    with_block(fd, body)


def test_where_no_room_is_left_nothing_is_taken(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not taken is safe in the kernel."""
    monkeypatch.setattr(taken_requests, "RECORDS", 130)

    async def body(b: Bench) -> None:
        for number in range(200):
            b.send(request(READ, 2 * number, 8, read_body(8, 0, 10)))
        await trio.testing.wait_all_tasks_blocked()
        assert 2 <= len(kept(fd)) < 130
        b.handlers.arrived.set()
        assert sorted([(await b.reply())[0] for _ in range(200)]) == [2 * number for number in range(200)]

    with_block(fd, body)


def test_many_that_are_left_take_turns_with_what_comes(fd: int) -> None:
    async def body(b: Bench) -> None:
        count = 150
        leave(fd, *(request(READ, 2 * number, 7, read_body(7, 0, 1)) for number in range(1, 1 + count)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.path.take_over, LeftBlock(fd, OTHER))
            b.send(request(IOCTL, 2000, 7, bytes(32)))
            found = [(await b.reply())[0] for _ in range(count + 1)]
        assert sorted(found) == [*range(2, 2 * count + 1, 2), 2000]
        assert found[-1] != 2000

    with_block(fd, body)


def test_an_inherited_read_ends_when_its_reader_is_killed(fd: int) -> None:
    async def body(b: Bench) -> None:
        leave(fd, request(READ, 4, 8, read_body(8, 0, 10), pid=1 << 23))  # no process has such a number
        await b.path.take_over(LeftBlock(fd, OTHER))
        assert await b.reply() == (5, errno.EAGAIN, b"")
        b.send(request(36, 5, 0, struct.pack("<Q", 4)))  # INTERRUPT
        assert await b.reply() == (4, errno.EINTR, b"")
        await trio.testing.wait_all_tasks_blocked()
        assert kept(fd) == []

    with_block(fd, body)
