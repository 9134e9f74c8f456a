"""The log of a mount in the background: the system's, or a file of the mount."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nopfsfs.config import MountConfig
from nopfsfs.system import process_setup
from nopfsfs.system.process_setup import set_up_logging

MANY = 10_000  # no queue of a socket takes so many


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MountConfig]:
    """A mount whose state lies in `tmp_path`, and no system's log."""
    monkeypatch.setattr(process_setup, "SYSTEM_LOG", str(tmp_path / "dev-log"))
    before = logging.root.handlers[:], logging.root.level
    logging.root.handlers = []
    yield MountConfig(source="/s", mountpoint="/m", state_dir=str(tmp_path))
    for handler in logging.root.handlers:
        handler.close()
    logging.root.handlers, logging.root.level = before


def test_the_system_s_log_gets_messages_under_one_name(config: MountConfig, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "dev-log"))
        set_up_logging(config, "stager", quiet=True)
        logging.getLogger().warning("the disk /x is full: \udcff")
        text = log.recv(1000).decode()
    assert text.startswith("<12>nopfs: ")
    assert f" stager[{os.getpid()}] WARNING: the disk /x is full: \\udcff" in text


def test_a_system_s_log_that_is_stopped_keeps_nobody_waiting(config: MountConfig, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(str(tmp_path / "dev-log"))
        set_up_logging(config, "server", quiet=True)
        for number in range(MANY):
            logging.getLogger().error("message %d", number)
        first = log.recv(1000).decode()
        assert first.startswith("<11>nopfs: ")
        assert first.endswith("message 0")
    os.unlink(tmp_path / "dev-log")
    logging.getLogger().error("the log is gone")


def test_without_a_system_s_log_the_mount_has_a_file(config: MountConfig, tmp_path: Path) -> None:
    set_up_logging(config, "super", quiet=True)
    logging.getLogger().info("mounted")
    assert (tmp_path / "log").read_text().endswith(f" super[{os.getpid()}] INFO: mounted\n")


def test_in_the_foreground_standard_error_is_the_log(config: MountConfig, tmp_path: Path) -> None:
    set_up_logging(config, "super")
    (handler,) = logging.root.handlers
    assert isinstance(handler, logging.StreamHandler)
    assert handler.stream is sys.stderr
