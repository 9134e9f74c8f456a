"""Bytes of young files that this server has read from the source by itself, on their way to the stager.

The stager compares such bytes when the file is older (`stager/young_files.py`). They may be read while there is no
stager, or while it hangs, and it may die before it has compared them. So the server keeps what it has read for as long
as that may take, and sends it to each stager.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import trio
import xxhash

from nopfsfs.protocol.server_stager import YOUNG_PER_MESSAGE, YOUNG_S, YoungRead
from nopfsfs.server.stager_client import StagerClient
from nopfsfs.tiers.source import Identity

KEPT_S = 2 * YOUNG_S  # by then a stager has compared it, where the source answers
READS_MOST = 1 << 16  # kept, each some 250 bytes; beyond that the oldest are dropped
SEND_S = 1.0  # between tries while the stager takes nothing


class YoungReads:
    """`note` may be called from any thread, the other methods in the event loop."""

    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        """`clock_ns`: ns since 1970, as the times of files."""
        self._clock_ns = clock_ns
        self._unsent: deque[tuple[float, YoungRead]] = deque(maxlen=READS_MOST)  # with time.monotonic() at the read
        self._sent: deque[tuple[float, YoungRead]] = deque(maxlen=READS_MOST)
        self._stager: StagerClient | None = None  # the one that `_sent` was sent to

    def note(self, row: int, version: int, start: int, data: bytearray, identity: Identity) -> None:
        """Note bytes that were read of a row, if its file is young."""
        if max(identity.mtime_ns, identity.ctime_ns) >= self._clock_ns() - int(YOUNG_S * 1e9):
            read = YoungRead(row, version, start, len(data), xxhash.xxh3_64_intdigest(data))
            self._unsent.append((time.monotonic(), read))

    def send(self, stager: StagerClient | None) -> None:
        """Send what this stager has not been sent, as far as it takes messages now."""
        before_s = time.monotonic() - KEPT_S
        for reads in (self._sent, self._unsent):
            while reads and reads[0][0] < before_s:
                reads.popleft()
        if stager is None or not stager.alive:
            return
        if stager is not self._stager:
            self._stager = stager
            self._unsent.extendleft(reversed(self._sent))
            self._sent.clear()
        while self._unsent:
            part = [self._unsent.popleft() for _ in range(min(len(self._unsent), YOUNG_PER_MESSAGE))]
            if not stager.report_young([read for _, read in part]):
                self._unsent.extendleft(reversed(part))
                return
            self._sent.extend(part)

    async def run(self, stager: Callable[[], StagerClient | None]) -> None:
        """Send again and again to `stager()`, which may be another one each time."""
        while True:
            await trio.sleep(SEND_S)
            self.send(stager())
