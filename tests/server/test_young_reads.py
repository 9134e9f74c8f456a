"""Bytes of young files that a server reads by itself: the stager gets to know of them, and so does the next one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
import xxhash

from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.server_stager import YOUNG_PER_MESSAGE, YOUNG_S, YoungRead
from nopfsfs.server import young_reads
from nopfsfs.server.stager_client import StagerClient
from nopfsfs.server.young_reads import YoungReads
from nopfsfs.tiers.source import Identity
from tests.asynchronous import in_trio
from tests.server.rig import COUNT, SIZE, mounted
from tests.stager.rig import PAGE, content, write_files

DATA = bytearray(b"bytes")


def now() -> Identity:
    """A file that was written just now."""
    return Identity(1000, time.time_ns(), time.time_ns(), 1)


class Stager:
    """A stager's end. `room`: messages that it still takes."""

    def __init__(self, room: int = 100) -> None:
        self.alive, self.room = True, room
        self.got: list[YoungRead] = []

    def report_young(self, reads: Sequence[YoungRead]) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.got += reads
        return True

    def starts(self) -> list[int]:
        return [read.start for read in self.got]


def send(reads: YoungReads, stager: Stager | None) -> None:
    reads.send(cast(StagerClient | None, stager))


def noted(count: int) -> YoungReads:
    reads = YoungReads()
    for start in range(count):
        reads.note(7, 3, start, DATA, now())
    return reads


def test_each_read_is_sent_once_with_its_checksum() -> None:
    reads, stager = noted(2), Stager()
    for _ in range(2):
        send(reads, stager)
    checksum = xxhash.xxh3_64_intdigest(b"bytes")
    assert stager.got == [YoungRead(7, 3, start, 5, checksum) for start in range(2)]


def test_reads_of_older_files_are_not_sent() -> None:
    reads, stager = YoungReads(lambda: time.time_ns() + int((YOUNG_S + 1) * 1e9)), Stager()
    reads.note(7, 3, 0, DATA, now())
    send(reads, stager)
    assert stager.got == []


def test_what_was_read_without_a_stager_or_while_it_hangs_is_sent_later() -> None:
    reads, stager = noted(1), Stager()
    send(reads, None)
    stager.alive = False
    send(reads, stager)
    assert stager.got == []
    stager.alive = True
    send(reads, stager)
    assert stager.starts() == [0]


def test_what_a_stager_has_no_room_for_comes_later_and_in_order() -> None:
    count = 2 * YOUNG_PER_MESSAGE + 1
    reads, stager = noted(count), Stager(room=1)
    send(reads, stager)
    assert stager.starts() == list(range(YOUNG_PER_MESSAGE))
    stager.room = 10
    send(reads, stager)
    assert stager.starts() == list(range(count))


def test_the_next_stager_gets_all_that_may_not_have_been_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, stager, following = noted(2), Stager(), Stager()
    send(reads, stager)
    reads.note(7, 3, 2, DATA, now())
    send(reads, following)
    assert following.starts() == [0, 1, 2]
    monkeypatch.setattr(young_reads, "KEPT_S", -1.0)
    send(reads, another := Stager())
    assert another.got == []


@in_trio
async def test_the_stager_notes_what_a_server_reads_for_want_of_room(tmp_path: Path) -> None:
    write_files(tmp_path / "source", [SIZE] * COUNT)
    async with mounted(tmp_path / "source", budget=0) as m:
        assert await m.read(0) == content(1, SIZE)
        parts = -(-SIZE // PAGE)
        assert await m.read(1) == content(2, SIZE)  # its demands come after what was noted of the first
        assert parts <= m.base.metrics[Metric.YOUNG_PARTS] <= 2 * parts
