"""The fast path alone: requests from a socket that plays /dev/fuse, fake handlers, a fake pyfuse3 behind the pair."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.fuse.pyfuse3_pair import LISTING_BYTES
from nopfsfs.server import fast_path as module
from nopfsfs.server.fast_path import FastPath
from tests.examples import examples
from tests.server.fast_path_bench import (
    ACL,
    DATA,
    FORGET,
    GETATTR,
    GETXATTR,
    GONE,
    HEADER,
    INIT,
    INTERRUPT,
    IOCTL,
    LIMIT_S,
    LOOKUP,
    MANY_HITS,
    MANY_TURNS,
    OPEN,
    PASSTHROUGH,
    READ,
    READDIR,
    READDIRPLUS,
    RELEASE,
    SLEEP_HERE,
    Bench,
    Handlers,
    read_body,
    request,
    run,
)


@pytest.fixture(autouse=True)
def in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastPath, "_sleep_here", lambda self: False)


def test_open_read_ioctl_release() -> None:
    async def body(b: Bench) -> None:
        b.send(request(OPEN, 1, 7, struct.pack("<II", os.O_RDONLY, 0)))
        unique, error, out = await b.reply()
        assert (unique, error, struct.unpack("<QIi", out)) == (1, 0, (7, 2, 0))
        b.send(request(READ, 2, 7, read_body(7, 100, 50)))
        assert await b.reply() == (2, 0, DATA[100:150])
        b.send(request(IOCTL, 3, 7, bytes(32)))
        assert await b.reply() == (3, errno.ENOTTY, b"")
        b.send(request(RELEASE, 4, 7, struct.pack("<QIIQ", 7, 0, 0, 0)))
        assert await b.reply() == (4, 0, b"")
        assert b.handlers.log == [("open", 99), ("close", 7)]
        assert b.handlers.over_with == [7], "after the answer"

    run(body)


def test_an_open_that_is_passed_through_names_the_file() -> None:
    async def body(b: Bench) -> None:
        unique, error, out = await b.answer(request(OPEN, 1, 7, struct.pack("<II", os.O_NOATIME, 0)))
        assert (unique, error, struct.unpack("<QIi", out)) == (1, 0, (7, PASSTHROUGH, 5))
        assert b.handlers.over_with == []

    run(body)


def test_an_open_or_a_release_that_another_answered_is_counted_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses the second answer with ENOENT. An open that was not taken is over, a release is not."""

    async def body(b: Bench) -> None:
        release = struct.pack("<QIIQ", 8, 0, 0, 0)
        with monkeypatch.context() as patched:
            patched.setattr(os, "writev", refuse)
            b.send(request(OPEN, 1, 7, bytes(8)))
            b.send(request(RELEASE, 2, 8, release))
            await trio.testing.wait_all_tasks_blocked()
        assert b.handlers.over_with == [7]
        await b.answer(request(RELEASE, 3, 8, release))
        assert b.handlers.over_with == [7, 8]

    run(body)


def refuse(fd: int, parts: object) -> int:
    raise OSError(errno.ENOENT, "no such request")


def test_acls_are_answered_here_and_other_attributes_by_pyfuse3() -> None:
    async def body(b: Bench) -> None:
        def ask(unique: int, inode: int, room: int, name: bytes = b"system.posix_acl_access") -> bytes:
            return request(GETXATTR, unique, inode, struct.pack("<II", room, 0) + name + b"\0")

        assert await b.answer(ask(1, 8, 4096)) == (1, 0, ACL)
        assert await b.answer(ask(2, 8, 0)) == (2, 0, struct.pack("<II", len(ACL), 0))
        assert await b.answer(ask(3, 8, len(ACL) - 1)) == (3, errno.ERANGE, b"")
        assert await b.answer(ask(4, 7, 4096)) == (4, errno.ENODATA, b"")
        assert await b.answer(ask(5, 1, 4096)) == (5, errno.ENODATA, b""), "of a directory"
        for message in (ask(6, 99, 4096), ask(7, 8, 4096, b"user.x"), request(GETXATTR, 8, 8, b"\0" * 4)):
            b.send(message)
            assert await b.pyfuse3.recv(1 << 20) == message

    run(body)


def test_an_error_of_a_handler_is_the_answer() -> None:
    async def body(b: Bench) -> None:
        b.send(request(OPEN, 1, 9, bytes(8)))
        assert await b.reply() == (1, errno.ESTALE, b"")

    run(body)


def test_a_hit_does_not_wait_behind_a_miss_and_a_killed_reader_gets_eintr() -> None:
    async def body(b: Bench) -> None:
        b.send(request(READ, 1, 8, read_body(8, 0, 10), GONE))
        b.send(request(READ, 2, 8, read_body(8, 10, 10), GONE))
        b.send(request(READ, 3, 7, read_body(7, 0, 10)))
        assert await b.reply() == (3, 0, DATA[:10])
        b.send(request(INTERRUPT, 0, 0, struct.pack("<Q", 1)))
        assert await b.reply() == (1, errno.EINTR, b"")
        b.handlers.arrived.set()
        assert await b.reply() == (2, 0, DATA[10:20])
        b.send(request(READ, 4, 8, read_body(8, 1 << 40, 10)))
        assert await b.reply() == (4, errno.EIO, b"")
        assert b.told == []

    run(body)


@pytest.fixture
def reader() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody who reads, as far as the kernel says."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


Reader = subprocess.Popen[bytes]


def test_a_reader_that_got_a_signal_gets_its_bytes_unless_it_is_dying(reader: Reader) -> None:
    async def body(b: Bench) -> None:
        for unique, offset in ((1, 0), (2, 10)):
            b.send(request(READ, unique, 8, read_body(8, offset, 10), reader.pid))
            b.send(request(INTERRUPT, 0, 0, struct.pack("<Q", unique)))
        assert await b.answer(request(READ, 3, 7, read_body(7, 0, 10))) == (3, 0, DATA[:10])
        b.handlers.arrived.set()
        assert sorted([await b.reply(), await b.reply()]) == [(1, 0, DATA[:10]), (2, 0, DATA[10:20])]

    run(body)


def test_one_that_is_killed_later_gets_eintr_though_the_kernel_does_not_tell_again(reader: Reader) -> None:
    async def body(b: Bench) -> None:
        b.send(request(READ, 1, 8, read_body(8, 0, 10), reader.pid))
        b.send(request(INTERRUPT, 0, 0, struct.pack("<Q", 1)))
        assert await b.answer(request(READ, 2, 7, read_body(7, 0, 10))) == (2, 0, DATA[:10])
        reader.kill()
        reader.wait()
        assert await b.reply() == (1, errno.EINTR, b"")

    run(body)


def test_an_interrupt_of_a_request_that_is_not_known_here_is_told(reader: Reader) -> None:
    """Another server has it, or pyfuse3."""

    async def body(b: Bench) -> None:
        b.send(request(READ, 1, 8, read_body(8, 0, 10), reader.pid))
        b.send(request(GETATTR, 2, 7, bytes(16)))
        for unique in (1, 2, 1 << 63 | 5):
            b.send(request(INTERRUPT, unique | 1, 0, struct.pack("<Q", unique)))
        assert (await b.answer(request(IOCTL, 9, 7, bytes(32))))[0] == 9
        assert b.told == [2, 1 << 63 | 5]

    run(body)


def test_what_another_server_was_told_is_interrupted_here() -> None:
    async def body(b: Bench) -> None:
        b.send(request(READ, 1, 8, read_body(8, 0, 10), GONE))
        await trio.testing.wait_all_tasks_blocked()
        assert not b.path.interrupt(2)
        assert b.path.interrupt(1)
        assert await b.reply() == (1, errno.EINTR, b"")
        assert not b.path.interrupt(1)

    run(body)


def test_a_request_that_comes_again_while_it_waits_is_answered_both_times() -> None:
    """The kernel takes one of the answers."""

    async def body(b: Bench) -> None:
        for _ in range(2):
            b.send(request(READ, 1, 8, read_body(8, 0, 10)))
        await trio.testing.wait_all_tasks_blocked()
        b.handlers.arrived.set()
        assert [await b.reply(), await b.reply()] == [(1, 0, DATA[:10])] * 2
        assert (await b.answer(request(IOCTL, 2, 7, bytes(32))))[0] == 2

    run(body)


# ---- pyfuse3 ------------------------------------------------------------------------------------------------


def test_everything_else_goes_to_pyfuse3_as_it_came_and_its_reply_comes_back() -> None:
    async def body(b: Bench) -> None:
        for message in (
            request(GETATTR, 5, 7, bytes(16)),
            request(OPEN, 6, 3, bytes(8)),
            request(READ, 7, 7, bytes(8)),
        ):
            b.send(message)
            assert await b.pyfuse3.recv(1 << 16) == message
            answer = struct.pack("<IiQ", 20, 0, HEADER.unpack_from(message)[2]) + b"body"
            await b.pyfuse3.send(answer)
            assert (await b.reply())[2] == b"body"
        b.send(request(FORGET, 8, 7, bytes(8)))
        b.send(request(IOCTL, 9, 7, bytes(32)))
        assert (await b.reply())[0] == 9  # nothing came for the FORGET

    run(body)


def test_pyfuse3_is_given_the_first_request_again_and_its_answer_goes_nowhere() -> None:
    init = request(INIT, 2, 0, struct.pack("<IIII", 7, 31, 0, 0))

    async def body(b: Bench) -> None:
        b.send(request(READ, 3, 7, read_body(7, 0, 10)))
        b.send(request(GETATTR, 4, 7, bytes(16)))
        assert await b.pyfuse3.recv(1 << 16) == init
        await b.pyfuse3.send(struct.pack("<IiQ", 80, 0, 2) + bytes(64))
        assert await b.reply() == (3, 0, DATA[:10])
        assert HEADER.unpack_from(await b.pyfuse3.recv(1 << 16))[2] == 4
        await b.pyfuse3.send(struct.pack("<IiQ", 16, 0, 4))
        assert await b.reply() == (4, 0, b"")

    run(body, init)


@pytest.mark.parametrize("opcode", [READDIR, READDIRPLUS])
def test_directories_are_listed_in_pieces_that_any_socket_takes(opcode: int) -> None:
    async def body(b: Bench) -> None:
        for size in (1 << 12, LISTING_BYTES, LISTING_BYTES + 1, 1 << 20, (1 << 32) - 1):
            b.send(request(opcode, 5, 1, read_body(1, 77, size)))
            wanted = request(opcode, 5, 1, read_body(1, 77, min(size, LISTING_BYTES)))
            assert await b.pyfuse3.recv(1 << 16) == wanted
        short = request(opcode, 6, 1, read_body(1, 77, 1 << 20)[:-1])
        b.send(short)
        assert await b.pyfuse3.recv(1 << 16) == short

    run(body)


# ---- the end ------------------------------------------------------------------------------------------------


def test_stop_answers_what_was_taken_and_takes_nothing_more() -> None:
    async def body(b: Bench) -> None:
        b.send(request(READ, 1, 8, read_body(8, 0, 10)))
        b.send(request(GETATTR, 2, 7, bytes(16)))
        assert HEADER.unpack_from(await b.pyfuse3.recv(1 << 16))[2] == 2
        await trio.testing.wait_all_tasks_blocked()
        b.path.stop()
        b.send(request(IOCTL, 3, 7, bytes(32)))
        await trio.testing.wait_all_tasks_blocked()
        assert not b.ended.is_set()
        b.handlers.arrived.set()
        assert await b.reply() == (1, 0, DATA[:10])
        await trio.testing.wait_all_tasks_blocked()
        assert not b.ended.is_set()
        await b.pyfuse3.send(struct.pack("<IiQ", 16, 0, 2))
        assert await b.reply() == (2, 0, b"")
        await b.ended.wait()
        assert HEADER.unpack_from(b.device.recv(1 << 16))[2] == 3, "another server's"

    run(body)


def test_stop_does_not_wait_for_a_moment_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 1)

    async def body(b: Bench) -> None:
        for unique in range(100):
            b.send(request(IOCTL, unique, 7, bytes(32)))
        assert (await b.reply())[0] == 0
        b.path.stop()
        await b.ended.wait()
        assert HEADER.unpack_from(b.device.recv(1 << 16))[2] < 99

    run(body)


def test_the_end_of_the_connection_is_the_end() -> None:
    async def body(b: Bench) -> None:
        b.send(request(READ, 1, 8, read_body(8, 0, 10)))
        await trio.testing.wait_all_tasks_blocked()
        b.kernel.shutdown(socket.SHUT_RDWR)
        assert not b.ended.is_set()
        with trio.fail_after(10):
            await b.ended.wait()

    run(body)


@pytest.mark.parametrize(("code", "says"), [(errno.ENODEV, 0), (errno.ECONNABORTED, 0), (errno.EIO, 1)])
def test_an_unmount_or_an_abort_is_an_end_like_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int, says: int
) -> None:
    def fails(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    async def body(b: Bench) -> None:
        monkeypatch.setattr(os, "readv", fails)
        b.send(request(READ, 1, 8, read_body(8, 0, 10)))
        with trio.fail_after(10):
            await b.ended.wait()

    run(body)
    assert [record.levelname for record in caplog.records].count("ERROR") == says


@settings(max_examples=examples(60))
@given(
    garbage=st.lists(
        st.one_of(
            st.binary(min_size=40, max_size=120),
            st.builds(
                request, st.sampled_from([OPEN, READ, RELEASE, INTERRUPT, IOCTL, READDIR, INIT, 1, 99]),
                st.integers(1, 9), st.integers(0, 12), st.binary(max_size=60),
            ),
        ),
        max_size=8,
    )
)  # fmt: skip
def test_malformed_requests_end_nothing(garbage: list[bytes]) -> None:
    async def body(b: Bench) -> None:
        for message in garbage:
            b.send(message)
        b.send(request(READ, 1 << 60, 7, read_body(7, 0, 10)))
        while (answer := await b.reply())[0] != 1 << 60:
            pass
        assert answer == (1 << 60, 0, DATA[:10])

    run(body)


def test_open_is_refused_and_a_read_without_a_handle_is_of_its_inode() -> None:
    async def body(b: Bench) -> None:
        b.handlers.refusing = True
        assert await b.answer(request(OPEN, 1, 7, bytes(8))) == (1, errno.ENOSYS, b"")
        assert await b.answer(request(READ, 2, 7, read_body(0, 100, 50))) == (2, 0, DATA[100:150])
        assert b.handlers.log == [("refuse", 99)]

    run(body)


def test_attributes_are_told_here_while_open_is_refused() -> None:
    async def body(b: Bench) -> None:
        other = request(GETATTR, 1, 7, bytes(16))
        b.send(other)
        assert await b.pyfuse3.recv(1 << 16) == other, "OPEN is answered: nothing shows by attributes"
        await b.pyfuse3.send(struct.pack("<IiQ", 16, -errno.EIO, 1))
        assert await b.reply() == (1, errno.EIO, b"")
        b.handlers.refusing = True
        assert await b.answer(request(GETATTR, 2, 7, bytes(16))) == (2, 0, b"attributes")
        assert await b.answer(request(GETATTR, 3, 7, struct.pack("<IIQ", 1, 0, 7))) == (3, 0, b"attributes")
        assert await b.answer(request(GETATTR, 4, 9, bytes(16))) == (4, errno.ESTALE, b"")
        assert b.handlers.log == [("look at", 99), ("look at open", 99), ("look at", 99)]
        for unique, inode, body in ((5, 8, bytes(16)), (6, 1, bytes(16)), (7, 7, b"")):
            b.send(request(GETATTR, unique, inode, body))  # not known here; no file; never sent
            assert await b.pyfuse3.recv(1 << 16) == request(GETATTR, unique, inode, body)
            await b.pyfuse3.send(struct.pack("<IiQ", 16, -errno.EIO, unique))
            assert await b.reply() == (unique, errno.EIO, b"")

    run(body)


def test_a_name_is_looked_up_here_when_it_is_there_and_by_pyfuse3_when_not() -> None:
    async def body(b: Bench) -> None:
        assert await b.answer(request(LOOKUP, 1, 1, b"seven\0")) == (1, 0, b"entry")
        missing = request(LOOKUP, 2, 1, b"eight\0")
        b.send(missing)
        assert await b.pyfuse3.recv(1 << 16) == missing
        await b.pyfuse3.send(struct.pack("<IiQ", 16, -errno.ENOENT, 2))
        assert await b.reply() == (2, errno.ENOENT, b"")
        b.send(request(LOOKUP, 3, 1, b""))  # never sent: forwarded, not fallen over
        await b.pyfuse3.recv(1 << 16)
        await b.pyfuse3.send(struct.pack("<IiQ", 16, -errno.ENOENT, 3))
        assert await b.reply() == (3, errno.ENOENT, b"")

    run(body)


def test_what_a_message_asks_for_is_done_while_hits_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as to pass a grace, for which the stager waits: not when the hits come to an end."""
    monkeypatch.setattr(FastPath, "_sleep_here", SLEEP_HERE)
    (kernel, device), (stager, link), pair = (
        socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(3)
    )

    async def obey(asked: trio.socket.SocketType, nursery: trio.Nursery) -> None:
        while message := await asked.recv(64):
            nursery.start_soon(do, asked, message)

    async def do(asked: trio.socket.SocketType, message: bytes) -> None:
        for _ in range(MANY_TURNS):
            await trio.lowlevel.checkpoint()
        await asked.send(message)

    async def serve() -> None:
        asked = trio.socket.from_stdlib_socket(link)
        handlers: Any = Handlers()
        path = FastPath(device.fileno(), pair[0], handlers, lambda: [link.fileno()])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(obey, asked, nursery)
            await path.run()
            nursery.cancel_scope.cancel()

    serving = threading.Thread(target=trio.run, args=(serve,))
    serving.start()
    try:
        kernel.settimeout(LIMIT_S)
        hits = 0
        for number in range(20):
            stager.send(bytes([number]))
            answer = b""
            for _ in range(MANY_HITS):
                hits += 1
                kernel.send(request(READ, hits, 7, read_body(7, 0, 10)))
                assert kernel.recv(1 << 16)[16:] == DATA[:10]
                try:
                    answer = stager.recv(64, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
                break
            assert answer == bytes([number]), f"not after {hits} hits"
    finally:
        kernel.close()
        serving.join(LIMIT_S)
        for end in (device, stager, link, *pair):
            end.close()
    assert not serving.is_alive()
