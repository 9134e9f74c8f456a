"""The exporter: metrics of this node's mounts over HTTP, on a port or a unix(7) socket, or in a file for node_exporter.

A client that sends nothing, or reads nothing, holds one of a few threads for some seconds.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import HTTPServer
from socketserver import BaseServer, TCPServer, ThreadingMixIn, UnixStreamServer
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler

from nopfsfs.errors import Exit, NopfsError
from nopfsfs.monitor.openmetrics import prometheus_text
from nopfsfs.monitor.scrape import MountAnswer
from nopfsfs.system.atomic_file import whole_file

CLIENTS_MOST = 16  # that are answered at a time; further ones are hung up
CLIENT_S = 10.0  # for a client to send its request, or to take what it is sent
TEXTFILE = "nopfs.prom"
TEXTFILE_EVERY_S = 15.0
_PROBE_S = 1.0  # for a server that may listen on a socket already


class _Handler(MetricsHandler):
    """Answers one client, whatever path it asks for."""

    timeout = CLIENT_S

    def address_string(self) -> str:
        return "client"  # a unix(7) socket has no address, and nothing is logged

    def handle(self) -> None:
        with suppress(OSError):  # the client is gone, or too slow
            super().handle()


class _BoundedThreads(ThreadingMixIn):
    """A thread for each client, as long as there are few."""

    daemon_threads = True
    _free = threading.BoundedSemaphore(CLIENTS_MOST)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            assert isinstance(self, BaseServer)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


class _TcpServer(_BoundedThreads, HTTPServer):
    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer would look its name up, which may take long
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]


class _Tcp6Server(_TcpServer):
    address_family = socket.AF_INET6


class _UnixServer(_BoundedThreads, UnixStreamServer):
    pass


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:9814`, `[::1]:9814`, `:9814` (all addresses). Raises NopfsError with Exit.USAGE."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise NopfsError(Exit.USAGE, f"--listen: {text!r} is no address: write one such as 127.0.0.1:9814")
    return host.removeprefix("[").removesuffix("]"), int(port)


@contextmanager
def listening(address: tuple[str, int], registry: CollectorRegistry) -> Iterator[int]:
    """Serve on a TCP port meanwhile; yields its number. Raises NopfsError with Exit.USAGE where it is not to be had."""
    host, port = address
    kind = _Tcp6Server if ":" in host else _TcpServer
    try:
        server = kind((host, port), _Handler.factory(registry))
    except OSError as error:
        used = error.errno == errno.EADDRINUSE
        why = "is in use already; name another with --listen" if used else f"cannot be used: {error.strerror or error}"
        raise NopfsError(Exit.USAGE, f"--listen: {host or '*'}:{port} {why}") from error
    with _serving(server):
        yield int(server.server_address[1])


@contextmanager
def listening_at(path: str, registry: CollectorRegistry) -> Iterator[None]:
    """Serve on a unix(7) socket meanwhile, which only this user may use. One that nobody serves any more is replaced.
    Raises NopfsError with Exit.USAGE where that is not possible."""
    try:
        _clear_socket(path)
        before = os.umask(0o177)
        try:
            server = _UnixServer(path, _Handler.factory(registry))
        finally:
            os.umask(before)
    except OSError as error:
        raise NopfsError(Exit.USAGE, f"--socket: {path}: {error.strerror or error}") from error
    made = os.stat(path)
    try:
        with _serving(server):
            yield
    finally:
        with suppress(OSError):
            if os.path.samestat(made, os.lstat(path)):
                os.unlink(path)


def _clear_socket(path: str) -> None:
    """Remove a socket that nobody serves any more. Raises OSError where something else is there."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EEXIST, "something else than a socket is there")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "another exporter serves there already")


@contextmanager
def _serving(server: BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, name="nopfs-exporter", daemon=True)
    try:
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join(CLIENT_S)
    finally:
        server.server_close()


def write_textfiles(directory: str, ask: Callable[[], list[MountAnswer]], ended: threading.Event) -> None:
    """Write the metrics into a file every TEXTFILE_EVERY_S, whole, until `ended`. Without a mount there is no file.
    Raises NopfsError with Exit.USAGE where it cannot be written the first time; later it is tried again."""
    path, written = os.path.join(directory, TEXTFILE), False
    try:
        while True:
            answers = ask()
            try:
                if answers:
                    with whole_file(path, 0o644) as file:
                        file.write(prometheus_text(answers))
                else:
                    _remove(path)
                written = True
            except OSError as error:
                if not written:
                    raise NopfsError(Exit.USAGE, f"--textfile: {path}: {error.strerror or error}") from error
            if ended.wait(TEXTFILE_EVERY_S):
                return
    finally:
        with suppress(OSError):
            if written:
                _remove(path)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
