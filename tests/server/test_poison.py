"""Requests that no kernel sends: malformed, truncated, of rows and handles that there are not, fed to the fast path
with the real operations behind it. Each is answered once, or passed on unchanged; later requests are answered rightly.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyfuse3
import pytest
import trio
import trio.testing
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from nopfsfs.fuse.pyfuse3_pair import LISTING_BYTES
from nopfsfs.protocol.columns import SUPERVISOR, MetricBlock, Tier
from nopfsfs.protocol.inode_numbers import HANDLE_ROW
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.server.column_overrides import ColumnOverrides
from nopfsfs.server.direct_reads import DIRECT_THREADS
from nopfsfs.server.fast_path import FastPath
from nopfsfs.server.file_access import FileAccess
from nopfsfs.server.operations import FuseOperations
from nopfsfs.server.shown_opens import ShownOpens
from nopfsfs.system.elastic_limiter import ElasticLimiter
from nopfsfs.tiers.source import Source
from nopfsfs.vfs.tree import Tree
from tests.examples import examples
from tests.stager.running import Shared

HEADER = struct.Struct("<IIQQIIIHH")
FORGET, GETATTR, OPEN, READ, RELEASE, READDIR, INTERRUPT, IOCTL, BATCH_FORGET, READDIRPLUS = (
    2, 3, 14, 15, 18, 28, 36, 39, 42, 44,
)  # fmt: skip
UNANSWERED = (FORGET, BATCH_FORGET, INTERRUPT)
ALL_ONES = (1 << 64) - 1
STAGED, PLAIN, LINK, DIRECTORY = "staged", "plain", "link", "directory"
CONTENT = {STAGED: bytes(range(251)) * 20, PLAIN: bytes(range(241)) * 30}
SLOT = 3 * 4096
LIMIT_S = 30.0
SENTINEL = 1 << 62
READER = SimpleNamespace(pid=4711, uid=0, gid=0, umask=0)


@dataclass
class Rig:
    """A small tree, one of its files staged, and the operations for it without a stager."""

    base: Shared
    made: FuseOperations
    events: Ring
    rows: dict[str, int]
    fds: list[int]

    @property
    def operations(self) -> FuseOperations:
        """For another event loop: places for threads that outlive theirs are never given back."""
        self.made.files._direct._readers = ElasticLimiter(DIRECT_THREADS, DIRECT_THREADS)
        return self.made

    @property
    def count(self) -> int:
        return self.base.index.n

    def content(self, row: int) -> bytes | None:
        return next((CONTENT[name] for name in CONTENT if self.rows[name] == row), None)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    root = tmp_path_factory.mktemp("poison") / "source"
    (root / DIRECTORY).mkdir(parents=True)
    for name, data in CONTENT.items():
        (root / name).write_bytes(data)
    (root / LINK).symlink_to(PLAIN)
    base = Shared(root, 64 * 4096)
    rows = {name: base.row(name) for name in (STAGED, PLAIN, LINK, DIRECTORY)}
    os.pwrite(base.fds["arena"], CONTENT[STAGED], SLOT)
    base.columns.slot[rows[STAGED]], base.columns.tier[rows[STAGED]] = SLOT, Tier.RAM
    fds = [MetricBlock.create(), Ring.create("server")]
    overrides = ColumnOverrides(base.columns, base.index)
    source = Source(os.fsencode(root), base.index, base.columns)
    metrics, supervisor = MetricBlock(fds[0], writable=True), MetricBlock(fds[0], SUPERVISOR, writable=False)
    stager_metrics, ring = MetricBlock(base.fds["gauges"], writable=False), Ring(fds[1], writable=True)
    files = FileAccess(
        index=base.index, columns=base.columns, arena=base.arena, source=source, metrics=metrics,
        stager_metrics=stager_metrics, ring=ring, io_timeout=20,
    )  # fmt: skip
    files.use_arena()
    shown = ShownOpens(metrics, stager_metrics, supervisor, ring, None)
    tree = Tree(base.index, source, overrides, overrides.own_attributes)
    operations = FuseOperations(tree, base.columns, files, shown, 20)
    yield Rig(base, operations, Ring(fds[1], writable=False), rows, fds)
    base.close()
    for fd in fds:
        os.close(fd)


@pytest.fixture(autouse=True)
def in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test itself is one of its tasks: not to sleep outside."""
    monkeypatch.setattr(FastPath, "_sleep_here", lambda self: False)


@dataclass
class Exchange:
    """The kernel's end of a connection and a pyfuse3 that knows no operation: what came out of feeding it messages."""

    room: int = 4 * LISTING_BYTES  # of the socket to pyfuse3
    replies: list[tuple[int, int, bytes]] = field(default_factory=list)  # (unique, errno, body)
    passed_on: list[bytes] = field(default_factory=list)

    def run(self, handlers: object, messages: list[bytes], expected: int) -> None:
        """Feed messages; returns when there have been as many answers as expected, and no other comes."""
        trio.run(self._run, handlers, messages, expected)

    async def _run(self, handlers: object, messages: list[bytes], expected: int) -> None:
        ends = [*socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
        ends += socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kernel, device, ours, theirs = ends
        for end, room in zip(ends, [4 * LISTING_BYTES] * 2 + [self.room] * 2, strict=True):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        path = FastPath(device.fileno(), ours, handlers, list)  # type: ignore[arg-type]
        try:
            with trio.fail_after(LIMIT_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(path.run)
                    nursery.start_soon(self._refuse, trio.socket.from_stdlib_socket(theirs))
                    reader = trio.socket.from_stdlib_socket(kernel)
                    for message in messages:
                        await reader.send(message)
                    while len(self.replies) < expected:
                        self._take(await reader.recv(1 << 21))
                    await trio.testing.wait_all_tasks_blocked()
                    kernel.setblocking(False)
                    with suppress(BlockingIOError):
                        self._take(kernel.recv(1 << 21))
                    nursery.cancel_scope.cancel()
        finally:
            for end in ends:
                end.close()

    def _take(self, message: bytes) -> None:
        length, error, unique = struct.unpack_from("<IiQ", message)
        assert length == len(message)
        assert -512 < error <= 0, "the kernel refuses others"
        self.replies.append((unique, -error, message[16:]))

    async def _refuse(self, end: trio.socket.SocketType) -> None:
        while message := await end.recv(1 << 21):
            self.passed_on.append(message)
            await end.send(struct.pack("<IiQ", 16, -errno.ENOSYS, HEADER.unpack_from(message)[2]))


@dataclass(frozen=True)
class Request:
    """One message: the header's fields, and what follows."""

    opcode: int
    inode: int
    body: bytes
    pid: int = 0
    lie: int = 0  # added to the length that it says
    extension: int = 0

    def message(self, unique: int) -> bytes:
        length = HEADER.size + len(self.body)
        return HEADER.pack(max(0, length + self.lie), self.opcode, unique, self.inode, 0, 0, self.pid,
                           self.extension, 0) + self.body  # fmt: skip

    @property
    def is_well_formed(self) -> bool:
        least = {OPEN: 0, IOCTL: 0, READ: 40, RELEASE: 24}.get(self.opcode)
        return not self.lie and not self.extension and least is not None and len(self.body) >= least

    @property
    def is_answered(self) -> bool:
        return self.opcode not in UNANSWERED or (self.opcode == INTERRUPT and len(self.body) < 8)


def read_body(fh: int, offset: int, size: int) -> bytes:
    return struct.pack("<QQIIQII", fh, offset, size, 0, 0, 0, 0)


ROWS = st.integers(0, 6)  # the root, the directory, the files, the link, and two beyond
FAR = st.sampled_from([0, 1 << 31, 1 << 40, (1 << 40) - 1, 1 << 47, 1 << 48, 1 << 63, ALL_ONES - 1, ALL_ONES])
NODES = st.one_of(
    ROWS.map(lambda row: row + 1), st.builds(lambda row, version: version << 40 | row + 1, ROWS, st.integers(0, 300)),
    FAR, st.integers(0, ALL_ONES),
)  # fmt: skip
HANDLES = st.one_of(
    ROWS.map(lambda row: row << HANDLE_ROW),
    st.builds(lambda row, low: row << HANDLE_ROW | low, ROWS, st.integers(0, (1 << HANDLE_ROW) - 1)), FAR,
    st.integers(0, ALL_ONES),
)  # fmt: skip
NEAR = st.sampled_from([*range(3), 4095, 4096, 5019, 5020, 5021, 7230, 1 << 20])
OFFSETS = st.one_of(NEAR, FAR, st.integers(0, 8000), st.integers(0, ALL_ONES))
SIZES = st.one_of(NEAR, st.sampled_from([1 << 31, (1 << 32) - 1]), st.integers(0, (1 << 32) - 1))
BODIES = st.one_of(
    st.builds(read_body, HANDLES, OFFSETS, SIZES), st.builds(lambda fh: struct.pack("<QIIQ", fh, 0, 0, 0), HANDLES),
    st.binary(max_size=100), st.builds(lambda b, cut: b[:cut], st.builds(read_body, HANDLES, OFFSETS, SIZES), NEAR),
    st.builds(lambda b, more: b + more, st.builds(read_body, HANDLES, OFFSETS, SIZES), st.binary(max_size=50)),
)  # fmt: skip
OPCODES = st.one_of(
    st.sampled_from([OPEN, READ, READ, READ, RELEASE, IOCTL, READDIR, READDIRPLUS, FORGET, INTERRUPT, GETATTR, 26]),
    st.integers(0, 60), st.integers(0, (1 << 32) - 1),
)  # fmt: skip
LIES = st.sampled_from([0] * 12 + [-1, 1, -40, 1 << 20])
REQUESTS = st.builds(
    Request, OPCODES, NODES, BODIES, st.sampled_from([0, os.getpid(), 1 << 23, (1 << 32) - 1]), LIES,
    st.sampled_from([0] * 12 + [1, 8, 65535]),
)  # fmt: skip
WELL_FORMED_READS = st.builds(
    Request, st.just(READ), ROWS.map(lambda row: row + 1), st.builds(read_body, HANDLES, OFFSETS, SIZES)
)


def check_reply(rig: Rig, request: Request, error: int, body: bytes, interrupted: bool) -> None:
    """A reply of the fast path itself."""
    row = (request.inode & ((1 << 40) - 1)) - 1
    if request.opcode == IOCTL:
        assert (error, body) == (errno.ENOTTY, b"")
    elif request.opcode == RELEASE:
        assert (error, body) == (0, b"")
    elif request.opcode == OPEN and request.inode >> 40:
        assert (error, body) == (errno.ESTALE, b""), "there are no versions"
    elif request.opcode == OPEN:
        assert error == 0
        assert struct.unpack("<QIi", body)[0] >> HANDLE_ROW == row
    elif not (interrupted and error == errno.EINTR):
        check_read(rig, request, row, error, body)


def check_read(rig: Rig, request: Request, row: int, error: int, body: bytes) -> None:
    """The handle says nothing that the inode does not: where OPEN is refused there is none."""
    _, offset, size = struct.unpack_from("<QQI", request.body)
    content = rig.content(row)
    if request.inode >> 40:
        assert (error, body) == (errno.ESTALE, b""), "there are no versions"
    elif content is not None:
        assert (error, body) == (0, content[offset : offset + size])
    else:
        assert error or not body, "no bytes of what is no file"


def check_answers(rig: Rig, requests: list[Request], exchange: Exchange) -> None:
    """Each was answered once: rightly by the fast path, or by pyfuse3, which got it as it was sent."""
    answers = {unique: (error, body) for unique, error, body in exchange.replies}
    assert len(answers) == len(exchange.replies), "one was answered twice"
    passed_on = {HEADER.unpack_from(message)[2]: message for message in exchange.passed_on}
    for unique, request in enumerate(requests, 1):
        if not request.is_answered:
            assert unique not in answers
            continue
        error, body = answers.pop(unique)
        if unique in passed_on:
            assert error == errno.ENOSYS
            sent = request.message(unique)
            listing = request.opcode in (READDIR, READDIRPLUS) and len(request.body) >= 40
            assert passed_on[unique][:56] == sent[:56]
            assert len(passed_on[unique]) == len(sent)
            assert listing or passed_on[unique] == sent
        else:
            assert request.is_well_formed
            assert 0 < (request.inode & ((1 << 40) - 1)) - 1 < rig.count, "no file"
            check_reply(rig, request, error, body, INTERRUPT in {r.opcode for r in requests})
    check_valid(rig, answers)
    kinds, rows, _ = rig.events.take()
    assert set(kinds.tolist()) <= {Event.OPEN, Event.READ, Event.RELEASE, Event.TRIPWIRE}
    assert all(0 <= row < rig.count for row in rows.tolist()), "the supervisor takes every row for one of the index"


def valid(rig: Rig) -> list[bytes]:
    """What is sent last: each file opened, read, closed."""
    unique, found = itertools.count(SENTINEL), []
    for name in CONTENT:
        row = rig.rows[name]
        fh = row << HANDLE_ROW
        sent = {OPEN: bytes(8), READ: read_body(fh, 100, 1 << 20), RELEASE: struct.pack("<QQQ", fh, 0, 0)}
        for opcode, body in sent.items():
            found.append(Request(opcode, row + 1, body, os.getpid()).message(next(unique)))
    return found


def check_valid(rig: Rig, answers: dict[int, tuple[int, bytes]]) -> None:
    unique = itertools.count(SENTINEL)
    for name, data in CONTENT.items():
        error, body = answers.pop(next(unique))
        assert (error, struct.unpack("<QIi", body)) == (0, (rig.rows[name] << HANDLE_ROW, 2, 0))
        assert answers.pop(next(unique)) == (0, data[100:])
        assert answers.pop(next(unique)) == (0, b"")
    assert not answers


def feed(rig: Rig, requests: list[Request]) -> None:
    exchange = Exchange()
    messages = [request.message(unique) for unique, request in enumerate(requests, 1)]
    last = valid(rig)
    exchange.run(rig.operations, messages + last, sum(r.is_answered for r in requests) + len(last))
    check_answers(rig, requests, exchange)


@settings(max_examples=examples(250))
@given(requests=st.lists(REQUESTS, max_size=12))
def test_each_request_is_answered_once_or_passed_on(rig: Rig, requests: list[Request]) -> None:
    feed(rig, requests)


@settings(max_examples=examples(250))
@given(requests=st.lists(WELL_FORMED_READS, max_size=12))
@example(requests=[Request(READ, 1 << 48 | row + 1, read_body(0, 0, 4096)) for row in range(2, 5)])  # version 256
def test_reads_of_any_handle_offset_and_size(rig: Rig, requests: list[Request]) -> None:
    feed(rig, requests)


@settings(max_examples=examples(150))
@given(garbage=st.lists(st.binary(min_size=1, max_size=200), max_size=10))
def test_arbitrary_bytes(rig: Rig, garbage: list[bytes]) -> None:
    """What is shorter than a header can have no answer."""
    exchange, last = Exchange(), valid(rig)
    sentinels = range(SENTINEL, SENTINEL + len(last))
    asked: Counter[int] = Counter()
    for message in garbage:
        if len(message) >= HEADER.size:
            _, opcode, unique, *_ = HEADER.unpack_from(message)
            assume(unique not in sentinels)
            if Request(opcode, 0, message[HEADER.size :]).is_answered:
                asked[unique] += 1

    exchange.run(rig.operations, garbage + last, asked.total() + len(last))

    assert Counter(unique for unique, *_ in exchange.replies) == asked + Counter(sentinels)
    check_valid(rig, {unique: (error, body) for unique, error, body in exchange.replies if unique in sentinels})


def test_one_that_is_too_long_for_a_socket_is_an_error(rig: Rig) -> None:
    short, long = (Request(21, rig.rows[STAGED] + 1, bytes(size)) for size in (10_000, 150_000))  # SETXATTR
    exchange, last = Exchange(room=1 << 15), valid(rig)

    exchange.run(rig.operations, [short.message(1), long.message(2), *last], 2 + len(last))

    answers = {unique: error for unique, error, _ in exchange.replies}
    assert (answers[1], answers[2]) == (errno.ENOSYS, errno.EIO)


# ---- handlers that fail ---------------------------------------------------------------------------------------


class Failing:
    """Operations of which one handler of files raises once."""

    def __init__(self, operations: FuseOperations, name: str, error: Exception) -> None:
        self._operations, self._files, self._name, self._error = operations, operations.files, name, error
        self.files = self
        self.raised = False

    def __getattr__(self, name: str) -> Any:
        if name == "close" and self._name == "close_direct":
            return lambda fh: self._files.close(fh) or not self.raised
        if name != self._name or self.raised:
            return getattr(self._files if hasattr(FileAccess, name) else self._operations, name)
        return self._fail_later if name in ("miss", "close_direct") else self._fail

    def _fail(self, *args: object) -> None:
        self.raised = True
        raise self._error

    async def _fail_later(self, *args: object) -> None:
        self._fail()


FIRST = {"is_file": OPEN, "open": OPEN, "hit": READ, "miss": READ, "close": RELEASE, "close_direct": RELEASE}
ERRORS = [
    ValueError("x"), IndexError(7), KeyError("x"), struct.error("x"), MemoryError(), RecursionError(), OverflowError(),
    OSError(errno.ENOENT, "x"), TypeError(), AssertionError(), StopIteration(), pyfuse3.FUSEError(errno.EIO),
]  # fmt: skip


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_handler_that_fails_is_an_error_of_that_request_alone(rig: Rig, name: str, error: Exception) -> None:
    row, opcode = rig.rows[PLAIN], FIRST[name]
    handlers, exchange, last = Failing(rig.operations, name, error), Exchange(), valid(rig)
    body = read_body(row << HANDLE_ROW, 0, 100) if opcode == READ else struct.pack("<QQQ", row << HANDLE_ROW, 0, 0)

    exchange.run(handlers, [Request(opcode, row + 1, body).message(1), *last], 1 + len(last))

    answers = {unique: (error, body) for unique, error, body in exchange.replies}
    assert len(answers) == len(exchange.replies)
    assert answers.pop(1) == (0 if name == "close_direct" else errno.EIO, b"")  # who closes need not know
    assert handlers.raised
    check_valid(rig, answers)


LEAKED = 524  # ENOTSUPP, which is not for programs


def test_an_errno_that_the_kernel_refuses_is_not_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would drop the answer, and the reader would wait for ever."""

    def fail(*args: object, **options: object) -> None:
        raise OSError(LEAKED, "leaked")

    row, exchange = rig.rows[LINK], Exchange()
    monkeypatch.setattr(Source, "open", fail)
    request = Request(READ, row + 1, read_body(row << HANDLE_ROW, 0, 3), os.getpid())
    exchange.run(rig.operations, [request.message(1)], 1)
    assert exchange.replies == [(1, errno.EIO, b"")]

    monkeypatch.setattr(os, "getxattr", fail)
    with pytest.raises(pyfuse3.FUSEError) as raised:
        trio.run(rig.operations.getxattr, rig.rows[PLAIN] + 1, b"user.x", None)
    assert raised.value.errno == errno.EIO


# ---- the operations behind pyfuse3 -------------------------------------------------------------------------------

NAMES = st.binary(max_size=300)
CALLS = st.one_of(
    st.tuples(st.sampled_from(["getattr", "readlink", "opendir", "listxattr"]), NODES),
    st.tuples(st.just("lookup"), NODES, NAMES),
    st.tuples(st.just("getxattr"), NODES, NAMES.map(lambda name: b"user." + name.replace(b"\0", b""))),
    st.tuples(st.just("open"), NODES, st.integers(0, (1 << 31) - 1)),
    st.tuples(st.just("readdir"), HANDLES, FAR),
    st.tuples(st.just("read"), HANDLES, OFFSETS, SIZES),
    st.tuples(st.sampled_from(["release", "releasedir"]), HANDLES),
)


@settings(max_examples=examples(300))
@given(calls=st.lists(CALLS, min_size=1, max_size=8))
def test_any_number_is_an_errno_or_a_result(rig: Rig, calls: list[tuple[Any, ...]]) -> None:
    codes: set[int] = set()

    operations = rig.operations

    async def main() -> None:
        for name, *arguments in calls:
            last = {"readdir": [None], "read": [], "release": [], "releasedir": []}.get(name, [READER])
            try:
                found = await getattr(operations, name)(*arguments, *last)
            except pyfuse3.FUSEError as error:
                codes.add(error.errno)
                continue
            if name == "getattr":
                assert found.st_ino == arguments[0]
            if name == "open":
                assert 0 < found.fh >> HANDLE_ROW < rig.count

    with mock.patch.object(pyfuse3, "readdir_reply", return_value=True):
        trio.run(main)
    assert codes <= set(range(1, 512))
    kinds, rows, _ = rig.events.take()
    assert set(kinds.tolist()) <= {Event.OPEN, Event.READ, Event.RELEASE, Event.TRIPWIRE}
    assert all(0 <= row < rig.count for row in rows.tolist())
