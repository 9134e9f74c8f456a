"""The worker threads of the stager. Each reads block after block, as `StagerState` says, or closes a file. Also the
thread that looks at what takes too long: reads of the source and of disk tiers, and the thread that writes disks."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable

from nopfsfs.stager.load import BlockReader, GivenUp, Load, SharedOpen
from nopfsfs.stager.read_queue import Step
from nopfsfs.stager.state import StagerState
from nopfsfs.stager.workers import Worker
from nopfsfs.system.node_memory import give_back
from nopfsfs.tiers.source import Changed

log = logging.getLogger(__name__)
LOOK_S = 0.1  # between two looks of `Watch`
GIVE_BACK_S = 60.0  # between two times at which `Watch` gives memory back


class WorkerThreads:
    """Starts worker threads and runs their steps. `changed(row)` takes up a file that a read found changed."""

    def __init__(self, state: StagerState, reader: BlockReader, changed: Callable[[int], None]) -> None:
        self._state, self._reader, self._changed = state, reader, changed
        self._by_hand = Worker(urgent=False)
        self._starting = threading.Lock()  # or two would start what one finds missing

    def start(self, threads: int, urgent: int, urgent_most: int = 0) -> None:
        """Have so many threads work, and `urgent` more that serve demands only. Others start in the places of stuck
        ones, and for demands that find nobody, up to `urgent_most`."""
        self._state.set_threads(threads, urgent, urgent_most)
        self._start(threads, urgent)

    def fill(self) -> None:
        """Start the threads that a higher limit, or demands that find nobody, need now."""
        with self._starting:
            self._start(*self._state.lacking())

    def look(self) -> bool:
        """Take what hangs out of the way, and start threads in its place; False when nothing is under way."""
        with self._starting:
            (threads, urgent), goes_on = self._state.check_stuck()
            self._start(threads, urgent)
        return goes_on

    def run_one(self) -> bool:
        """Do the next step in this thread; False when there was none."""
        step = self._state.next_step(self._by_hand, wait=False)
        if step is not None:
            self.do(self._by_hand, step)
        return step is not None

    def _start(self, threads: int, urgent: int) -> None:
        for demands_only in [False] * threads + [True] * urgent:
            worker = Worker(urgent=demands_only)
            self._state.enter(worker)
            try:
                # Daemon threads: the source may hold one for ever, and the process must end.
                threading.Thread(target=self._run, args=(worker,), daemon=True).start()
            except RuntimeError:  # the system has no thread for us: those there are go on
                self._state.leave(worker)
                return

    def _run(self, worker: Worker) -> None:
        """Work until `StagerState.stop`, or until the worker is surplus."""
        while (step := self._state.next_step(worker, wait=True)) is not None:
            self.do(worker, step)

    def do(self, worker: Worker, step: Step) -> None:
        """Do one step of `StagerState.next_step`."""
        if isinstance(step, SharedOpen):
            step.close()
        else:
            self._read(worker, step.load, step.block)

    def _read(self, worker: Worker, load: Load, block: int) -> None:
        error, file = 0, load.file
        began = time.monotonic_ns()
        try:
            if load.unconfirmed:
                self._reader.confirm(load)
                self._state.confirmed(worker, load)
            self._reader.read(load, block, worker.into, worker.disk, file, lambda: self._state.disk_answered(worker))
        except GivenUp:
            pass  # which the state knows
        except Changed:
            error = errno.ESTALE
        except OSError as e:
            error = e.errno or errno.EIO
        except Exception:
            log.exception("reading row %d failed", load.row)
            error = errno.EIO
        if self._state.block_ended(worker, load, block, error, time.monotonic_ns() - began):
            if load.needs_checksum:
                self._reader.complete(load)
                self._state.load_complete(load)
            if load.whole:
                load.file.close()  # last: a source that does not answer may hold this thread here
        elif file is not load.file:
            file.close()  # the load has gone on without it
        if error == errno.ESTALE:
            try:
                self._changed(load.row)
            except Exception:
                log.exception("refreshing row %d failed", load.row)  # and this thread lives on


class Watch:
    """A thread that sleeps as long as nothing is under way. It reads and writes no file, so it cannot be stuck itself.
    `look()` returns False when there is nothing more to look at. `awake` is set when something begins.

    Meanwhile, once in `GIVE_BACK_S`, the thread also gives freed memory back to the system. The tables of what is
    staged are made anew in other sizes as they fill, and malloc would keep the room of the largest."""

    def __init__(self, look: Callable[[], bool], awake: threading.Event) -> None:
        self._look, self._awake = look, awake
        self._stopped = threading.Event()
        self._gives_at = time.monotonic() + GIVE_BACK_S

    def run(self) -> None:
        """Look again and again, until `stop`."""
        while not self._stopped.is_set():
            self._awake.wait()
            self._awake.clear()
            while not self._stopped.wait(LOOK_S) and self._look_once():
                if time.monotonic() >= self._gives_at:
                    give_back()
                    self._gives_at = time.monotonic() + GIVE_BACK_S

    def stop(self) -> None:
        """End the thread after its present look."""
        self._stopped.set()
        self._awake.set()

    def _look_once(self) -> bool:
        try:
            return self._look()
        except Exception:
            log.exception("looking at what hangs failed")
            return True
