"""What can go wrong in the tree. `server/operations.py` turns each into an errno, and nothing else does."""

from __future__ import annotations


class TreeError(Exception):
    """An answer that is an error."""


class NotFound(TreeError):
    """No such name, or no such inode."""


class NameTooLong(TreeError):
    """A name longer than any that a directory can hold."""


class NotADirectory(TreeError):
    """A directory was asked for and the row is none."""


class IsADirectory(TreeError):
    """A directory was to be read as a file."""


class NotALink(TreeError):
    """The target was asked of what is no symbolic link."""


class ReadOnly(TreeError):
    """Something was to be changed."""


class NoSuchAttribute(TreeError):
    """No extended attribute of this name, or none can exist there."""


class StaleFile(TreeError):
    """The source no longer has the file that was indexed."""


class SourceFailed(TreeError):
    """The source answered with an error of its own, whose number is `errno`."""

    def __init__(self, errno: int, message: str) -> None:
        super().__init__(message)
        self.errno = errno
