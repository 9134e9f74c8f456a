"""Nodes of a cluster in one process: a bus joins their agreements, their loops are made of what is looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import trio

from nopfsfs.config import DiskSpec, MountConfig, World
from nopfsfs.dataset.index import Index
from nopfsfs.plan.epoch_order import Hypothesis, build
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.node_policy import NodePolicy, Rows
from nopfsfs.protocol.between_peers import NEWS_MAX
from nopfsfs.protocol.between_supervisors import ProposedPlacement
from nopfsfs.protocol.codec import Message, encode
from nopfsfs.protocol.columns import Metric
from nopfsfs.supervisor.cluster.copy_handover import CopyHandover
from nopfsfs.supervisor.cluster.kept_news import KeptNews
from nopfsfs.supervisor.cluster.placement_agreement import PlacementAgreement
from nopfsfs.supervisor.mount_memory import charges
from nopfsfs.supervisor.plan_worker import make_follower
from nopfsfs.supervisor.processes.peer import ClusterEvent


class Loop:
    """What an agreement needs of an event loop."""

    def __init__(self, policy: NodePolicy, follower: Follower | None) -> None:
        self.policy, self.follower = policy, follower
        self.holds_back = True

    def fetch_ahead(self) -> None:
        self.holds_back = False

    def furthest_use_first(self, count: int) -> Rows:
        return self.policy.held()


class Node:
    """One mount. `room`: bytes for files that stay in memory; `kept`: by disk tier, the rows that earlier mounts have
    left there."""

    def __init__(
        self, bus: Bus, number: int, index: Index, room: int, disks: Sequence[int] = (),
        kept: Mapping[int, Sequence[int]] | None = None, **config: Any,
    ) -> None:  # fmt: skip
        self.bus, self.number, self.index = bus, number, index
        self.config = MountConfig(
            source="/s", mountpoint="/m", peers=True, node=number, nodes=bus.nodes,
            disks=tuple(DiskSpec(f"/d{at}", size) for at, size in enumerate(disks)), **config,
        )  # fmt: skip
        self.charges = charges(index)
        split = MemorySplit(
            arena=2 * room, homes=room, stream=room // 2, ranges=room // 2, pages=0, page_homes=0, whole_limit=1 << 30
        )
        policy = NodePolicy(self.charges, np.zeros(index.n, np.uint8), split, list(disks))
        self.loop = Loop(policy, None)
        self.holder = np.zeros(index.n, np.uint16)
        self.handover = CopyHandover(policy, self.holder, self._send)
        disk = np.zeros(index.n, np.uint8)
        for tier, rows in (kept or {}).items():
            disk[list(rows)] = tier
        self.metrics = np.zeros(256, np.int64)
        self.metrics[Metric.KEPT_FILES] = 1 + np.count_nonzero(disk)
        self.mounted = trio.Event()
        self.mounted.set()
        self._events, events = trio.open_memory_channel[ClusterEvent](math.inf)
        self.agreement = PlacementAgreement(
            self.config, self.loop, index, self.handover, events,  # type: ignore[arg-type]
            charges=self.charges, holder=self.holder, send=self._send,
            kept=KeptNews(number, disk, self.metrics.data, lambda: self.mounted.wait()),
        )  # fmt: skip

    async def _send(self, node: int, message: Message) -> None:
        await (self.bus.send(self.number, message) if node < 0 else self.bus.send_to(self.number, node, message))

    def receive(self, node: int, body: bytes) -> None:
        """Another node has sent this."""
        with suppress(trio.BrokenResourceError):
            self._events.send_nowait(ClusterEvent(node, body))

    def left(self, node: int) -> None:
        """Another node has left."""
        with suppress(trio.BrokenResourceError):
            self._events.send_nowait(ClusterEvent(node, None))

    def lost(self) -> None:
        """There are no other nodes any more."""
        self._events.close()

    def plan(self) -> None:
        """It has made its plan."""
        self.loop.follower = make_follower(self.index, self.config)
        self.loop.follower.settle()

    def register(self, name: str) -> None:
        """Its user says that this data set is read, too."""
        follower = self.loop.follower
        assert follower is not None
        at = next(at for at, one in enumerate(follower.datasets) if one.name == name)
        said = Hypothesis(at, 0, Spec("distributed", 7), 0, self.config.nodes, (self.number,))
        follower.register([(build(said, follower.datasets), None)])


class Bus:
    """Carries what one sends to all others, in order, as bytes; but for those that are `deaf`."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.all: dict[int, Node] = {}
        self.said: list[tuple[int, Message]] = []
        self.deaf: set[int] = set()
        self.held_up: dict[tuple[int, int], list[bytes]] = {}  # what the first sends to the second comes with `release`

    def add(
        self, index: Index, room: int, disks: Sequence[int] = (), kept: Mapping[int, Sequence[int]] | None = None,
        **config: Any,
    ) -> Node:  # fmt: skip
        number = len(self.all)
        worlds = (World(self.nodes, (number,)),)
        node = self.all[number] = Node(
            self, number, index, room, disks, kept, **{"worlds": worlds, "seed": 42, **config}
        )
        return node

    async def send(self, speaker: int, message: Message) -> None:
        self.said.append((speaker, message))
        for number in self.all:
            if number != speaker:
                self._hear(speaker, number, message)

    async def send_to(self, speaker: int, node: int, message: Message) -> None:
        assert node != speaker
        self.said.append((speaker, message))
        self._hear(speaker, node, message)

    def _hear(self, speaker: int, node: int, message: Message) -> None:
        body = encode(message)
        assert len(body) <= NEWS_MAX
        if (speaker, node) in self.held_up:
            self.held_up[speaker, node].append(body)
        elif node not in self.deaf:
            self.all[node].receive(speaker, body)

    def release(self, speaker: int, node: int) -> None:
        """What was held up comes."""
        for body in self.held_up.pop((speaker, node)):
            self.all[node].receive(speaker, body)

    def places(self) -> list[tuple[int, ProposedPlacement]]:
        """Placements that were named, and by whom."""
        return [(speaker, message) for speaker, message in self.said if isinstance(message, ProposedPlacement)]

    def leave(self, number: int) -> None:
        for other, node in self.all.items():
            if other != number:
                node.left(number)
