"""`nopfs-umount`: ends a mount in any state, within `--timeout` and 48 s. Safe to run twice.

The steps, called the ladder: ask the daemon to prepare, and unmount. While the mount is busy, name the processes that
use it and try again. Then unmount lazily and send the daemon the request to stop. Then SIGTERM, abort this one FUSE
connection, SIGKILL. The mountpoint itself is never touched.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import Any

from nopfsfs import __version__
from nopfsfs.cli.error_exit import Parser, printable, run, say
from nopfsfs.cli.settings import parsed
from nopfsfs.cli.status_text import final_table, in_words
from nopfsfs.control.client import Connection, NoAnswer, Record, call
from nopfsfs.control.find_mount import Located, locate
from nopfsfs.control.job_report import asked_report
from nopfsfs.control.mounts_below import MountsBelow, mounts_below
from nopfsfs.control.process_list import Process, living, read_pids, wait_all
from nopfsfs.control.stale_mounts import clear_stale, daemon_is_dead, held_state_dir, stopped_supervisor
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse.mount_table import HeldConnection, Holder, holders, is_in_place
from nopfsfs.fuse.mounting import Busy, NotMounted, may_mount, unmount
from nopfsfs.system import life_lock
from nopfsfs.system.as_user import as_user
from nopfsfs.system.atomic_file import whole_file
from nopfsfs.system.state_dirs import StateDir
from nopfsfs.text.units import parse_duration

PROGRAM = "nopfs-umount"
DEFAULT_BUSY_S = 10.0
RETRY_S = 0.2  # between two tries on a busy mount
STEPS_S = 10.0  # for what the ladder does between its waits, on a busy node
NAME_AGAIN_S = 2.0  # between two searches for the processes that use the mount: each reads all of /proc


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of the steps of the ladder, in seconds."""

    busy: float = DEFAULT_BUSY_S
    call: float = 3.0  # one request to the daemon
    end: float = 10.0  # the end of the daemon: half of it for the final record, while reads in flight come to an end
    term: float = 3.0  # after SIGTERM
    kill: float = 3.0  # after SIGKILL

    @property
    def longest(self) -> float:
        """Seconds after which the whole ladder has ended, whatever the mount does: some steps occur twice."""
        return self.busy + 4 * self.call + 2 * self.end + self.term + self.kill + STEPS_S


@dataclass(slots=True)
class Ending:
    """The outcome of the unmount of one mount."""

    code: Exit = Exit.OK
    record: Record | None = None
    final: bool = False  # True when the record is the last one, not a status from before


@dataclass(frozen=True, slots=True)
class Unmounter:
    """A run of the ladder for one mount."""

    located: Located
    limits: Limits
    say: Callable[[str], None]
    env: Mapping[str, str]
    state: StateDir
    ending: Ending = field(default_factory=Ending)

    def run(self) -> Ending:
        """Unmount; return the outcome. Raises NopfsError where there is no right to unmount."""
        if daemon_is_dead(self.located.mount, self.env):
            clear_stale(self.located.mount, self.env)
            self.say(f"cleared the stale mount at {self.located.path}: its daemon was dead")
            return self.ending
        state_dir, owner = self.located.state_dir, self.located.owner
        processes = read_pids(state_dir, owner=owner)
        self._end_stopped_supervisor(processes)
        with ExitStack() as stack:
            alive = life_lock.open_lock(state_dir, owner)
            if alive >= 0:
                stack.callback(os.close, alive)
            held = HeldConnection(self.located.mount)
            stack.callback(held.close)
            last = asked = None
            with suppress(NopfsError):  # a daemon that does not answer is dealt with below
                self.ending.record = call(state_dir, "status", self.limits.call, owner=owner)
                last = stack.enter_context(Connection(state_dir, self.limits.call, owner))
                last.send("wait-final", self.limits.call)
                # Kept open: when this command is interrupted, the connection closes, and the daemon goes on as before.
                asked = stack.enter_context(Connection(state_dir, self.limits.call, owner))
                asked.send("prepare-unmount", self.limits.call)
                asked.receive(self.limits.call)
            self._unmount(processes)
            if self.ending.code is Exit.LAZY:
                self._stop(asked)
            self._await_end(last, asked, processes, held, alive)
        return self.ending

    def _stop(self, asked: Connection | None) -> None:
        """Send the request to stop. `asked`: a connection made while the mount was there: a new one could lead to the
        daemon of another."""
        if asked is not None:
            with suppress(NopfsError):
                asked.send("stop", self.limits.call)
                asked.receive(self.limits.call)

    def _end_stopped_supervisor(self, processes: Sequence[Process]) -> None:
        """Kill a supervisor that a signal has stopped, where other processes of the mount live. A stopped supervisor
        answers no request; the others end the mount without it."""
        supervisor = stopped_supervisor(self.located.state_dir, self.located.owner)
        if supervisor is not None and len(living(processes)) > 1:
            self.say(f"the supervisor (pid {supervisor.pid}) is stopped: ending it")
            self._signal([supervisor], signal.SIGKILL)
            supervisor.wait(self.limits.kill)

    def _unmount(self, processes: Sequence[Process]) -> None:
        """Unmount. While the mount is busy, try again until the time of --timeout is over; then unmount lazily."""
        path, mount = self.located.path, self.located.mount
        deadline = time.monotonic() + self.limits.busy
        named: tuple[Holder, ...] = ()
        look_at = 0.0
        while True:
            try:
                unmount(mount)
                return
            except NotMounted:
                return  # another process has unmounted it meanwhile, and perhaps mounted another
            except Busy:
                now = time.monotonic()
            if now >= look_at:
                named = self._name_holders(named, [p.pid for p in processes])
                look_at = now + NAME_AGAIN_S
            if now >= deadline:
                break
            time.sleep(min(RETRY_S, deadline - now))
        self.say(f"{path} is still in use after {self.limits.busy:.3g} s: unmounting it lazily")
        with suppress(NotMounted):
            unmount(mount, lazy=True)
        self.ending.code = Exit.LAZY

    def _name_holders(self, named: tuple[Holder, ...], ours: Sequence[int]) -> tuple[Holder, ...]:
        found = holders(self.located.mount, ignore=(*ours, os.getpid()))
        if found != named or not named:
            who = "; ".join(f"{h.command} (pid {h.pid}, {h.what})" for h in found) or "nobody whom you may see"
            self.say(f"{self.located.path} is in use by {who}")
        return found

    def _await_end(
        self, last: Connection | None, asked: Connection | None, processes: Sequence[Process], held: HeldConnection,
        alive: int,
    ) -> None:  # fmt: skip
        """Wait for the final record and for the end of the processes; kill the processes that do not end. `alive`: the
        descriptor of their lock."""
        deadline = time.monotonic() + self.limits.end
        if last is not None:
            with suppress(NopfsError):
                self.ending.record = self._final(last, asked)
                self.ending.final = True
        if not wait_all(processes, deadline - time.monotonic()):
            self._force(processes, held)
        if living(processes):
            return
        deadline = max(deadline, time.monotonic() + self.limits.call)
        if life_lock.await_release(alive, self.located.owner, deadline):
            self.state.remove()
        else:
            self.ending.code = Exit.STUCK
            self.say("the daemon did not end: some process of it lives on, most likely in another pid namespace")

    def _final(self, last: Connection, asked: Connection | None) -> Record:
        """The final record. A mount with a copy in another mount namespace does not end by itself: then the request to
        stop is sent. Raises NopfsError."""
        try:
            return last.receive(self.limits.end / 2)
        except NoAnswer:
            self._stop(asked)  # the daemon answers after it has tried all gentler ways
            self.say("the daemon went on, most likely as another mount namespace has a copy of the mount: ended it")
            return last.receive(self.limits.end / 2)

    def _force(self, processes: Sequence[Process], held: HeldConnection) -> None:
        detached = self.ending.code is Exit.LAZY
        self.ending.code = Exit.STUCK
        # The list is read again: a process that died meanwhile has been replaced.
        now = read_pids(self.located.state_dir, owner=self.located.owner)
        if self.state.is_in_place():  # else these are of a later mount
            processes = tuple(dict.fromkeys((*processes, *now)))
        names = ", ".join(f"{p.role} {p.pid}" for p in living(processes))
        self.say(f"the daemon did not end within {self.limits.end:.3g} s ({names}): ending it")
        self._signal(processes, signal.SIGTERM)
        if wait_all(processes, self.limits.term):
            return
        held.abort(in_use=detached)
        self._signal(processes, signal.SIGKILL)
        if not wait_all(processes, self.limits.kill):
            names = ", ".join(f"{p.role} {p.pid}" for p in living(processes))
            self.say(f"still not ended: {names}; asleep in the kernel, most likely on the source")

    def _signal(self, processes: Sequence[Process], number: signal.Signals) -> None:
        """Send a signal with the rights of the mount's owner. The list of processes comes from that user, so processes
        of other users get no signal."""

        def send() -> None:
            for process in processes:
                process.signal(number)

        as_user(self.located.owner, send, self.limits.call)


def write_report(record: Record, path: str) -> None:
    """Write `record` as JSON to `path`, whole or not at all. Raises NopfsError with Exit.REPORT."""
    try:
        with whole_file(path, 0o644) as file:
            file.write(json.dumps(record, indent=2).encode() + b"\n")
    except OSError as error:
        raise NopfsError(
            Exit.REPORT, f"unmounted, but the report {path} cannot be written: {error.strerror}"
        ) from error


def umount(located: Located, limits: Limits, report: str | None, env: Mapping[str, str]) -> int:
    """Unmount, print the table of the final record, write the report; return the exit code."""
    if located.owner != os.geteuid() and not may_mount():
        raise NopfsError(
            Exit.NO_RIGHT, f"{located.path} was mounted by {located.owner_name}; only that user and root can unmount it"
        )
    asked = asked_report(located.state_dir, located.owner)
    with closing(held_state_dir(located.mount, env)) as state:
        ending = Unmounter(located, limits, lambda line: say(PROGRAM, line), env, state).run()
    if asked is not None and not ending.final and (why := asked.write(ending.record)) is not None:
        say(PROGRAM, f"the report {asked.path} could not be written: {why}")
    if is_in_place(located.mount):
        raise NopfsError(Exit.STUCK, f"{located.path} is still mounted")
    if ending.record is not None:
        if not ending.final:
            say(PROGRAM, "the daemon gave no final report; this is from just before the unmount")
        record = ending.record
        print(printable(in_words(lambda: final_table(record))), flush=True)
    if report is not None:
        if ending.record is None:
            raise NopfsError(ending.code or Exit.REPORT, "unmounted, but the daemon left no report to write")
        write_report({**ending.record, "final": ending.final}, report)
    return ending.code


def umount_below(directory: str, report: str | None, limits: Limits) -> int:
    """Unmount all nopfs mounts at `directory` and below it, each by a process of its own, all at the same time. Return
    the exit code of the first that failed. None is mounted there: done. Raises NopfsError."""
    if report is not None:
        raise NopfsError(Exit.USAGE, "--report names the file of one mount; for --below use nopfs-mount --job-report")
    running = MountsBelow(mounts_below(directory), limits.busy, lambda line: say(PROGRAM, line))
    return running.end(limits.longest)


def umount_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        prog=PROGRAM,
        description="Unmount a nopfs mount and print where its reads were served from. Clears a stale mount "
        "of a dead daemon. While the mount is in use, names the processes that use it, and tries again; then "
        "unmounts lazily and ends the daemon.",
        epilog="Exit codes are listed in docs/commands.md.",
        allow_abbrev=False,
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("mountpoint", metavar="MOUNTPOINT", nargs="?")
    which.add_argument("--below", metavar="DIR", help="unmount all nopfs mounts at DIR and below it, at the same time")
    parser.add_argument(
        "--timeout",
        metavar="S",
        default=str(DEFAULT_BUSY_S),
        help="how long to try while it is in use (default: 10s)",
    )
    parser.add_argument("--report", metavar="FILE", help="write the final record as JSON")
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    parser.add_argument("--version", action="version", version=f"nopfsfs {__version__}")
    return parser


def main(argv: Sequence[str] | None = None, limits: Limits | None = None) -> int:
    """Run the command; return its exit code. `limits` is for tests."""
    words = list(sys.argv[1:] if argv is None else argv)

    def body() -> int:
        options: Any = umount_parser().parse_args(words)
        busy = parsed(parse_duration, options.timeout, "--timeout")
        ladder = Limits(busy) if limits is None else limits
        if options.below is not None:
            return umount_below(options.below, options.report, ladder)
        return umount(locate(options.mountpoint, os.environ), ladder, options.report, os.environ)

    return run(PROGRAM, body, debug="--debug" in words)


if __name__ == "__main__":
    sys.exit(main())
