"""Paths of a mount that a person names, for commands that act on some of its files. The paths are words of the command
line, or the lines of a list. The mount itself is not touched."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from nopfsfs.control.find_mount import Located
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse.mount_table import lies_in
from nopfsfs.system.bounded_run import answers
from nopfsfs.text.printable import printable

LINE_MOST = 4096  # bytes of a path, as in the kernel
BATCH_BYTES = 48 << 10  # of the paths of one request, which has 64 KiB at most
ANSWER_S = 30.0  # a file system that takes longer is taken for dead


def named_paths(located: Located, word: str, paths: Sequence[str], listed: str | None) -> Iterator[str]:
    """Yield the paths below the mountpoint that `paths` or the lines of the file `listed` name. The path "" stands for
    all of the mount, and is yielded as well where neither is given. `word`: the mountpoint as the person wrote it.
    Raises NopfsError with Exit.USAGE."""
    roots = dict.fromkeys((located.path, os.path.abspath(word)))
    if listed is None:
        for path in paths or [""]:
            yield _below(path, roots, located.path)
        return
    if paths:
        raise _usage("--list: names the files; leave the paths out")
    found = False
    for number, path in _lines(listed):
        found = True
        try:
            yield _below(path, roots, located.path)
        except NopfsError as error:
            raise _usage(f"{listed}:{number}: {error.message}") from None
    if not found:
        raise _usage(f"{listed}: names no file; write one path a line")


def batches(paths: Iterable[str]) -> Iterator[list[str]]:
    """Yield the paths in lists that fit a request each."""
    batch: list[str] = []
    size = 0
    for path in paths:
        takes = len(json.dumps(path)) + 2
        if batch and size + takes > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += takes
    if batch:
        yield batch


def _below(path: str, roots: Iterable[str], mountpoint: str) -> str:
    """The path relative to the mountpoint. A path that is not absolute is relative to it already."""
    plain = os.path.normpath(path) if path else "."
    if os.path.isabs(plain):
        root = next((root for root in roots if lies_in(plain, root)), None)
        if root is None:
            raise _usage(f"{printable(path)} is not below {mountpoint}; name paths of the mount")
        plain = os.path.relpath(plain, root)
    if plain == ".." or plain.startswith("../"):
        raise _usage(f"{printable(path)} is outside {mountpoint}; paths are relative to it, or absolute")
    return "" if plain == "." else plain


def _lines(listed: str) -> Iterator[tuple[int, str]]:
    """(number, path) of each line of a list that is not empty."""
    if not answers(os.path.abspath(listed), ANSWER_S):
        raise _usage(f"{listed} did not answer within {ANSWER_S:.0f} s; name a list elsewhere")
    try:
        with open(listed, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _usage(f"{listed} is not a regular file; write the paths to one, one a line, and name it")
            yield from _lines_of(file, listed)
    except OSError as error:
        raise _usage(f"{listed}: {error.strerror}; name a list that can be read") from error
    except ValueError as error:  # a NUL in its name
        raise _usage(f"{listed!a}: {error}; name a list of paths") from error


def _lines_of(file: BinaryIO, listed: str) -> Iterator[tuple[int, str]]:
    number = 0
    while line := file.readline(LINE_MOST + 2):
        number += 1
        name = line.rstrip(b"\r\n")
        if len(name) > LINE_MOST or b"\0" in name:
            raise _usage(f"{listed}:{number}: is no path; a list has one path a line")
        if name:
            yield number, os.fsdecode(name)


def _usage(message: str) -> NopfsError:
    return NopfsError(Exit.USAGE, message)
