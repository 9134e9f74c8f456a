"""Requests that a server has taken and not answered, in shared memory, so that another server can answer them.

It is used where the kernel does not deliver again what a dead server had taken (decision 17). Each *process* of a
server has a **block** of its own, of which it is the only writer. The kernel writes each message to the **landing**,
the first page of the block. A request that has to wait is copied to a **record** before the next one is taken. So a
request is in the landing or in a record from the moment that it leaves the kernel's queue, until it is answered. This
holds whoever dies, and when. Nobody looks before the owner can do nothing more.

A block has a landing (4096 bytes; `unique` at byte 8), a head (4096 bytes: u64 each, `_PID` and so on below), and
RECORDS records. A record: u64 `unique`, 0 where the record is free; u64 length; the message. A message is complete
before its `unique` is written: one aligned store of 8 bytes. After the blocks comes a page with `given`, u8[BLOCKS],
written by the supervisor. The value is 1 for the block of a server, or of one that has left requests.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct

from nopfsfs.fuse import kernel
from nopfsfs.system import shared_memory
from nopfsfs.system.proc import start_time

BLOCKS = 128  # four times as many as there may be servers: those of a supervisor before, and of dead ones, count, too
LANDING = 4096
RECORDS = 6144  # no fewer than requests that pyfuse3 may have at a time (`server/process.py`)
RECORD_BYTES = 1088
LONGEST = RECORD_BYTES - 16  # of a message that is kept: a LOOKUP of a name of 1,024 bytes has 1,065
_WORD = 8
_UNIQUE = 1  # the word of the landing that has it
_PID, _STARTED, _NUMBER, _USED, _COUNTED = (LANDING // _WORD + place for place in (0, 1, 2, 3, 4))
_FIRST, _STEP = 2 * LANDING // _WORD, RECORD_BYTES // _WORD  # of records, in words
_COUNT = Struct("QQQ")  # handle, registered file, `unique`: native, so that each is one store
STRIDE = shared_memory.page_rounded(2 * LANDING + RECORDS * RECORD_BYTES)
_OPCODE = slice(4, 8)
_NO_REPLY = (kernel.FORGET, kernel.BATCH_FORGET, kernel.INTERRUPT)


def create() -> int:
    """Make the memory for all blocks; return its descriptor. What is not written takes no memory. Raises OSError."""
    return shared_memory.create("taken", BLOCKS * STRIDE + shared_memory.PAGE)


def given_blocks(fd: int, *, writable: bool) -> memoryview:
    """Return the column `given`, u8[BLOCKS]."""
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    memory = mmap.mmap(fd, shared_memory.PAGE, mmap.MAP_SHARED, access, offset=BLOCKS * STRIDE)
    return memoryview(memory)[:BLOCKS]


class OwnBlock:
    """The block of this process. `landing`: u8[4096], for the kernel to write to; `landed`: u64[1], its `unique`: store
    0 there before each read. That also makes the page present, so that the kernel's copy cannot fail."""

    def __init__(self, fd: int, block: int, number: int) -> None:
        """`number`: of the server. The block has no left requests."""
        memory = memoryview(mmap.mmap(fd, STRIDE, mmap.MAP_SHARED, offset=block * STRIDE))
        self._memory, self._words = memory, memory.cast("Q")
        self.landing = memory[:LANDING]
        self.landed = self._words[_UNIQUE : _UNIQUE + 1]
        words = self._words
        self.landed[0] = words[_COUNTED + 2] = 0
        for record in range(words[_USED]):  # of an owner before
            words[_FIRST + record * _STEP] = 0
        words[_USED], words[_NUMBER] = 0, number
        words[_PID], words[_STARTED] = os.getpid(), start_time(os.getpid()) or 0
        self._free: list[int] = []
        self._kept: dict[int, int] = {}  # records by request

    @property
    def room(self) -> int:
        """The number of further requests that can be kept."""
        return len(self._free) + RECORDS - self._words[_USED]

    def land(self, message: bytes) -> None:
        """Put a message, of at most LONGEST bytes, in the landing, as the kernel would."""
        self.landed[0] = 0
        self.landing[:_WORD] = message[:_WORD]
        self.landing[2 * _WORD : len(message)] = message[2 * _WORD :]
        self.landed[0] = int.from_bytes(message[_WORD : 2 * _WORD], "little")

    def keep(self, unique: int, length: int) -> None:
        """Copy the message in the landing, `length` bytes, at most LONGEST, to a record. Raises IndexError where there
        is no room."""
        if unique in self._kept:
            return
        words = self._words
        if self._free:
            record = self._free.pop()
        elif (record := words[_USED]) < RECORDS:
            words[_USED] = record + 1  # the record is free, also if an owner before had used it
        else:
            raise IndexError("no room for a request")
        at = _FIRST + record * _STEP
        self._memory[(at + 2) * _WORD : (at + 2) * _WORD + length] = self.landing[:length]
        words[at + 1] = length
        words[at] = unique
        self._kept[unique] = record

    def answered(self, unique: int) -> None:
        """Free the record of a request, if it has one: the kernel has its answer."""
        if (record := self._kept.pop(unique, None)) is not None:
            self._words[_FIRST + record * _STEP] = 0
            self._free.append(record)

    def mark_counted(self, unique: int, fh: int, registered: int) -> None:
        """Say that this OPEN or RELEASE was counted, with that handle: whoever answers it again does not count it."""
        _COUNT.pack_into(self._memory, _COUNTED * _WORD, fh, registered, unique)


class LeftBlock:
    """A block whose owner can do nothing more. Nothing is written to it."""

    def __init__(self, fd: int, block: int) -> None:
        memory = mmap.mmap(fd, STRIDE, mmap.MAP_SHARED, mmap.PROT_READ, offset=block * STRIDE)
        self._memory = memoryview(memory)
        self._words = self._memory.cast("Q")

    @property
    def owner(self) -> tuple[int, int, int]:
        """(pid, start time, number of the server); all 0 where nobody has had the block."""
        words = self._words
        return words[_PID], words[_STARTED], words[_NUMBER]

    def unanswered(self) -> list[bytes]:
        """Return the left requests in the sequence in which they were made, each once. The last that was taken is among
        them though it may be answered."""
        words, found = self._words, dict[int, bytes]()
        for record in range(min(words[_USED], RECORDS)):
            at = _FIRST + record * _STEP
            if words[at]:
                found[words[at]] = self._message((at + 2) * _WORD, words[at + 1])
        if words[_UNIQUE]:
            found.setdefault(words[_UNIQUE], self._message(0, int.from_bytes(self._memory[:4], "little")))
        return [message for _, message in sorted(found.items()) if _wants_reply(message)]

    def counted(self, unique: int) -> tuple[int, int] | None:
        """Return (handle, registered file) of this OPEN or RELEASE if its owner counted it, else None."""
        fh, registered, counted = _COUNT.unpack_from(self._memory, _COUNTED * _WORD)
        return (fh, registered) if counted == unique else None

    def _message(self, at: int, length: int) -> bytes:
        return bytes(self._memory[at : at + min(length, LONGEST)])


def _wants_reply(message: bytes) -> bool:
    return len(message) >= kernel.IN_HEADER.size and int.from_bytes(message[_OPCODE], "little") not in _NO_REPLY
