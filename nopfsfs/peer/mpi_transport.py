"""Messages and bytes between the nodes of an MPI job, over a communicator. No call waits.

A receive begins only when MPI has announced the bytes, so that their length is known. Some MPIs write all of a message
that is longer than the buffer (Open MPI 5, where it reads the sender's memory). Before the announcement there is
nothing to cancel.
"""

from __future__ import annotations

import logging
import mmap
from collections import deque
from collections.abc import Iterator
from itertools import count

from mpi4py import MPI

from nopfsfs.peer.transport import CANCELLED, FAILED, Done, NodeMessage
from nopfsfs.protocol.between_peers import MESSAGE_MAX, TAGS

log = logging.getLogger(__name__)
_ANY_SOURCE, _ANY_TAG, _BYTE = MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.BYTE
_CONTROL = TAGS + 1  # the tag of messages
_AT_ONCE = 64  # messages, or announcements of bytes, taken in one call
# A probe returns what earlier probes have found, and searches on: with MPICH each finds one message or announcement.
_LOOKS, _LOOKS_BUSY = 16, 2  # in vain, after which nothing has come; the second while receives wait to begin
_BEGUN_BYTES = 1 << 20  # whose receives begin in one call: MPI may copy at once, and ended ones must be reported
_EARLY_MOST = TAGS  # pairs of node and tag whose bytes are announced but not awaited
_TAKEN_MOST = 1 << 28  # bytes of a message, or of a transfer of wrong length; longer ones are not received
_BEHIND_MOST = 16 << 20  # bytes of messages that a node has not taken: above that the node counts as lost
_ERRORS_MOST = 1000  # failed checks for messages in a row


_Transfer = tuple[int, int, memoryview]  # key, length, view; MPI reads or writes the view until the request is done


class MpiTransport:
    """`Transport` over MPI. No other code uses `comm`; its errors are raised as exceptions."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._keys = count(1)
        self._status = MPI.Status()
        # Bytes by node and tag: views that await an announcement, and announcements that no view awaits yet.
        self._awaited: dict[tuple[int, int], tuple[int, memoryview]] = {}
        self._early: dict[tuple[int, int], deque[tuple[MPI.Message, int]]] = {}
        self._announced: deque[tuple[int, tuple[int, int], memoryview, MPI.Message, int]] = deque()  # with a view
        self._requests: list[MPI.Request] = []
        self._transfers: list[_Transfer] = []  # of these requests, in their places
        self._ended: list[Done] = []
        # Messages by node, oldest first: sent ones that MPI still reads, and coming ones that MPI still writes.
        self._sent: dict[int, deque[tuple[MPI.Request, bytes]]] = {}
        self._behind = [0] * self.size  # bytes of `_sent`, by node
        self._coming: dict[int, deque[tuple[MPI.Request, bytearray]]] = {}
        self._errors = 0

    # ---- messages -----------------------------------------------------------------------------------------

    def send(self, node: int, message: bytes) -> bool:
        if self._behind[node] > _BEHIND_MOST:
            log.error("node %d takes no messages", node)
            return False
        try:
            request = self._comm.Isend([message, _BYTE], node, _CONTROL)
        except MPI.Exception as e:
            log.error("node %d cannot be reached: %s", node, e)
            return False
        if not _is_done(request):
            self._sent.setdefault(node, deque()).append((request, message))
            self._behind[node] += len(message)
        return True

    def receive(self) -> list[NodeMessage]:
        messages: list[NodeMessage] = []
        try:
            self._take(messages)
            self._errors = 0
        except MPI.Exception as e:
            self._errors += 1
            if self._errors == 1:
                log.error("receiving failed: %s", e)
            if self._errors > _ERRORS_MOST:
                raise  # this process receives nothing any more: it is of no use
        for node, coming in list(self._coming.items()):
            while coming and _is_done(coming[0][0]):
                messages.append(_message(node, coming.popleft()[1]))
            if not coming:
                del self._coming[node]
        for node, sent in list(self._sent.items()):
            while sent and _is_done(sent[0][0]):
                self._behind[node] -= len(sent.popleft()[1])
            if not sent:
                del self._sent[node]
        return messages

    def _take(self, messages: list[NodeMessage]) -> None:
        """Take what MPI has found: messages, and announcements of bytes, which are matched with the views that await
        them."""
        status, probe = self._status, self._comm.Improbe
        looks = _LOOKS_BUSY if self._announced else _LOOKS
        for _ in range(_AT_ONCE + _LOOKS):
            found = probe(_ANY_SOURCE, _ANY_TAG, status)
            if found is None:
                looks -= 1
                if not looks:
                    return
                continue
            node, tag, length = status.Get_source(), status.Get_tag(), status.Get_count(_BYTE)
            if tag != _CONTROL:
                self._announce((node, tag), found, length, messages)
                continue
            if not 0 <= length <= _TAKEN_MOST:  # not received: nothing waits for a sender of such messages
                messages.append(NodeMessage(node, None))
                continue
            body = bytearray(length)
            request = found.Irecv([body, _BYTE])
            if node not in self._coming and _is_done(request):
                messages.append(_message(node, body))
            else:
                self._coming.setdefault(node, deque()).append((request, body))

    def _announce(self, place: tuple[int, int], found: MPI.Message, length: int, messages: list[NodeMessage]) -> None:
        awaited = self._awaited.pop(place, None)
        if awaited is not None:
            key, view = awaited
            self._announced.append((key, place, view, found, length))
        elif len(self._early) < _EARLY_MOST:
            self._early.setdefault(place, deque()).append((found, length))
        else:
            messages.append(NodeMessage(place[0], None))  # more than this process has requested

    # ---- bytes --------------------------------------------------------------------------------------------

    def start_send(self, node: int, tag: int, view: memoryview) -> int:
        key = next(self._keys)
        try:
            self._requests.append(self._comm.Isend([view, _BYTE], node, tag))
            self._transfers.append((key, len(view), view))
        except MPI.Exception as e:
            self._fail(key, e)
        return key

    def start_receive(self, node: int, tag: int, view: memoryview) -> int:
        key, place = next(self._keys), (node, tag)
        early = self._early.get(place)
        if early is None:
            self._awaited[place] = key, view
        else:
            self._announced.append((key, place, view, *early.popleft()))
            if not early:
                del self._early[place]
        return key

    def cancel(self, key: int) -> None:
        for place, (its, _) in self._awaited.items():
            if its == key:
                del self._awaited[place]
                self._ended.append((key, CANCELLED))
                return
        for i, (its, place, _, found, length) in enumerate(self._announced):
            if its == key:
                del self._announced[i]
                self._early.setdefault(place, deque()).appendleft((found, length))
                self._ended.append((key, CANCELLED))
                return

    @property
    def busy(self) -> bool:
        return bool(self._requests or self._awaited or self._announced or self._ended or self._sent)

    @property
    def has_more(self) -> bool:
        return bool(self._announced)

    def done(self) -> Iterator[Done]:
        begun = 0
        while self._announced and begun < _BEGUN_BYTES:
            key, _, view, found, length = self._announced.popleft()
            begun += length
            if self._begin(key, view, found, length):
                yield key, length
        if self._requests:
            try:
                some = MPI.Request.Testsome(self._requests) or ()
            except MPI.Exception as e:
                log.error("transfers failed: %s", e)
                self._look_at_each()
            else:
                for i in sorted(some, reverse=True):
                    self._ended.append(self._take_out(i)[:2])
        ended, self._ended = self._ended, []
        yield from ended

    def _begin(self, key: int, view: memoryview, found: MPI.Message, length: int) -> bool:
        """Begin to receive announced bytes. Return True when all have come, as they have at once where MPI copies
        them."""
        if length != len(view):
            if not 0 < length <= _TAKEN_MOST:
                self._ended.append((key, len(view) + 1))
                return False
            view = memoryview(mmap.mmap(-1, length))  # the bytes must be received all the same
        try:
            request = found.Irecv([view, _BYTE])
            if request.Test():
                return True
        except MPI.Exception as e:
            self._fail(key, e)
            return False
        self._requests.append(request)
        self._transfers.append((key, length, view))
        return False

    def _take_out(self, i: int) -> _Transfer:
        """Remove and return the transfer of request `i`, which is done. Only requests after `i` change their places."""
        request, transfer = self._requests.pop(), self._transfers.pop()
        if i == len(self._requests):
            return transfer
        was = self._transfers[i]
        self._requests[i], self._transfers[i] = request, transfer
        return was

    def _look_at_each(self) -> None:
        """Check each request. Some have ended and one of these has failed, but MPI does not report which."""
        for i in reversed(range(len(self._requests))):
            try:
                # A request that has ended is null by now, and counts as done: the checksum shows wrong bytes.
                if self._requests[i].Test():
                    self._ended.append(self._take_out(i)[:2])
            except MPI.Exception as e:
                self._fail(self._take_out(i)[0], e)

    def _fail(self, key: int, error: MPI.Exception) -> None:
        log.error("a transfer failed: %s", error)
        self._ended.append((key, FAILED))


def _is_done(request: MPI.Request) -> bool:
    try:
        return bool(request.Test())
    except MPI.Exception:
        return True  # the node is gone


def _message(node: int, body: bytearray) -> NodeMessage:
    return NodeMessage(node, bytes(body) if len(body) <= MESSAGE_MAX else None)
