"""Domain errors. Each is raised close to its cause, and `cli/error_exit.py` turns it into an exit code and one line of
text. Errors that become an errno are in `vfs/tree_errors.py`."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the commands; documented in docs/commands.md."""

    OK = 0
    INTERNAL = 1
    USAGE = 2  # an option does not parse (seed, size, ranks, unknown sampler, ...)
    SOURCE = 3  # the source is missing, not a directory, or cannot be read
    MOUNTPOINT = 4  # the mountpoint is missing, not a directory, not empty, or inside the source
    BUSY_MOUNTPOINT = 5  # something is already mounted there
    DISK = 6  # a disk tier cannot be written or has no room
    NO_FUSE = 7  # /dev/fuse is missing or cannot be opened
    NO_RIGHT = 8  # no right to mount
    NOT_MOUNTED = 9  # umount, status: no nopfs mount there
    LAZY = 10  # umount: was busy, unmounted lazily, the daemon was ended
    STUCK = 11  # umount: the daemon did not end; its connection was aborted
    START = 12  # the mount did not answer in time, or died while starting
    USER = 13  # --user: unknown, or no right to read as that user
    REPORT = 14  # umount: unmounted, but the report could not be written or is missing
    HUNG_UP = 129  # ended by SIGHUP; as in shells, 128 + the number of the signal
    INTERRUPTED = 130  # SIGINT, Ctrl-C
    TERMINATED = 143  # SIGTERM


class NopfsError(Exception):
    """An error with an exit code and one line for people: what is wrong, and what to do."""

    def __init__(self, exit_code: Exit, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message


class AlreadyReported(NopfsError):
    """An error that was printed already, or that another rank prints. It only ends this process."""
