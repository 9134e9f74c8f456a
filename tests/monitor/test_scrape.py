"""All mounts are asked at once, and none holds a scrape longer than its limit."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nopfsfs.control.client import SOCKET_NAME
from nopfsfs.fuse.mount_table import Mount
from nopfsfs.monitor import scrape
from nopfsfs.monitor.metrics_server import listening
from nopfsfs.monitor.openmetrics import registry_of
from nopfsfs.monitor.scrape import Scraper
from tests.answering import answering
from tests.monitor.figures import figures
from tests.waiting import wait_until


def mount(path: str, number: int, owner: int | None = None) -> Mount:
    user = os.geteuid() if owner is None else owner
    return Mount(number, 0, number, "/", path, ("ro",), "fuse.nopfs", "/pfs", (f"user_id={user}",))


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Mount]:
    """The table of mounts; each has its state directory at tmp_path/NUMBER."""
    mounts: list[Mount] = []
    monkeypatch.setattr(scrape, "read_mounts", lambda: tuple(mounts))
    monkeypatch.setattr(scrape, "state_dir_of", lambda mount, env: str(tmp_path / str(mount.minor)))
    monkeypatch.setattr(scrape, "FRESH_S", 0.0)
    return mounts


@pytest.fixture
def scraper() -> Scraper:
    return Scraper({})


def silent(stack: ExitStack, directory: Path) -> None:
    """A daemon that accepts and never answers."""
    directory.mkdir()
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(directory / SOCKET_NAME))
    listener.listen()


def test_each_mount_is_asked(there: list[Mount], scraper: Scraper, tmp_path: Path) -> None:
    there += [mount("/b", 2), mount("/a", 1), mount("/gone", 3)]
    with ExitStack() as stack:
        for number in (1, 2):
            (tmp_path / str(number)).mkdir()
            asked = stack.enter_context(answering(tmp_path / str(number), lambda request: figures()))
        answers = scraper.scrape()
    assert [(one.mountpoint, one.figures is not None) for one in answers] == [
        ("/a", True), ("/b", True), ("/gone", False)
    ]  # fmt: skip
    assert asked == [{"command": "metrics"}]


def test_a_mount_that_hangs_holds_a_scrape_for_its_limit_and_is_asked_once(
    there: list[Mount], scraper: Scraper, tmp_path: Path
) -> None:
    """The limit is 1 s, for the mount that works as well; this allows for a slow machine."""
    there += [mount("/hangs", 1), mount("/works", 2)]
    (tmp_path / "2").mkdir()
    with ExitStack() as stack:
        silent(stack, tmp_path / "1")
        stack.enter_context(answering(tmp_path / "2", lambda request: figures()))
        for _ in range(3):
            began = time.monotonic()
            found = {one.mountpoint: one.figures is not None for one in scraper.scrape()}
            assert time.monotonic() - began < 20.0
            assert found == {"/hangs": False, "/works": True}


@pytest.mark.long
def test_many_that_hang_hold_it_for_the_limit_of_all_and_do_not_starve_the_others(
    there: list[Mount], scraper: Scraper, tmp_path: Path
) -> None:
    there += [mount(f"/hangs{number:03}", number) for number in range(1, 100)] + [mount("/works", 100)]
    (tmp_path / "100").mkdir()
    with ExitStack() as stack:
        for number in range(1, 100):
            silent(stack, tmp_path / str(number))
        stack.enter_context(answering(tmp_path / "100", lambda request: figures()))
        for _ in range(3):
            began = time.monotonic()
            found = {one.mountpoint: one.figures is not None for one in scraper.scrape()}
            assert time.monotonic() - began < 20.0
        assert found.pop("/works"), "those that answered are asked first"
        assert not any(found.values())


@contextmanager
def dripping(directory: Path) -> Iterator[None]:
    """A daemon that answers a byte at a time, and would need minutes."""
    directory.mkdir()
    over = threading.Event()

    def drip(client: socket.socket) -> None:
        with client, suppress(OSError):
            while not over.wait(0.05):
                client.sendall(b" ")

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(listener.accept()[0],), daemon=True).start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / SOCKET_NAME))
        listener.listen()
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


@pytest.mark.long
def test_a_scrape_of_a_full_node_keeps_to_the_limits_that_are_promised(
    there: list[Mount], scraper: Scraper, tmp_path: Path
) -> None:
    """docs/commands.md: a mount has a second to answer, all have two, and a page has less than 64 KiB for each. Of 32
    mounts 20 answer; the others say nothing, drip, say far too much, or are gone. Each scrape goes through the
    exporter's port, and there are four clients at a time."""
    there += [mount(f"/mnt/{number:02}", number) for number in range(scrape.AT_ONCE)]
    directories = [tmp_path / str(one.minor) for one in there]
    far_too_much = {"much": "x" * 2 * scrape.ANSWER_MOST}
    with ExitStack() as stack:
        for directory in directories[:20]:
            directory.mkdir()
            stack.enter_context(answering(directory, lambda request: figures()))
        for directory in directories[20:24]:
            silent(stack, directory)
        for directory in directories[24:28]:
            stack.enter_context(dripping(directory))
        for directory in directories[28:30]:
            directory.mkdir()
            stack.enter_context(answering(directory, lambda request: far_too_much))
        port = stack.enter_context(listening(("127.0.0.1", 0), registry_of(scraper.scrape)))
        answering_now: set[str] = set()

        def scraped(_: int) -> str:
            return page_at(port)

        def look() -> bool:
            began = time.monotonic()
            with ThreadPoolExecutor(4) as clients:
                pages = list(clients.map(scraped, range(4)))
            # four scrapes, one after the other, as FRESH_S is 0 here; a slow machine has three times as long
            assert time.monotonic() - began < 3 * 4 * scrape.ALL_S
            for page in pages:
                assert len(page) <= PAGE_MOST * len(there)
                said = up(page)
                assert list(said) == [one.mountpoint for one in there]
                answering_now.update(mountpoint for mountpoint, value in said.items() if value)
            return len(answering_now) >= 20

        assert wait_until(look, 60.0)
        look()
        assert answering_now == {one.mountpoint for one in there[:20]}


PAGE_MOST = 64 << 10  # bytes of a page for each mount


def page_at(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()
    finally:
        connection.close()


def up(page: str) -> dict[str, float]:
    """By mountpoint, whether it answers, as the exporter says; those that do have all their metrics."""
    found: dict[str, set[str]] = {}
    said: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.labels["mountpoint"], set()).add(family.name)
            if family.name == "nopfs_up":
                said[sample.labels["mountpoint"]] = sample.value
    assert {mountpoint: float(len(names) > 40) for mountpoint, names in found.items()} == said
    return said


def test_scrapes_at_once_ask_once(there: list[Mount], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "FRESH_S", 5.0)
    there.append(mount("/a", 1))
    (tmp_path / "1").mkdir()
    scraper = Scraper({})
    found: list[Any] = []
    with answering(tmp_path / "1", lambda request: figures()) as asked:
        threads = [threading.Thread(target=lambda: found.append(scraper.scrape())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert len(found) == 8
    assert len(asked) == 1


def test_threads_end_with_the_scrape(there: list[Mount], scraper: Scraper, tmp_path: Path) -> None:
    """Else an exporter would keep one for each of the most mounts that there were at a time."""
    with ExitStack() as stack:
        for number in range(6):
            there.append(mount(f"/{number}", number))
            (tmp_path / str(number)).mkdir()
            stack.enter_context(answering(tmp_path / str(number), lambda request: figures()))
        before = set(threading.enumerate())
        assert all(one.figures is not None for one in scraper.scrape())
        assert wait_until(lambda: set(threading.enumerate()) <= before)


def test_mounts_of_others_are_asked_by_root_alone(there: list[Mount], monkeypatch: pytest.MonkeyPatch) -> None:
    there += [mount("/mine", 1, 1000), mount("/theirs", 2, 1001), mount("/over", 3, 1000), mount("/over", 4, 1001)]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert [one.mountpoint for one in scrape.own_mounts()] == ["/mine"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert [(one.mountpoint, one.minor) for one in scrape.own_mounts()] == [("/mine", 1), ("/theirs", 2), ("/over", 4)]


@pytest.mark.parametrize("answer", ["refusal", "nonsense", "far too much"])
def test_a_daemon_of_another_release(answer: str, there: list[Mount], scraper: Scraper, tmp_path: Path) -> None:
    there.append(mount("/a", 1))
    (tmp_path / "1").mkdir()

    def say(request: dict[str, Any]) -> dict[str, Any]:
        if answer == "refusal":
            raise ValueError("no such command: 'metrics'")
        if answer == "nonsense":
            return "nonsense"  # type: ignore[return-value]
        return {"much": "x" * 2 * scrape.ANSWER_MOST}

    with answering(tmp_path / "1", say):
        assert [one.figures for one in scraper.scrape()] == [None]


@contextmanager
def daemon_of(user: int, directory: Path, answer: bytes) -> Iterator[None]:
    """A process of that user, which may start no interpreter here, that answers whoever asks in a directory of his."""
    directory.mkdir()
    os.chown(directory, user, user)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / SOCKET_NAME))
        os.chown(directory / SOCKET_NAME, user, user)
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                listener.listen()  # from now on this process is at the other end
                while True:
                    with listener.accept()[0] as client:
                        client.recv(1000)
                        client.sendall(answer)
            finally:
                os._exit(1)
        try:
            yield
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_asks_each_user_as_that_user(
    there: list[Mount], scraper: Scraper, open_to_all: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mounts of several users at once, of which the last has root's process at the end of its socket."""
    monkeypatch.setattr(scrape, "state_dir_of", lambda mount, env: str(open_to_all / str(mount.minor)))
    users = {1: 12345, 2: 12346, 3: 12347, 4: 0}
    answer = json.dumps({"ok": True, "record": figures()}).encode() + b"\n"
    with ExitStack() as stack:
        for number, user in users.items():
            stack.enter_context(daemon_of(user, open_to_all / str(number), answer))
            there.append(mount(f"/{number}", number, user or 12348))
        os.chown(open_to_all / "4", 12348, 12348)
        os.chmod(open_to_all / "4" / SOCKET_NAME, 0o666)
        expected = {"/1": True, "/2": True, "/3": True, "/4": False}
        assert wait_until(lambda: _found(scraper) == expected)


def _found(scraper: Scraper) -> dict[str, bool]:
    return {one.mountpoint: one.figures is not None for one in scraper.scrape()}
