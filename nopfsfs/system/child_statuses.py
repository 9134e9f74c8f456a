"""Exit statuses of this process's children, whoever has started this process."""

from __future__ import annotations

import contextlib
import signal


def keep_child_statuses() -> None:
    """Have the kernel keep how each child of this process ends. Who starts a process may have it ignore SIGCHLD; then
    the kernel keeps no status, and Python takes 0 for it: that of a success."""
    with contextlib.suppress(ValueError):  # a command that is called in another thread than the first
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
