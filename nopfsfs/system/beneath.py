"""Opens of files below a directory, without following links: no user who may rename leads a root process elsewhere.

The kernel resolves a path in one step (`openat2` with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and RESOLVE_NO_MAGICLINKS).
Whether the kernel has that call, and a sandbox allows it, is found out once. Without the call, each component is opened
with O_NOFOLLOW below the descriptor of the one before. Paths may be longer than PATH_MAX: they are walked in pieces.
Names are bytes. Mounts below the directory are entered.
"""

from __future__ import annotations

import ctypes
import errno
import os

from nopfsfs.system.descriptors import closing_fd

_SYS_OPENAT2 = 437  # the same number on all architectures but alpha
_AT_FDCWD = -100
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_NO_LINKS = _NO_SYMLINKS | _NO_MAGICLINKS
_BENEATH_NO_LINKS = _BENEATH | _NO_LINKS
_ALWAYS = os.O_CLOEXEC | os.O_NOFOLLOW
_TRIES = 8  # of a lookup that a rename elsewhere disturbs (EAGAIN)
_PIECE = 4000  # bytes of a path that are resolved at once; PATH_MAX is 4096, the final zero included
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = ctypes.CFUNCTYPE(
    ctypes.c_long, ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, use_errno=True
)(("syscall", _libc))
_How = ctypes.c_uint64 * 3  # struct open_how: flags, mode, resolve
_hows: dict[tuple[int, int], ctypes.Array[ctypes.c_uint64]] = {}


def _openat2(dir_fd: int, path: bytes, flags: int, resolve: int) -> int:
    """Return a descriptor. Raises OSError; BlockingIOError where other renames disturb the lookup again and again."""
    try:
        how = _hows[flags, resolve]
    except KeyError:
        how = _hows[flags, resolve] = _How(flags, 0, resolve)
    disturbed = 0
    while True:
        fd: int = _syscall(_SYS_OPENAT2, dir_fd, path, how, 24)
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        disturbed += number == errno.EAGAIN
        if number not in (errno.EAGAIN, errno.EINTR) or disturbed == _TRIES:  # a signal's handler has run by now
            raise OSError(number, os.strerror(number), path)


def _find_out() -> bool:
    """Return whether this process may use openat2."""
    try:
        os.close(_openat2(_AT_FDCWD, b"/", os.O_PATH | os.O_CLOEXEC, _NO_SYMLINKS))
    except OSError:
        return False
    return True


_has_openat2 = _find_out()


def open_beneath(dir_fd: int, path: bytes, flags: int) -> int:
    """Open `path`, relative to `dir_fd` and without "..", following no link; b"" is `dir_fd` itself. With O_PATH a link
    in the last place is opened itself. `flags` are those of open(2); O_CLOEXEC and O_NOFOLLOW are added.

    Raises OSError: ELOOP or ENOTDIR where a link, or a file, is on the way."""
    flags |= _ALWAYS
    if not path:
        path = b"."
    if len(path) <= _PIECE:
        return _open(dir_fd, path, flags)
    at, owned = dir_fd, -1
    try:
        while len(path) > _PIECE:
            cut = path.rfind(b"/", 0, _PIECE)
            if cut <= 0:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            at = _open(at, path[:cut], _STEP)
            if owned >= 0:
                os.close(owned)
            owned, path = at, path[cut + 1 :]
        return _open(at, path, flags)
    finally:
        if owned >= 0:
            os.close(owned)


def open_absolute(path: bytes, flags: int) -> int:
    """Open an absolute path that holds no link and no "..", as `open_beneath` does."""
    if _has_openat2 and len(path) <= _PIECE:  # one call: every file that is staged begins with one
        return _openat2(_AT_FDCWD, path, flags | _ALWAYS, _NO_LINKS)
    with closing_fd(os.open(b"/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
        return open_beneath(root, path.strip(b"/"), flags)


def open_followed(dir_fd: int, name: bytes) -> int:
    """Return an O_PATH descriptor of what the link `name` in `dir_fd` leads to, through any links but those of /proc.
    Nothing is opened for reading: compare what was reached, then `reopen`. Raises OSError."""
    flags = os.O_PATH | os.O_CLOEXEC
    if _has_openat2:
        return _openat2(dir_fd, name, flags, _NO_MAGICLINKS)
    return os.open(name, flags, dir_fd=dir_fd)


def reopen(fd: int, flags: int) -> int:
    """Open again, with `flags`, the very file that an O_PATH descriptor leads to. Raises OSError."""
    return os.open(by_descriptor(fd), flags | os.O_CLOEXEC)


def by_descriptor(fd: int) -> str:
    """Return a path that leads to the file of a descriptor of this process, whatever is renamed. The descriptor may be
    an O_PATH one: the path is for calls that take no such descriptor."""
    return f"/proc/self/fd/{fd}"


def place_of(fd: int) -> bytes:
    """Return the absolute path without links by which the file of a descriptor is reached now. Raises OSError."""
    return os.readlink(os.fsencode(by_descriptor(fd)))


def _open(dir_fd: int, path: bytes, flags: int) -> int:
    if not _has_openat2:
        return _walk(dir_fd, path, flags)
    try:
        return _openat2(dir_fd, path, flags, _BENEATH_NO_LINKS)
    except BlockingIOError:  # after some tries
        return _walk(dir_fd, path, flags)


def _walk(dir_fd: int, path: bytes, flags: int) -> int:
    """Open as openat2 does, by one open for each component. Raises OSError."""
    at, owned = dir_fd, -1
    *above, last = [part for part in path.split(b"/") if part and part != b"."] or [b"."]
    if b".." in above or last == b"..":
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    try:
        for part in above:
            at = os.open(part, _STEP, dir_fd=at)
            if owned >= 0:
                os.close(owned)
            owned = at
        return os.open(last, flags, dir_fd=at)
    finally:
        if owned >= 0:
            os.close(owned)
