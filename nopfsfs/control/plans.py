"""From the index to a follower: which data sets there are, and the work that the plan does besides.

Enumerating and permuting millions of files holds the interpreter for seconds: it is done in a thread of the supervisor,
which answers no FUSE request.
"""

from __future__ import annotations

import logging

import numpy as np
import trio

from nopfsfs.config import MountConfig
from nopfsfs.control.loop import EventLoop
from nopfsfs.dataset import orders
from nopfsfs.dataset.index import Index
from nopfsfs.plan.epochs import DataSet
from nopfsfs.plan.follow import Follower

log = logging.getLogger(__name__)
ROOTS_MOST = 16  # directories that are looked at as data sets of their own
LOOK_PAUSE_S = 0.03  # between looks for work of the plan


def data_sets(index: Index) -> list[DataSet]:
    """What a job may read, likeliest first; in each, the file orders that loaders enumerate (rows, i64)."""
    found: list[DataSet] = []
    for root in orders.candidate_roots(index, classes=False)[:ROOTS_MOST].tolist():
        images = orders.image_folder(index, root).astype(np.int64)
        files = orders.sorted_files(index, root).astype(np.int64)
        named = [("image_folder", images)] if len(images) else []
        if not np.array_equal(images, files):
            named.append(("sorted_files", files))
        if any(len(rows) for _, rows in named):
            found.append(DataSet(key=root, name=_name(index, root), orders=tuple(named)))
    return found


def _name(index: Index, root: int) -> str:
    return index.path(root).decode(errors="backslashreplace") or "."


def make_follower(index: Index, config: MountConfig) -> Follower:
    """May take seconds for millions of files."""
    worlds = [(w.size, w.ranks) for w in config.worlds]
    return Follower(data_sets(index), config.seed, config.sampler, worlds)


async def make(loop: EventLoop, index: Index, config: MountConfig) -> None:
    """Give the loop its follower, then do the follower's work in a thread for as long as the mount lives."""
    if config.seed is None:
        return
    loop.awaiting_plan = True
    try:
        follower = await trio.to_thread.run_sync(make_follower, index, config, abandon_on_cancel=True)
    except Exception:
        # A plan only ever makes reads faster: without one the mount is a plain cache.
        log.exception("no plan could be made; going on as a plain cache")
        loop.follow(None)
        return
    loop.follow(follower)
    while True:
        job = follower.work()
        if job is None:
            await trio.sleep(LOOK_PAUSE_S)
            continue
        try:
            await trio.to_thread.run_sync(job.run, abandon_on_cancel=True)
        except Exception:
            log.exception("a computation of the plan failed")
        follower.finish(job)  # also a failed one, or no other would begin
