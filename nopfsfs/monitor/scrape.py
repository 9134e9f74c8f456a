"""The figures of all mounts of this node, asked for at once, in bounded time whatever a daemon does.

The mounts are those of the kernel's table, which also says whose each is. Root asks the mounts of all users, as those
users; another user asks his own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from nopfsfs.control.client import Connection
from nopfsfs.control.stale_mounts import state_dir_of
from nopfsfs.errors import NopfsError
from nopfsfs.fuse.mount_table import Mount, read_mounts

EACH_S = 1.0  # for one mount
ALL_S = 2.0  # for all of them, however many there are
FRESH_S = 0.5  # answers that are no older serve a further scrape
AT_ONCE = 32  # mounts that are asked at a time
ANSWER_MOST = 1 << 16  # bytes of an answer; it has some four thousand


@dataclass(frozen=True, slots=True)
class MountAnswer:
    """A mount, and its figures; None: it did not answer in time, or not what is expected."""

    mountpoint: str
    figures: Mapping[str, Any] | None


class Scraper:
    """Asks the mounts. One scrape at a time: others wait for it, and get its answers. A mount that still holds the
    thread which asked it before is not asked again."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = os.environ if env is None else env
        self._pool = self._new_pool()
        self._under_way: dict[tuple[object, ...], Future[Mapping[str, Any] | None]] = {}
        self._silent: dict[tuple[object, ...], int] = {}  # mounts that were asked in vain: in which scrape
        self._scrapes = 0
        self._one_at_a_time = threading.Lock()
        self._answers: list[MountAnswer] = []
        self._answered_at = -FRESH_S

    def scrape(self) -> list[MountAnswer]:
        """The answers, one for each mountpoint, in order."""
        with self._one_at_a_time:
            if time.monotonic() - self._answered_at >= FRESH_S:
                self._answers = self._ask_all()
                self._answered_at = time.monotonic()
            return self._answers

    def _ask_all(self) -> list[MountAnswer]:
        self._scrapes += 1
        # first those that answer, then those that were not asked for longest
        mounts = sorted(own_mounts(), key=lambda mount: (self._silent.get(mount.identity, 0), mount.mountpoint))
        limit_s = EACH_S if len(mounts) <= AT_ONCE else ALL_S
        self._under_way = {key: future for key, future in self._under_way.items() if not future.done()}
        asked = {}
        for mount in mounts:
            if mount.identity not in self._under_way:
                asked[mount.identity] = self._pool.submit(self._ask, mount)
        self._under_way |= asked
        wait(asked.values(), limit_s)
        found = {key: future.result() for key, future in asked.items() if future.done()}
        for key, future in asked.items():
            if future.cancel():  # no thread was free for it
                del self._under_way[key]
            elif found.get(key) is None:
                self._silent[key] = self._scrapes
        there = {mount.identity for mount in mounts}
        self._silent = {
            key: at for key, at in self._silent.items() if key in there and found.get(key) is None
        }  # fmt: skip
        if all(future.done() for future in self._under_way.values()):
            self._pool.shutdown(wait=False)  # threads end: else there would be as many as there ever were mounts
            self._pool = self._new_pool()
        answers = [MountAnswer(mount.mountpoint, found.get(mount.identity)) for mount in mounts]
        return sorted(answers, key=lambda one: one.mountpoint)

    def _new_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(AT_ONCE, "nopfs-scrape")

    def _ask(self, mount: Mount) -> Mapping[str, Any] | None:
        try:
            with Connection(state_dir_of(mount, self._env), EACH_S, mount.owner) as connection:
                connection.send("metrics", EACH_S)
                return connection.receive(EACH_S, ANSWER_MOST)
        except (NopfsError, OSError, RuntimeError):  # the last: no process or thread is to be had
            return None


def own_mounts() -> list[Mount]:
    """The nopfs mounts that this user may ask; of several at one place, the topmost."""
    topmost = {mount.mountpoint: mount for mount in read_mounts()}
    user = os.geteuid()
    return [mount for mount in topmost.values() if mount.is_nopfs and user in (0, mount.owner)]
