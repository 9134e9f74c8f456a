"""The word to systemd that a mount in the foreground answers (sd_notify(3)), so that units after it find it there."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress

READY = b"READY=1\nSTATUS=the mount answers"


def say_ready(env: Mapping[str, str]) -> None:
    """Tell the service manager that started this process, if one did. A manager that takes nothing is no error."""
    address = env.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    with suppress(OSError), socket.socket(socket.AF_UNIX, flags) as manager:
        manager.sendto(READY, address.replace("@", "\0", 1) if address.startswith("@") else address)
