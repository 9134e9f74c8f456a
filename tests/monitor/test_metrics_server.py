"""The exporter over a port, a socket, and a file."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from nopfsfs.errors import Exit, NopfsError
from nopfsfs.monitor import metrics_server
from nopfsfs.monitor.metrics_server import CLIENTS_MOST, listening, listening_at, parse_address, write_textfiles
from nopfsfs.monitor.openmetrics import registry_of
from nopfsfs.monitor.scrape import MountAnswer
from tests.monitor.figures import figures
from tests.waiting import wait_until

ANSWERS = [MountAnswer("/mnt/fast", figures())]
REGISTRY = registry_of(lambda: ANSWERS)


def get(port: int, accept: str = "*/*") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/metrics", headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def test_a_port_serves_both_formats() -> None:
    with listening(("127.0.0.1", 0), REGISTRY) as port:
        status, kind, text = get(port)
        assert (status, kind.startswith("text/plain")) == (200, True)
        assert "nopfs_opens_total" in {sample.name for family in parse(text) for sample in family.samples}
        _, kind, text = get(port, "application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")


def test_a_port_in_use_is_said_in_a_line() -> None:
    with listening(("127.0.0.1", 0), REGISTRY) as port:
        use = listening(("127.0.0.1", port), REGISTRY)
        with pytest.raises(NopfsError, match="is in use already; name another") as raised, use:
            pass
    assert raised.value.exit_code is Exit.USAGE
    with listening(("127.0.0.1", port), REGISTRY):
        pass  # it is free at once


@pytest.mark.parametrize("text", ["9814", "host:", ":x", "::1:99999", "", "a:-1"])
def test_an_address_that_is_none(text: str) -> None:
    with pytest.raises(NopfsError, match="is no address: write one such as"):
        parse_address(text)


def test_addresses() -> None:
    assert parse_address("127.0.0.1:9814") == ("127.0.0.1", 9814)
    assert parse_address(":80") == ("", 80)
    assert parse_address("[::1]:0") == ("::1", 0)


@pytest.mark.long
def test_clients_that_say_nothing_hold_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are answered at a time are hung up; the others make room when their time is over."""
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.3)
    with listening(("127.0.0.1", 0), REGISTRY) as port:
        silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(CLIENTS_MOST + 4)]
        try:
            assert wait_until(lambda: _answered(port), 10.0)
        finally:
            for one in silent:
                one.close()


def _answered(port: int) -> bool:
    try:
        return get(port)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def test_a_socket_is_this_users_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with listening_at(str(path), REGISTRY):
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(path))
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            answer = b""
            while part := client.recv(1 << 16):
                answer += part
        assert b"200 OK" in answer
        assert b"nopfs_opens_total" in answer
        use = listening_at(str(path), REGISTRY)
        with pytest.raises(NopfsError, match="another exporter serves there already"), use:
            pass
    assert not path.exists()


def test_a_socket_that_nobody_serves_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with listening_at(str(path), REGISTRY):
        pass
    path.write_text("a file of somebody's")
    use = listening_at(str(path), REGISTRY)
    with pytest.raises(NopfsError, match="something else than a socket is there") as raised, use:
        pass
    assert raised.value.exit_code is Exit.USAGE
    assert path.read_text() == "a file of somebody's"
    use = listening_at(str(tmp_path / "missing" / "x.sock"), REGISTRY)
    with pytest.raises(NopfsError, match="--socket: "), use:
        pass


def test_a_file_is_whole_and_goes_with_the_last_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "TEXTFILE_EVERY_S", 0.01)
    answers, ended, file = list(ANSWERS), threading.Event(), tmp_path / "nopfs.prom"
    thread = threading.Thread(target=write_textfiles, args=(str(tmp_path), lambda: list(answers), ended))
    thread.start()
    try:
        assert wait_until(file.exists)
        names = {sample.name for family in parse(file.read_text()) for sample in family.samples}
        assert "nopfs_up" in names
        assert file.stat().st_mode & 0o777 == 0o644
        answers.clear()
        assert wait_until(lambda: not file.exists())
        answers += ANSWERS
        assert wait_until(file.exists)
    finally:
        ended.set()
        thread.join(10)
    assert os.listdir(tmp_path) == []


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(NopfsError, match=r"--textfile: .*No such file or directory") as raised:
        write_textfiles(str(tmp_path / "missing"), lambda: ANSWERS, threading.Event())
    assert raised.value.exit_code is Exit.USAGE
