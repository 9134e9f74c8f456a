"""The tuner's knowledge of a source, kept for the next mount of that source: how long requests take while it is idle.

The knowledge is in a small file beside the index, as that of the last job (`last_job.py`). The file is replaced whole,
and ignored if it is damaged, of another version or of another owner.
"""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import trio

from nopfsfs.config import MountConfig
from nopfsfs.policy.source_base import KNEE_READINGS, SourceMemory
from nopfsfs.protocol.columns import SIZE_CLASSES
from nopfsfs.supervisor.last_job import path_of
from nopfsfs.system.kept_file import KeptFile
from nopfsfs.system.outages import SHORTAGE

log = logging.getLogger(__name__)
FILE = KeptFile("source", version=1, most=1 << 14)
LIMIT_S = 3.0  # for a read or a write


class SourceMemoryFile:
    """The file of a mount's source. Where the mount keeps no index, nothing is kept."""

    def __init__(self, config: MountConfig) -> None:
        self._config = config
        self._path: str | None = None  # once it was looked for
        self._written: SourceMemory | None = None
        self._thread = trio.CapacityLimiter(1)  # the one that a file system which does not answer keeps

    async def read(self) -> SourceMemory | None:
        """Read what an earlier mount has left; None where there is nothing that can be used."""
        if not self._config.index_dir:
            return None
        with trio.move_on_after(LIMIT_S):
            self._path = await trio.to_thread.run_sync(
                path_of, self._config, "source", abandon_on_cancel=True, limiter=self._thread
            )
            found = await trio.to_thread.run_sync(read, self._path, abandon_on_cancel=True, limiter=self._thread)
            self._written = found
            return found
        log.debug("the memory of the source takes too long to read; going on without it")
        return None

    async def write(self, memory: SourceMemory) -> None:
        """Keep this for the next mount, unless that is written already or no drain has shown it."""
        if self._path is None or memory == self._written or not any(memory.evidence):
            return
        try:
            with trio.move_on_after(LIMIT_S):
                await trio.to_thread.run_sync(write, self._path, memory, abandon_on_cancel=True, limiter=self._thread)
                self._written = memory
        except SHORTAGE as error:
            log.debug("what is known of the source cannot be kept for the next mount: %s", error)


def read(path: str) -> SourceMemory | None:
    """The memory in a file of this user's; None where there is no such file, or it cannot be used."""
    try:
        return decode(FILE.read(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.debug("the memory of the source %s is not used: %s", path, error)
        return None


def write(path: str, memory: SourceMemory) -> None:
    """Replace the file. Raises OSError."""
    FILE.write(path, encode(memory))


def encode(memory: SourceMemory) -> bytes:
    fields = {"log2_ns": memory.log2_ns, "evidence": memory.evidence, "knees": memory.knees}
    return FILE.encode(json.dumps(fields, allow_nan=False).encode() + b"\n")


def decode(data: bytes) -> SourceMemory:
    """The memory in the bytes of a file. Raises ValueError."""
    raw = FILE.decode(data)
    try:
        log2_ns = tuple(None if one is None else _number(one, 0.0, 64.0) for one in raw["log2_ns"])
        evidence = tuple(_number(one, 0.0, 1e9) for one in raw["evidence"])
        knees = tuple(_number(one, 0.0, 1e3) for one in raw["knees"])
    except (TypeError, KeyError) as error:
        raise ValueError(f"not as it was written: {error}") from error
    if len(log2_ns) != SIZE_CLASSES or len(evidence) != SIZE_CLASSES or len(knees) > KNEE_READINGS:
        raise ValueError("of another number of classes")
    return SourceMemory(log2_ns, evidence, knees)


def _number(value: Any, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    if not least <= value <= most:
        raise ValueError(f"{value!r} is out of range")
    return float(value)
