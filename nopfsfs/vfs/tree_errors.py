"""Errors of the tree: names, links and attributes. Only `server/operations.py` turns these into an errno."""

from __future__ import annotations


class TreeError(Exception):
    """The base of all errors of the tree."""


class NotFound(TreeError):
    """No such name, or no such inode."""


class NameTooLong(TreeError):
    """A name longer than any that a directory can hold."""


class NotADirectory(TreeError):
    """The row is no directory, and the operation needs one."""


class NotALink(TreeError):
    """The row is no symbolic link, and the operation needs one."""


class NoSuchAttribute(TreeError):
    """No extended attribute of this name, or a row that cannot have one."""


class StaleFile(TreeError):
    """The source no longer has the file that was indexed."""


class SourceFailed(TreeError):
    """The source answered with another error; `errno` is its number."""

    def __init__(self, errno: int, message: str) -> None:
        super().__init__(message)
        self.errno = errno
