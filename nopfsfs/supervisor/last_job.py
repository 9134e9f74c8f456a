"""The record of the last job on a source: the plans that were followed, kept for the next mount of that source.

A small file beside the index of the source, one for each reader of it (--user), replaced in one step. One that is
damaged, too large, of another version or of another owner is ignored: a record only ever saves time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NoReturn

import trio
import xxhash

from nopfsfs.config import MountConfig
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.following.recorded import PLANS_MOST, RecordedPlan, merged
from nopfsfs.plan.samplers.sampler import Value
from nopfsfs.system.atomic_file import whole_file
from nopfsfs.system.outages import SHORTAGE
from nopfsfs.system.own_file import read_own
from nopfsfs.system.trusted_path import make_directories

log = logging.getLogger(__name__)
VERSION = 1
BYTES_MOST = 1 << 16
LOOK_PAUSE_S = 1.0  # between two looks at what is followed
WRITE_PAUSE_S = 60.0  # between two writes
LIMIT_S = 3.0  # for a read or a write: a file system that does not answer must not keep the plan, or the end, waiting


class LastJob:
    """Reads the record of a mount's source, and keeps it up to date."""

    def __init__(self, config: MountConfig) -> None:
        self._config = config
        self._path: str | None = None  # once it was looked for
        self._written: list[RecordedPlan] = []
        # A file system that does not answer keeps this one thread, and none of those that the life of the mount needs.
        self._thread = trio.CapacityLimiter(1)

    async def read(self) -> tuple[RecordedPlan, ...]:
        """Read the recorded plans, likeliest first; nothing where there is no record that can be used."""
        if not self._config.remember or not self._config.index_dir:
            return ()
        with trio.move_on_after(LIMIT_S):
            self._path = await trio.to_thread.run_sync(
                path_of, self._config, abandon_on_cancel=True, limiter=self._thread
            )
            plans = await trio.to_thread.run_sync(read, self._path, abandon_on_cancel=True, limiter=self._thread)
            for plan in plans[:1]:
                log.info("the last job read %s: %s, seed %d, %d into epoch %d", plan.dataset, plan.sampler, plan.seed,
                         plan.position, plan.epoch)  # fmt: skip
            return plans
        log.debug("the record of the last job takes too long to read; going on without it")
        return ()

    async def keep(self, follower: Follower) -> None:
        """Record what is followed as soon as it is certain, and again as epochs go by."""
        while self._path is not None:
            plans = follower.to_record()
            if plans and _places_aside(plans) != _places_aside(self._written):
                await self.write(plans)
                await trio.sleep(WRITE_PAUSE_S)
            await trio.sleep(LOOK_PAUSE_S)

    async def write(self, plans: Sequence[RecordedPlan]) -> None:
        """Record these plans, and what was recorded of others; nothing where nothing is followed."""
        if self._path is None or not plans:
            return
        try:
            with trio.move_on_after(LIMIT_S):
                await trio.to_thread.run_sync(write, self._path, plans, abandon_on_cancel=True, limiter=self._thread)
                self._written = list(plans)
        except SHORTAGE as error:
            log.debug("what is read cannot be recorded for the next mount: %s", error)


def _places_aside(plans: Sequence[RecordedPlan]) -> list[RecordedPlan]:
    return [replace(plan, position=0) for plan in plans]


def path_of(config: MountConfig, what: str = "plans") -> str:
    """The file of a mount's source, of who reads it and, where MPI started several mounts, of this node; `what` it
    holds. Looks at the source. Another mount of the same source, at whatever mountpoint, has the same."""
    key = b"%s\0%d\0%d" % (
        os.path.realpath(os.fsencode(config.source)),
        os.geteuid() if config.uid is None else config.uid,
        config.node,
    )
    return os.path.join(config.index_dir, f"{what}-{hashlib.blake2b(key, digest_size=8).hexdigest()}.json")


def read(path: str) -> tuple[RecordedPlan, ...]:
    """The plans in a file of this user's; none where there is no such file, or it cannot be used."""
    try:
        return decode(read_own(path, BYTES_MOST))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        log.debug("the record %s is not used: %s", path, error)
        return ()


def write(path: str, plans: Sequence[RecordedPlan]) -> None:
    """Put these plans before those in the file. Raises OSError."""
    make_directories(os.path.dirname(path), 0o700)
    with whole_file(path, 0o600) as file:
        file.write(encode(merged(plans, read(path))))


def encode(plans: Sequence[RecordedPlan]) -> bytes:
    """At most BYTES_MOST bytes: the last plans are left out where they would be more."""
    body = json.dumps([asdict(plan) for plan in plans], indent=1).encode() + b"\n"
    if len(body) > BYTES_MOST // 2:
        return encode(plans[:-1])
    return b"nopfs-plans %d %016x\n" % (VERSION, xxhash.xxh3_64_intdigest(body)) + body


def decode(data: bytes) -> tuple[RecordedPlan, ...]:
    """The plans of a record. Raises ValueError."""
    head, _, body = data.partition(b"\n")
    if len(data) > BYTES_MOST or head != b"nopfs-plans %d %016x" % (VERSION, xxhash.xxh3_64_intdigest(body)):
        raise ValueError("too long, damaged, or of another version")
    try:
        raw = json.loads(body, parse_constant=_refused)
        return tuple(_plan(one) for one in raw[:PLANS_MOST])
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"not as it was written: {error}") from error


def _refused(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _plan(raw: dict[str, Any]) -> RecordedPlan:
    subset, inflight = raw["subset"], raw["inflight"]
    return RecordedPlan(
        dataset=_a(str, raw["dataset"]),
        files=_a(str, raw["files"]),
        sampler=_a(str, raw["sampler"]),
        seed=_a(int, raw["seed"]),
        epoch=_a(int, raw["epoch"]),
        world=_a(int, raw["world"]),
        ranks=tuple(_a(int, rank) for rank in _a(list, raw["ranks"])),
        options=_options(raw["options"]),
        subset=None if subset is None else (_a(str, subset[0]), _a(int, subset[1]), _options(subset[2])),
        inflight=None if inflight is None else _a(int, inflight),
        position=_a(int, raw["position"]),
    )


def _options(raw: Any) -> tuple[tuple[str, Value], ...]:
    return tuple((_a(str, name), _a((int, float, str), value)) for name, value in _a(list, raw))


def _a(kind: Any, value: Any) -> Any:
    """The value, if it is of that kind. Raises ValueError."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{value!r} is of another kind")
    return value
