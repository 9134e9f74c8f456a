"""Life of `nopfs-mount` under MPI: agree with the other ranks, scan together, start the mount, and be its peer process
until the mount ends.

The supervisor is none of MPI's processes: it starts in a session of its own, and MPI's end does not end the mount. This
process must not return before its mount has ended, because MPI may then end all ranks.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

from nopfsfs.config import MountConfig
from nopfsfs.control import launch as control
from nopfsfs.dataset.index_cache import OpenedIndex, open_or
from nopfsfs.errors import AlreadyReported, NopfsError
from nopfsfs.peer import mpi
from nopfsfs.peer.end_signals import EndSignals
from nopfsfs.peer.mpi import MPI
from nopfsfs.peer.process import serve
from nopfsfs.peer.shared_scan import ScanOptions, check_same, check_view, scan_together
from nopfsfs.peer.startup_agreement import RankGroup, asked, check_asked, place, together
from nopfsfs.protocol.codec import encode
from nopfsfs.protocol.supervisor_peer import AllMounted
from nopfsfs.system.file_system import file_system_at
from nopfsfs.system.mpi_start import Launched, launched
from nopfsfs.system.process_setup import HeldSignals
from nopfsfs.system.state_dirs import claimed_mountpoint

ENDED_S = 10.0  # for a supervisor that has closed its sockets to end

Say = Callable[[str], None]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class MpiMountSteps:
    """Steps of `nopfs-mount` that are the same with and without peers."""

    preflight: Callable[[MountConfig], MountConfig]
    reading_as: Callable[[MountConfig], AbstractContextManager[MountConfig]]
    bar: Callable[[bool], AbstractContextManager[Progress]]
    check_plans: Callable[[MountConfig, int], None]


def run(config: MountConfig, parts: MpiMountSteps, env: Mapping[str, str], say: Say) -> int:
    """Mount on all ranks; return the exit code when the mounts have ended. Raises NopfsError; then nothing of this rank
    is mounted or running."""
    found = launched(env)
    assert found is not None  # else `config` names no peers
    held = HeldSignals()
    with held.holding():
        world = _begin(found)
        try:
            ranks, signals, peers = (mpi.copy(world) for _ in range(3))
            told = EndSignals(signals, say)
            with ExitStack() as listening:
                with ExitStack() as stack:
                    life = _start(
                        mpi.Ranks(ranks, held.may_end), config, parts, say, stack,
                        answers=lambda: listening.enter_context(told.listening()),
                    )  # fmt: skip
                code = _stay(life, peers, told, say)
        except NopfsError as error:
            if not isinstance(error, AlreadyReported):
                say(error.message)  # at once: the first process that ends may end the others
            mpi.end(world)
            raise AlreadyReported(error.exit_code, error.message) from error
        mpi.finalize()
        return code


def _begin(found: Launched) -> MPI.Intracomm:
    try:
        return mpi.begin(found)
    except NopfsError as error:
        if found.rank:
            raise AlreadyReported(error.exit_code, error.message) from error  # rank 0 reports for all
        raise


@dataclass(frozen=True, slots=True)
class RunningMount:
    """Mount of this rank, once the mounts of all ranks answer."""

    config: MountConfig
    daemon: subprocess.Popen[bytes]
    supervisor: socket.socket  # this process's end
    fingerprint: int


def _start(
    ranks: RankGroup, config: MountConfig, parts: MpiMountSteps, say: Say, stack: ExitStack, answers: Callable[[], None]
) -> RunningMount:
    """Do everything until the mounts of all ranks answer. Raises NopfsError, on every rank. `answers` is called when
    this rank's mount answers."""

    def ask() -> bytes:
        nonlocal config
        config = parts.preflight(config)
        return asked(config, place())

    rescan = check_asked(ranks, together(ranks, "checking what was asked for", ask))
    together(ranks, "claiming the mountpoint", lambda: _claim(config, stack))
    opened = _index(ranks, replace(config, rescan=rescan), parts, say)
    check_same(ranks, opened.index)
    with parts.reading_as(config):
        check_view(_RanksAsStarter(ranks), config.source, opened.index)
        config = replace(config, source_fs=file_system_at(os.fsencode(config.source)))
    started, ours = _mount(ranks, config, opened, parts, answers)
    return RunningMount(started.config, started.daemon, ours, int(opened.index.fingerprint[:16], 16))


def _claim(config: MountConfig, stack: ExitStack) -> bytes:
    """Claim the mountpoint until the end of `stack`."""
    stack.enter_context(claimed_mountpoint(config.mountpoint, config.run_dir, os.geteuid()))
    return b""


def _index(ranks: RankGroup, config: MountConfig, parts: MpiMountSteps, say: Say) -> OpenedIndex:
    how = ScanOptions(config.source, config.follow_symlinks, config.io_timeout)
    shown = ranks.rank == 0 and sys.stderr.isatty()
    with parts.reading_as(config) as reader, parts.bar(shown) as progress:
        opened = open_or(
            lambda previous: scan_together(_RanksAsStarter(ranks), how, previous, progress),
            config.source,
            reader.index_dir,
            rescan=config.rescan,
            follow_symlinks=config.follow_symlinks,
        )
    for warning in opened.result.warnings:
        say(warning)
    return opened


class _RanksAsStarter:
    """`RankGroup` whose messages are sent as the user who started this process. This process may be another user while
    it scans. MPI may read a message from the sender's memory, which a process of another user may not read.

    A change of user is one of all threads. Signs of life, sent while others scan, are empty and need none."""

    def __init__(self, ranks: RankGroup) -> None:
        self._ranks = ranks
        self.rank, self.size = ranks.rank, ranks.size

    def gather(self, data: bytes, awaited: str) -> list[memoryview]:
        with self._back():
            return self._ranks.gather(data, awaited)

    def beat(self) -> None:
        self._ranks.beat()

    def may_end(self) -> AbstractContextManager[None]:
        return self._ranks.may_end()

    @contextmanager
    def _back(self) -> Iterator[None]:
        now = os.geteuid()
        if now == os.getuid():
            yield
            return
        os.seteuid(os.getuid())
        try:
            yield
        finally:
            os.seteuid(now)


def _mount(
    ranks: RankGroup, config: MountConfig, opened: OpenedIndex, parts: MpiMountSteps, answers: Callable[[], None]
) -> tuple[control.StartedMount, socket.socket]:
    """Mount on every rank, or on none. Returns the mount of this rank, and the socket to its supervisor."""
    started: control.StartedMount | None = None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def start() -> bytes:
        nonlocal started
        parts.check_plans(config, opened.fd)
        started = control.mount(config, opened.fd, {"peer": theirs.detach()})
        answers()
        return b""

    try:
        together(ranks, "mounting", start)
    except BaseException:
        if started is not None:
            started.end()
        raise
    assert started is not None
    with suppress(OSError):  # the supervisor has ended
        ours.send(encode(AllMounted()))
    return started, ours


def _stay(life: RunningMount, peers: MPI.Intracomm, told: EndSignals, say: Say) -> int:
    """Serve as the peer process until the mounts of all ranks have ended. No failure in here ends a mount."""
    told.ends(life.daemon.terminate)
    code = serve(peers, life.supervisor, life.config, life.fingerprint, told, lambda: told.insists)
    life.supervisor.close()
    with suppress(subprocess.TimeoutExpired):
        status = life.daemon.wait(ENDED_S)
        if status < 0:  # no failure of this process: servers may serve on, and another supervisor may take over
            say(f"the supervisor of {life.config.mountpoint} was killed by signal {-status}")
        code = code or max(0, status)
    return code
