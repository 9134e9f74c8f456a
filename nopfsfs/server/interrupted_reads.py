"""READs that are interrupted: one that waits for its bytes ends with EINTR as soon as its reader is being killed."""

from __future__ import annotations

import trio

from nopfsfs.system.proc import is_dying

DYING_S = 0.05  # between two checks of a reader that got a signal while it waits


class WaitingRead:
    """A READ that waits: its scope, and the thread that reads."""

    __slots__ = ("pid", "scope")

    def __init__(self, pid: int) -> None:
        self.scope, self.pid = trio.CancelScope(), pid


class WaitingReads:
    """The READs of one server that wait, by request."""

    def __init__(self) -> None:
        self._reads: dict[int, WaitingRead] = {}

    def __bool__(self) -> bool:
        return bool(self._reads)

    def __contains__(self, unique: int) -> bool:
        return unique in self._reads

    def begin(self, unique: int, pid: int) -> WaitingRead:
        """Note a READ by the thread `pid`. It takes the place of the same request, if that was delivered before."""
        read = self._reads[unique] = WaitingRead(pid)
        return read

    def end(self, unique: int, read: WaitingRead) -> bool:
        """Forget a READ. Return False where the same request was delivered again, and still waits."""
        if self._reads.get(unique) is not read:
            return False
        del self._reads[unique]
        return True

    def interrupt(self, unique: int, nursery: trio.Nursery) -> bool:
        """Take note that the reader of a request got a signal. Return True where the request waits here.

        Only a reader that is dying gets EINTR: to all others a read of a file is not to be interrupted."""
        read = self._reads.get(unique)
        if read is None:
            return False
        if is_dying(read.pid):
            read.scope.cancel()
        else:
            nursery.start_soon(self._watch, unique, read)
        return True

    async def _watch(self, unique: int, read: WaitingRead) -> None:
        """Interrupt a READ when its reader is being killed: the kernel sends INTERRUPT for the first signal only."""
        while self._reads.get(unique) is read:
            if is_dying(read.pid):
                read.scope.cancel()
                return
            await trio.sleep(DYING_S)
