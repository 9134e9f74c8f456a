"""A mount and its source side by side: steps that change the source, break and mend what is below, and reads by four
users after each, every one held against what the source has been (`history.py`).

`python -m tests.mount.differing --steps 2000 --seed 1` does many on one mount; `scripts/differential.py` calls it.
"""

from __future__ import annotations

import argparse
import errno
import mmap
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from slow_source import SlowSource
from tqdm import tqdm

from nopfsfs.control.client import Refused, call
from nopfsfs.control.process_list import living, read_pids
from nopfsfs.errors import NopfsError
from tests.mount import rights
from tests.mount.acting import Outcome, User
from tests.mount.harness import Mounted, content, module, mounted, run
from tests.mount.history import READ, Attributes, Entry, History
from tests.waiting import wait_until

OWNER, GROUP, OTHER = 54320, 54322, 54323
MEMBER = 54321
USERS = {"root": (0, (0,)), "owner": (OWNER, (OWNER,)), "group": (MEMBER, (MEMBER, GROUP)), "other": (OTHER, (OTHER,))}
SIZES = (0, 1, 4096, 5000, 70_000, 70_000, 300_000, 1_300_000)
MODES = (0o644, 0o640, 0o600, 0o604, 0o444, 0o000)
DIR_MODES = (0o755, 0o750, 0o700, 0o711, 0o755)
IO_TIMEOUT_S = 3.0
STEP_S = 25.0  # for what a user does at a time: a hang is a difference
SETTLED_S = 12.0  # for a changed file to be taken up once it is read
SOURCE_CACHE_S = 1.1  # for which the slow source's own names of directories may be old
HELD_MOST = 8  # handles that stay open over steps
DIRECT_ALIGN = 4096
READS = ("read", "read", "read", "direct", "mapped")
LOOKS = ("stat", "stat", "getxattr", "write")


class Difference(AssertionError):
    """The mount shows what the source has not, or fails where nothing has failed."""


@dataclass(frozen=True)
class Kind:
    """A way to mount. `slow`: over a source that can fail and stall; `lasting`: servers and supervisor may die."""

    name: str
    flags: tuple[str, ...] = ()
    disk: bool = False
    slow: bool = False
    lasting: bool = True


KINDS = (
    Kind("plain", ("--ram", "1M")),
    Kind("roomy"),
    Kind("ranges", ("--ram", "4M")),
    Kind("disk", ("--ram", "6M"), disk=True),
    Kind("passthrough", ("--passthrough", "on"), disk=True),
    Kind("two servers", ("--servers", "2")),
    Kind("tripwire", ("--signal", "tripwire")),
    Kind("no fast path", ("--no-fast-path",), lasting=False),
    Kind("slow", slow=True),
    Kind("slow, disk", ("--ram", "6M"), disk=True, slow=True),
)


@dataclass
class Held:
    """An open handle. `may_be`: what its file was when it was opened, as far as what was read does not exclude it."""

    user: User
    key: int
    path: str
    may_be: list[bytes]


@dataclass
class Machine:
    """See the module. Each method in STEPS is one step; `check` is to follow it."""

    m: Mounted
    tree: Path  # where the source is changed: the source itself, or what is below the slow one
    kind: Kind
    users: dict[str, User]
    slow: SlowSource | None
    disk: Path | None
    history: History
    held: list[Held] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    keys: int = 0
    made: int = 0
    stopped: int = 0  # pid of a stager that is stopped
    excused_until: float = 0.0  # errors of the source may come until then

    # ---- what is changed ----------------------------------------------------------------------------------

    def at(self, path: str) -> Path:
        return self.tree / path

    def new(self, size: int) -> bytes:
        self.made += 1
        return content(1000 + self.made, size)

    def _file(self, rng: Random) -> str | None:
        present = self.history.present(stat.S_IFREG)
        return rng.choice(present) if present else None

    def _directory(self, rng: Random) -> str | None:
        present = self.history.present(stat.S_IFDIR)
        return rng.choice(present) if present else None

    def _aside(self, name: str) -> Path:
        self.made += 1
        return self.tree / f".{name}{self.made}"

    def overwrite(self, rng: Random) -> str | None:
        path = self._file(rng)
        if path is not None:
            size = self.at(path).stat().st_size
            size = rng.choice((size, size, rng.choice(SIZES)))
            with self.at(path).open("r+b") as file:
                file.write(self.new(size))
                file.truncate(size)
        return path

    def append(self, rng: Random) -> str | None:
        path = self._file(rng)
        if path is not None:
            with self.at(path).open("ab") as file:
                file.write(self.new(rng.choice((1, 4096, 100_000))))
        return path

    def truncate(self, rng: Random) -> str | None:
        path = self._file(rng)
        if path is not None:
            os.truncate(self.at(path), rng.choice((0, 1, self.at(path).stat().st_size // 2)))
        return path

    def touch(self, rng: Random) -> str | None:
        path = self._file(rng)
        if path is not None:
            os.utime(self.at(path), rng.choice((None, (1, 1))))
        return path

    def replace(self, rng: Random) -> str | None:
        """By rename; now and then with the size and mtime of the one before."""
        path = self._file(rng)
        if path is not None:
            before, other = self.at(path).stat(), self._aside("new")
            alike = rng.random() < 0.4
            other.write_bytes(self.new(before.st_size if alike else rng.choice(SIZES)))
            os.chown(other, before.st_uid, before.st_gid)
            other.chmod(stat.S_IMODE(before.st_mode))
            if alike:
                os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
            os.replace(other, self.at(path))
        return path

    def write_mapped(self, rng: Random) -> str | None:
        path = self._file(rng)
        if path is None or not self.at(path).stat().st_size:
            return None
        with self.at(path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
            data = self.new(8)
            at = rng.randrange(len(pages))
            pages[at : at + 8] = data[: len(pages) - at]
            pages.flush()
        return path

    def rename_file(self, rng: Random) -> str | None:
        path = self._file(rng)
        if path is not None:
            os.rename(self.at(path), self._aside("moved"))
        return path

    def rename_directory(self, rng: Random) -> str | None:
        path = self._directory(rng)
        if path is not None:
            os.rename(self.at(path), self._aside("dir"))
            self._await_source()
        return path

    def swap_files(self, rng: Random) -> str | None:
        return self._swap(self._file(rng), self._file(rng))

    def swap_directories(self, rng: Random) -> str | None:
        one, two = self._directory(rng), self._directory(rng)
        if one is None or two is None or f"{one}/".startswith(f"{two}/") or f"{two}/".startswith(f"{one}/"):
            return None
        return self._swap(one, two)

    def _swap(self, one: str | None, two: str | None) -> str | None:
        if one is None or two is None or one == two:
            return None
        aside = self._aside("swap")
        os.rename(self.at(one), aside)
        os.rename(self.at(two), self.at(one))
        os.rename(aside, self.at(two))
        self._await_source()
        return f"{one} {two}"

    def link_in_place(self, rng: Random) -> str | None:
        """A directory, or a file, goes, and a link is in its place: to one inside, or to what root alone may read."""
        path = self._directory(rng) if rng.random() < 0.7 else self._file(rng)
        if path is None:
            return None
        is_directory = self.at(path).is_dir()
        os.rename(self.at(path), self._aside("gone"))
        inside = self._directory(rng) if is_directory else self._file(rng)
        targets = [self.secret if is_directory else self.secret / "f0"] + ([self.at(inside)] if inside else [])
        os.symlink(rng.choice(targets), self.at(path))
        self._await_source()
        return path

    @property
    def secret(self) -> Path:
        return self.tree.parent / "secret"

    def hard_link(self, rng: Random) -> str | None:
        path = self._file(rng)
        if path is not None:
            os.link(self.at(path), self._aside("link"))
        return path

    def _one(self, rng: Random) -> str | None:
        return self._file(rng) if rng.random() < 0.5 else self._directory(rng)

    def chmod(self, rng: Random) -> str | None:
        path = self._one(rng)
        if path is not None:
            self.at(path).chmod(rng.choice(DIR_MODES if self.at(path).is_dir() else MODES))
        return path

    def chown(self, rng: Random) -> str | None:
        path = self._one(rng)
        if path is not None:
            os.chown(self.at(path), rng.choice((0, OWNER, OTHER)), rng.choice((0, GROUP)))
        return path

    def setfacl(self, rng: Random) -> str | None:
        path = self._one(rng)
        if path is None:
            return None
        if rng.random() < 0.3:
            try:
                os.removexattr(self.at(path), rights.ACL)
            except OSError:
                return None
            return path
        bits = rng.choice((0, 4, 5, 7))
        who = rng.choice(((rights.USER, OTHER), (rights.GROUP, GROUP)))
        os.setxattr(self.at(path), rights.ACL, rights.acl(
            (rights.USER_OBJ, 7, rights.NO_ID), *([(rights.USER, bits, who[1])] if who[0] == rights.USER else []),
            (rights.GROUP_OBJ, rng.choice((0, 5)), rights.NO_ID),
            *([(rights.GROUP, bits, who[1])] if who[0] == rights.GROUP else []),
            (rights.MASK, rng.choice((7, 7, 0)), rights.NO_ID), (rights.OTHER, rng.choice((0, 5)), rights.NO_ID),
        ))  # fmt: skip
        return path

    def set_label(self, rng: Random) -> str | None:
        path = self._file(rng)
        if path is not None:
            os.setxattr(self.at(path), "user.label", b"label %d" % rng.randrange(100))
        return path

    def delete(self, rng: Random) -> str | None:
        path = self._file(rng)
        if path is not None:
            self.at(path).unlink()
        return path

    def come_back(self, rng: Random) -> str | None:
        """Something that is gone is there again: the same kind, with other bytes."""
        gone = [path for path, e in self.history.entries.items() if path and (e.now is None or e.now.kind != e.kind)]
        for path in rng.sample(gone, len(gone)):
            entry, full = self.history.entries[path], self.at(path)
            if not full.parent.is_dir() or self._leads_by_link(path) or stat.S_ISLNK(entry.kind):
                continue
            if full.is_symlink() or full.is_file():
                full.unlink()
            if full.exists():
                continue
            if stat.S_ISDIR(entry.kind):
                full.mkdir()
                full.chmod(0o755)
            else:
                full.write_bytes(self.new(rng.choice(SIZES)))
                full.chmod(rng.choice(MODES))
                os.chown(full, OWNER, GROUP)
            self._await_source()
            return path
        return None

    def _leads_by_link(self, path: str) -> bool:
        above = os.path.dirname(path)
        return bool(above) and (self.at(above).is_symlink() or self._leads_by_link(above))

    def become_a_directory(self, rng: Random) -> str | None:
        path = self._file(rng)
        if path is not None:
            self.at(path).unlink()
            self.at(path).mkdir()
            self._await_source()
        return path

    def add_file(self, rng: Random) -> str | None:
        path = self._directory(rng)
        if path is not None:
            (self.at(path) / f"added{self.made}").write_bytes(self.new(10))
        return path

    def _await_source(self) -> None:
        if self.slow is not None:
            time.sleep(SOURCE_CACHE_S)  # nothing tells when the kernel forgets the names that it has of it

    # ---- what breaks --------------------------------------------------------------------------------------

    def fail_source(self, rng: Random) -> str | None:
        if self.slow is None:
            return None
        which, pattern = rng.choice(("read", "open", "any")), rng.choice(("*", "a/*"))
        self.slow.fail(which, errno.EIO, pattern, rng.choice((1, 5, None)))
        self.excused_until = float("inf")
        return "EIO"

    def stall_source(self, rng: Random) -> str | None:
        path = self._file(rng)
        if self.slow is None or path is None:
            return None
        self.slow.stall(rng.choice(("read", "open")), path, 1)
        self.excused_until = float("inf")
        return path

    def release_source(self, rng: Random) -> str | None:
        if self.slow is None or self.excused_until != float("inf"):
            return None
        self.slow.release()
        self.excused_until = time.monotonic() + IO_TIMEOUT_S + 1.0
        return "released"

    def fill_disk(self, rng: Random) -> str | None:
        if self.disk is None:
            return None
        filler = self.disk / "filler"
        if filler.exists():
            filler.unlink()
            return "emptied"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        return "full"

    def _kill(self, role: str) -> str | None:
        found = [p for p in living(read_pids(self.m.state_dir)) if p.role.startswith(role)]
        if not found or (self.stopped and role == "stager"):
            return None
        found[0].signal(signal.SIGKILL)
        return role

    def kill_stager(self, rng: Random) -> str | None:
        return self._kill("stager")

    def kill_server(self, rng: Random) -> str | None:
        return self._kill("server") if self.kind.lasting else None

    def kill_supervisor(self, rng: Random) -> str | None:
        if not self.kind.lasting or self.stopped or self._kill("supervisor") is None:
            return None
        if not wait_until(lambda: all(p.role != "supervisor" for p in living(read_pids(self.m.state_dir))), 10):
            raise Difference("a killed supervisor lives on")
        adopted = run([*module("nopfs"), "adopt", str(self.m.path)])
        if adopted.returncode:
            raise Difference(f"nopfs adopt: {adopted.stderr}")
        return "adopted"

    def stop_stager(self, rng: Random) -> str | None:
        """It is stopped; or it goes on."""
        if self.stopped:
            with_it, self.stopped = self.stopped, 0
            try:
                os.kill(with_it, signal.SIGCONT)
            except ProcessLookupError:
                return "replaced"
            return "goes on"
        found = [p for p in living(read_pids(self.m.state_dir)) if p.role == "stager"]
        if found:
            self.stopped = found[0].pid
            found[0].signal(signal.SIGSTOP)
        return "stopped" if found else None

    # ---- what is asked for --------------------------------------------------------------------------------

    def hold(self, rng: Random) -> str | None:
        """A user opens a file, for long."""
        if len(self.held) >= HELD_MOST:
            return self.let_go(rng)
        user, path = rng.choice(list(self.users.values())), self._any(rng, stat.S_IFREG)
        self.keys += 1
        entry = self.history.entries[path]
        may_be = list(entry.contents)
        outcome = user.one("hold", self.keys, str(self.m.path / path), limit_s=STEP_S)
        self._check_errno(user, entry, path, outcome, READ)
        if not outcome.errno:
            self.held.append(Held(user, self.keys, path, may_be))
        return path

    def let_go(self, rng: Random) -> str | None:
        if not self.held:
            return None
        held = self.held.pop(rng.randrange(len(self.held)))
        held.user.one("let_go", held.key, limit_s=STEP_S)
        return held.path

    def settle(self, rng: Random) -> str | None:
        """A file that is there, and as it was a moment ago, can be read in the end, whole."""
        path = self._file(rng)
        if path is None or self.excused_until > time.monotonic() or self.stopped:
            return None
        deadline = time.monotonic() + SETTLED_S
        while True:
            outcome = self.users["root"].one("read", str(self.m.path / path), limit_s=STEP_S)
            self._check_read(self.users["root"], path, outcome)
            if not outcome.errno:
                return path
            if time.monotonic() > deadline:
                raise Difference(f"{path} is never read again: {errno.errorcode[outcome.errno]}")
            time.sleep(0.1)

    def recheck(self, rng: Random) -> str | None:
        """The mount is asked for one complete look, if it knows how: then rights agree exactly."""
        if self.excused_until > time.monotonic() or self.stopped:
            return None
        deadline, number = time.monotonic() + STEP_S, {}
        while True:
            try:
                found = call(self.m.state_dir, "recheck", **number)  # type: ignore[arg-type]
            except Refused:
                return None
            except NopfsError as e:
                raise Difference(f"recheck: {e.message}") from e
            if found.get("done", True):
                self.history.looked()
                return "all"
            if time.monotonic() > deadline:
                raise Difference(f"recheck does not come to an end: {found}")
            number = {"number": number.get("number", found["number"])}
            time.sleep(0.05)

    # ---- what must hold -----------------------------------------------------------------------------------

    def _any(self, rng: Random, kind: int) -> str:
        return rng.choice([path for path, entry in self.history.entries.items() if entry.kind == kind and path])

    def check(self, rng: Random) -> None:
        """Every user looks at some of all that there is."""
        self.history.look()
        for user in self.users.values():
            entries = self.history.entries.items()
            wanted = [(path, self._action(rng, entry)) for path, entry in entries if rng.random() < 0.3]
            outcomes = user.do([self._as_told(path, action) for path, action in wanted], STEP_S)
            for (path, action), outcome in zip(wanted, outcomes, strict=True):
                self.checked += 1
                self._check(user, path, action, outcome)
        for held in list(self.held):
            self._check_held(held, rng)

    def _action(self, rng: Random, entry: Entry) -> str:
        if rng.random() < 0.3:
            return rng.choice(LOOKS)
        return {stat.S_IFREG: rng.choice(READS), stat.S_IFDIR: "list", stat.S_IFLNK: "readlink"}[entry.kind]

    def _as_told(self, path: str, action: str) -> tuple[Any, ...]:
        full = str(self.m.path / path) if path else str(self.m.path)
        return (action, full, "user.label") if action == "getxattr" else (action, full)

    def _check(self, user: User, path: str, action: str, outcome: Outcome) -> None:
        try:
            if action in READS:
                self._check_read(user, path, outcome, mapped=action == "mapped")
            else:
                getattr(self, f"_check_{action}")(user, path, outcome)
        except Difference as e:
            raise Difference(f"{user.name}: {action} {path or '.'}: {e}") from None

    def _check_errno(self, user: User, entry: Entry, path: str, outcome: Outcome, right: int | None) -> None:
        """An errno is a documented one; no errno where none is allowed."""
        code, uid, groups = outcome.errno, user.uid, user.groups
        could = self.history.could(path, uid, groups, right)
        if not code:
            if not could:
                way = [(one.path, one.rights) for one in (entry, *self._way(path))]
                raise Difference(f"granted to who has no right to it, nor had: {way}")
            return
        if code == errno.EACCES and not self.history.must(path, uid, groups, right):
            return
        if code == errno.ESTALE and entry.kind == stat.S_IFREG and entry.has_changed:
            return
        if code == errno.EIO and time.monotonic() < self.excused_until:
            return
        raise Difference(f"{errno.errorcode.get(code, code)}, which nothing here explains")

    def _check_read(self, user: User, path: str, outcome: Outcome, *, mapped: bool = False) -> None:
        entry = self.history.entries[path]
        if mapped and outcome.errno in (errno.EIO, errno.ENODEV) and entry.has_changed:
            return  # SIGBUS; or a file that is empty by now
        self._check_errno(user, entry, path, outcome, READ)
        data = outcome.value
        if outcome.errno:
            right = not data or any(one.startswith(data) for one in entry.contents)
        else:
            right = data in entry.contents
        if not right:
            raise Difference(f"{len(data)} bytes that the file has never been: {self._of_which(data)}")

    def _of_which(self, data: bytes) -> str:
        """For a person: which file begins so."""
        names = [p for p, e in self.history.entries.items() if any(c[:64] == data[:64] for c in e.contents)]
        if data.startswith(b"secret"):
            names.append("what root alone may read")
        return f"it begins as {names}"

    def _check_stat(self, user: User, path: str, outcome: Outcome) -> None:
        entry = self.history.entries[path]
        self._check_errno(user, entry, path, outcome, None)
        shown: Attributes = outcome.value
        had = [one.attributes for one in entry.versions]
        # Rights count as soon as a change is seen, size and times when it has been taken up.
        known = {one[:3] for one in had}, {one[3:] for one in had}
        if not outcome.errno and (
            shown[:3] not in known[0] or (shown[3:] not in known[1] and not stat.S_ISDIR(entry.kind))
        ):
            raise Difference(f"attributes {shown} that it has never had: {had}")

    def _check_getxattr(self, user: User, path: str, outcome: Outcome) -> None:
        entry = self.history.entries[path]
        if outcome.errno in (errno.ENODATA, errno.ESTALE, errno.EPERM, errno.EOPNOTSUPP):
            if outcome.errno == errno.ESTALE and not entry.has_changed and None not in [e.now for e in self._way(path)]:
                raise Difference("ESTALE of what has not changed")
            return
        self._check_errno(user, entry, path, outcome, READ)
        if not outcome.errno and outcome.value not in [one.label for one in entry.versions]:
            raise Difference(f"a label that it has never had: {outcome.value!r}")

    def _way(self, path: str) -> list[Entry]:
        return self.history._chain(path)

    def _check_write(self, user: User, path: str, outcome: Outcome) -> None:
        if outcome.errno not in (errno.EROFS, errno.EACCES, errno.EISDIR, errno.ELOOP, errno.ENOENT):
            raise Difference(f"opened for writing: {outcome.errno}")

    def _check_list(self, user: User, path: str, outcome: Outcome) -> None:
        entry = self.history.entries[path]
        self._check_errno(user, entry, path, outcome, READ)
        names = sorted(os.path.basename(one) for one in self.history.entries if one and os.path.dirname(one) == path)
        if not outcome.errno and outcome.value != names:
            raise Difference(f"lists {outcome.value}, was indexed as {names}")

    def _check_readlink(self, user: User, path: str, outcome: Outcome) -> None:
        entry = self.history.entries[path]
        self._check_errno(user, entry, path, outcome, None)
        if not outcome.errno and outcome.value != entry.target:
            raise Difference(f"leads to {outcome.value}, was indexed as {entry.target}")

    def _check_held(self, held: Held, rng: Random) -> None:
        entry = self.history.entries[held.path]
        offset, length = rng.randrange(1_400_000), rng.choice((1, 4096, 200_000))
        offset = rng.choice((0, offset, offset % 5000))
        outcome = held.user.one("pread", held.key, offset, length, limit_s=STEP_S)
        self.checked += 1
        if outcome.errno == errno.EACCES and held.user.uid == 0:
            raise Difference(f"EACCES for a handle of {held.path}")
        if outcome.errno:
            self._check_errno(held.user, entry, held.path, outcome, READ)
            length = len(outcome.value)
        left = [one for one in held.may_be if one[offset : offset + length] == outcome.value]
        if not left:
            shown = f"{len(outcome.value)} bytes at {offset}"
            raise Difference(f"a handle of {held.path} shows {shown} of no version that it was opened of")
        held.may_be[:] = left

    # ---- one after the other ------------------------------------------------------------------------------

    def step(self, name: str, rng: Random) -> None:
        """Do a step, and check. Raises Difference, Hangs."""
        what: Callable[[Random], str | None] = getattr(self, name)
        began = time.monotonic()
        told = what(rng)
        self.done[name if told is not None else f"{name}: not now"] += 1
        self.log.append(f"{name} {told if told is not None else '(not now)'} {time.monotonic() - began:.2f} s")
        self.check(rng)
        self.log[-1] += f", looked at in {time.monotonic() - began:.2f} s"

    def end(self) -> None:
        """All faults end; then whatever is there can be read."""
        rng = Random(0)
        if self.stopped:
            self.stop_stager(rng)
        if self.slow is not None:
            self.slow.release()
        if self.excused_until > time.monotonic():
            self.excused_until = time.monotonic() + IO_TIMEOUT_S + 1.0
            time.sleep(IO_TIMEOUT_S + 1.0)
        while self.held:
            self.let_go(rng)
        self.history.look()
        for path in self.history.present(stat.S_IFREG):
            self.settle_one(path)

    def settle_one(self, path: str) -> None:
        class One(Random):
            def choice(self, _: Any) -> Any:
                return path

        self.settle(One())


CHANGES = (
    "overwrite", "overwrite", "append", "truncate", "touch", "replace", "replace", "write_mapped", "rename_file",
    "rename_directory", "swap_files", "swap_directories", "link_in_place", "hard_link", "chmod", "chmod", "chown",
    "setfacl", "set_label", "delete", "come_back", "come_back", "come_back", "come_back", "become_a_directory",
    "add_file",
)  # fmt: skip
FAULTS = ("fail_source", "stall_source", "release_source", "release_source", "fill_disk", "kill_stager", "kill_server",
          "kill_supervisor", "stop_stager", "stop_stager")  # fmt: skip
USES = ("hold", "hold", "let_go", "settle", "settle", "recheck")
STEPS = (*CHANGES, *FAULTS, *USES)


def make_tree(root: Path) -> None:
    """Directories and files of several owners and rights, links of both kinds; beside it what root alone may read."""
    root.mkdir()
    root.chmod(0o755)
    for number, path in enumerate(("f0", "f1", "a/f2", "a/f3", "a/d/f0", "a/d/f4", "a/d/f5", "b/f6", "b/f7", "b/c/e/f8",
                                   "b/c/e/f9", "b/c/f10")):  # fmt: skip
        full = root / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(content(number + 1, SIZES[number % len(SIZES)]))
        os.chown(full, OWNER, GROUP)
        full.chmod(MODES[number % 3])
    os.link(root / "a/f3", root / "b/again")
    os.symlink("d/f4", root / "a/link")
    for directory in ("a", "a/d", "b", "b/c", "b/c/e"):
        os.chown(root / directory, OWNER, GROUP)
        (root / directory).chmod(0o755)
    os.setxattr(root / "f0", "user.label", b"first")
    # Or the kernel would not be told to ask for any.
    os.setxattr(root / "b/c/f10", rights.ACL, rights.acl(
        (rights.USER_OBJ, 6, rights.NO_ID), (rights.USER, 4, OTHER), (rights.GROUP_OBJ, 4, rights.NO_ID),
        (rights.MASK, 7, rights.NO_ID), (rights.OTHER, 0, rights.NO_ID),
    ))  # fmt: skip
    secret = root.parent / "secret"
    secret.mkdir(0o700)
    for name in ("f0", "f4", "f5", "f2", "f3", "f6", "f7", "f8", "f9", "f10", "c", "e"):
        (secret / name).write_bytes(b"secret " * 10_000)
        os.setxattr(secret / name, "user.label", b"secret")


@contextmanager
def machine(work: Path, kind: Kind, hangs_s: float) -> Iterator[Machine]:
    """A mount of that kind, with nothing done yet."""
    tree = work / "tree"
    make_tree(tree)
    with ExitStack() as stack:
        slow = stack.enter_context(SlowSource(tree, work / "slow")) if kind.slow else None
        source = slow.path if slow is not None else tree
        flags, disk = kind.flags, None
        if kind.disk:
            disk = work / "disk"
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6M", "tmpfs", disk], check=True)
            stack.callback(subprocess.run, ["umount", "-l", disk], check=True)
            flags = (*flags, "--disk", f"{disk}:5M")
        users = {name: stack.enter_context(User(name, uid, groups)) for name, (uid, groups) in USERS.items()}
        history = History(tree)
        m = stack.enter_context(
            mounted(source, *flags, "--io-timeout", f"{IO_TIMEOUT_S:g}s", work=work, hangs_s=hangs_s)
        )
        m.errors_expected = True
        made = Machine(m, tree, kind, users, slow, disk, history)
        yield made
        made.end()
        if disk is not None:
            (disk / "filler").unlink(missing_ok=True)


# ---- a long run -------------------------------------------------------------------------------------------------


def names(without: list[str]) -> list[str]:
    return [name for name in STEPS if name not in without]


def long_run(steps: int, seed: int, kind: Kind, without: list[str]) -> int:
    """Steps on one mount; the exit code."""
    rng, chosen = Random(seed), names(without)
    work = Path(tempfile.mkdtemp(prefix="differential-"))
    work.chmod(0o755)
    made: Machine | None = None
    began = time.monotonic()
    try:
        with machine(work, kind, hangs_s=60 + 5.0 * steps) as made:
            for _ in tqdm(range(steps), unit="step", disable=None, leave=False, delay=2):
                made.step(rng.choice(chosen), rng)
    except AssertionError as e:
        print(f"FOUND {type(e).__name__}: {str(e)[:2000]}\n  again: --seed {seed} --kind '{kind.name}'", flush=True)
        print(*[f"    {line}" for line in (made.log if made is not None else [])[-12:]], sep="\n", flush=True)
        if made is not None and made.m.log.exists():
            print(*[f"    | {line[:200]}" for line in made.m.log.read_text().splitlines()[-12:]], sep="\n", flush=True)
        return 1
    finally:
        if made is not None:
            passed = sum(count for name, count in made.done.items() if "not now" not in name)
            print(f"{kind.name}: {sum(made.done.values())} steps, {passed} of them with an effect, "
                  f"{made.checked} looks, {time.monotonic() - began:.0f} s, seed {seed}", flush=True)  # fmt: skip
        shutil.rmtree(work, ignore_errors=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=[kind.name for kind in KINDS], default="plain")
    parser.add_argument("--without", nargs="*", default=[], choices=sorted(set(STEPS)), metavar="STEP")
    options = parser.parse_args()
    kind = next(one for one in KINDS if one.name == options.kind)
    return long_run(options.steps, options.seed, kind, options.without)


if __name__ == "__main__":
    sys.exit(main())
