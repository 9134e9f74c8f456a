"""What a server took and did not answer is found after its death, whenever that came; nothing else is."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.fuse import taken_requests as module
from nopfsfs.fuse.kernel import BATCH_FORGET, FORGET, IN_HEADER, INTERRUPT, LOOKUP, OPEN, READ
from nopfsfs.fuse.taken_requests import BLOCKS, LANDING, LONGEST, LeftBlock, OwnBlock, create, given_blocks
from nopfsfs.system.proc import start_time
from tests.examples import examples

UNIQUE = Struct("<Q")


def message(unique: int, body: bytes = b"", opcode: int = READ) -> bytes:
    return IN_HEADER.pack(IN_HEADER.size + len(body), opcode, unique, 7, 0, 0, 99, 0, 0) + body


def lands(own: OwnBlock, text: bytes) -> None:
    """What the kernel does at a read."""
    own.landed[0] = 0
    own.landing[: len(text)] = text


@pytest.fixture
def fd() -> Iterator[int]:
    made = create()
    yield made
    os.close(made)


def test_blocks_take_no_memory_before_they_are_used(fd: int) -> None:
    OwnBlock(fd, BLOCKS - 1, 3)
    given_blocks(fd, writable=True)[BLOCKS - 1] = 1
    assert os.fstat(fd).st_blocks * 512 <= 4 * LANDING
    assert list(given_blocks(fd, writable=False)) == [0] * (BLOCKS - 1) + [1]


def test_a_request_is_left_from_its_read_to_its_answer(fd: int) -> None:
    own, left = OwnBlock(fd, 2, 5), LeftBlock(fd, 2)
    assert left.unanswered() == []
    assert left.owner == (os.getpid(), start_time(os.getpid()), 5)
    lands(own, message(4, b"four"))
    assert left.unanswered() == [message(4, b"four")]
    own.keep(4, len(message(4, b"four")))
    assert left.unanswered() == [message(4, b"four")], "once"
    lands(own, message(2, b"two"))
    assert left.unanswered() == [message(2, b"two"), message(4, b"four")]
    own.landed[0] = 0
    own.answered(4)
    own.answered(99)
    assert left.unanswered() == []


@pytest.mark.parametrize("opcode", [FORGET, BATCH_FORGET, INTERRUPT])
def test_what_wants_no_answer_is_not_left(fd: int, opcode: int) -> None:
    own = OwnBlock(fd, 0, 0)
    lands(own, message(6, bytes(24), opcode))
    assert LeftBlock(fd, 0).unanswered() == []


def test_a_block_that_is_used_again_shows_nothing_of_before(fd: int) -> None:
    before = OwnBlock(fd, 1, 0)
    for unique in (2, 4, 6):
        lands(before, message(unique))
        before.keep(unique, IN_HEADER.size)
    before.mark_counted(6, 11, 0)
    own, left = OwnBlock(fd, 1, 1), LeftBlock(fd, 1)
    assert (left.unanswered(), left.counted(6)) == ([], None)
    lands(own, message(8))
    own.keep(8, IN_HEADER.size)
    assert left.unanswered() == [message(8)]


def test_the_longest_message_is_kept_whole_and_there_is_an_end_of_room(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECORDS", 2)
    own, left = OwnBlock(fd, 0, 0), LeftBlock(fd, 0)
    texts = [message(unique, os.urandom(LONGEST - IN_HEADER.size), LOOKUP) for unique in (2, 4)]
    for text, unique in zip(texts, (2, 4), strict=True):
        lands(own, text)
        own.keep(unique, len(text))
        own.keep(unique, len(text))  # delivered twice
    assert own.room == 0
    own.landed[0] = 0
    assert left.unanswered() == texts
    lands(own, message(6))
    with pytest.raises(IndexError):
        own.keep(6, IN_HEADER.size)
    own.answered(2)
    assert own.room == 1
    own.keep(6, IN_HEADER.size)
    assert left.unanswered() == [texts[1], message(6)]


def test_an_heir_lands_a_message_as_the_kernel_would(fd: int) -> None:
    own, left = OwnBlock(fd, 0, 0), LeftBlock(fd, 0)
    for text in (message(2, b"longer text"), message(1 << 63 | 4, b"text")):
        own.land(text)
        assert bytes(own.landing[: len(text)]) == text
        assert left.unanswered() == [text]


def test_what_was_counted_is_known(fd: int) -> None:
    own, left = OwnBlock(fd, 0, 0), LeftBlock(fd, 0)
    own.mark_counted(2, (1 << 64) - 1, 5)
    assert left.counted(2) == ((1 << 64) - 1, 5)
    assert left.counted(4) is None
    own.mark_counted(4, 7, 0)
    assert (left.counted(2), left.counted(4)) == (None, (7, 0))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["land", "keep", "answer"]), st.integers(1, 12)), max_size=40))
def test_at_each_moment_just_what_waits_is_left(steps: list[tuple[str, int]]) -> None:
    fd = create()
    try:
        own, left = OwnBlock(fd, 0, 0), LeftBlock(fd, 0)
        landed, kept = 0, set[int]()
        for what, unique in steps:
            if what == "land":
                landed = unique
                lands(own, message(unique))
            elif what == "keep" and landed:
                kept.add(landed)
                own.keep(landed, IN_HEADER.size)
            elif what == "answer":
                kept.discard(unique)
                own.answered(unique)
            waiting = sorted(kept | ({landed} if landed else set()))
            assert left.unanswered() == [message(number) for number in waiting]
    finally:
        os.close(fd)


# Takes messages as `FastPath._drain` does: every third it answers at once, the others later, in another sequence.
SERVER = """
import os, random, sys
from nopfsfs.fuse.taken_requests import OwnBlock
fd, device, block = map(int, sys.argv[1:])
own, waiting = OwnBlock(fd, block, 0), []
while True:
    own.landed[0] = 0
    if not os.readv(device, [own.landing]):
        break
    unique = int.from_bytes(own.landing[8:16], "little")
    if unique % 3 == 0:
        os.write(device, unique.to_bytes(8, "little"))
    else:
        own.keep(unique, int.from_bytes(own.landing[:4], "little"))
        waiting.append(unique)
    if len(waiting) > 5:
        done = waiting.pop(random.randrange(len(waiting)))
        os.write(device, done.to_bytes(8, "little"))
        own.answered(done)
"""


def test_of_a_process_that_is_killed_at_any_moment_each_message_is_answered_or_left(fd: int) -> None:
    rng = random.Random(3)
    unique = 0
    for block in range(12):
        kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with kernel, device:
            sent, answered = [], set[int]()
            fds = [fd, device.fileno()]
            argv = [sys.executable, "-c", SERVER, *map(str, fds), str(block)]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            with subprocess.Popen(argv, pass_fds=fds, env=environment) as server:
                kernel.settimeout(20)
                for turn in range(100 + rng.randrange(100)):
                    unique += 2
                    kernel.send(message(unique, os.urandom(rng.randrange(900))))
                    sent.append(unique)
                    if turn > 6:
                        answered.add(*UNIQUE.unpack(kernel.recv(100)))
                server.send_signal(signal.SIGKILL)
            kernel.setblocking(False)
            device.setblocking(False)
            answered |= {unique for (unique,) in map(UNIQUE.unpack, received(kernel))}
            not_taken = {UNIQUE.unpack_from(text, 8)[0] for text in received(device)}
            left = {UNIQUE.unpack_from(text, 8)[0] for text in LeftBlock(fd, block).unanswered()}
            assert set(sent) == answered | left | not_taken
            assert len(left & answered) <= 2, "the one in the landing, and one whose answer was just written"
            assert not left & not_taken


def received(end: socket.socket) -> Iterator[bytes]:
    with suppress(BlockingIOError, ConnectionResetError):
        while text := end.recv(2000):
            yield text


def test_an_open_is_a_request_like_any_other(fd: int) -> None:
    own = OwnBlock(fd, 0, 0)
    lands(own, message(2, bytes(8), OPEN))
    assert LeftBlock(fd, 0).unanswered() == [message(2, bytes(8), OPEN)]
