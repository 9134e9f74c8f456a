"""Users in processes of their own, which do with files what they are told, one thing after the other: no process for
each read. Run as a program it is one of them; standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import pickle
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PIECE = 1 << 17  # bytes of a read
SIGBUS = 7
_LENGTH = struct.Struct("<Q")


class Hangs(AssertionError):
    """A user has no answer within the limit."""


@dataclass(frozen=True)
class Outcome:
    """What came of an action: a value, and the errno that ended it, 0 for none. A read that failed has a value, too:
    the bytes before."""

    value: Any
    errno: int = 0


class User:
    """The process of a user; a context manager."""

    def __init__(self, name: str, uid: int, groups: tuple[int, ...] = ()) -> None:
        self.name, self.uid, self.groups = name, uid, groups
        self._socket, theirs = socket.socketpair()
        argv = [sys.executable, "-I", __file__, str(theirs.fileno()), str(uid), ",".join(map(str, groups))]
        self.process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], cwd="/")
        theirs.close()

    def __enter__(self) -> User:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self.process.kill()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            pass  # asleep in the kernel: whoever looks at the mount says so

    def do(self, actions: list[tuple[Any, ...]], limit_s: float) -> list[Outcome]:
        """Do these, (name, arguments...) each. Raises Hangs."""
        data = pickle.dumps(actions)
        self._socket.sendall(_LENGTH.pack(len(data)) + data)
        deadline = time.monotonic() + limit_s
        (length,) = _LENGTH.unpack(self._receive(_LENGTH.size, deadline, actions))
        return [Outcome(*one) for one in pickle.loads(self._receive(length, deadline, actions))]

    def one(self, *action: Any, limit_s: float = 20.0) -> Outcome:
        return self.do([action], limit_s)[0]

    def _receive(self, length: int, deadline: float, actions: object) -> bytes:
        parts = []
        while length:
            if not select.select([self._socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Hangs(f"{self.name} waits for {str(actions)[:500]}")
            part = self._socket.recv(min(length, 1 << 20))
            if not part:
                raise Hangs(f"{self.name} has died of {str(actions)[:500]}")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


# ---- in that process ------------------------------------------------------------------------------------------


class _Hands:
    """What a user can do; each returns a value, or raises OSError with `value` for what came before."""

    def __init__(self) -> None:
        self._held: dict[int, int] = {}

    def read(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _all(lambda at: os.pread(fd, PIECE, at))
        finally:
            os.close(fd)

    def direct(self, path: str) -> bytes:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        try:
            with mmap.mmap(-1, PIECE) as aligned:
                return _all(lambda at: aligned[: os.preadv(fd, [aligned], at)])
        finally:
            os.close(fd)

    def mapped(self, path: str) -> bytes:
        """In a child: where a read would be an error, SIGBUS ends it. That is EIO here."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if not size:
                return b""
            with mmap.mmap(-1, size) as shared:
                child = os.fork()
                if child == 0:
                    try:
                        with mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ) as pages:
                            shared[:size] = pages[:size]
                        os._exit(0)
                    finally:
                        os._exit(1)
                status = os.waitpid(child, 0)[1]
                if status:
                    raise _failed(errno.EIO if os.WIFSIGNALED(status) else errno.ENODEV, b"")
                return shared[:size]
        finally:
            os.close(fd)

    def hold(self, key: int, path: str) -> None:
        self._held[key] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def pread(self, key: int, offset: int, length: int) -> bytes:
        """All of it: the kernel ends a read early, without an error, before a page that it could not get."""
        return _all(lambda at: os.pread(self._held[key], length - at, offset + at))

    def let_go(self, key: int) -> None:
        os.close(self._held.pop(key))

    def stat(self, path: str) -> tuple[int, ...]:
        st = os.lstat(path)
        return st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_mtime_ns, st.st_ctime_ns

    def list(self, path: str) -> Any:
        return sorted(os.listdir(path))

    def readlink(self, path: str) -> str:
        return os.readlink(path)

    def getxattr(self, path: str, name: str) -> bytes:
        return os.getxattr(path, name, follow_symlinks=False)

    def write(self, path: str) -> None:
        os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))


def _failed(code: int | None, so_far: bytes) -> OSError:
    error = OSError(code, "")
    error.value = so_far  # type: ignore[attr-defined]
    return error


def _all(read: Callable[[int], bytes]) -> bytes:
    data = b""
    try:
        while part := read(len(data)):
            data += part
    except OSError as e:
        raise _failed(e.errno, data) from e
    return data


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as told:
        uid = int(sys.argv[2])
        os.setgroups([int(group) for group in sys.argv[3].split(",") if group])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG: it ends with the test
        stream, hands = told.makefile("rb"), _Hands()
        while head := stream.read(_LENGTH.size):
            outcomes: list[tuple[Any, int]] = []
            for name, *args in pickle.loads(stream.read(_LENGTH.unpack(head)[0])):
                try:
                    outcomes.append((getattr(hands, name)(*args), 0))
                except OSError as e:
                    outcomes.append((getattr(e, "value", b""), e.errno or errno.EIO))
            data = pickle.dumps(outcomes)
            told.sendall(_LENGTH.pack(len(data)) + data)


if __name__ == "__main__":
    main()
