"""Client of a mount's control socket, for the commands. Every call has a time limit.

Messages are JSON objects, one a line, both ways, over a stream socket `control.sock` in the state directory of the
mount. The answer to `{"command": "status"}` is `{"ok": true, "version": 1, "record": {...}}` or `{"ok": false,
"version": 1, "error": "..."}`. docs/control-socket.md describes the messages for those who write other clients.
Requests about plans have further keys (`registration/plan_tables.py`).
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal

from nopfsfs.errors import Exit, NopfsError
from nopfsfs.system.as_user import fd_as_user, is_needed
from nopfsfs.system.descriptors import closing_fd

SOCKET_NAME = "control.sock"
VERSION = 1  # of the messages: another number where a client of this one would misunderstand them. A request need not
# say 1: daemons from before there were versions know no such key.
CALL_S = 5.0  # the supervisor serves nothing else but its own timers
MAX_ANSWER = 16 << 20  # bytes; a record has some kilobytes
MAX_REQUEST = (1 << 16) - 1  # bytes; the daemon hangs up on longer lines

Command = Literal[
    "status", "prepare-unmount", "stop", "wait-final", "plan", "register", "forget", "hand-over", "recheck", "metrics",
    "history", "tune", "accesslog", "stacks", "warm", "drop", "check",
]
Record = Mapping[str, Any]


class NoAnswer(NopfsError):
    """The daemon does not listen, hung up, or did not answer in time."""

    def __init__(self, message: str) -> None:
        super().__init__(Exit.STUCK, message)


class Refused(NopfsError):
    """The daemon answered with an error."""

    def __init__(self, message: str) -> None:
        super().__init__(Exit.INTERNAL, f"the daemon of this mount refused: {message}")
        self.reason = message


@contextmanager
def socket_address(state_dir: str, name: str = SOCKET_NAME) -> Iterator[str]:
    """Yield a socket's address, short enough for a sockaddr (108 bytes) in any directory. Raises OSError."""
    with closing_fd(os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
        yield f"/proc/self/fd/{fd}/{name}"


def peer_credentials(ask: Callable[[int, int, int], bytes]) -> tuple[int, int, int]:
    """Return pid, uid and gid at the other end of a connected unix(7) socket, whose `getsockopt` is given."""
    ucred = struct.Struct("3i")
    pid, uid, gid = ucred.unpack(ask(socket.SOL_SOCKET, socket.SO_PEERCRED, ucred.size))
    return pid, uid, gid


def _reach(state_dir: str, limit_s: float) -> int:
    """Return the descriptor of a connected socket. Raises OSError."""
    with socket_address(state_dir) as address:
        return _connected(address, limit_s)


def _reach_from_within(state_dir: str, limit_s: float) -> int:
    """Do as `_reach`, in a process that has given up root: /proc/self is closed to such a process, which may change its
    directory instead."""
    os.chdir(state_dir)
    return _connected(SOCKET_NAME, limit_s)


def _connected(address: str, limit_s: float) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(limit_s)
        sock.connect(address)
        return sock.detach()


class Connection:
    """Connection to the daemon of a mount; a context manager.

    `owner`: the user whose mount it is. Root connects as that user, and only to a process of that user. Raises NoAnswer
    when no process listens, NopfsError with Exit.NO_RIGHT when the mount is another user's.
    """

    def __init__(self, state_dir: str, limit_s: float = CALL_S, owner: int | None = None) -> None:
        self._received = bytearray()
        try:
            if owner is not None and is_needed(owner):
                fd = fd_as_user(owner, lambda: _reach_from_within(state_dir, limit_s), limit_s)
            else:
                fd = _reach(state_dir, limit_s)
            self._socket = socket.socket(fileno=fd)
            try:
                if owner is not None and peer_credentials(self._socket.getsockopt)[1] != owner:
                    raise PermissionError(errno.EPERM, "someone else listens there", state_dir)
            except BaseException:
                self._socket.close()
                raise
        except PermissionError as error:
            raise NopfsError(
                Exit.NO_RIGHT, "only root and the user who mounted can talk to the daemon of this mount"
            ) from error
        except OSError as error:
            raise NoAnswer(f"the daemon of this mount does not listen ({error.strerror or error})") from error

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, command: Command, limit_s: float = CALL_S, **further: Any) -> None:
        """Send one request, with `further` keys. Raises NoAnswer, and NopfsError with Exit.USAGE for a request that is
        too long."""
        line = json.dumps({"command": command, **further}).encode() + b"\n"
        if len(line) > MAX_REQUEST:
            raise NopfsError(
                Exit.USAGE, f"the request has {len(line)} bytes, more than {MAX_REQUEST}; say less at once"
            )
        try:
            self._socket.settimeout(limit_s)
            self._socket.sendall(line)
        except OSError as error:
            raise NoAnswer(f"the daemon of this mount hung up ({error})") from error

    def receive(self, limit_s: float, most: int = MAX_ANSWER) -> Record:
        """Return the record of the next answer, of `most` bytes or a little more. Raises NoAnswer after `limit_s`
        seconds, and Refused."""
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._received:
            left_s = deadline - time.monotonic()
            if left_s <= 0:  # however much arrives: it may be a byte at a time
                raise NoAnswer(f"the daemon of this mount did not answer within {limit_s:.3g} s")
            if len(self._received) > most:
                raise NoAnswer("the daemon of this mount gives an answer that is too long")
            self._received += self._chunk(left_s, limit_s)
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received[:] = rest
        return _record(line)

    def _chunk(self, left_s: float, limit_s: float) -> bytes:
        try:
            self._socket.settimeout(left_s)
            chunk = self._socket.recv(1 << 16)
        except TimeoutError as error:
            raise NoAnswer(f"the daemon of this mount did not answer within {limit_s:.3g} s") from error
        except OSError as error:
            raise NoAnswer(f"the daemon of this mount hung up ({error})") from error
        if not chunk:
            raise NoAnswer("the daemon of this mount hung up without an answer")
        return chunk


@contextmanager
def understood() -> Iterator[None]:
    """Raises NopfsError where the block fails on an answer, which is not what this release expects."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        message = "the daemon's answer is not understood; it may be of another release"
        raise NopfsError(Exit.INTERNAL, message) from error


def _record(line: bytes) -> Record:
    try:
        answer = json.loads(line)
        if answer["ok"]:
            record = answer.get("record") or {}
            if isinstance(record, dict):
                return record
        raise Refused(str(answer.get("error", "no reason given")))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
        raise NoAnswer("the daemon of this mount gave an answer that is not understood") from error


def call(
    state_dir: str, command: Command, limit_s: float = CALL_S, *, owner: int | None = None, **further: Any
) -> Record:
    """Send one request on a connection of its own and return its record. `owner`: as for `Connection`.

    Raises NoAnswer and Refused."""
    with Connection(state_dir, limit_s, owner) as connection:
        connection.send(command, limit_s, **further)
        return connection.receive(limit_s)
