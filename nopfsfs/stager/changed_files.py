"""Changes at the source: rights are renewed at once. The old version of a changed file is withdrawn at once, and the
new version is taken up when it has settled.

Owns the columns `stale`, `version`, `new_*` and those of the rights. A writer may be at work when a change is noticed.
Bytes read then may be half old and half new under attributes that no longer change. So a version is taken up only when
it has been seen the same twice, `SETTLE_S` apart; until then opens and reads get ESTALE. Rights do not wait for that. A
source that does not answer for one file holds up no other (`system/elastic_threads.py`).

No lock is held while the source is asked. A look that a later one has overtaken is made again: else it might bring back
rights that were withdrawn since.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import stat
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from nopfsfs.dataset.directory_scan import RACY_NS
from nopfsfs.dataset.index import Index
from nopfsfs.protocol.columns import Columns, Metric, new_place
from nopfsfs.protocol.inode_numbers import VERSION_LAST
from nopfsfs.system.elastic_threads import ElasticThreads
from nopfsfs.tiers.guarded import Guarded
from nopfsfs.tiers.rights import ACL_MAX, RenewedRights, Rights
from nopfsfs.tiers.source import Identity, Source

log = logging.getLogger(__name__)
SETTLE_S = 1.0  # the clock of no file system in use ticks more slowly, but for FAT's
_LOOKERS, _MOST_LOOKERS = 4, 64  # threads at rows that settle; the second while the source does not answer some
_LOOKS = 8  # at a row that others look at, too: each of these had to be overtaken by another that found a change


class Seen(NamedTuple):
    """The file that the source has in a row's place."""

    identity: Identity
    rights: Rights


class _Waiting(NamedTuple):
    """A row that settles. `renew`: give it a new version even if it looks the same."""

    due: float
    row: int
    seen: Seen | None
    renew: bool


class ChangedFiles:
    """Takes up changes. `forget` withdraws all copies of a row; `show` makes the kernel see its new version; `notify`
    makes the kernel ask for its rights anew."""

    def __init__(
        self, *, index: Index, columns: Columns, metrics: memoryview, source: Source, forget: Callable[[int], None],
        show: Callable[[int], None], notify: Callable[[int], None] = lambda row: None, guarded: Guarded | None = None,
    ) -> None:  # fmt: skip
        """`guarded`: what is above the source, where others than the mounting user may come in."""
        self._index, self._columns, self._metrics, self._source = index, columns, metrics, source
        self._forget, self._show, self._notify = forget, show, notify
        self._rights = RenewedRights(columns)
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._lookers = ElasticThreads("settling", _LOOKERS, _MOST_LOOKERS)
        self._logged: set[int] = set()
        self._told_of_acl = False
        self._ticks = itertools.count(1)
        self._acted: dict[int, int] = {}  # by row: the tick of the last change
        self._sure = np.zeros(index.n, np.bool_)  # True while the known ACL holds as long as the ctime stays
        self._guarded = guarded

    # ---- looking ------------------------------------------------------------------------------------------

    def noticed(self, row: int) -> None:
        """Look at a row whose file a read found changed. A file that vanished is no change: each read of it fails,
        until it is back."""
        with contextlib.suppress(OSError):
            self.look(row)

    def noticed_apart(self, row: int) -> None:
        """Do what `noticed` does in a thread of its own, which the source may hold."""
        try:
            threading.Thread(target=self.noticed, args=(row,), daemon=True).start()
        except RuntimeError as e:
            log.warning("row %d has changed, which its next read will report again: %s", row, e)

    def look(self, row: int) -> bool:
        """Look at a row again; True when there was a change. Raises OSError."""
        if not 0 <= row < self._index.n:
            return False
        for _ in range(_LOOKS):
            began = next(self._ticks)
            seen, asked_ns = self._seen(row)
            with self._lock:
                if self._acted.get(row, 0) < began:
                    self._acl_is_sure(row, seen, asked_ns)
                    return self._act(row, seen)
        return True

    def _seen(self, row: int) -> tuple[Seen | None, int]:
        """The file in the row's place, None for something of another kind, and when its ACL was asked for (ns since
        1970). The time is 0 where the known ACL holds, as the times are the known ones. Raises OSError."""
        asked_ns = time.time_ns()
        st, acl = self._source.look(row, lambda st: not self._acl_holds(row, st))
        if stat.S_IFMT(st.st_mode) != stat.S_IFMT(int(self._index.mode[row])):
            return None, 0
        if acl is None:
            asked_ns, acl = 0, self.known_rights(row).acl
        elif len(acl) > ACL_MAX:
            acl = None
        identity = Identity(st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino)
        rights = Rights(st.st_mode, st.st_uid, st.st_gid, acl)
        if row == 0 and self._guarded is not None:  # the root has fewer while a directory above the source is closed
            rights = self._guarded.restricted(rights)
        return Seen(identity, rights), asked_ns

    def _acl_holds(self, row: int, st: os.stat_result) -> bool:
        """True when the known ACL is that of the file with attributes `st`, or no ACL matters."""
        another = stat.S_IFMT(st.st_mode) != stat.S_IFMT(int(self._index.mode[row]))
        known = self._source.identity(row)
        return another or bool(self._sure[row] and (st.st_ctime_ns, st.st_ino) == (known.ctime_ns, known.ino))

    def _acl_is_sure(self, row: int, seen: Seen | None, asked_ns: int) -> None:
        """Remember whether an ACL need not be asked for again while the ctime stays. It may have been changed since,
        within one tick of the source's clock."""
        if asked_ns and seen is not None:
            self._sure[row] = seen.identity.ctime_ns < asked_ns - RACY_NS

    def known_rights(self, row: int) -> Rights:
        """The rights of a row as they are served now."""
        at = self._index.at
        return self._rights.get(row) or Rights(at.mode[row], at.uid[row], at.gid[row], self._index.acl(row))

    # ---- acting (lock held) -------------------------------------------------------------------------------

    def _act(self, row: int, seen: Seen | None) -> bool:
        is_file = row >= self._index.n_dirs
        changed = seen is not None and self._renew(row, seen.rights)
        if not is_file or not stat.S_ISREG(int(self._index.mode[row])):
            return changed  # the listing of a directory stays as it was indexed
        if self._columns.stale[row] or (seen is not None and seen.identity == self._source.identity(row)):
            return changed  # the change is being taken up, or the known file is back
        if row not in self._logged:
            self._logged.add(row)
            path = self._source.path(row)
            log.warning("%r changed at the source; open handles get ESTALE for what the kernel does not hold", path)
        self._acted[row] = next(self._ticks)
        if seen is None:
            self._forget(row)  # no file any more: each read of it fails
            return True
        self._columns.stale[row] = 1
        self._forget(row)
        self._waiting.put(_Waiting(time.monotonic() + SETTLE_S, row, seen, renew=False))
        return True

    def _renew(self, row: int, rights: Rights) -> bool:
        """Publish the rights and notify the kernel, if they have changed; False when they have not."""
        if rights == self.known_rights(row):
            return False
        if rights.acl != b"" and not self._index.any_acl and not self._told_of_acl:
            self._told_of_acl = True
            path = self._source.path(row)
            log.warning("%r has an ACL, the first here: only owners may use what has one until a --rescan", path)
        self._acted[row] = next(self._ticks)
        self._rights.renew(row, rights)
        self._notify(row)
        return True

    # ---- settling -----------------------------------------------------------------------------------------

    def renew(self, row: int) -> None:
        """The row's file looks as it did and holds other bytes: withdraw what is held, and take the file up anew."""
        with self._lock:
            if self._columns.stale[row]:
                return
            self._columns.stale[row] = 1
            self._forget(row)
            self._waiting.put(_Waiting(time.monotonic() + SETTLE_S, row, None, renew=True))

    def take_over(self) -> None:
        """Finish the changes that a stager before this one had begun when it died."""
        for row in np.flatnonzero(self._columns.stale).tolist():
            self._forget(row)  # it may have died before it had withdrawn the old version
            self._waiting.put(_Waiting(time.monotonic(), row, None, renew=True))
        for row in np.flatnonzero(self._columns.renewed).tolist():
            self._notify(row)  # it may have died before it had notified the kernel

    def stop(self) -> None:
        """End the threads after their present looks."""
        self._waiting.put(None)
        self._lookers.stop()

    def run(self) -> None:
        """Take up changed files when they have settled, until `stop`."""
        while (waiting := self._waiting.get()) is not None:
            time.sleep(max(0.0, waiting.due - time.monotonic()))
            self._lookers.hand_over(partial(self._settle, waiting))

    def _settle(self, waiting: _Waiting) -> None:
        row = waiting.row
        began = next(self._ticks)
        try:
            seen, asked_ns = self._seen(row)
        except OSError:
            seen, asked_ns = None, 0
        with self._lock:
            if self._acted.get(row, 0) > began:
                self._waiting.put(waiting._replace(due=time.monotonic(), seen=None))
                return
            self._acl_is_sure(row, seen, asked_ns)
            if seen is not None:
                self._renew(row, seen.rights)
            if not waiting.renew and (seen is None or seen.identity == self._source.identity(row)):
                self._columns.stale[row] = 0  # gone, or back: then nothing has to be taken up
            elif seen is None or seen != waiting.seen:
                self._waiting.put(waiting._replace(due=time.monotonic() + SETTLE_S, seen=seen))
            elif self._columns.version[row] >= VERSION_LAST:
                log.error("%r changed too often: ESTALE until a remount", self._source.path(row))  # and it stays stale
            else:
                self._take_up(row, seen)
                self._show(row)

    def _take_up(self, row: int, seen: Seen) -> None:
        columns, new = self._columns, seen.identity
        version = int(columns.version[row]) + 1
        at = new_place(row, version)
        columns.new_size[at], columns.new_mtime_ns[at] = new.size, new.mtime_ns
        columns.new_ctime_ns[at], columns.new_ino[at] = new.ctime_ns, new.ino
        columns.version[row] = version
        self._metrics[Metric.CHANGED_FILES] += 1
        columns.check[row] = 0  # of the version before
