"""A lock of an object of many parts: what these have left for each other is handed on before it is released."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SettledLock:
    """A lock held for an action, with `settle` called at its end."""

    def __init__(self, lock: threading.Lock, settle: Callable[[], None]) -> None:
        self._lock, self._settle = lock, settle

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        try:
            self._settle()
        finally:
            self._lock.release()
