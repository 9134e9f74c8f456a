"""What the server process does with messages of the supervisor."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.supervisor_server import MeetStager
from nopfsfs.server.process import ServerProcess
from nopfsfs.supervisor.processes.supervised import sequenced_pair
from tests.asynchronous import in_trio


@in_trio
async def test_a_server_without_the_arena_of_the_next_stager_ends() -> None:
    """The kernel gives a process that is short of descriptors only the first of two."""
    server = ServerProcess.__new__(ServerProcess)
    server._handoff = cast(Any, SimpleNamespace(numbers={"arena": 2}))
    ours, theirs = sequenced_pair()
    one = os.memfd_create("socket")
    with ours:
        server._control = trio.socket.from_stdlib_socket(theirs)
        with server._control:
            socket.send_fds(ours, [encode(MeetStager(1, 3))], [one])
            os.close(one)
            with pytest.raises(OSError, match="no descriptor was left"):
                await server._receive_messages()
