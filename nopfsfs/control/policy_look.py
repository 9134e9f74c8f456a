"""Looks for the policy files of a site. A program of its own, without the package: it starts in some milliseconds.

    python -I -S policy_look.py SOURCE [FILE]

prints a JSON list of [path, text or null, error or null]. The site's file is /etc/nopfs/policy.toml, or else
.nopfs-policy.toml at the root of the source's file system; FILE comes beside it. A file
that root or its directory's owner owns, and nobody else can write, is trusted.
"""

from __future__ import annotations

import json
import os
import stat
import sys

SITE, AT_ROOT = "/etc/nopfs/policy.toml", ".nopfs-policy.toml"
BYTES_MOST = 1 << 18

Found = list[tuple[str, "str | None", "str | None"]]


def read_trusted(path: str) -> str:
    """Return the text of a policy file. Raises FileNotFoundError, OSError and ValueError with what is wrong."""
    directory, name = os.path.split(os.path.abspath(path))
    above = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return read_trusted_in(above, name)
    finally:
        os.close(above)


def read_trusted_in(above: int, name: str) -> str:
    """Return the text of a policy file in the directory of that descriptor. Raises as `read_trusted`."""
    owner = os.fstat(above).st_uid
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("not a regular file")
        if found.st_uid not in (0, owner):
            raise ValueError(f"of user {found.st_uid}, neither root's nor of the owner of its directory")
        if found.st_mode & 0o022:
            raise ValueError("others than its owner can write it: chmod go-w")
        raw = file.read(BYTES_MOST + 1)
    if len(raw) > BYTES_MOST:
        raise ValueError(f"larger than {BYTES_MOST >> 10} KiB")
    return raw.decode()  # UnicodeDecodeError is a ValueError


def at_root(source: str) -> str:
    """Return the path of a policy file at the root of the file system of `source`."""
    path = os.path.realpath(source)
    device = os.stat(path).st_dev
    while path != "/" and os.stat(os.path.dirname(path)).st_dev == device:
        path = os.path.dirname(path)
    return os.path.join(path, AT_ROOT)


def _look(path: str, *, needed: bool) -> Found:
    try:
        return [(path, read_trusted(path), None)]
    except FileNotFoundError:
        return [(path, None, "there is no such file")] if needed else []
    except NotADirectoryError as error:
        return [(path, None, str(error.strerror))] if needed else []
    except OSError as error:
        return [(path, None, str(error.strerror))]
    except ValueError as error:
        return [(path, None, str(error))]


def main() -> None:
    source, *files = sys.argv[1:]
    found = _look(SITE, needed=False)
    if not found:
        try:
            found = _look(at_root(source), needed=False)
        except OSError as error:
            found = [(source, None, str(error.strerror))]
    for file in files:
        found += _look(file, needed=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
