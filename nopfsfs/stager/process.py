"""The stager process: fills the tiers. Threads: workers that read, one pusher, one disk writer, and this loop.

The loop takes commands from the supervisor, demands from the servers, and messages of the peer process. It ends when
the supervisor's socket closes.
"""

from __future__ import annotations

import logging
import math
import os
import selectors
import signal
import socket
import sys
import threading
import time
from typing import cast

import numpy as np

from nopfsfs.config import MAX_CONCURRENCY
from nopfsfs.dataset import index_file
from nopfsfs.policy.choice import ExpectedLanes
from nopfsfs.protocol import supervisor_stager
from nopfsfs.protocol.codec import ProtocolError
from nopfsfs.protocol.columns import SUPERVISOR, Columns, Metric, MetricBlock, Tier, check_layout
from nopfsfs.protocol.ring import Ring
from nopfsfs.protocol.server_stager import TO_STAGER_MAX, Demand, FileChanged, YoungFilesRead, to_stager
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.stager.attribute_notices import AttributeNotices
from nopfsfs.stager.changed_files import ChangedFiles
from nopfsfs.stager.copy_check import CopyCheck
from nopfsfs.stager.disk_writer import DiskWriter, Work
from nopfsfs.stager.large.block_copies import SWEEP, LargeSetup
from nopfsfs.stager.lifesign import LifeSign
from nopfsfs.stager.load import BlockReader
from nopfsfs.stager.load_lanes import LoadLanes
from nopfsfs.stager.page_pusher import PagePusher
from nopfsfs.stager.passthrough_copies import PassthroughCopies
from nopfsfs.stager.peer_exchange import PeerExchange
from nopfsfs.stager.peer_link import PeerLink
from nopfsfs.stager.rights_recheck import Recheck
from nopfsfs.stager.server_links import ServerLinks
from nopfsfs.stager.state import StagerState
from nopfsfs.stager.worker_threads import Watch, WorkerThreads
from nopfsfs.stager.young_files import YoungFiles
from nopfsfs.system import end_switch
from nopfsfs.system.outages import Outages
from nopfsfs.system.process_setup import Handoff, become_reader_with_admin, begin
from nopfsfs.tiers.arena import Arena
from nopfsfs.tiers.disk import Disk, Disks
from nopfsfs.tiers.guarded import Guarded
from nopfsfs.tiers.kept_disk import KeptDisk
from nopfsfs.tiers.kept_names import KeptRows
from nopfsfs.tiers.open_modes import OpenModes
from nopfsfs.tiers.source import Source, known_file_system
from nopfsfs.tiers.source_slots import DISK_SLOTS

log = logging.getLogger(__name__)
KEPT_S = 3.0  # for copies that were kept to be known: what is asked for before comes from the source
DEMAND_THREADS = 16  # threads that serve demands only, beside those that also prefetch
DEMAND_THREADS_MOST = 80  # of these, where the tuner decides how many others there are


class StagerProcess:
    """Owns the threads and everything they share. `run` returns when the mount ends."""

    def __init__(self, handoff: Handoff) -> None:
        fds = handoff.fds
        self._config = handoff.config
        self._index = index_file.load_fd(fds["index"])
        self._columns = Columns(fds["columns"], self._index.n, writable=True)
        self._metrics = MetricBlock(fds["gauges"], writable=True).block
        self._supervisor = MetricBlock(fds["gauges"], SUPERVISOR, writable=False).block
        # Of the stager before this one, if there was one: what was decided since the mount began holds on.
        self._limit = self._metrics[Metric.SOURCE_LIMIT] or self._config.first_limit
        self._commands = socket.socket(fileno=fds["orders"])
        self._poked = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._links = ServerLinks(self._poke)
        # before anything is used again that they may be reading
        first = [socket.socket(fileno=fd) for name, fd in fds.items() if name.startswith("demands")]
        self._servers = {server: self._links.add(server) for server in first}
        self._peer_key: selectors.SelectorKey | None = None
        self._file_system = known_file_system(self._config)
        self._source = Source(os.fsencode(self._config.source), self._index, self._columns, self._file_system)
        self._young = YoungFiles(
            source=self._source, columns=self._columns, metrics=self._metrics, file_system=self._file_system,
            n=self._index.n,
        )  # fmt: skip
        outages = Outages()
        self._make_tiers(handoff)
        self._exchange = PeerExchange(self._state)
        if "peer" in fds:
            self._exchange.attach(socket.socket(fileno=fds["peer"]))
        self._disk_writer = DiskWriter(
            self._state, self._disks, self._registered, self._disk_work, config=self._config, columns=self._columns,
            metrics=self._metrics, source=self._source, outages=outages, kept=self._kept,
        )  # fmt: skip
        self._make_pusher_and_changes(fds)
        reader = BlockReader(
            self._columns, self._metrics, self._arena, self._source, self._disks, self._disk_writer.withdraw_copy,
            self._young, self._kept, self._disk_writer.copy_confirmed,
        )  # fmt: skip
        self._workers = WorkerThreads(self._state, reader, self.changes.noticed)
        self._check = CopyCheck(self._state, self._columns, self._source, self._disks, self.changes.noticed)
        self._lifesign = LifeSign(
            fds, handoff.numbers.get("minor", 0), outages, self.pusher.leave_mount, lambda: self.pusher.holds_tree
        )

    def _make_tiers(self, handoff: Handoff) -> None:
        """Make the arena, the disks, and the state over both."""
        fds, numbers = handoff.fds, handoff.numbers
        self._arena = Arena(fds["arena"], numbers["arena_budget"])
        self._adopt(self._arena)
        self._kept, self._disks = self._make_disks()
        self._disk_work = Work()
        self._registered = PassthroughCopies(
            fuse_fd=fds["fuse"], columns=self._columns, sizes=self._index.size, from_size=numbers.get("pass_from", 0),
            modes=OpenModes(fds["modes"], self._columns.backing.data, writable=False) if "modes" in fds else None,
            poke=lambda: self._disk_work.put(SWEEP),
        )  # fmt: skip
        self._state = StagerState(
            index=self._index, columns=self._columns, metrics=self._metrics, ring=Ring(fds["ring"], writable=True),
            arena=self._arena, source=self._source, concurrency=self._limit, answer=self._links.answer,
            ask_grace=self._links.ask, poke=self._poke, young=self._young, registered=self._registered,
            lanes=self._make_lanes(numbers), kept=self._kept,
            large=LargeSetup.of(self._config, self._disks, self._disk_work.put, self._kept),
        )  # fmt: skip
        self._state.set_budget(*(numbers.get(name, 0) for name in supervisor_stager.BUDGETS))

    def _make_disks(self) -> tuple[KeptRows | None, Disks]:
        """The disk tiers, and the names of their copies where these outlive the mount."""
        config, file_system = self._config, self._file_system
        keeps, why = config.keeps_copies(os.geteuid()), "other users read through this mount, and root does not read"
        if keeps and file_system is not None and not file_system.has_change_times:
            keeps, why = False, "the file system of the source does not tell when a file changed its times"
        if not keeps:
            if config.disk_keep and config.disks:
                log.info("copies on disk are not kept: %s", why)
            return None, Disks([Disk(d.path, d.size) for d in config.disks])
        root = os.fsencode(config.source)
        kept = KeptRows(root, self._index, self._columns, self._source, self._file_system)
        return kept, Disks([KeptDisk(d.path, d.size, kept, self._young.is_sure) for d in config.disks])

    def _make_lanes(self, numbers: dict[str, int]) -> LoadLanes:
        supervisor = self._supervisor

        def lead() -> float:
            told = supervisor[Metric.LEAD_MS]
            return told / 1e3 if told >= 0 else math.inf  # nobody is known to wait

        return LoadLanes(
            self._metrics, time.monotonic, lead=lead,
            expected=ExpectedLanes.from_numbers(numbers),
        )  # fmt: skip

    def _make_pusher_and_changes(self, fds: dict[str, int]) -> None:
        """Make what acts on the kernel's page cache, and on files that change at the source."""
        self.pusher = PagePusher(
            fuse_fd=fds["fuse"], tree_fd=fds.get("tree", -1), mountpoint=os.fsencode(self._config.mountpoint),
            index=self._index, columns=self._columns, metrics=self._metrics, state=self._state, source=self._source,
            supervisor=self._supervisor,
        )  # fmt: skip
        self._notices = AttributeNotices(fds["fuse"], self._columns)
        guarded = Guarded.of(self._config)
        self.changes = ChangedFiles(
            index=self._index, columns=self._columns, metrics=self._metrics, source=self._source, forget=self._forget,
            show=self.pusher.invalidate, notify=self._notices.add, guarded=guarded,
        )  # fmt: skip
        self._recheck = Recheck(
            index=self._index, columns=self._columns, metrics=self._metrics, changes=self.changes,
            notices=self._notices, period_s=self._config.recheck, guarded=guarded,
        )  # fmt: skip

    def _adopt(self, arena: Arena) -> None:
        """Keep what the stager before this one had published, and nothing that it had begun."""
        columns = self._columns
        staged = np.flatnonzero(columns.tier == Tier.RAM)
        taken = arena.adopt(columns.slot[staged], self._source.sizes(staged))
        columns.tier[staged[~taken]] = Tier.NONE
        arena.reclaim()
        columns.disk[np.flatnonzero(columns.disk)] = 0  # those copies belonged to the stager before, and went with it
        self._metrics[Metric.ARENA_USED] = arena.used

    # ---- life ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the supervisor says stop or is gone."""
        if self._config.uid is not None:
            self._disk_writer.open_tiers()  # while this process is root; else the thread opens them
        writing = threading.Thread(target=self._disk_writer.run, daemon=True, name="disk")
        with become_reader_with_admin(self._config):  # for that thread alone: it registers files with the kernel
            writing.start()
        fixed = self._config.source_concurrency
        self._state.set_limit(self._limit, 0, self._config.bandwidth_here)
        self._workers.start(self._threads(self._limit), DEMAND_THREADS, 0 if fixed else DEMAND_THREADS_MOST)
        watch = Watch(self._look_at_what_hangs, self._state.awake)
        self.changes.take_over()
        self._young.note_staged(self._index)
        bodies = {
            "watch": watch.run, "pusher": self.pusher.run, "changes": self.changes.run, "notices": self._notices.run,
            "recheck": self._recheck.run,
            "young": lambda: self._young.run(self.changes.noticed, self.changes.renew, self._disk_writer.copy_sure),
        }  # fmt: skip
        for name, body in bodies.items():
            # Daemon threads: one of them may be blocked by a dead source or in the kernel, and must not keep
            # the process from ending.
            threading.Thread(target=body, daemon=True, name=name).start()
        self._disk_writer.await_kept(KEPT_S)
        try:
            self._loop()
        finally:
            for part in (
                self.pusher, self.changes, self._recheck, self._notices, self._young, self._state, watch,
                self._disk_writer, self._check,
            ):  # fmt: skip
                part.stop()
            writing.join(timeout=5)
            self._disks.close()

    def _threads(self, limit: int) -> int:
        """The threads that a limit needs, and reads of copies on disk beside it."""
        return limit + (DISK_SLOTS if self._config.disks else 0)

    def _look_at_what_hangs(self) -> bool:
        looks = self._disk_writer.look(), self._check.look(), self._workers.look()
        return any(looks)

    def _poke(self) -> None:
        """Wake the loop: another thread changed its sockets or its timeout."""
        os.eventfd_write(self._poked, 1)

    def _loop(self) -> None:
        exchange = self._exchange
        with selectors.DefaultSelector() as selector:
            selector.register(self._commands, selectors.EVENT_READ)
            selector.register(self._poked, selectors.EVENT_READ)
            for server, link in self._servers.items():
                selector.register(server, selectors.EVENT_READ, link)
            sign = self._lifesign
            for end in (sign.pulse, sign.mount):
                if end is not None:
                    selector.register(end, selectors.EVENT_READ)
            while True:
                self._watch_links(selector)
                for key, events in selector.select(_first(self._watch_peer(selector), sign.look())):
                    if events & selectors.EVENT_WRITE and key.fileobj in self._servers:
                        self._links.flush(key.data)
                        if not events & selectors.EVENT_READ:
                            continue
                    if key.fileobj is self._commands:
                        if not self._take_command(selector):
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
                    elif not self._take_message(cast(socket.socket, key.fileobj), key.data):
                        selector.unregister(key.fileobj)
                        del self._servers[cast(socket.socket, key.fileobj)]
                        self._links.remove(key.data)
                if passed := self._links.take_passed():
                    self._state.grace_passed(passed)
                self._state.check_limits()

    def _watch_links(self, selector: selectors.BaseSelector) -> None:
        """Wait for room in the sockets of servers that are full."""
        for server, link, full in self._links.turned():
            selector.modify(server, selectors.EVENT_READ | (selectors.EVENT_WRITE if full else 0), link)

    def _watch_peer(self, selector: selectors.BaseSelector) -> float | None:
        """Wait for the peer process's socket; seconds until limits are to be checked."""
        link, events, pause = self._exchange.wants()
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

    def _take_command(self, selector: selectors.BaseSelector) -> bool:
        """Carry out a command of the supervisor; False at the last."""
        message, fds, _, _ = socket.recv_fds(self._commands, supervisor_stager.MESSAGE_MAX, 1)
        if not message:
            return False
        try:
            command, rows, value = supervisor_stager.unpack_command(message)
        except ValueError as e:
            log.error("command refused: %s", e)
            return True
        if command == StagerCommand.STOP:
            return False
        if command == StagerCommand.SERVER:
            for fd in fds:
                self._add_server(selector, fd)
        elif command == StagerCommand.PEER:
            for fd in fds:
                self._exchange.attach(socket.socket(fileno=fd))
        else:
            self._carry_out(command, rows.tolist(), value)
        return True

    def _carry_out(self, command: StagerCommand, rows: list[int], value: int) -> None:
        self._state.large.take_command(command, rows, value)
        if command == StagerCommand.FETCH:
            self._state.fetch(rows, last=bool(value))
        elif command in (StagerCommand.PUSH, StagerCommand.DROP):
            self.pusher.command(command, rows, value)
        elif command == StagerCommand.LOOK:
            self.pusher.look_at(rows)
        elif command == StagerCommand.EVICT:
            self._state.evict(rows, blocks=bool(value))
        elif command == StagerCommand.TO_DISK:
            self._disk_writer.write(rows, value)
        elif command == StagerCommand.OFF_DISK:
            self._disk_writer.remove(rows)
        elif command == StagerCommand.CANCEL:
            self._state.cancel(last=bool(value))
        elif command == StagerCommand.BUDGET:
            self._state.set_budget(value, *rows[:4])
        elif command == StagerCommand.LIMITS:
            limit = min(MAX_CONCURRENCY, max(1, value))
            mark, bandwidth = (*rows, 0, 0)[:2]
            self._state.set_limit(limit, self._threads(limit), max(0, bandwidth), mark=bool(mark))
            self._workers.fill()
        elif command == StagerCommand.RECHECK:
            self._recheck.request(value)
        elif command == StagerCommand.CHECK:
            self._check.forget() if value else self._check.check(rows)
        elif command == StagerCommand.QUIESCE:
            self.pusher.leave_mount()

    def _take_message(self, server: socket.socket, link: int) -> bool:
        """Act on a message of a server; False when none will come any more."""
        try:
            data = server.recv(TO_STAGER_MAX)
        except BlockingIOError:
            return True
        except OSError:
            return False  # killed with answers unread
        if not data:
            return False
        try:
            message = self._links.take(link, to_stager.decode(data))
        except ProtocolError as e:
            log.error("message of a server refused: %s", e)
            return True
        match message:
            case Demand():
                if self._state.demand(message):
                    self._workers.fill()
            case YoungFilesRead(reads):
                for read in reads:
                    self._young.note_read(read)
            case FileChanged(row):
                self.changes.noticed_apart(row)
        return True

    def _forget(self, row: int) -> None:
        """Withdraw all copies of a row whose file changed."""
        disk = self._state.forget(row)
        if disk:
            self._disk_writer.clear_away(row, disk)


def _first(*pauses: float | None) -> float | None:
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
