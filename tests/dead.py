"""A file system that does not answer, as a network file system whose server is gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slow_source import SlowSource

LIMIT_S = 5.0  # it answers again after this, or a test that waits for it would never end


@contextmanager
def dead(backing: Path) -> Iterator[Path]:
    """Yield a path at which whoever looks waits."""
    with SlowSource(backing) as slow:
        timer = threading.Timer(LIMIT_S, slow.release)
        slow.stall("getattr")
        timer.start()
        try:
            yield slow.path
        finally:
            timer.cancel()
            timer.join()
            slow.release()
