"""Looks at what takes too long in the stager: reads of the source and of disk tiers, and the thread that writes disks.

The looks come from a thread of their own, which sleeps as long as nothing is under way. It reads and writes no file,
so it cannot be stuck itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)
LOOK_S = 0.1


class Watch:
    """`look()` does one look; it says whether there is more to look at. `awake` is set when something begins."""

    def __init__(self, look: Callable[[], bool], awake: threading.Event) -> None:
        self._look, self._awake = look, awake
        self._stopped = threading.Event()

    def run(self) -> None:
        """The life of the thread, until `stop`."""
        while not self._stopped.is_set():
            self._awake.wait()
            self._awake.clear()
            while not self._stopped.wait(LOOK_S) and self._look_once():
                pass

    def stop(self) -> None:
        self._stopped.set()
        self._awake.set()

    def _look_once(self) -> bool:
        try:
            return self._look()
        except Exception:
            log.exception("looking at what hangs failed")
            return True
