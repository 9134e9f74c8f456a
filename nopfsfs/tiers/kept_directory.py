"""The directory of a kept cache: opened, refused, shared by mounts that live at the same time.

Layout: PATH/nopfs-cache-UID/v1/{opening,mounts/SOURCE-RANDOM,sources/SOURCE/{about.json,ab/KEY-SUM}}. All access goes
by descriptors, follows no link and enters no mount point. Locks are tried, never waited for. Other versions have other
directories beside `v1`, which are left alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import stat
import struct
from collections.abc import Iterator

from nopfsfs.system.descriptors import closed_on_error, closing_fd
from nopfsfs.system.directory_access import open_directory, open_regular
from nopfsfs.tiers.kept_names import PART, SOURCE_NAME, SUBDIRECTORY, CopyName, parsed_name

VERSION = "v1"
PREFIX = "nopfs-cache-"  # of the names of all users' caches
_OPENING, _MOUNTS, _SOURCES, _ABOUT = "opening", "mounts", "sources", "about.json"
_MOUNT_NAME = re.compile("([0-9a-f]{32})-[0-9a-f]{16}")
_COUNTING = -(1 << 63)  # in place of the bytes of a mount that counts
_number = struct.Struct("<q")
_NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def cache_name(uid: int) -> str:
    """The name of a user's cache in a directory."""
    return f"{PREFIX}{uid}"


def charged(size: int) -> int:
    """The bytes that a copy takes on disk, an empty one too."""
    return max(1, -(-size // 4096)) * 4096


class KeptCache:
    """A user's cache in directory `path`, with all its sources. Descriptors are closed when the last user lets it
    go."""

    def __init__(self, path: str, *, make: bool) -> None:
        """`make`: what is missing. Raises OSError with what to do."""
        self._fds = contextlib.ExitStack()
        self.alone = False
        self._added, self._own = 0, -1
        self.name = cache_name(os.geteuid())
        self.path = os.path.join(path, self.name)
        with closing_fd(os.open(path, _PATH_FLAGS)) as parent:
            own = self.keep(_entered(self.name, parent, make=make))
        version = self.keep(_entered(VERSION, own, make=make))
        self.version = version
        self.mounts = self.keep(_entered(_MOUNTS, version, make=make))
        self.sources = self.keep(_entered(_SOURCES, version, make=make))

    def keep(self, fd: int) -> int:
        """Close `fd` with the cache."""
        self._fds.callback(os.close, fd)
        return fd

    def __del__(self) -> None:
        self._fds.close()

    def begin_number(self, source: str, number: int) -> str:
        """Make the file of the bytes that this process adds; return its name. Raises OSError."""
        name = f"{source}-{secrets.token_hex(8)}"
        self._own = self.keep(os.open(name, os.O_RDWR | _NEW, 0o600, dir_fd=self.mounts))
        if not locked(self._own):
            raise OSError(errno.EAGAIN, "another mount looks at it now")
        self._write(number)
        return name

    def _write(self, number: int) -> None:
        os.pwrite(self._own, _number.pack(number), 0)

    def add(self, size: int) -> None:
        """Note bytes that were added, or below 0: removed. Raises OSError."""
        self._added += size
        if not self.alone:
            self._write(self._added)

    def total(self) -> int | None:
        """Bytes of all copies; None while a mount counts them. Raises OSError."""
        numbers = [self._number_of(name) for name in self._mount_names()]
        return None if _COUNTING in numbers else sum(numbers)

    def _mount_names(self) -> list[str]:
        return [name for name in os.listdir(self.mounts) if _MOUNT_NAME.fullmatch(name)]

    def _number_of(self, name: str) -> int:
        with contextlib.suppress(FileNotFoundError), closing_fd(open_regular(name, self.mounts)) as fd:
            data = os.pread(fd, _number.size, 0)
            return int(_number.unpack(data)[0]) if len(data) == _number.size else 0
        return 0

    def sources_in_use(self) -> set[str]:
        """The names of the sources of mounts that live. Raises OSError."""
        return {name[:32] for name in self._mount_names() if self._lives(name)}

    def _lives(self, name: str) -> bool:
        try:
            with closing_fd(open_regular(name, self.mounts)) as fd:
                return not locked(fd)
        except FileNotFoundError:
            return False

    def source_names(self) -> list[str]:
        """The names of all sources. Raises OSError."""
        return sorted(name for name in os.listdir(self.sources) if SOURCE_NAME.fullmatch(name))

    def subdirectories(self, source: str, only: str | None = None) -> Iterator[int]:
        """A descriptor of each directory of copies of a source, closed when the next is asked for; `only`: of that one.
        Raises OSError."""
        try:
            fd = open_directory(source, self.sources)
        except FileNotFoundError:
            return
        with closing_fd(fd):
            for name in sorted(os.listdir(fd)) if only is None else [only]:
                if not SUBDIRECTORY.fullmatch(name):
                    continue
                try:
                    below = open_directory(name, fd)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                with closing_fd(below):
                    if os.fstat(below).st_uid == os.fstat(self.sources).st_uid:
                        yield below

    def about(self, source: str) -> str:
        """The path of a source, "" where it is not known."""
        with (
            contextlib.suppress(OSError, ValueError, RecursionError),
            closing_fd(open_directory(source, self.sources)) as fd,
            closing_fd(open_regular(_ABOUT, fd)) as file,
        ):
            found = json.loads(os.pread(file, 1 << 16, 0))
            return str(found["source"]) if isinstance(found, dict) and "source" in found else ""
        return ""


class SharedCache(KeptCache):
    """The cache as a mount of `source` uses it, whose path is `root`. `copies`: the directory of the source's copies.
    `alone`: no other mount lived, so this one is to call `counted`."""

    def __init__(self, path: str, source: str, root: bytes) -> None:
        """Raises OSError with what to do; EAGAIN while another mount begins."""
        super().__init__(path, make=True)
        self.source = source
        with self._opening():
            living = [name for name in self._mount_names() if self._lives(name)]
            self.alone = not living
            own = self.begin_number(source, _COUNTING if self.alone else 0)
            if self.alone:
                for name in set(self._mount_names()) - {own}:
                    os.unlink(name, dir_fd=self.mounts)
        self.copies = self.keep(_entered(source, self.sources, make=True))
        self._describe(root)

    @contextlib.contextmanager
    def _opening(self) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with closing_fd(os.open(_OPENING, flags, 0o600, dir_fd=self.version)) as fd:
            if not locked(fd):
                raise OSError(errno.EAGAIN, "another mount begins to use it now")
            yield

    def _describe(self, root: bytes) -> None:
        with contextlib.suppress(FileExistsError):
            fd = os.open(_ABOUT, os.O_WRONLY | _NEW, 0o600, dir_fd=self.copies)
            with closing_fd(fd):
                os.write(fd, json.dumps({"source": os.fsdecode(root)}).encode())

    def counted(self, found: int) -> None:
        """Note that a count has found so many bytes. Raises OSError."""
        self.alone = False
        self._added = found
        self._write(found)

    def vanished(self) -> bool:
        """Return whether somebody removed the directory of the source, or the count of this mount."""
        try:
            return 0 in (os.fstat(self.copies).st_nlink, os.fstat(self._own).st_nlink)
        except OSError as e:
            return e.errno == errno.ESTALE


def locked(fd: int) -> bool:
    """Lock an open file for this process; False where another holds the lock. Raises OSError where there are no
    locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        raise OSError(e.errno, "its file system has no locks; name another directory, or --disk-keep no") from e
    return True


def remove_copy(name: CopyName, below: int) -> int:
    """Remove a copy from the directory that holds it; return the bytes that it took, 0 when it stays or is not there. A
    `.part` stays while its writer lives. Raises OSError."""
    file = os.path.basename(name.path)
    with contextlib.suppress(FileNotFoundError), closing_fd(open_regular(file, below)) as fd:
        st = os.fstat(fd)
        if name.suffix == PART and not locked(fd):
            return 0
        if os.path.samestat(st, os.stat(file, dir_fd=below, follow_symlinks=False)):
            os.unlink(file, dir_fd=below)
            return charged(st.st_size)
    return 0


def copies_in(below: int) -> Iterator[tuple[CopyName, os.DirEntry[str]]]:
    """The copies that a directory holds. Raises OSError."""
    with os.scandir(below) as entries:
        for entry in entries:
            name = parsed_name(entry.name)
            if name is not None:
                yield name, entry


def begin_copy(path: str, dir_fd: int, size: int) -> int | None:
    """A locked descriptor of a new file of `size` bytes; None while another writes it. Raises OSError."""
    for _ in range(2):  # a writer that has died may have left one
        try:
            return _made_part(path, dir_fd, size)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.dirname(path), 0o700, dir_fd=dir_fd)
        except FileExistsError:
            with closing_fd(open_directory(os.path.dirname(path), dir_fd)) as below:
                name = parsed_name(os.path.basename(path))
                if name is None or not remove_copy(name, below):
                    return None
    return None


def _made_part(path: str, dir_fd: int, size: int) -> int | None:
    fd = os.open(path, os.O_RDWR | _NEW, 0o600, dir_fd=dir_fd)
    with closed_on_error(fd):
        if locked(fd):
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(path, dir_fd=dir_fd, follow_symlinks=False)):
                    os.ftruncate(fd, size)
                    return fd
    os.close(fd)
    return None  # another took it for that of a dead writer


def _entered(name: str, parent: int, *, make: bool) -> int:
    """A descriptor of a directory that belongs to this user alone. Raises OSError with what to do."""
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
    try:
        fd = open_directory(name, parent)
    except NotADirectoryError as e:
        raise OSError(errno.ENOTDIR, f"{name} in it is a link or a file; remove it, or name another directory") from e
    with closed_on_error(fd):
        st, uid = os.fstat(fd), os.geteuid()
        if st.st_uid != uid:
            what = f"{name} in it belongs to user {st.st_uid}, not to user {uid}"
            raise OSError(errno.EPERM, f"{what}; name another directory, or --disk-keep no")
        if stat.S_IMODE(st.st_mode) & 0o077:
            raise OSError(errno.EPERM, f"others may enter {name} in it; chmod 700 it if it is yours, or remove it")
    return fd
