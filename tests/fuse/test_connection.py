"""What is agreed upon with the kernel, which a socket plays."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.config import DiskSpec, MountConfig
from nopfsfs.fuse import connection as module
from nopfsfs.fuse.connection import KernelSession, Redelivery, negotiate, passes_from, resend

HEADER = struct.Struct("<IIQQIIIHH")
INIT = 26
DISKS = (DiskSpec("/d"),)
INIT_EXT, RESEND, ACL, MAX_PAGES, PASSTHROUGH = 1 << 30, 1 << 39, 1 << 20, 1 << 22, 1 << 37
EVERYTHING = (1 << 64) - 1
UNIQUE = 2
READAHEAD = 1 << 17
Pair = tuple[socket.socket, socket.socket]


def init(flags: int, minor: int = 40, major: int = 7, opcode: int = INIT) -> bytes:
    """The kernel's first request; before 7.36 it has no second word of flags."""
    body = struct.pack("<IIII", major, minor, READAHEAD, flags & 0xFFFFFFFF)
    if minor >= 36:
        body += struct.pack("<I", flags >> 32) + bytes(44)
    return HEADER.pack(HEADER.size + len(body), opcode, UNIQUE, 0, 0, 0, 0, 0, 0) + body


@pytest.fixture
def pair() -> Iterator[Pair]:
    """(the kernel, /dev/fuse)."""
    kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with kernel, device:
        kernel.setblocking(False)
        yield kernel, device


def agree(
    request: bytes, pair: Pair, *, acl: bool = False, passthrough: bool = False
) -> tuple[KernelSession, int, int]:
    """(the session, minor version, flags that were agreed upon)."""
    kernel, device = pair
    kernel.send(request)
    session = negotiate(device.fileno(), acl=acl, limit_s=0, passthrough=passthrough)
    answer = kernel.recv(1 << 16)
    length, error, unique = struct.unpack_from("<IiQ", answer)
    assert (length, error, unique) == (len(answer), 0, UNIQUE)
    assert length == 16 + 64, "what every kernel since 7.23 takes"
    major, minor, readahead, flags, background, congestion, max_write, time_gran, max_pages, _, flags2, depth = (
        struct.unpack_from("<IIIIHHIIHHII", answer, 16)
    )
    assert depth == bool(flags2 << 32 & PASSTHROUGH)
    assert (major, readahead, time_gran) == (7, READAHEAD, 1)
    assert (max_write, max_pages) == (1 << 20, 256)
    assert 2000 < congestion < background < 1 << 16, "so many READs may be stuck before others wait in the kernel"
    return session, minor, flags | flags2 << 32


def test_what_is_offered_and_wanted_is_agreed_upon(pair: Pair) -> None:
    request = init(EVERYTHING)
    session, minor, agreed = agree(request, pair)
    assert session == KernelSession(request, Redelivery.KERNEL)
    assert minor == 40
    assert agreed == module._WANTED


@given(st.integers(0, EVERYTHING), st.integers(31, 60), st.booleans())
def test_nothing_else_is_ever_agreed_upon(offered: int, minor: int, acl: bool) -> None:
    if minor < 36:
        offered &= ~INIT_EXT & 0xFFFFFFFF
    kernel, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with kernel, device:
        session, answered, agreed = agree(init(offered, minor), (kernel, device), acl=acl)
    meant = offered if offered & INIT_EXT else offered & 0xFFFFFFFF
    assert agreed == meant & (module._WANTED | (ACL if acl else 0))
    assert (session.redelivery is Redelivery.KERNEL) == bool(offered & INIT_EXT and offered & RESEND)
    assert answered == min(minor, 40)


@pytest.mark.parametrize(
    ("agreed", "without", "found"),
    [
        (RESEND | MAX_PAGES, [], Redelivery.KERNEL),
        (RESEND, ["records"], Redelivery.KERNEL),
        (MAX_PAGES, [""], Redelivery.RECORDS),
        (MAX_PAGES, ["resend", "records"], Redelivery.NONE),
    ],
)
def test_flags_decide_how_requests_are_redelivered(agreed: int, without: list[str], found: Redelivery) -> None:
    assert module.redelivery(agreed, without) is found


def test_a_kernel_of_rhel_8_keeps_records(pair: Pair) -> None:
    """Its 4.18 has protocol 7.33, and no second word of flags."""
    session, minor, agreed = agree(init(EVERYTHING & ~INIT_EXT, minor=33), pair)
    assert (session.redelivery, minor, agreed >> 32) == (Redelivery.RECORDS, 33, 0)


def test_of_a_kernel_that_is_too_old_that_is_said(pair: Pair) -> None:
    pair[0].send(init(EVERYTHING & ~INIT_EXT, minor=27))
    with pytest.raises(OSError, match=r"FUSE is too old: it takes Linux 5\.4, or RHEL 8"):
        negotiate(pair[1].fileno(), acl=False, limit_s=0)


@pytest.mark.parametrize("without", ["resend", "resend,other", "other,resend"])
def test_resending_can_be_done_without(pair: Pair, monkeypatch: pytest.MonkeyPatch, without: str) -> None:
    monkeypatch.setenv(module.WITHOUT, without)
    session, _, agreed = agree(init(EVERYTHING), pair)
    assert session.redelivery is Redelivery.RECORDS
    assert agreed == module._WANTED & ~RESEND


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("offered", [True, False])
@pytest.mark.parametrize("without", ["", "resend,passthrough"])
def test_passthrough_is_agreed_upon_where_it_is_wanted_and_offered(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, wanted: bool, offered: bool, without: str
) -> None:
    monkeypatch.setenv(module.WITHOUT, without)
    session, _, agreed = agree(init(EVERYTHING if offered else EVERYTHING & ~PASSTHROUGH), pair, passthrough=wanted)
    assert session.passthrough == bool(agreed & PASSTHROUGH) == (wanted and offered and not without)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, 0),
        ({"disks": DISKS}, module.PASSES_FROM),
        ({"disks": DISKS, "passthrough": "off"}, 0),
        ({"disks": DISKS, "passthrough": "on"}, 1),
        ({"disks": DISKS, "passthrough": "on", "signal": "tripwire"}, 0),
        ({"disks": DISKS, "passthrough": "on", "signal": "auto"}, 1),
        ({"disks": DISKS, "passthrough": "on", "fast_path": False}, 0),
    ],
)
def test_from_which_size_on_files_are_passed_through(said: dict[str, Any], expected: int) -> None:
    assert passes_from(MountConfig(source="/s", mountpoint="/m", **said)) == expected


def test_the_oldest_kernel_says_less(pair: Pair) -> None:
    session, minor, agreed = agree(init(MAX_PAGES | 1, minor=31), pair)
    assert (session.redelivery, minor, agreed) == (Redelivery.RECORDS, 31, MAX_PAGES | 1)


@pytest.mark.parametrize(
    "request_",
    [b"x", init(0)[:50], init(0, minor=30), init(0, major=8), init(0, opcode=15)],
    ids=["short", "no body", "too old", "another major", "no INIT"],
)
def test_a_kernel_that_says_something_else_is_an_error_and_gets_no_answer(pair: Pair, request_: bytes) -> None:
    kernel, device = pair
    kernel.send(request_)
    with pytest.raises(OSError, match="first request") as caught:
        negotiate(device.fileno(), acl=False, limit_s=0)
    assert caught.value.errno == errno.EPROTO
    with pytest.raises(BlockingIOError):
        kernel.recv(1)


def test_a_kernel_that_says_nothing_is_not_waited_for_for_ever(pair: Pair) -> None:
    with pytest.raises(OSError, match="sends nothing") as caught:
        negotiate(pair[1].fileno(), acl=False, limit_s=0)
    assert caught.value.errno == errno.ETIMEDOUT


def test_a_connection_that_has_ended_is_an_error(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(OSError, match="first request"):
        negotiate(pair[1].fileno(), acl=False, limit_s=0)


def test_what_was_taken_is_asked_for_again_by_a_notification(pair: Pair) -> None:
    kernel, device = pair
    resend(device.fileno())
    assert struct.unpack("<IiQ", kernel.recv(100)) == (16, 7, 0)


def test_a_connection_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    read_only = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            resend(read_only)
    finally:
        os.close(read_only)
