"""Answers to the kernel's requests, written to the FUSE descriptor."""

from __future__ import annotations

import contextlib
import errno
import logging
import os

from nopfsfs.fuse import kernel
from nopfsfs.fuse.kernel import OUT_HEADER
from nopfsfs.server.file_access import Bytes

log = logging.getLogger(__name__)


class KernelAnswers:
    """Writes answers to `fuse_fd`. None raises: nobody waits for an answer that the kernel refuses."""

    def __init__(self, fuse_fd: int) -> None:
        self._fd = fuse_fd

    def reply(self, unique: int, data: Bytes) -> None:
        """Answer a request with data."""
        self.write(OUT_HEADER.pack(OUT_HEADER.size + len(data), 0, unique), data)

    def fail(self, unique: int, code: int) -> bool:
        """Answer a request with an errno, or with 0 and no data. Return True where that was accepted."""
        return self.write(OUT_HEADER.pack(OUT_HEADER.size, -code, unique))

    def opened(self, unique: int, fh: int, registered: int) -> bool:
        """Answer an OPEN; `registered`: the file to pass it through to, or 0. Return True where that was accepted."""
        how = kernel.FOPEN_PASSTHROUGH if registered else kernel.FOPEN_KEEP_CACHE
        return self.write(kernel.OPEN_OUT.pack(kernel.OPEN_OUT.size, 0, unique, fh, how, registered))

    def ask_for_interrupt(self, unique: int) -> None:
        """Have the kernel say again, by an INTERRUPT, that the reader of a request got a signal, where it did. Only odd
        numbers belong to no request."""
        if unique % 2 == 0:
            with contextlib.suppress(OSError):  # EINVAL: there was none
                os.write(self._fd, OUT_HEADER.pack(OUT_HEADER.size, -errno.EAGAIN, unique | 1))

    def write(self, *parts: Bytes) -> bool:
        """Write an answer. Return True where it was accepted."""
        try:
            os.writev(self._fd, parts)
        except OSError as e:
            # ENOENT: the reader was killed meanwhile, or another server has answered; ENODEV: the mount is gone.
            if e.errno not in (errno.ENOENT, errno.ENODEV, errno.EPERM):
                log.error("answering: %s", e)
            return False
        return True
