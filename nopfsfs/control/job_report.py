"""The report of a mount that goes to a file of the job (`nopfs-mount --job-report`), written as the job's user.

The mount may be root's, and the file system of the job's directory may refuse root, or not answer. So a process apart
gives up root for the user, for good, and writes. That process follows links of root and of the user only. The wait for
it has a limit.

    python -m nopfsfs.control.job_report FILE UID FD     UID: a number, or - for this user; FD: the text, -1: check FILE
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nopfsfs.control.options_file import read_options_of
from nopfsfs.system.as_user import become_user, bytes_as_user
from nopfsfs.system.atomic_file import whole_file
from nopfsfs.system.bounded_run import module_command, run_bounded
from nopfsfs.system.trusted_path import trusted_parent

WRITE_S = 4.0
_READ_S = 3.0  # to read the options of a mount of another user
_MODE = 0o644


def write_job_report(path: str, uid: int | None, record: Mapping[str, Any], limit_s: float = WRITE_S) -> str | None:
    """Write `record` as JSON to `path` as user `uid` (None: as this user), whole or not at all. Return None, or why the
    file could not be written within `limit_s` seconds."""
    try:
        text = os.memfd_create("nopfs-job-report")
    except OSError as error:
        return str(error.strerror)
    with open(text, "wb", buffering=0) as file:
        file.write(json.dumps(record, indent=2).encode() + b"\n")
        return _run(path, uid, text, limit_s)


def why_not_written(path: str, uid: int | None) -> str | None:
    """Return None where user `uid` (None: this user) may make a file at `path`; else why not."""
    return _run(path, uid, -1, WRITE_S)


def _run(path: str, uid: int | None, fd: int, limit_s: float) -> str | None:
    who = "-" if uid is None else str(uid)
    command = module_command("nopfsfs.control.job_report", path, who, str(fd))
    try:
        done = run_bounded(command, limit_s, pass_fds=() if fd < 0 else (fd,), cwd="/")
    except OSError as error:
        return str(error.strerror)
    if done is None:
        return f"its directory did not answer within {limit_s:g} s"
    return done.err.strip().rpartition("\n")[2] or f"it ended with status {done.code}" if done.code else None


@dataclass(frozen=True, slots=True)
class AskedReport:
    """The report that a mount was to write at its end. `known`: what is known of the mount without its processes."""

    path: str
    uid: int | None
    known: Mapping[str, Any]

    def write(self, record: Mapping[str, Any] | None) -> str | None:
        """Write the report in the place of a supervisor that could not: `record`, which is not the final one, or what
        is known without one. Return as `write_job_report`."""
        return write_job_report(self.path, self.uid, {**(self.known if record is None else record), "final": False})


def asked_report(state_dir: str, owner: int) -> AskedReport | None:
    """Return the report that a mount of user `owner` was to write; None where it was to write none.

    The path stands in a file of `owner`. So the report is written with no more than the rights of `owner`."""

    def read() -> bytes:
        return json.dumps(read_options_of(state_dir)).encode()

    with contextlib.suppress(OSError, ValueError):
        options = json.loads(bytes_as_user(owner, read, _READ_S)) or {}
        path, user = options.get("job_report"), options.get("uid") if owner == 0 else owner
        known = {name: options.get(name) for name in ("source", "mountpoint", "seed", "sampler")}
        if isinstance(path, str) and path.startswith("/"):
            return AskedReport(path, user if isinstance(user, int) else None, {"state": "killed", **known})
    return None


def main() -> None:
    path, user, fd = sys.argv[1:]
    try:
        if user != "-" and int(user) != os.geteuid():
            become_user(int(user))
        if int(fd) < 0:
            with trusted_parent(path) as (directory, _):
                if not os.access(f"/proc/self/fd/{directory}", os.W_OK | os.X_OK):
                    sys.exit("Permission denied")
            return
        os.lseek(int(fd), 0, os.SEEK_SET)
        with open(int(fd), "rb") as text, whole_file(path, _MODE) as file:
            file.write(text.read())
    except OSError as error:
        sys.exit(error.strerror or str(error))


if __name__ == "__main__":
    main()
