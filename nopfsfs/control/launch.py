"""Start of a mount: mount(2), then the supervisor by exec. Returns when the mount answers, and not before."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

from nopfsfs.config import MountConfig
from nopfsfs.control.options_file import write_options
from nopfsfs.control.process_list import write_pids
from nopfsfs.control.readiness import say_ready
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse.mount_table import Mount, is_in_place
from nopfsfs.fuse.mounting import mount_fuse, unmount
from nopfsfs.system import life_lock
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.process_setup import Handoff, end_signals_later, ending_at_signals, handling, signals_to_end
from nopfsfs.system.process_setup import start as start_process
from nopfsfs.system.state_dirs import StateDir, make_state_dir, state_dir_for

END_LIMIT_S = 5.0
ANSWER_LIMIT_S = 60.0  # a mount that has not answered by then never will


@dataclass(frozen=True, slots=True)
class StartedMount:
    """A mount and its supervisor, which this process has started."""

    config: MountConfig
    mount: Mount
    state: StateDir
    daemon: subprocess.Popen[bytes]

    def end(self) -> None:
        """End the supervisor, whose start is given up, and unmount."""
        self.daemon.terminate()
        try:
            self.daemon.wait(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()
        clear(self.mount)
        self.state.remove()


def launch(config: MountConfig, index: str | int) -> int:
    """Mount, and start the supervisor. In the foreground, return the exit code when the mount has ended. Raises
    NopfsError; then nothing is mounted or running."""
    # Ctrl-C raises KeyboardInterrupt; a signal that is ignored, as under nohup(1), stays so.
    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    with ending_at_signals(ends):
        started = mount(config, index, {})
        if not config.foreground:
            return Exit.OK
        say_ready(os.environ)
        try:
            code = _stay(started.daemon)
        except BaseException:
            started.end()
            raise
    if not is_in_place(started.mount):  # else servers may serve on
        started.state.remove()
    return code


def mount(config: MountConfig, index: str | int, further: dict[str, int]) -> StartedMount:
    """Mount, and start the supervisor; return when the mount answers. `further`: descriptors for the supervisor, by
    name. They and the index are closed here. Raises NopfsError; then nothing is mounted or running."""
    index_fd = index if isinstance(index, int) else os.open(index, os.O_RDONLY | os.O_CLOEXEC)
    fds = {**further, "index": index_fd}
    with ExitStack() as undo, ExitStack() as until_answer:
        try:
            with end_signals_later():
                fds["fuse"], made = mount_fuse(config)
                undo.callback(clear, made)
                config, state, alive = _with_state_dir(config, made)
                until_answer.enter_context(closing_fd(alive))  # by then the supervisor holds the lock
                undo.callback(state.remove)
                ready, fds["ready"] = os.pipe2(os.O_CLOEXEC)
                daemon = start(config, Handoff("super", config, fds, {"minor": made.minor}))
                started = StartedMount(config, made, state, daemon)
                undo.callback(started.end)
        finally:
            for fd in fds.values():
                os.close(fd)
        await_answer(ready)
        undo.pop_all()
    return started


def _with_state_dir(config: MountConfig, mount: Mount) -> tuple[MountConfig, StateDir, int]:
    """Make the state directory of a mount that has just been made; return the configuration with its path, the
    directory, and the descriptor of its `life_lock`. Raises NopfsError."""
    path = state_dir_for(config.mountpoint, mount.minor, config.run_dir)
    config, alive = replace(config, state_dir=path), list[int]()

    def fill(made: str) -> None:
        alive.append(life_lock.make(made))
        write_pids(made, {"starter": os.getpid()})
        write_options(made, config)

    make_state_dir(path, os.geteuid(), fill)
    return config, StateDir(path), alive[0]


def start(config: MountConfig, handoff: Handoff) -> subprocess.Popen[bytes]:
    streams = None if config.foreground else subprocess.DEVNULL
    return start_process(
        "nopfsfs.supervisor.process", handoff, stdout=streams, stderr=streams, start_new_session=True
    )


def await_answer(ready: int) -> None:
    """Wait for the supervisor's answer: an empty object, or an error. Raises NopfsError."""
    deadline = time.monotonic() + ANSWER_LIMIT_S
    text = b""
    with os.fdopen(ready, "rb", buffering=0) as pipe:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                raise NopfsError(Exit.START, f"the mount did not answer within {ANSWER_LIMIT_S:.0f} s")
            part = pipe.read(65536)
            if not part:
                break
            text += part
    if not text:
        raise NopfsError(Exit.START, "the daemon died while it started; use -f or --log-file to see why")
    error = json.loads(text).get("error")
    if error:
        raise NopfsError(Exit.START, str(error))


def _stay(daemon: subprocess.Popen[bytes]) -> int:
    """Wait for the daemon to end; return its exit code. Signals that ask this process to end reach the daemon as
    SIGTERM."""

    def pass_on(number: int, frame: object) -> None:
        daemon.send_signal(signal.SIGTERM)

    with handling(signals_to_end(), pass_on):
        return daemon.wait()


def clear(mount: Mount) -> None:
    try:
        unmount(mount, lazy=True)
    except NopfsError as e:
        if e.exit_code != Exit.NOT_MOUNTED:
            print(f"nopfs-mount: {e.message}", file=sys.stderr)
