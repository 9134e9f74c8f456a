"""Agreement of all ranks before anything is mounted, so that no rank goes on alone and none waits for another.

Pure: `RankGroup` is MPI, or a test's threads. All ranks do each step, and each step has a place for an error. If one
rank fails, all ranks fail, and one of them reports why.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from nopfsfs import __version__
from nopfsfs.config import MountConfig
from nopfsfs.errors import AlreadyReported, Exit, NopfsError
from nopfsfs.system.proc import boot_id

_GOOD, _BAD = b"\0", b"\1"


class RankGroup(Protocol):
    """All ranks of the job."""

    rank: int
    size: int

    def gather(self, data: bytes, awaited: str) -> list[memoryview]:
        """Return the bytes of each rank, by rank; the caller may change them. All ranks must call this. Raises
        NopfsError where a rank does not."""
        ...

    def beat(self) -> None:
        """Send the other ranks a sign of life, so that they go on waiting for this rank."""
        ...

    def may_end(self) -> AbstractContextManager[None]:
        """Let a signal to end raise SystemExit inside the `with` block. Elsewhere such a signal waits for the next
        block. A rank that leaves while it waits for the others sends them nothing, and MPI kills them."""
        ...


def together(group: RankGroup, awaited: str, work: Callable[[], bytes]) -> list[memoryview]:
    """Do `work` on every rank; return the results of all, by rank. Where it failed on one rank, raises NopfsError on
    every rank: its own on that rank, AlreadyReported on the others."""
    failed: NopfsError | None = None
    try:
        with group.may_end():
            mine = _GOOD + work()
    except NopfsError as error:
        failed = error
    except SystemExit as ended:  # by a signal; the others must know, or they would wait for this rank, or go on
        failed = NopfsError(Exit(int(ended.code or 0)), "told to end before all mounts answered")
    except Exception as error:
        failed = NopfsError(Exit.INTERNAL, f"{type(error).__name__}: {error}; this is a bug: run again with --debug")
        failed.__cause__ = error
    if failed is not None:
        mine = _BAD + json.dumps([int(failed.exit_code), failed.message]).encode()
    parts = group.gather(mine, awaited)
    if failed is not None:
        raise NopfsError(failed.exit_code, f"rank {group.rank}: {failed.message}") from failed.__cause__ or failed
    for rank, part in enumerate(parts):
        if part[:1] == _BAD:
            code, message = json.loads(bytes(part[1:]))
            raise AlreadyReported(Exit(code), f"rank {rank}: {message}")
    return [part[1:] for part in parts]


def refuse(group: RankGroup, code: Exit, message: str) -> NopfsError:
    """Make the error that all ranks have found alike; rank 0 reports it."""
    return NopfsError(code, message) if group.rank == 0 else AlreadyReported(code, message)


@dataclass(frozen=True, slots=True)
class RankHost:
    """Machine of a rank. Two ranks on one machine must not mount at one place."""

    host: str
    machine: str  # boot id and mount namespace


def place() -> RankHost:
    """Find the machine of this process."""
    return RankHost(os.uname().nodename, f"{boot_id()} {os.readlink('/proc/self/ns/mnt')}")


# Settings that must be the same on all ranks: the key, its name in errors, and what to do about a difference.
_ASKED: tuple[tuple[str, str, str], ...] = (
    ("version", "nopfsfs", "install one version on all nodes"),
    ("source", "the source", "name the same directory on all ranks"),
    ("seed", "--seed", "give all ranks the same"),
    ("sampler", "--sampler", "give all ranks the same"),
    ("plans", "the plan", "give all ranks the same --plan and --sampler-option"),
    ("placement", "--placement", "give all ranks the same"),
    ("epochs", "--epochs", "give all ranks the same"),
    ("follow_symlinks", "--follow-symlinks", "give it to all ranks or to none"),
)


def asked(config: MountConfig, here: RankHost) -> bytes:
    """Settings of this rank that the others must know, as JSON."""
    plans = [dataclasses.asdict(dataclasses.replace(plan, ranks=None)) for plan in config.plans]
    return json.dumps({
        "version": __version__,
        "source": config.source,
        "seed": config.seed,
        "sampler": config.sampler,
        "plans": plans,
        "placement": config.placement,
        "epochs": config.epochs,
        "follow_symlinks": config.follow_symlinks,
        "rescan": config.rescan,
        "mountpoint": config.mountpoint,
        "place": dataclasses.asdict(here),
    }).encode()  # fmt: skip


def check_asked(group: RankGroup, parts: list[memoryview]) -> bool:
    """Check that the settings of all ranks agree; return True when any rank wants every directory listed. Raises
    NopfsError for the first difference, or where two ranks would mount at one place."""
    all_of_them: list[dict[str, Any]] = [json.loads(bytes(part)) for part in parts]
    first = all_of_them[0]
    for key, name, advice in _ASKED:
        for rank, said in enumerate(all_of_them):
            if said[key] != first[key]:
                name, ours, theirs = _difference(name, said[key], first[key])
                raise refuse(
                    group, Exit.USAGE,
                    f"rank {rank} ({said['place']['host']}) has {name} {ours}, rank 0 ({first['place']['host']}) has "
                    f"{name} {theirs}; {advice}",
                )  # fmt: skip
    seen: dict[tuple[str, str], int] = {}
    for rank, said in enumerate(all_of_them):
        before = seen.setdefault((said["place"]["machine"], said["mountpoint"]), rank)
        if before != rank:
            raise refuse(
                group, Exit.USAGE,
                f"ranks {before} and {rank} both run on {said['place']['host']} and would mount at "
                f"{said['mountpoint']}; put {{rank}} into the mountpoint, or start one process a node",
            )  # fmt: skip
    return any(said["rescan"] for said in all_of_them)


def _difference(name: str, ours: Any, theirs: Any) -> tuple[str, str, str]:
    """The name of a difference, and both values, in words."""
    if isinstance(ours, list) and len(ours) == len(theirs):  # plans: the first difference of the first two that differ
        plan, other = next((a, b) for a, b in zip(ours, theirs, strict=True) if a != b)
        key = next(key for key in plan if plan[key] != other[key])
        return f"{name}'s {key}", _shown(plan[key]), _shown(other[key])
    return name, _shown(ours), _shown(theirs)


def _shown(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"{len(value)} ({', '.join(plan['sampler'] for plan in value)})"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None or value == [] else str(value)
