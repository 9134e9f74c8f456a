"""The durations of requests at an idle source, as the nodes of a job agree upon them: one base for all their tuners.

Each node sends the leader what its drains have shown. The leader sends all nodes what the drains of all have shown
together. A node that receives nothing goes on with its own base.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from nopfsfs.policy.source_base import SourceBase, SourceMemory, together
from nopfsfs.policy.tuner import SlowdownTuner
from nopfsfs.protocol.between_supervisors import FoundOfSource, SourceAgreed, SourceSeen
from nopfsfs.protocol.codec import Message
from nopfsfs.protocol.supervisor_peer import ALL_OTHERS
from nopfsfs.supervisor.cluster.copy_handover import Send

log = logging.getLogger(__name__)
LOOK_S = 5.0  # between looks at what is to be sent
KNOWN_S = 150.0  # for which what a node has said counts: an idle one knows nothing of the source any more
SENDING_S = 10.0  # what the peer process does not take by then is not said


class SharedBase:
    """The part of this node. `leader()`: the node that leads. `share` and `update` belong to the tuner of this node."""

    def __init__(self, node: int, send: Send, leader: Callable[[], int]) -> None:
        self._node, self._send, self._leader = node, send, leader
        self._own: SourceMemory | None = None
        self._told: SourceMemory | None = None  # to the leader, or, by it, to all
        self._seen: dict[int, tuple[float, SourceMemory]] = {}  # by node, with the time
        self._own_at = 0.0
        self._agreed: SourceMemory | None = None

    def share(self, own: SourceMemory) -> None:
        """Note what a drain of this node has shown, if anything."""
        self._own, self._own_at = own if any(own.evidence) else None, trio.current_time()

    def update(self, tuner: SlowdownTuner) -> None:
        """Let the tuner go by what the nodes have agreed upon since the last call, if anything."""
        agreed, self._agreed = self._agreed, None
        if agreed is not None:
            tuner.agree(agreed)

    def receive(self, node: int, message: SourceSeen | SourceAgreed) -> None:
        """Take a message of another node. Raises ValueError for what cannot be a base."""
        found = message.found
        memory = SourceBase(SourceMemory(found.log2_ns, found.evidence, found.knees)).memory
        if isinstance(message, SourceSeen):
            self._seen[node] = trio.current_time(), memory
        elif node == self._leader():
            self._agreed = memory

    def left(self, node: int) -> None:
        """Forget a node that has left."""
        self._seen.pop(node, None)

    async def run(self) -> None:
        """Tell the others, until cancelled."""
        while True:
            await trio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Tell the leader, or as the leader all others, what is new."""
        if self._leader() != self._node:
            if self._own is not None and self._own != self._told:
                self._told = self._own
                await self._say(self._leader(), SourceSeen(_found(self._own)))
            return
        since = trio.current_time() - KNOWN_S
        self._seen = {node: said for node, said in self._seen.items() if said[0] >= since}
        known = [memory for _, memory in self._seen.values()]
        if self._own is not None and self._own_at >= since:
            known.append(self._own)
        agreed = together(known) if self._seen else None
        if agreed is not None and agreed != self._told:
            self._told = self._agreed = agreed
            await self._say(ALL_OTHERS, SourceAgreed(_found(agreed)))

    async def _say(self, to: int, message: Message) -> None:
        with trio.move_on_after(SENDING_S) as limit:
            await self._send(to, message)
        if limit.cancelled_caught:
            log.warning("the other nodes did not take in time what this node knows of the source")


def _found(memory: SourceMemory) -> FoundOfSource:
    return FoundOfSource(memory.log2_ns, memory.evidence, memory.knees)
