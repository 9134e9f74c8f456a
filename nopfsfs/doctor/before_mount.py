"""The look at a node before the first mount of a source: what a mount would find here, line by line (`judge_node`).

`look_at_node` collects the facts, each within a limit; the lines are a pure function of them.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import stat
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from nopfsfs.control.policy_look import SITE
from nopfsfs.doctor.bounded_parts import PartToCollect, collect_all
from nopfsfs.errors import NopfsError
from nopfsfs.fuse import mounting
from nopfsfs.system import abilities, clock_state, node_memory
from nopfsfs.system.closed_above import gate, gates_above, keeps_out
from nopfsfs.system.file_system import file_system_at
from nopfsfs.system.launcher import resolve_worlds
from nopfsfs.system.state_dirs import default_index_dir, default_run_dir

LOOK_S = 10.0  # for a look at a directory; a parallel file system that is busy takes seconds
ENTRIES_MOST = 1000  # of the source, whose listing may be long


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Facts of a node and a source. Paths are absolute, sizes bytes, times seconds."""

    uid: int
    release: str
    missing_calls: Mapping[str, str]  # that this process cannot make: what is slower or weaker without each
    machine: str
    python: tuple[int, int]
    dev_fuse: str | None  # why it cannot be opened; None: it can
    may_mount: bool
    helper: str | None  # the path of fusermount3
    helper_is_root: bool  # it is setuid root
    user_allow_other: bool
    source: Mapping[str, Any]  # of `look_at_source`, or an error
    memory: node_memory.Memory
    node_memory: int | None
    processors: int
    clock: bool
    mpi4py: bool
    launcher: str | None  # the path of mpirun or srun
    worlds: tuple[tuple[int, tuple[int, ...]], ...]  # (size, ranks) that the environment lets guess
    index: Mapping[str, Any]  # of `look_at_place`, or an error
    state: Mapping[str, Any]
    session: bool  # the state lies where systemd removes it with the login session
    site_rules: bool


def look_at_node(source: str, env: Mapping[str, str]) -> NodeFacts:
    """Collect the facts. Takes LOOK_S and some seconds at most, whatever hangs; changes nothing. To be called in a
    process of one thread."""
    uid, index_dir, run_dir = os.geteuid(), default_index_dir(os.geteuid(), env), default_run_dir(os.geteuid(), env)
    looks = collect_all([
        PartToCollect("source", partial(look_at_source, source), LOOK_S),
        PartToCollect("index", partial(look_at_place, index_dir), LOOK_S),
        PartToCollect("state", partial(look_at_place, run_dir), LOOK_S),
    ])  # fmt: skip
    helper = mounting.helper()
    return NodeFacts(
        uid=uid, release=os.uname().release, missing_calls=abilities.missing(), machine=platform.machine(),
        python=sys.version_info[:2], dev_fuse=_dev_fuse(), may_mount=mounting.may_mount(), helper=helper,
        helper_is_root=_is_root_s(helper), user_allow_other=mounting.user_allow_other(), memory=node_memory.measure(),
        node_memory=node_memory.of_node(), processors=len(os.sched_getaffinity(0)), clock=clock_state.disciplined(),
        mpi4py=importlib.util.find_spec("mpi4py") is not None, launcher=shutil.which("mpirun") or shutil.which("srun"),
        worlds=tuple((world.size, world.ranks) for world in resolve_worlds(None, None, env)),
        session=run_dir.startswith("/run/user/"), site_rules=os.path.exists(SITE), **looks,
    )  # fmt: skip


def look_at_source(path: str) -> dict[str, Any]:
    """Describe a directory as this user sees it: `missing`, `directory`, `readable`, `entries` (at most ENTRIES_MOST),
    `seconds` that a look took, `network`. `closed`: the directory above that keeps others out. Raises OSError."""
    began = time.monotonic()
    real = os.path.realpath(path)
    try:
        kind = os.stat(real).st_mode
    except FileNotFoundError:
        return {"missing": True}
    if not stat.S_ISDIR(kind):
        return {"directory": False}
    if not os.access(real, os.R_OK | os.X_OK):
        return {"directory": True, "readable": False}
    with os.scandir(real) as listing:
        entries = sum(1 for _ in zip(range(ENTRIES_MOST), listing, strict=False))
    took_s = time.monotonic() - began
    system = file_system_at(os.fsencode(real))
    closed = keeps_out(gate(real), gates_above(real))
    return {
        "directory": True, "readable": True, "entries": entries, "seconds": took_s,
        "network": system is not None and system.is_network, "closed": None if closed is None else closed.path,
    }  # fmt: skip


def look_at_place(path: str) -> dict[str, Any]:
    """Say if this user can write below `path`, which need not be there, and how many bytes are free. Raises OSError."""
    there = path
    while not os.path.exists(there):
        there = os.path.dirname(there)
    space = os.statvfs(there)
    return {"path": path, "writable": os.access(there, os.W_OK | os.X_OK), "free": space.f_bavail * space.f_frsize}


def _dev_fuse() -> str | None:
    try:
        os.close(mounting.open_dev_fuse())
    except NopfsError as error:
        return error.message
    return None


def _is_root_s(path: str | None) -> bool:
    """Return whether a program runs as root, whoever starts it."""
    with suppress(OSError, TypeError):
        found = os.stat(path or "")
        return bool(found.st_mode & stat.S_ISUID) and found.st_uid == 0
    return False
