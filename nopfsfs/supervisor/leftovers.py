"""Removal of copies that dead stagers left on a disk, of this mount and of others, while the mount runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

import trio

from nopfsfs.config import MountConfig
from nopfsfs.system.outages import SHORTAGE
from nopfsfs.tiers.tier_directory import clear_leftovers, old_directories

log = logging.getLogger(__name__)
LOOK_S = 2.0  # for another stager


async def tidy(path: str, uid: int | None, stager: Callable[[], object]) -> None:
    """Clear directory `path` of leftovers, now and whenever `stager()` is another; for ever. Only root may remove what
    a stager left that had given up its rights for user `uid`, so the supervisor does this. It takes as long as it
    takes, beside everything else."""
    try:
        for old in await trio.to_thread.run_sync(old_directories, path, abandon_on_cancel=True):
            log.info("%s was left by an earlier release; remove it by hand, if no mount of that release runs", old)
    except SHORTAGE as e:
        log.info("%s cannot be looked at: %s", path, e)
    seen: object = stager  # none of its values
    while True:
        if stager() is not seen:
            seen = stager()
            await _clear(path, uid)
        await trio.sleep(LOOK_S)


async def clear_disks(config: MountConfig, limit_s: float) -> None:
    """Clear all disk tiers at the end of the mount: what a stager that was killed, or may not write there any more, has
    left. Each within `limit_s` seconds."""
    for disk in config.disks:
        with contextlib.suppress(*SHORTAGE), trio.move_on_after(limit_s):
            await trio.to_thread.run_sync(clear_leftovers, disk.path, config.uid, abandon_on_cancel=True)


async def _clear(path: str, uid: int | None) -> None:
    try:
        removed = await trio.to_thread.run_sync(clear_leftovers, path, uid, abandon_on_cancel=True)
    except SHORTAGE as e:
        log.info("%s cannot be cleared of what dead mounts left: %s", path, e)
    else:
        if removed:
            log.info("removed %d directories that dead mounts left in %s", removed, path)
