"""The word to systemd that the mount answers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from nopfsfs.control.readiness import READY, say_ready


def test_the_manager_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)

        say_ready({"NOTIFY_SOCKET": path})

        assert manager.recv(100) == READY


def test_an_abstract_address() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("")  # the kernel chooses an abstract one
        address = "@" + manager.getsockname()[1:].decode()

        say_ready({"NOTIFY_SOCKET": address})

        assert manager.recv(100) == READY


@pytest.mark.parametrize("env", [{}, {"NOTIFY_SOCKET": "vsock:2:1234"}, {"NOTIFY_SOCKET": "/none/such"}])
def test_without_a_manager_nothing_happens(env: dict[str, str]) -> None:
    say_ready(env)
