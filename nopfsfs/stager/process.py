"""The stager process: fills the tiers. Threads: readers of the source, one pusher, one disk writer, and this loop.

The loop takes orders from the supervisor and demands from the servers. When the supervisor's socket closes, it ends.
"""

from __future__ import annotations

import logging
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from typing import cast

import numpy as np

from nopfsfs.dataset import index_file
from nopfsfs.protocol import server_stager
from nopfsfs.protocol.columns import SUPERVISOR, Columns, Metric, MetricBlock, Tier, check_layout
from nopfsfs.protocol.ring import Event, Ring
from nopfsfs.protocol.server_stager import Order
from nopfsfs.stager.attribute_notices import AttributeNotices
from nopfsfs.stager.changed_files import ChangedFiles
from nopfsfs.stager.disk_openings import DiskOpenings
from nopfsfs.stager.disk_watch import DiskWatch
from nopfsfs.stager.guarded import Guarded
from nopfsfs.stager.lifesign import LifeSign
from nopfsfs.stager.page_pusher import PagePusher
from nopfsfs.stager.passthrough_copies import LOOK_AGAIN_S, PassthroughCopies
from nopfsfs.stager.peer_link import PeerLink
from nopfsfs.stager.rights_recheck import Recheck
from nopfsfs.stager.server_links import ServerLinks
from nopfsfs.stager.state import StagerState
from nopfsfs.stager.watch import Watch
from nopfsfs.stager.young_files import YoungFiles
from nopfsfs.system import end_switch
from nopfsfs.system.outages import Outages
from nopfsfs.system.process_setup import Handoff, become_reader_with_admin, begin
from nopfsfs.tiers.arena import Arena, NoRoom
from nopfsfs.tiers.disk import Disk, DiskFull, Disks, TierGone
from nopfsfs.tiers.open_modes import OpenModes
from nopfsfs.tiers.source import Source, known_file_system

log = logging.getLogger(__name__)
_SWEEP = (-1, 0)  # work of the disk thread: close what was withdrawn
REGISTER_BEHIND = 64  # copies, registered later than written: until then most are on disk, and are not waited for
DEMAND_THREADS = 16  # threads that serve demands only, beside those that also prefetch


class StagerProcess:
    """Owns the threads and everything they share. `run` returns when the mount ends."""

    def __init__(self, handoff: Handoff) -> None:
        fds, numbers = handoff.fds, handoff.numbers
        self._config = handoff.config
        self._index = index_file.load_fd(fds["index"])
        self._columns = Columns(fds["columns"], self._index.n, writable=True)
        gauges = MetricBlock(fds["gauges"], writable=True)
        self._gauge = gauges.block
        self._orders = socket.socket(fileno=fds["orders"])
        self._poked = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._links = ServerLinks(lambda number: self.desk.grace_passed(number), self._poke)
        # before anything is used again that they may be reading
        first = [socket.socket(fileno=fd) for name, fd in fds.items() if name.startswith("demands")]
        self._peer_key: selectors.SelectorKey | None = None
        self._servers = {server: self._links.add(server) for server in first}
        arena = Arena(fds["arena"], numbers["arena_budget"])
        self._adopt(arena)
        known = known_file_system(self._config)
        source = Source(os.fsencode(self._config.source), self._index, self._columns, known)
        self._source = source
        self.young = YoungFiles(
            source=source, columns=self._columns, gauge=self._gauge, file_system=known, n=self._index.n,
            changed=lambda row: self.changes.noticed(row), renew=lambda row: self.changes.renew(row),
        )  # fmt: skip
        self._disks = Disks([Disk(d.path, d.size) for d in self._config.disks])
        self.desk = StagerState(
            index=self._index, columns=self._columns, gauges=gauges, ring=Ring(fds["ring"], writable=True),
            arena=arena, source=source, disks=self._disks, concurrency=self._config.in_flight,
            answer=self._links.answer, ask_grace=self._links.ask,
            changed=lambda row: self.changes.noticed(row), poke=self._poke, young=self.young,
            copy_lost=lambda row, disk: self._disk_work.put((row, -disk)),
        )  # fmt: skip
        self.desk.set_budget(numbers["arena_budget"], numbers["whole_limit"], numbers["range_budget"])
        self.pusher = PagePusher(
            fuse_fd=fds["fuse"], tree_fd=fds.get("tree", -1), mountpoint=os.fsencode(self._config.mountpoint),
            index=self._index, columns=self._columns, gauges=gauges, desk=self.desk, source=source,
            supervisor=MetricBlock(fds["gauges"], SUPERVISOR, writable=False).block,
        )  # fmt: skip
        outages = Outages()
        self._lifesign = LifeSign(
            fds, numbers.get("minor", 0), outages, self.pusher.stop, lambda: self.pusher.holds_tree
        )  # fmt: skip
        paths = [d.path for d in self._config.disks]
        self._openings = DiskOpenings(range(1, len(paths) + 1), paths, self._open_disk, outages)
        self._disk_work: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._told: set[int] = set()  # tiers of which it was logged that a copy is of no use
        self._to_register: deque[tuple[int, int, int]] = deque()  # row, tier, checksum
        self._disk_watch = DiskWatch(
            self._disk_work, refuse=lambda row: self.desk.publish(Event.OFF_DISK, row), hangs=self._disk_hangs,
            awake=self.desk.awake.set, clock=time.monotonic,
        )  # fmt: skip
        self._backings = PassthroughCopies(
            fuse_fd=fds["fuse"], columns=self._columns, sizes=self._index.size, from_size=numbers.get("pass_from", 0),
            modes=OpenModes(fds["modes"], self._columns.backing.data, writable=False) if "modes" in fds else None,
            after_grace=self.desk.after_grace, poke=lambda: self._disk_work.put(_SWEEP),
        )  # fmt: skip
        self.desk.keep_backings(self._backings)
        if "peer" in fds:
            self.desk.exchange.attach(socket.socket(fileno=fds["peer"]))
        self.changes = ChangedFiles(
            index=self._index, columns=self._columns, gauges=gauges, source=source, forget=self._forget,
            show=self.pusher.invalidate, tell=lambda row: self.notices.tell(row),
        )  # fmt: skip
        self.notices = AttributeNotices(fds["fuse"], self._columns)
        self.recheck = Recheck(
            index=self._index, columns=self._columns, gauge=self._gauge, changes=self.changes, notices=self.notices,
            period_s=self._config.recheck, guarded=Guarded.of(self._config),
        )  # fmt: skip

    def _adopt(self, arena: Arena) -> None:
        """After a restart: keep what the stager before had published, and nothing that it had begun."""
        sizes = self._index.size
        for row in np.flatnonzero(self._columns.tier == Tier.RAM):
            size = self._columns.new_size[row] if self._columns.version[row] else sizes[row]
            try:
                arena.adopt(int(self._columns.slot[row]), int(size))
            except NoRoom:
                self._columns.tier[row] = Tier.NONE
        arena.reclaim()
        for row in np.flatnonzero(self._columns.disk):
            self._columns.disk[row] = 0  # those copies belonged to the stager before, and went with it
        self._gauge[Metric.ARENA_USED] = arena.used

    def _note_adopted(self) -> None:
        """What the stager before had noted of files just written went with it."""
        for row in np.flatnonzero(self._columns.tier == Tier.RAM).tolist():
            size, checksum = self._source.size(row), int(self._columns.check[row])
            self.young.note_whole(row, int(self._columns.version[row]), size, checksum)

    # ---- life ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the supervisor says stop or is gone."""
        if self._config.uid is not None:
            self._openings.look()  # as long as this process is root; else in the thread that may wait for a disk
        writing = threading.Thread(target=self._write_disks, daemon=True, name="disk")
        with become_reader_with_admin(self._config):  # for that thread alone: it registers files with the kernel
            writing.start()
        self.desk.start(self._config.in_flight, DEMAND_THREADS)
        watch = Watch(self._look_at_what_hangs, self.desk.awake)
        threading.Thread(target=watch.run, daemon=True, name="watch").start()
        # Daemon threads: one of them may be blocked by a dead source or in the kernel, and must not keep
        # the process from ending.
        pushing = threading.Thread(target=self.pusher.run, daemon=True, name="pusher")
        pushing.start()
        self.changes.take_over()
        self._note_adopted()
        lives = {
            "changes": self.changes.run, "notices": self.notices.run, "recheck": self.recheck.run,
            "young": self.young.run,
        }  # fmt: skip
        for name, life in lives.items():
            threading.Thread(target=life, daemon=True, name=name).start()
        try:
            self._loop()
        finally:
            self.pusher.stop()
            self.changes.stop()
            self.recheck.stop()
            self.notices.stop()
            self.young.stop()
            self.desk.stop()
            watch.stop()
            self._disk_work.put(None)
            writing.join(timeout=5)
            self._disks.close()

    def _open_disk(self, number: int) -> None:
        """Raises OSError."""
        uid, gid = self._config.uid, self._config.gid
        self._disks[number].open(-1 if uid is None else uid, -1 if gid is None else gid)

    def _look_at_what_hangs(self) -> bool:
        at_disk = self._disk_watch.look()
        return self.desk.look() or at_disk

    def _disk_hangs(self, number: int) -> None:
        if number:
            log.warning("disk tier %s does not answer, bypassed for a while", self._disks[number].path)
            self._disks[number].failed()
            self.desk.disk_hangs(number)

    def _poke(self) -> None:
        """Another thread has changed what the loop is to wait for."""
        os.eventfd_write(self._poked, 1)

    def _loop(self) -> None:
        exchange = self.desk.exchange
        with selectors.DefaultSelector() as selector:
            selector.register(self._orders, selectors.EVENT_READ)
            selector.register(self._poked, selectors.EVENT_READ)
            for server, link in self._servers.items():
                selector.register(server, selectors.EVENT_READ, link)
            sign = self._lifesign
            for end in (sign.pulse, sign.mount):
                if end is not None:
                    selector.register(end, selectors.EVENT_READ)
            while True:
                self._watch_links(selector)
                for key, events in selector.select(_soonest(self._watch_peer(selector), sign.look())):
                    if events & selectors.EVENT_WRITE and key.fileobj in self._servers:
                        self._links.flush(key.data)
                        if not events & selectors.EVENT_READ:
                            continue
                    if key.fileobj is self._orders:
                        if not self._take_order(selector):
                            return
                    elif key.fileobj is self._poked:
                        os.eventfd_read(self._poked)
                    elif key.fileobj is sign.pulse:
                        if not sign.answer():
                            selector.unregister(key.fileobj)
                    elif key.fileobj is sign.mount:
                        sign.look(changed=True)
                    elif isinstance(key.data, PeerLink):
                        exchange.attend(key.data)
                    elif not self._take_demand(cast(socket.socket, key.fileobj), key.data):
                        selector.unregister(key.fileobj)
                        del self._servers[cast(socket.socket, key.fileobj)]
                        self._links.gone(key.data)
                exchange.look()

    def _watch_links(self, selector: selectors.BaseSelector) -> None:
        """Wait for room in the sockets of servers that have taken nothing for a while."""
        for server, link, full in self._links.turned():
            selector.modify(server, selectors.EVENT_READ | (selectors.EVENT_WRITE if full else 0), link)

    def _watch_peer(self, selector: selectors.BaseSelector) -> float | None:
        """Wait for what is to be waited for of the peer process: until when."""
        link, events, pause = self.desk.exchange.wants()
        key = self._peer_key
        if key is not None and key.data is not link:
            selector.unregister(key.fileobj)
            key.data.socket.close()
            self._peer_key = key = None
        if link is not None and key is None:
            self._peer_key = selector.register(link.socket, events, link)
        elif key is not None and key.events != events:
            self._peer_key = selector.modify(key.fileobj, events, link)
        return pause

    def _add_server(self, selector: selectors.BaseSelector, fd: int) -> None:
        server = socket.socket(fileno=fd)
        link = self._servers[server] = self._links.add(server)
        selector.register(server, selectors.EVENT_READ, link)

    def _take_order(self, selector: selectors.BaseSelector) -> bool:
        message, fds, _, _ = socket.recv_fds(self._orders, server_stager.MESSAGE_MAX, 1)
        if not message:
            return False
        try:
            order, rows, value = server_stager.unpack_order(message)
        except ValueError as e:
            log.error("order refused: %s", e)
            return True
        if order == Order.STOP:
            return False
        if order == Order.SERVER:
            for fd in fds:
                self._add_server(selector, fd)
        elif order == Order.PEER:
            for fd in fds:
                self.desk.exchange.attach(socket.socket(fileno=fd))
        else:
            self._obey(order, rows.tolist(), value)
        return True

    def _obey(self, order: Order, rows: list[int], value: int) -> None:
        if order == Order.FETCH:
            self.desk.fetch(rows)
        elif order in (Order.PUSH, Order.DROP):
            self.pusher.order(order, rows, value)
        elif order == Order.LOOK:
            self.pusher.look_at(rows)
        elif order == Order.EVICT:
            self.desk.evict(rows)
        elif order == Order.TO_DISK:
            for row in rows:
                self._disk_work.put((row, value))
        elif order == Order.OFF_DISK:
            for row in rows:
                self._disk_work.put((row, 0))
        elif order == Order.CANCEL:
            self.desk.cancel()
        elif order == Order.BUDGET:
            self.desk.set_budget(value, rows[0], rows[1])
        elif order == Order.RECHECK:
            self.recheck.request(value)
        elif order == Order.QUIESCE:
            self.pusher.stop()

    def _take_demand(self, server: socket.socket, link: int) -> bool:
        try:
            message = server.recv(256)
        except BlockingIOError:
            return True
        except OSError:
            return False  # killed with answers unread
        if not message:
            return False
        try:
            demand = self._links.take(link, server_stager.unpack_demand(message))
        except ValueError as e:
            log.error("demand refused: %s", e)
            return True
        if demand is None:
            return True
        if demand.id == 0:
            threading.Thread(target=self.changes.noticed, args=(demand.row,), daemon=True).start()
        else:
            self.desk.demand(demand)
        return True

    def _forget(self, row: int) -> None:
        """Withdraw the copies of a row whose file changed."""
        disk = self.desk.forget(row)
        if disk:
            self._disk_work.put((row, -disk))

    # ---- disk ---------------------------------------------------------------------------------------------

    def _write_disks(self) -> None:
        # A row has one number at a time: what there was is closed before more is registered.
        self._backings.taken_over.wait(LOOK_AGAIN_S)
        left = self._backings.sweep()  # others are in use: look again
        while True:
            if self._openings.pause() == 0.0:
                with self._disk_watch.at(*_SWEEP):
                    self._openings.look()
            waiting = len(self._to_register)
            if waiting > REGISTER_BEHIND or (waiting and self._disk_work.empty()):
                row, tier, check = self._to_register.popleft()
                with self._disk_watch.at(row, -tier):
                    self._register(row, tier, check)
                continue
            try:
                work = self._disk_work.get(timeout=_soonest(LOOK_AGAIN_S if left else None, self._openings.pause()))
            except queue.Empty:
                work = _SWEEP
            if work is None:
                return
            row, number = work
            with self._disk_watch.at(row, 0 if work == _SWEEP else number):
                if work == _SWEEP:
                    left = self._backings.sweep()
                elif number > 0:
                    self._to_disk(row, number)
                elif number == 0:
                    self._off_disk(row, self.desk.withdraw_disk(row))
                else:
                    self._clear_away(row, -number)
            self._gauge[Metric.DISK_USED] = self._disks.used()

    def _to_disk(self, row: int, number: int) -> None:
        disk = self._disks[number]
        version = int(self._columns.version[row])
        there = int(self._columns.disk[row])
        if there:  # asked for again, perhaps for another tier, by who had lost what was said
            self.desk.publish(Event.ON_DISK, row, there)
            if self._columns.backing[row] > 0:
                self.desk.publish(Event.BACKED, row, 1)
            return
        if not disk.is_open and disk.is_rested():
            self._openings.look(number)
        usable = disk.usable() and number not in self.desk.tiers
        pinned = self.desk.pin(row) if usable else None
        if pinned is None:
            self.desk.publish(Event.OFF_DISK, row, not usable)
            return
        try:
            disk.write(row, pinned.data)
            check = int(self._columns.check[row])
        except OSError as e:
            self._gauge[Metric.DISK_ERRORS] += 1
            full = isinstance(e, DiskFull)
            self.desk.publish(Event.OFF_DISK, row, not full)
            if not full:
                disk.failed()
                log.warning("disk tier %s failed, bypassed for a while: %s", disk.path, e)
            if isinstance(e, TierGone):
                self._lose_tier(number)
            return
        finally:
            pinned.data.release()
            self.desk.unpin(pinned.slot)
        if not self._disk_watch.settle():
            disk.remove(row)  # it took too long, and nobody waits for it any more
        elif self.desk.publish_disk(row, number, version):
            self._gauge[Metric.DISK_WRITES] += 1
            if self._backings.is_large(row):
                self._to_register.append((row, number, check))
        else:
            disk.remove(row)
            self.desk.publish(Event.OFF_DISK, row, 1)  # it changed meanwhile

    def _register(self, row: int, tier: int, check: int) -> None:
        """Let the kernel read a copy by itself. One that is not what was written goes."""
        try:
            number = self._backings.register(self._disks[tier], row, check)
        except OSError as e:
            self._gauge[Metric.DISK_ERRORS] += 1
            if tier not in self._told:  # a disk that fails has many
                self._told.add(tier)
                log.error("a copy of %r on disk tier %d is of no use: %s", self._source.path(row), tier, e)
            if number := self.desk.withdraw_disk(row):
                self._clear_away(row, number)
            return
        if not number:
            self.desk.publish(Event.BACKED, row, 0)
        elif not self.desk.publish_backing(row, tier, number):
            self._backings.close(number)

    def _clear_away(self, row: int, number: int) -> None:
        """Remove a copy that was withdrawn: its file changed, or it could not be read, or was corrupt."""
        if self._columns.disk[row]:
            return  # it was written anew meanwhile
        self._off_disk(row, number, again=True)
        if self._disks[number].is_gone():
            self._lose_tier(number)

    def _off_disk(self, row: int, number: int, *, again: bool = False) -> None:
        if number:
            self._disks[number].remove(row)
            self.desk.publish(Event.OFF_DISK, row, again)

    def _lose_tier(self, number: int) -> None:
        """Somebody removed the tier's directory. It is made anew when it is asked for again."""
        disk = self._disks[number]
        log.error("disk tier %s lost its directory; its files are read from the source", disk.path)
        disk.failed()
        disk.close()
        self._openings.lost(number, "its directory was removed")
        for row in np.flatnonzero(self._columns.disk == number).tolist():
            self._off_disk(row, self.desk.withdraw_disk(row), again=True)


def _soonest(*pauses: float | None) -> float | None:
    return min((pause for pause in pauses if pause is not None), default=None)


def main() -> None:
    handoff = begin(sys.argv)
    check_layout(handoff.numbers)
    if "end-stager" in handoff.fds:
        end_switch.arm(handoff.fds["end-stager"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the supervisor gets it, too, and sees to the end
    StagerProcess(handoff).run()
    # Threads that a dead source holds in the kernel cannot be joined; nothing is left to flush.
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
