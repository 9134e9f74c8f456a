"""A mount that another release of nopfsfs serves: what it says and writes is understood, or one line says what to do.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nopfsfs.config import MountConfig
from nopfsfs.control import orphans
from nopfsfs.control import takeover as module
from nopfsfs.control.takeover import adopt, upgrade
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.protocol.columns import LAYOUT
from tests.answering import answering

CONFIG = msgspec.to_builtins(MountConfig(source="/s", mountpoint="/m"))
NAMES = ("index", "init")


@contextmanager
def orphaned(state_dir: Path, message: bytes) -> Iterator[None]:
    """A server that was left alone, and gives whoever asks this message, with two descriptors."""
    with orphans.listen(str(state_dir)) as listening:
        listening.settimeout(10)

        def give() -> None:
            caller, _ = listening.accept()
            with caller:
                fds = [os.memfd_create(name) for name in NAMES]
                socket.send_fds(caller, [message], fds)
                for fd in fds:
                    os.close(fd)

        thread = threading.Thread(target=give)
        thread.start()
        yield
        thread.join(10)


def given(config: dict[str, Any], **numbers: int) -> bytes:
    fds = dict.fromkeys(NAMES, 3)
    return json.dumps({"role": "server", "config": config, "fds": fds, "numbers": numbers}).encode()


@pytest.mark.parametrize(
    "message",
    [
        given(CONFIG, layout=LAYOUT - 1, redelivery=1),
        given(CONFIG, layout=LAYOUT + 1),
        given({**CONFIG, "setting of tomorrow": 1}, layout=LAYOUT + 1, redelivery=1),
        given({key: value for key, value in CONFIG.items() if key != "source"}, layout=LAYOUT, redelivery=1),
        b'{"another": "protocol"}',
        json.dumps({"config": json.dumps(CONFIG), "fds": NAMES, "numbers": {"layout": 6}}).encode(),
        b"another protocol",
    ],
    ids=["the one before", "the next", "a setting more", "a setting less", "other words", "words before", "none"],
)
def test_what_another_release_gives_away_is_not_taken(
    message: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "start", pytest.fail)
    state = tmp_path / "run" / "state"
    state.mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))

    with orphaned(state, message), pytest.raises(NopfsError, match="end it: nopfs-umount, and mount it anew") as raised:
        adopt(str(state))

    assert raised.value.exit_code is Exit.STUCK
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_supervisor_of_another_release_keeps_its_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the release before this one answers."""
    monkeypatch.setattr(module, "adopt", pytest.fail)
    reason = "that version of nopfsfs does not understand the memory of this mount: mount it anew"

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        assert request["layout"] == LAYOUT
        raise ValueError(reason)

    with (
        answering(tmp_path, answer) as requests,
        pytest.raises(NopfsError, match=f"goes on as it is: {reason}") as raised,
    ):
        upgrade(str(tmp_path))

    assert raised.value.exit_code is Exit.STUCK
    assert [request["command"] for request in requests] == ["hand-over"]
