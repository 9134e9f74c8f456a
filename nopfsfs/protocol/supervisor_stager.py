"""Commands of the supervisor to the stager: one datagram each on a socket pair (SOCK_SEQPACKET).

The stager sends the supervisor no messages: it answers by events in a ring (`protocol/ring.py`).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

ROWS_PER_MESSAGE = 4096
_COMMAND = struct.Struct("<IIq")
MESSAGE_MAX = _COMMAND.size + 8 * ROWS_PER_MESSAGE
# Names of the numbers with which a stager begins, as those of BUDGET: the value, and the rows.
BUDGETS = ("arena_budget", "whole_limit", "range_budget", "resident_budget", "large_bytes")


class StagerCommand(IntEnum):
    """Command of the supervisor to the stager. `value` is the command's number where it has one."""

    FETCH = 1  # stage these rows, in this order, after what was asked before; value: 1 for after all others
    PUSH = 2  # put these staged rows into the page cache
    DROP = 3  # drop these rows' pages from the page cache; value: up to which byte, 0 for all
    EVICT = 4  # free these rows' bytes in the arena; value: 1 for blocks of files read by ranges only, without an event
    TO_DISK = 5  # copy these staged rows to disk tier `value`
    OFF_DISK = 6  # remove these rows' copies on disk; value: 1 to begin none by itself, if they are large
    CANCEL = 7  # forget the FETCH commands of the same value not begun
    # the arena has `value` bytes; rows: bytes of the largest file that is staged whole; bytes for blocks of other files
    # that pass through, and for those that stay; the bytes of all larger files
    BUDGET = 8
    QUIESCE = 9  # stop touching the mount; let go of it
    STOP = 10
    SERVER = 11  # with a descriptor: the demands of one more server
    LOOK = 12  # say what the page cache holds of these rows, when nothing else is to be done; forget the LOOK before
    PEER = 13  # with a descriptor: the peer process, in the place of the one before, which is gone
    # of reads of the source: value: requests under way; rows: 1 to count only requests as young that begin from now on,
    # or 0; bytes a second, 0: no bound
    LIMITS = 14
    COPY_LARGE = 22  # copy these rows, which are too large to be staged whole, to disk tier `value`, by blocks
    CHECK = 21  # compare what is held of these rows with the source; value: 1 to forget the CHECK commands before
    RECHECK = 20  # look at all files and directories once, as soon as that is possible; value: the request's number


def pack_commands(command: StagerCommand, rows: npt.NDArray[Any], value: int = 0) -> list[bytes]:
    """Messages that carry `rows` (i64[k], any k), each small enough for one datagram."""
    parts = [rows[i : i + ROWS_PER_MESSAGE] for i in range(0, len(rows), ROWS_PER_MESSAGE)] or [rows]
    return [_COMMAND.pack(command, len(part), value) + part.astype("<i8").tobytes() for part in parts]


def unpack_command(message: bytes) -> tuple[StagerCommand, npt.NDArray[np.int64], int]:
    """(command, rows i64[k], value). Raises ValueError for garbage."""
    if len(message) < _COMMAND.size:
        raise ValueError("command too short")
    command, count, value = _COMMAND.unpack_from(message)
    if len(message) != _COMMAND.size + 8 * count:
        raise ValueError("command of wrong length")
    return StagerCommand(command), np.frombuffer(message, dtype="<i8", offset=_COMMAND.size), value
