"""`nopfs-mount`: parses, checks, scans, starts. Returns when the mount answers, or prints why the mount failed."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from nopfsfs.cli.error_exit import run, say
from nopfsfs.cli.mount_config import parse_mount
from nopfsfs.cli.preflight import check_source, preflight
from nopfsfs.config import MountConfig
from nopfsfs.control.stale_mounts import is_orphaned, state_dir_of, sweep_run_dir
from nopfsfs.errors import AlreadyReported, Exit, NopfsError
from nopfsfs.fuse.mount_table import find_mount
from nopfsfs.system.state_dirs import claimed_mountpoint, make_private_dir

PROGRAM = "nopfs-mount"
BAR_AFTER_S = 2.0  # a scan that ends sooner shows no progress bar

Progress = Callable[[int], None]  # takes the number of entries found so far


@dataclass(frozen=True, slots=True)
class MountSteps:
    """The functions that the command calls; tests replace them. `open_index` finds or makes the index of a source, and
    returns it for `launch`: a path or a descriptor. `launch` starts the mount, and returns the exit code when the mount
    answers or, in the foreground, ends."""

    open_index: Callable[[MountConfig, Progress], str | int]
    launch: Callable[[MountConfig, str | int], int]


def real_parts() -> MountSteps:
    """Return the real functions. They are imported here, since `--help` and bad options need none of them."""
    from nopfsfs.control.launch import launch
    from nopfsfs.dataset.index_cache import open_or_scan

    def open_index(config: MountConfig, progress: Progress) -> str | int:
        opened = open_or_scan(
            config.source,
            config.index_dir,
            follow_symlinks=config.follow_symlinks,
            rescan=config.rescan,
            progress=progress,
        )
        for warning in opened.result.warnings:
            say(PROGRAM, warning)
        return opened.fd

    return MountSteps(open_index, launch)


@contextmanager
def progress_bar(enabled: bool, **style: Any) -> Iterator[Callable[[float], None]]:
    """Yield a function that takes how much is done and, if `enabled`, shows a bar of this style (of tqdm) after
    `BAR_AFTER_S` seconds."""
    if not enabled:
        yield lambda done: None
        return
    from tqdm import tqdm

    with tqdm(delay=BAR_AFTER_S, leave=False, file=sys.stderr, **style) as bar:

        def progress(done: float) -> None:
            bar.update(max(0, done - bar.n))

        yield progress


def scan_bar(enabled: bool) -> AbstractContextManager[Progress]:
    """A function that takes the number of entries found so far, and shows that as `progress_bar` does."""
    return progress_bar(enabled, desc="scanning", unit=" files", unit_scale=True)


@contextmanager
def reading_as(config: MountConfig) -> Iterator[MountConfig]:
    """Take the rights of the user who reads the source, for the time of the scan. Yield a config with an index
    directory of that user.

    A root-squashed file system shows root nothing.
    """
    if config.uid is None or config.uid == os.geteuid():
        yield config
        return
    assert config.gid is not None
    index_dir = os.path.join(config.index_dir, f"uid-{config.uid}")
    os.makedirs(config.index_dir, mode=0o755, exist_ok=True)
    if not os.path.isdir(index_dir):
        made = tempfile.mkdtemp(dir=config.index_dir)
        os.chown(made, config.uid, config.gid)
        try:
            os.rename(made, index_dir)  # in one step: other mounts may be starting
        except OSError:
            os.rmdir(made)  # another mount was faster, and has written its index there
    make_private_dir(index_dir, config.uid)
    ours = (os.getgroups(), os.getegid(), os.geteuid())
    try:
        os.setgroups(config.groups)
        os.setegid(config.gid)
        os.seteuid(config.uid)
        yield dataclasses.replace(config, index_dir=index_dir)
    finally:
        os.seteuid(ours[2])
        os.setegid(ours[1])
        os.setgroups(ours[0])


def with_source_fs(config: MountConfig) -> MountConfig:
    """Return `config` with the file system of the source, by which the processes of the mount recognise the source
    later. Call it inside `reading_as`."""
    from nopfsfs.system.file_system import file_system_at

    return dataclasses.replace(config, source_fs=file_system_at(os.fsencode(config.source)))


def start(config: MountConfig, parts: Callable[[], MountSteps], env: Mapping[str, str]) -> int:
    """Check, scan and start; return the exit code. A failure leaves nothing behind."""
    say_line = _sayer()
    if config.peers:
        return start_with_peers(config, env, say_line)
    if taken_over(config, env, say_line):
        return Exit.OK
    config = preflight(config, env, say_line)
    sweep_run_dir(config.run_dir)
    with claimed_mountpoint(config.mountpoint, config.run_dir, os.geteuid()):
        made = parts()
        with reading_as(config) as reader, scan_bar(sys.stderr.isatty()) as progress:
            index = made.open_index(reader, progress)
            config = with_source_fs(config)
        check_plans(config, index)
        return made.launch(config, index)


def start_with_peers(config: MountConfig, env: Mapping[str, str], say_line: Callable[[str], None]) -> int:
    """Start the mount of this process, one of those that MPI started. Return when all their mounts have ended."""
    try:
        from nopfsfs.peer import mpi_mount as peers  # with mpi4py: other mounts need none of it
    except (ImportError, RuntimeError) as error:  # mpi4py raises either
        why = str(error).strip().splitlines()[0]
        message = f"mpi4py cannot load MPI ({why}); name the libmpi.so of the one that started this in MPI4PY_LIBMPI"
        raise (AlreadyReported if config.node else NopfsError)(Exit.START, message) from error  # node 0 prints it

    def checked(config: MountConfig) -> MountConfig:
        config = preflight(config, env, say_line)
        sweep_run_dir(config.run_dir)
        return config

    return peers.run(config, peers.MpiMountSteps(checked, reading_as, scan_bar, check_plans), env, say_line)


def taken_over(config: MountConfig, env: Mapping[str, str], say_line: Callable[[str], None]) -> bool:
    """Start another supervisor for a mount of this source at this mountpoint whose supervisor is dead; True when there
    was such a mount. Raises NopfsError."""
    mount = find_mount(config.mountpoint)
    if mount is None or not mount.is_nopfs or mount.owner != os.geteuid():
        return False
    state_dir = state_dir_of(mount, env)
    if not is_orphaned(state_dir, mount.owner):
        return False
    check_source(config)  # on a dead source, realpath below would block for ever
    if mount.source != os.path.realpath(config.source):
        return False
    from nopfsfs.control.takeover import adopt

    adopt(state_dir)
    say_line(f"took over the mount at {config.mountpoint}, whose supervisor was dead; it is as it was first asked for")
    return True


def check_plans(config: MountConfig, index: str | int) -> None:
    """Raise NopfsError with Exit.USAGE where a plan names what the source does not have."""
    if not config.plans:
        return
    from nopfsfs.dataset import index_file  # with numpy: `--help` and bad options need none of it
    from nopfsfs.registration.plan_file import check_against

    loaded = index_file.load_fd(index) if isinstance(index, int) else index_file.load(index)
    check_against(config.plans, loaded, config)


def _sayer() -> Callable[[str], None]:
    return lambda line: say(PROGRAM, line)


def main(argv: Sequence[str] | None = None, parts: Callable[[], MountSteps] = real_parts) -> int:
    """Run the command; return its exit code. `parts` is for tests."""
    words = list(sys.argv[1:] if argv is None else argv)
    called = os.path.basename(sys.argv[0])
    prog = called if argv is None and called.startswith(("mount.fuse", "mount.nopfs")) else PROGRAM

    def body() -> int:
        call = parse_mount(words, os.environ, os.geteuid(), prog)
        if call.check_only:
            preflight(call.config, os.environ, _sayer())
            return Exit.OK
        if call.warning:
            say(PROGRAM, call.warning)
        return start(call.config, parts, os.environ)

    return run(PROGRAM, body, debug="--debug" in words)


if __name__ == "__main__":
    sys.exit(main())
