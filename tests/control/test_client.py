"""The client of the control socket against small servers that behave badly; processes and their identity."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nopfsfs.control.client import Connection, NoAnswer, Refused, call, socket_address
from nopfsfs.control.process_list import Process, living, read_pids, start_time, write_pids
from nopfsfs.errors import Exit, NopfsError

Serve = Callable[[bytes], None]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Return a function that starts a server giving one answer, as it is, to one request."""
    with socket.socket(socket.AF_UNIX) as listener:
        with socket_address(str(tmp_path)) as address:
            listener.bind(address)
        listener.listen()
        listener.settimeout(5)
        threads: list[threading.Thread] = []
        done = threading.Event()

        def run(answer: bytes) -> None:
            client, _ = listener.accept()
            with client:
                client.recv(4096)
                client.sendall(answer)
                if answer and not answer.endswith(b"\n"):
                    done.wait(5)  # an answer that never ends

        def start(answer: bytes) -> None:
            threads.append(threading.Thread(target=run, args=(answer,)))
            threads[-1].start()

        yield start
        done.set()
        for thread in threads:
            thread.join(10)


def test_a_record(serve: Serve, tmp_path: Path) -> None:
    serve(b'{"ok": true, "record": {"state": "running"}}\n')

    assert call(str(tmp_path), "status") == {"state": "running"}


def test_a_deep_directory(tmp_path: Path) -> None:
    """A socket's address has 108 bytes; state directories may be deeper."""
    deep = tmp_path / ("d" * 150)
    deep.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        with socket_address(str(deep)) as address:
            listener.bind(address)
        listener.listen()
        with Connection(str(deep)) as connection:
            connection.send("status")
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.recv(100) == b'{"command": "status"}\n'


def test_a_listener_of_an_unknown_user_leaves_no_descriptor(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: object) -> tuple[int, int, int]:
        raise OSError(errno.EIO, "the kernel does not say")

    monkeypatch.setattr("nopfsfs.control.client.peer_credentials", unknown)
    before = os.listdir("/proc/self/fd")

    with pytest.raises(NoAnswer) as caught:
        Connection(str(tmp_path), owner=os.geteuid())

    assert len(os.listdir("/proc/self/fd")) == len(before)
    del caught  # its frames held the socket until here


def test_refused(serve: Serve, tmp_path: Path) -> None:
    serve(b'{"ok": false, "error": "not now"}\n')

    with pytest.raises(Refused, match="not now"):
        call(str(tmp_path), "stop")


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense\n", b"[]\n", b'{"ok": true, "record": 3}\n', b"{}\n", b"[" * 100_000 + b"\n", b"9" * 9999 + b"\n"],
    ids=lambda answer: answer[:9],
)
def test_answers_that_are_none(answer: bytes, serve: Serve, tmp_path: Path) -> None:
    serve(answer)

    with pytest.raises((NoAnswer, Refused)):
        call(str(tmp_path), "status")


def test_an_answer_that_does_not_end(serve: Serve, tmp_path: Path) -> None:
    serve(b'{"ok"')
    begin = time.monotonic()

    with pytest.raises(NoAnswer, match=r"did not answer within 0\.2 s"):
        call(str(tmp_path), "status", 0.2)

    assert time.monotonic() - begin < 2


def test_an_answer_of_a_byte_at_a_time_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        with socket_address(str(tmp_path)) as address:
            listener.bind(address)
        listener.listen()
        with Connection(str(tmp_path)) as connection:
            client, _ = listener.accept()
            done = threading.Event()

            def drip() -> None:
                with client, suppress(OSError):
                    while not done.wait(0.0005):
                        client.sendall(b"x")

            thread = threading.Thread(target=drip)
            thread.start()
            try:
                began = time.monotonic()
                with pytest.raises(NoAnswer, match=r"did not answer within 0\.3 s"):
                    connection.receive(0.3)
                assert time.monotonic() - began < 3
            finally:
                done.set()
                thread.join()


def test_nobody_listens(tmp_path: Path) -> None:
    for state_dir in tmp_path, tmp_path / "missing":
        with pytest.raises(NoAnswer, match="does not listen"):
            call(str(state_dir), "status")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_mount_of_someone_else(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.seteuid(1)
    try:
        with pytest.raises(NopfsError, match="only root and the user who mounted") as raised:
            call(str(tmp_path), "status")
    finally:
        os.seteuid(0)

    assert raised.value.exit_code is Exit.NO_RIGHT


def test_pids_come_back(tmp_path: Path) -> None:
    write_pids(str(tmp_path), {"supervisor": os.getpid(), "gone": 2**22 + 1})

    (process,) = read_pids(str(tmp_path))

    assert (process.role, process.pid) == ("supervisor", os.getpid())
    assert process.alive()
    assert os.listdir(tmp_path) == ["pids"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": {"pid": "x", "start_time": 1}}'])
def test_a_damaged_file_names_nobody(text: str, tmp_path: Path) -> None:
    (tmp_path / "pids").write_text(text)

    assert read_pids(str(tmp_path)) == ()


def test_a_pid_that_is_used_again_is_someone_else() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        started = start_time(child.pid)
        assert started is not None
        other = Process("server", child.pid, started - 1)
        same = Process("server", child.pid, started)

        assert not other.signal(signal.SIGKILL)
        assert other.wait(0.1)
        assert living([other, same]) == (same,)
        assert not same.wait(0.1)
        assert same.signal(signal.SIGKILL)
        assert same.wait(5)
        assert not same.signal(signal.SIGKILL)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
@pytest.mark.parametrize("call", ["pidfd_open", "pidfd_send_signal"])
def test_on_a_kernel_without_pidfds(monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    def missing(*arguments: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os if call == "pidfd_open" else signal, call, missing)
    with subprocess.Popen(["sleep", "60"]) as child:
        started = start_time(child.pid)
        assert started is not None
        same = Process("server", child.pid, started)
        assert not Process("server", child.pid, started - 1).signal(signal.SIGKILL)
        assert not same.wait(0.05)
        assert same.signal(signal.SIGKILL)
        assert same.wait(5)
        assert not same.signal(signal.SIGKILL)


def test_an_entry_of_another_release_hides_no_other(tmp_path: Path) -> None:
    write_pids(str(tmp_path), {"supervisor": os.getpid()})
    table = json.loads((tmp_path / "pids").read_text())
    further = {"what is new": {"unit": 3}, "\x1b[2J": table["supervisor"], "list": [1], "later": None}
    (tmp_path / "pids").write_text(json.dumps({**further, **table}))

    assert [(p.role, p.pid) for p in read_pids(str(tmp_path))] == [("supervisor", os.getpid())]


def test_json_is_what_the_server_will_read(tmp_path: Path) -> None:
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        with socket_address(str(tmp_path)) as address:
            listener.bind(address)
        listener.listen()
        with Connection(str(tmp_path)) as connection:
            connection.send("wait-final")
            client, _ = listener.accept()
            with client:
                heard.append(client.recv(4096))

    assert json.loads(heard[0]) == {"command": "wait-final"}
    assert heard[0].endswith(b"\n")
