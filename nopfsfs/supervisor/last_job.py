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

import msgspec
import trio

from nopfsfs.config import MountConfig
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.following.recorded import PLANS_MOST, RecordedPlan, merged
from nopfsfs.system.kept_file import KeptFile
from nopfsfs.system.outages import SHORTAGE

log = logging.getLogger(__name__)
FILE = KeptFile("plans", version=1, most=1 << 16)
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
        return decode(FILE.read(path))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        log.debug("the record %s is not used: %s", path, error)
        return ()


def write(path: str, plans: Sequence[RecordedPlan]) -> None:
    """Put these plans before those in the file. Raises OSError."""
    FILE.write(path, encode(merged(plans, read(path))))


def encode(plans: Sequence[RecordedPlan]) -> bytes:
    """The bytes of a record. The last plans are left out where they would be more than half of the most."""
    body = json.dumps([asdict(plan) for plan in plans], indent=1).encode() + b"\n"
    return encode(plans[:-1]) if len(body) > FILE.most // 2 else FILE.encode(body)


def decode(data: bytes) -> tuple[RecordedPlan, ...]:
    """The plans of a record. Raises ValueError."""
    raw = FILE.decode(data)
    try:
        return msgspec.convert(raw[:PLANS_MOST], tuple[RecordedPlan, ...])
    except (TypeError, KeyError) as error:
        raise ValueError(f"not as it was written: {error}") from error
