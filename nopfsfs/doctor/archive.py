"""The archive of a diagnosis: a compressed tar file that only this user can read."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nopfsfs.system.trusted_path import trusted_parent


def files_of(parts: Mapping[str, Any], report: str) -> dict[str, bytes]:
    """The files of an archive, by name: the report, the log as it is, the other parts as JSON."""
    files = {"report.txt": _bytes(f"{report}\n")}
    for name, part in parts.items():
        if name == "log" and isinstance(part, Mapping) and part.get("lines"):
            files["log.txt"] = _bytes("\n".join([*map(str, part["lines"]), ""]))
        else:
            files[f"{name}.json"] = json.dumps(part, indent=1).encode()
    return files


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def write_archive(path: str, files: Mapping[str, bytes]) -> None:
    """Write the files to a new archive at `path`, with mode 0600; it is removed after an error. A file or link that is
    there is left alone, and no link of another user on the way is followed. Raises OSError."""
    top = os.path.basename(path).partition(".")[0]
    with trusted_parent(path) as (directory, name):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=directory)
        try:
            with open(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
                for member, data in files.items():
                    info = tarfile.TarInfo(f"{top}/{member}")
                    info.size, info.mode, info.mtime = len(data), 0o600, int(time.time())
                    archive.addfile(info, io.BytesIO(data))
        except BaseException:
            with suppress(OSError):
                os.unlink(name, dir_fd=directory)
            raise
