"""The thread that writes copies to the disk tiers, registers them with the kernel, and removes them.

Nothing waits for this thread: `DiskWatch` refuses what waits behind a disk that does not answer.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import deque

import numpy as np

from nopfsfs.config import MountConfig
from nopfsfs.protocol.columns import Columns, Metric
from nopfsfs.protocol.ring import Event
from nopfsfs.stager.disk_openings import DiskOpenings
from nopfsfs.stager.disk_watch import DiskTask, DiskWatch
from nopfsfs.stager.large.block_copies import SWEEP
from nopfsfs.stager.large.block_writer import BlockWriter
from nopfsfs.stager.passthrough_copies import LOOK_AGAIN_S, PassthroughCopies
from nopfsfs.stager.state import StagerState
from nopfsfs.system.outages import Outages
from nopfsfs.tiers.disk import DiskBusy, DiskFull, Disks, TierGone
from nopfsfs.tiers.kept_copies import KeptCopies
from nopfsfs.tiers.kept_names import KeptRows
from nopfsfs.tiers.source import Source

log = logging.getLogger(__name__)
Work = queue.SimpleQueue[DiskTask | None]  # (row, tier to write to; 0: remove; < 0: clear away); None: end
REGISTER_BEHIND = 64  # copies, registered later than written: until then most are on disk, and are not waited for


class DiskWriter:
    """`run` is the body of the thread; `look` is called by the watch; the other methods may be called in any thread.
    `work` is the queue of this thread, on which others may put `SWEEP`."""

    def __init__(
        self, state: StagerState, disks: Disks, registered: PassthroughCopies, work: Work, *, config: MountConfig,
        columns: Columns, metrics: memoryview, source: Source, outages: Outages, kept: KeptRows | None = None,
    ) -> None:  # fmt: skip
        self._state, self._disks, self._registered, self._work = state, disks, registered, work
        self._config, self._columns, self._metrics, self._source = config, columns, metrics, source
        self._kept_rows = kept
        paths = [d.path for d in config.disks]
        self._openings = DiskOpenings(range(1, len(paths) + 1), paths, self._open, outages)
        self._watch = DiskWatch(
            work, refuse=self._refuse, hangs=self._hangs, awake=state.awake.set, clock=time.monotonic
        )  # fmt: skip
        self._logged: set[int] = set()  # tiers of which an unusable copy was logged
        self._to_register: deque[tuple[int, int, int | None]] = deque()  # row, tier, checksum
        adopted = state.adopted
        self._kept = KeptCopies(
            disks, columns, metrics, adopt=adopted.adopt, report=adopted.report,
            lose=self._lose_tier,
        )  # fmt: skip
        self._blocks = BlockWriter(
            state.large, disks, columns, metrics, usable=self._is_usable, publish=state.publish,
            failed=self._write_failed, unusable=self.withdraw_copy, done=self._blocks_done,
            by_kernel=registered.is_large,
        )  # fmt: skip

    def write(self, rows: list[int], tier: int) -> None:
        """Have the staged copies of these rows written to a disk tier."""
        for row in rows:
            self._work.put((row, tier))

    def remove(self, rows: list[int]) -> None:
        """Have the copies of these rows on disk removed."""
        self.write(rows, 0)

    def clear_away(self, row: int, tier: int) -> None:
        """Have the copy on disk tier `tier` removed that was withdrawn."""
        self._work.put((row, -tier))

    def copy_confirmed(self, row: int, tier: int) -> None:
        """Let the kernel read a large file by itself whose copy another mount has left, and that is good."""
        if self._registered.is_large(row):
            self._work.put((row, tier))

    def copy_sure(self, row: int, version: int) -> None:
        """Have the copy of a file kept that cannot change any more without a trace."""
        if self._kept.take_sure(row, version):
            self._work.put(SWEEP)

    def await_kept(self, limit_s: float) -> None:
        """Wait until what was kept is published, or for so long."""
        self._kept.ready.wait(limit_s)

    def withdraw_copy(self, row: int, tier: int) -> bool:
        """Withdraw a copy that cannot be read, or is corrupt, and have it removed; False when it was withdrawn
        before."""
        if self._state.withdraw_disk(row, tier):
            self.clear_away(row, tier)
            return True
        return self._state.large.drop(row, refuse=True) > 0

    def look(self) -> bool:
        """Refuse what waits for a disk that does not answer; False when nothing is under way."""
        return self._watch.look()

    def stop(self) -> None:
        """End the thread after what was queued before."""
        self._work.put(None)

    def open_tiers(self) -> None:
        """Open the disk tiers in the calling thread, before `run`; a user's kept copies are that user's to open."""
        if not self._kept.any:
            self._openings.look()

    def _open(self, number: int) -> None:
        """Raises OSError."""
        uid, gid = self._config.uid, self._config.gid
        self._disks[number].open(-1 if uid is None else uid, -1 if gid is None else gid)
        self._kept.opened(number)

    def _refuse(self, row: int) -> None:
        if not self._state.large.disk_hangs(row):  # else the thread says so when it has removed the file
            self._state.publish(Event.OFF_DISK, row)

    def _hangs(self, number: int) -> None:
        if number:
            log.warning("disk tier %s does not answer, bypassed for a while", self._disks[number].path)
            self._disks[number].failed()
            self._state.disk_hangs(number)

    # ---- in the thread ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until `stop`."""
        # A row has one number at a time: withdrawn numbers are closed before more copies are registered.
        self._registered.taken_over.wait(LOOK_AGAIN_S)
        left = self._registered.sweep()  # others are in use: look again
        while True:
            if self._openings.pause() == 0.0:
                with self._watch.at(*SWEEP):
                    self._openings.look()
            kept_pause = self._step_kept()
            if self._kept.holds_orders:
                continue
            waiting = len(self._to_register)
            if waiting > REGISTER_BEHIND or (waiting and self._work.empty()):
                row, tier, check = self._to_register.popleft()
                with self._watch.at(row, -tier):
                    self._register(row, tier, check)
                continue
            pauses = [LOOK_AGAIN_S if left else None, self._openings.pause(), kept_pause, self._kept.spare_pause]
            try:
                work = self._work.get(timeout=min((pause for pause in pauses if pause is not None), default=None))
            except queue.Empty:
                work = SWEEP
                self._write_spare()
            if work is None:
                self._blocks.close()
                return
            row, number = work
            with self._watch.at(row, 0 if work == SWEEP else number):
                if work == SWEEP:
                    self._blocks.remove_gone()
                    left = self._registered.sweep()
                elif number > 0:
                    self._write(row, number)
                elif number == 0:
                    self._remove(row, self._state.withdraw_disk(row))
                else:
                    self._clear_away(row, -number)
            self._metrics[Metric.DISK_USED] = self._disks.used()

    def _write_spare(self) -> None:
        """Write a copy that only the next mount needs, of a file that stays in memory: there is nothing else to do."""
        with self._watch.at(*SWEEP):
            spare = self._kept.next_spare(self._metrics[Metric.STAGED_FILES])
        if spare:
            with self._watch.at(*spare):
                self._write(*spare, registers=False)

    def _step_kept(self) -> float | None:
        if not self._kept.any:
            return None
        with self._watch.at(*SWEEP):
            return self._kept.step()

    def _write(self, row: int, number: int, *, registers: bool = True) -> None:
        if self._blocks.attend(row):
            return
        disk = self._disks[number]
        version = int(self._columns.version[row])
        there = int(self._columns.disk[row])
        if there:  # asked for again, perhaps for another tier, by a supervisor that has lost the events
            self._state.publish(Event.ON_DISK, row, there)
            if self._columns.backing[row] > 0:
                self._state.publish(Event.BACKED, row, 1)
            elif self._registered.is_large(row) and self._kept.any:
                known = self._state.large.is_settled(row)
                self._to_register.append((row, there, None if known else int(self._columns.check[row])))
            return
        usable = self._is_usable(number)
        pinned = self._state.pin(row) if usable else None
        if pinned is None:
            self._state.publish(Event.OFF_DISK, row, not usable)
            return
        try:
            disk.write(row, pinned.data, version)
            check = int(self._columns.check[row])
        except OSError as e:
            self._write_failed(row, number, e)
            return
        finally:
            pinned.data.release()
            self._state.unpin(pinned.slot)
        if not self._watch.settle():
            disk.remove(row)  # it took too long, and nobody waits for it any more
            return
        disk.worked()
        if self._state.publish_disk(row, number, version):
            self._metrics[Metric.DISK_WRITES] += 1
            if registers and self._registered.is_large(row):
                self._to_register.append((row, number, check))
        else:
            disk.remove(row)
            self._state.publish(Event.OFF_DISK, row, 1)  # it changed meanwhile

    def _is_usable(self, number: int) -> bool:
        """True when a tier takes copies now; one that is closed is tried."""
        disk = self._disks[number]
        if not disk.is_open and disk.is_rested():
            self._openings.look(number)
        return disk.usable() and number not in self._state.tiers

    def _blocks_done(self, row: int, tier: int) -> None:
        """Have the kernel read a large file by itself whose copy was read back just now. One that another mount has
        left waits for a look at the source."""
        confirmed = self._kept_rows is None or not self._kept_rows.unconfirmed[row]
        if confirmed and self._registered.is_large(row):
            self._to_register.append((row, tier, None))

    def _write_failed(self, row: int, number: int, error: OSError) -> None:
        disk = self._disks[number]
        if isinstance(error, DiskBusy):
            self._state.publish(Event.OFF_DISK, row, 1)
            return
        self._metrics[Metric.DISK_ERRORS] += 1
        full = isinstance(error, DiskFull)
        self._state.publish(Event.OFF_DISK, row, not full)
        if not full:
            disk.failed()
            log.warning("disk tier %s failed, bypassed for a while: %s", disk.path, error)
        if isinstance(error, TierGone):
            self._lose_tier(number)

    def _register(self, row: int, tier: int, check: int | None) -> None:
        """Let the kernel read a copy by itself, or remove a copy that does not hold what was written."""
        if self._columns.backing[row] > 0:
            return
        try:
            number = self._registered.register(self._disks[tier], row, check)
        except OSError as e:
            self._metrics[Metric.DISK_ERRORS] += 1
            if tier not in self._logged:  # a disk that fails has many
                self._logged.add(tier)
                log.error("a copy of %r on disk tier %d is of no use: %s", self._source.path(row), tier, e)
            if number := self._state.withdraw_disk(row):
                self._clear_away(row, number)
            return
        if not number:
            self._state.publish(Event.BACKED, row, 0)
        elif not self._state.publish_backing(row, tier, number):
            self._registered.close(number)

    def _clear_away(self, row: int, number: int) -> None:
        """Remove a copy that was withdrawn: its file changed, or it could not be read, or was corrupt."""
        if self._columns.disk[row]:
            return  # it was written anew meanwhile
        self._remove(row, number, again=True)
        if self._disks[number].is_gone():
            self._lose_tier(number)

    def _remove(self, row: int, number: int, *, again: bool = False) -> None:
        if number:
            self._disks[number].remove(row)
            self._state.publish(Event.OFF_DISK, row, again)

    def _lose_tier(self, number: int) -> None:
        """Give up the copies of a tier whose directory somebody removed. It is made anew when it is asked for again."""
        disk = self._disks[number]
        log.error("disk tier %s lost its directory; its files are read from the source", disk.path)
        disk.failed()
        disk.close()
        self._openings.lost(number, "its directory was removed")
        for row in self._state.large.on_tier(number):
            self._state.large.drop(row)
        for row in np.flatnonzero(self._columns.disk == number).tolist():
            self._remove(row, self._state.withdraw_disk(row), again=True)
