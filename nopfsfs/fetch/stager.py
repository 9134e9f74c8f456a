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
from collections import deque
from typing import cast

import numpy as np

from nopfsfs.dataset.index import Index
from nopfsfs.fetch import wire
from nopfsfs.fetch.backings import LOOK_AGAIN_S, Backings
from nopfsfs.fetch.changes import Changes
from nopfsfs.fetch.desk import Desk
from nopfsfs.fetch.links import Links
from nopfsfs.fetch.peerlink import PeerLink
from nopfsfs.fetch.pusher import Pusher
from nopfsfs.fetch.source import Source, known_file_system
from nopfsfs.fetch.wire import Order
from nopfsfs.process import Handoff, become_reader_with_admin, begin
from nopfsfs.stager.young_files import YoungFiles
from nopfsfs.tiers.arena import Arena, NoRoom
from nopfsfs.tiers.columns import Columns, Gauge, Gauges, Tier, check_layout
from nopfsfs.tiers.disk import Disk, DiskFull, Disks
from nopfsfs.tiers.modes import Modes
from nopfsfs.tiers.ring import Event, Ring

log = logging.getLogger(__name__)
_SWEEP = (-1, 0)  # work of the disk thread: close what was withdrawn
REGISTER_BEHIND = 64  # copies, registered later than written: until then most are on disk, and are not waited for
DEMAND_THREADS = 16  # threads that serve demands only, beside those that also prefetch


class Stager:
    """Owns the threads and everything they share. `run` returns when the mount ends."""

    def __init__(self, handoff: Handoff) -> None:
        fds, numbers = handoff.fds, handoff.numbers
        self._config = handoff.config
        self._index = Index.load_fd(fds["index"])
        self._columns = Columns(fds["columns"], self._index.n, writable=True)
        gauges = Gauges(fds["gauges"], writable=True)
        self._gauge = gauges.block
        self._orders = socket.socket(fileno=fds["orders"])
        self._links = Links(lambda number: self.desk.grace_passed(number))
        # before anything is used again that they may be reading
        first = [socket.socket(fileno=fd) for name, fd in fds.items() if name.startswith("demands")]
        self._peer_key: selectors.SelectorKey | None = None
        self._servers = {server: self._links.add(server) for server in first}
        self._poked = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
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
        self.desk = Desk(
            index=self._index, columns=self._columns, gauges=gauges, ring=Ring(fds["ring"], writable=True),
            arena=arena, source=source, disks=self._disks, concurrency=self._config.in_flight,
            answer=self._links.answer, ask_grace=self._links.ask,
            changed=lambda row: self.changes.noticed(row), poke=self._poke, young=self.young,
        )  # fmt: skip
        self.desk.set_budget(numbers["arena_budget"], numbers["whole_limit"], numbers["range_budget"])
        self.pusher = Pusher(
            fuse_fd=fds["fuse"], tree_fd=fds.get("tree", -1), mountpoint=os.fsencode(self._config.mountpoint),
            index=self._index, columns=self._columns, gauges=gauges, desk=self.desk, source=source,
        )  # fmt: skip
        self._disk_work: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._to_register: deque[tuple[int, int, int]] = deque()  # row, tier, checksum
        self._backings = Backings(
            fuse_fd=fds["fuse"], columns=self._columns, sizes=self._index.size, from_size=numbers.get("pass_from", 0),
            modes=Modes(fds["modes"], self._columns.backing.data, writable=False) if "modes" in fds else None,
            after_grace=self.desk.after_grace, poke=lambda: self._disk_work.put(_SWEEP),
        )  # fmt: skip
        self.desk.keep_backings(self._backings)
        if "peer" in fds:
            self.desk.exchange.attach(socket.socket(fileno=fds["peer"]))
        self.changes = Changes(
            index=self._index, columns=self._columns, gauges=gauges, source=source, forget=self._forget,
            show=self.pusher.invalidate,
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
        self._gauge[Gauge.ARENA_USED] = arena.used

    def _note_adopted(self) -> None:
        """What the stager before had noted of files just written went with it."""
        for row in np.flatnonzero(self._columns.tier == Tier.RAM).tolist():
            size, checksum = self._source.size(row), int(self._columns.check[row])
            self.young.note_whole(row, int(self._columns.version[row]), size, checksum)

    # ---- life ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the supervisor says stop or is gone."""
        for disk in range(1, len(self._disks) + 1):
            self._open_disk(disk)
        writing = threading.Thread(target=self._write_disks, daemon=True, name="disk")
        with become_reader_with_admin(self._config):  # for that thread alone: it registers files with the kernel
            writing.start()
        for demands_only in [False] * self._config.in_flight + [True] * DEMAND_THREADS:
            threading.Thread(target=self.desk.work, kwargs={"demands_only": demands_only}, daemon=True).start()
        # Daemon threads: one of them may be blocked by a dead source or in the kernel, and must not keep
        # the process from ending.
        pushing = threading.Thread(target=self.pusher.run, daemon=True, name="pusher")
        pushing.start()
        self.changes.take_over()
        threading.Thread(target=self.changes.run, daemon=True, name="changes").start()
        self._note_adopted()
        threading.Thread(target=self.young.run, daemon=True, name="young").start()
        try:
            self._loop()
        finally:
            self.pusher.stop()
            self.changes.stop()
            self.young.stop()
            self.desk.stop()
            self._disk_work.put(None)
            writing.join(timeout=5)
            self._disks.close()

    def _open_disk(self, number: int) -> None:
        uid, gid = self._config.uid, self._config.gid
        try:
            self._disks[number].open(-1 if uid is None else uid, -1 if gid is None else gid)
        except OSError as e:
            log.error("disk tier %s cannot be used: %s", self._disks[number].path, e)

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
            while True:
                for key, _ in selector.select(self._watch_peer(selector)):
                    if key.fileobj is self._orders:
                        if not self._take_order(selector):
                            return
                    elif key.fileobj is self._poked:
                        os.eventfd_read(self._poked)
                    elif isinstance(key.data, PeerLink):
                        exchange.attend(key.data)
                    elif not self._take_demand(cast(socket.socket, key.fileobj), key.data):
                        selector.unregister(key.fileobj)
                        self._links.gone(key.data)
                exchange.look()

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
        selector.register(server, selectors.EVENT_READ, self._links.add(server))

    def _take_order(self, selector: selectors.BaseSelector) -> bool:
        message, fds, _, _ = socket.recv_fds(self._orders, wire.MESSAGE_MAX, 1)
        if not message:
            return False
        try:
            order, rows, value = wire.unpack_order(message)
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
        elif order == Order.QUIESCE:
            self.pusher.stop()

    def _take_demand(self, server: socket.socket, link: int) -> bool:
        try:
            message = server.recv(256)
        except OSError:
            return False  # killed with answers unread
        if not message:
            return False
        try:
            demand = self._links.take(link, wire.unpack_demand(message))
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
            waiting = len(self._to_register)
            if waiting > REGISTER_BEHIND or (waiting and self._disk_work.empty()):
                self._register(*self._to_register.popleft())
                continue
            try:
                work = self._disk_work.get(timeout=LOOK_AGAIN_S if left else None)
            except queue.Empty:
                work = _SWEEP
            if work is None:
                return
            row, number = work
            if work == _SWEEP:
                left = self._backings.sweep()
            elif number > 0:
                self._to_disk(row, number)
            else:
                self._off_disk(row, -number or self.desk.withdraw_disk(row))
            self._gauge[Gauge.DISK_USED] = self._disks.used()

    def _to_disk(self, row: int, number: int) -> None:
        disk = self._disks[number]
        version = int(self._columns.version[row])
        there = int(self._columns.disk[row])
        if there:  # asked for again, perhaps for another tier, by who had lost what was said
            self.desk.publish(Event.ON_DISK, row, there)
            if self._columns.backing[row] > 0:
                self.desk.publish(Event.BACKED, row, 1)
            return
        pinned = self.desk.pin(row) if disk.usable() else None
        if pinned is None:
            self.desk.publish(Event.OFF_DISK, row)
            return
        try:
            disk.write(row, pinned.data)
            check = int(self._columns.check[row])
        except OSError as e:
            self._gauge[Gauge.DISK_ERRORS] += 1
            if not isinstance(e, DiskFull):
                disk.failed()
                log.warning("disk tier %s failed, bypassed for a while: %s", disk.path, e)
            self.desk.publish(Event.OFF_DISK, row)
            return
        finally:
            pinned.data.release()
            self.desk.unpin(pinned.slot)
        if self.desk.publish_disk(row, number, version):
            self._gauge[Gauge.DISK_WRITES] += 1
            if self._backings.is_large(row):
                self._to_register.append((row, number, check))
        else:
            disk.remove(row)

    def _register(self, row: int, tier: int, check: int) -> None:
        """Let the kernel read a copy by itself. One that is not what was written goes."""
        try:
            number = self._backings.register(self._disks[tier], row, check)
        except OSError as e:
            self._gauge[Gauge.DISK_ERRORS] += 1
            log.error("a copy of %r on disk is of no use: %s", self._source.path(row), e)
            self._off_disk(row, self.desk.withdraw_disk(row))
            return
        if not number:
            self.desk.publish(Event.BACKED, row, 0)
        elif not self.desk.publish_backing(row, tier, number):
            self._backings.close(number)

    def _off_disk(self, row: int, number: int) -> None:
        if number:
            self._disks[number].remove(row)
            self.desk.publish(Event.OFF_DISK, row)


def main() -> None:
    handoff = begin(sys.argv)
    check_layout(handoff.numbers)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the supervisor gets it, too, and sees to the end
    Stager(handoff).run()
    # Threads that a dead source holds in the kernel cannot be joined; nothing is left to flush.
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
