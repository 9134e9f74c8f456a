"""Servers whose supervisor is gone give whoever asks what the next one needs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from nopfsfs.config import MountConfig
from nopfsfs.control import orphans
from nopfsfs.control.orphans import GIVEN, SOCKET_NAME, answer, ask, listen
from nopfsfs.system.process_setup import Handoff
from tests.asynchronous import in_trio

NUMBERS = {"number": 1, "first": 2, "servers": 3, "redelivery": 1}


class Orphan:
    """What a server was given, with files for its descriptors."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = str(state_dir)
        self.listening = listen(self.state_dir)
        fds = {name: os.memfd_create(name, os.MFD_CLOEXEC) for name in (*GIVEN, "ring", "control")}
        fds["adopt"] = os.dup(self.listening.fileno())
        config = MountConfig(source="/s", mountpoint="/m", state_dir=self.state_dir, source_concurrency=7)
        self.handoff = Handoff("server-1", config, fds, NUMBERS)

    async def asked(self) -> Handoff | None:
        """What somebody else gets while this one answers, to its end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer, self.handoff)
            given = await trio.to_thread.run_sync(ask, self.state_dir)
            nursery.cancel_scope.cancel()
        del self.handoff.fds["adopt"]
        return given

    def close(self) -> None:
        self.listening.close()
        for fd in self.handoff.fds.values():
            os.close(fd)


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[Orphan]:
    made = Orphan(tmp_path)
    yield made
    made.close()


def close_all(given: Handoff) -> None:
    for fd in given.fds.values():
        os.close(fd)


@in_trio
async def test_who_asks_gets_config_numbers_and_the_same_files(orphan: Orphan) -> None:
    given = await orphan.asked()
    assert given is not None
    try:
        assert given.role == "super"
        assert given.config == orphan.handoff.config
        assert given.numbers == NUMBERS
        assert set(given.fds) == set(GIVEN), "nothing that is the server's own"
        for name, fd in given.fds.items():
            assert os.path.samestat(os.fstat(fd), os.fstat(orphan.handoff.fds[name]))
            assert not os.get_inheritable(fd)
    finally:
        close_all(given)


@in_trio
async def test_what_a_server_does_not_have_it_does_not_give(orphan: Orphan) -> None:
    os.close(orphan.handoff.fds.pop("init"))
    given = await orphan.asked()
    assert given is not None
    close_all(given)
    assert set(given.fds) == set(GIVEN) - {"init"}


@in_trio
async def test_callers_that_hang_up_do_not_end_a_server(orphan: Orphan) -> None:
    for _ in range(3):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
            caller.connect(os.path.join(orphan.state_dir, SOCKET_NAME))
    given = await orphan.asked()
    assert given is not None
    close_all(given)


def test_nobody_answers_where_there_is_no_server(tmp_path: Path) -> None:
    assert ask(str(tmp_path)) is None


def test_nobody_answers_where_the_servers_have_ended(orphan: Orphan) -> None:
    orphan.listening.close()
    os.close(orphan.handoff.fds.pop("adopt"))
    assert ask(orphan.state_dir) is None


def test_servers_that_have_their_supervisor_are_not_waited_for_for_ever(
    orphan: Orphan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "_LIMIT_S", 0.01)
    assert ask(orphan.state_dir) is None


def test_the_next_supervisor_listens_where_the_one_before_did(orphan: Orphan) -> None:
    again = listen(orphan.state_dir)
    orphan.listening.setblocking(False)
    again.setblocking(False)
    with again, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
        caller.connect(os.path.join(orphan.state_dir, SOCKET_NAME))
        again.accept()[0].close()
        with pytest.raises(BlockingIOError):
            orphan.listening.accept()


def test_the_state_directory_may_have_a_long_name(tmp_path: Path) -> None:
    """Longer than a socket's address may be."""
    path = tmp_path / ("x" * 120)
    path.mkdir()
    with listen(str(path)):
        assert (path / SOCKET_NAME).is_socket()
