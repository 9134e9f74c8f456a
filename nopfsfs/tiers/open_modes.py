"""The mode in which an inode is open: through the page cache, or passed through to a file on disk.

The kernel fails an open (EIO) that asks for one mode while the inode is open in the other. The kernel also fails an
open that asks for another registered file than the one in use. So the servers count the opens that are alive of each
file that may be passed through. While any is alive, a server opens the file in the mode of these. A server counts an
open before it answers, and a release after its answer was accepted. If a server is killed in between, the count stays
too high, and the file's mode never changes again; the count is never too low. All servers write the column, each row
under a lock of its own that the kernel frees with its holder. Only opens and releases of such files take the lock, and
its holder waits for nothing.
"""

from __future__ import annotations

import fcntl

from nopfsfs.system import shared_memory


class OpenModes:
    """The column: i32[n], above 0 the number of opens through the page cache, below 0 of those passed through.
    `numbers`: the column `backing`. One object for each process: the locks are a process's."""

    def __init__(self, fd: int, numbers: memoryview, *, writable: bool = True) -> None:
        self._fd, self._numbers = fd, numbers
        self.alive = memoryview(shared_memory.attach(fd, writable=writable)).cast("i")

    @staticmethod
    def create(n: int) -> int:
        """A descriptor of a fresh column for n rows."""
        return shared_memory.create("modes", 4 * n)

    def enter(self, row: int, *, may_pass: bool) -> int:
        """Count an open; return the number of the file that it is to be passed through to, 0 for the page cache.
        `may_pass`: this open may be the first that is passed through."""
        with _Locked(self._fd, row):
            alive = self.alive[row]
            number = self._numbers[row]
            if alive < 0 or (alive == 0 and may_pass and number > 0):
                self.alive[row] = alive - 1
                return abs(number)  # below 0: withdrawn, and kept for the opens that are alive
            self.alive[row] = alive + 1
            return 0

    def leave(self, row: int, *, passed: bool) -> None:
        """Count an open of this mode out, at its release."""
        with _Locked(self._fd, row):
            alive = self.alive[row]
            if passed and alive < 0:
                self.alive[row] = alive + 1
            elif not passed and alive > 0:
                self.alive[row] = alive - 1

    def passing(self, row: int) -> bool:
        """True while opens are alive that are passed through, or are about to be."""
        return self.alive[row] < 0


class _Locked:
    """The lock of a row: a record lock of one byte, of this process."""

    __slots__ = ("_fd", "_row")

    def __init__(self, fd: int, row: int) -> None:
        self._fd, self._row = fd, row

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, self._row)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._row)
