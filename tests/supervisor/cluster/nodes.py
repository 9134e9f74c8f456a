"""Nodes of a cluster in one process: their placings are joined by a bus, their loops are made of what is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

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
from nopfsfs.supervisor.cluster.placement_agreement import PlacementAgreement
from nopfsfs.supervisor.plan_worker import make_follower
from nopfsfs.supervisor.process import charges


class Loop:
    """What a placing needs of an event loop."""

    def __init__(self, conductor: NodePolicy, follower: Follower | None) -> None:
        self.conductor, self.follower = conductor, follower
        self.holds_back = False
        self.stray: Callable[[list[int]], None] = lambda rows: None

    def furthest(self, count: int) -> Rows:
        return self.conductor.held()


class Node:
    """One mount. `room`: bytes for files that stay in memory."""

    def __init__(
        self, bus: Bus, number: int, index: Index, room: int, disks: Sequence[int] = (), **config: Any
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
        conductor = NodePolicy(self.charges, np.zeros(index.n, np.uint8), split, list(disks))
        self.loop = Loop(conductor, None)
        self.holder = np.zeros(index.n, np.uint16)
        self.placing = PlacementAgreement(
            self.config, self.loop, index, charges=self.charges, holder=self.holder,  # type: ignore[arg-type]
            say=partial(bus.say, number), say_to=partial(bus.say_to, number),
        )  # fmt: skip

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
    """What one says all others hear, in order, as bytes; but for those that are `deaf`."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.all: dict[int, Node] = {}
        self.said: list[tuple[int, Message]] = []
        self.deaf: set[int] = set()

    def add(self, index: Index, room: int, disks: Sequence[int] = (), **config: Any) -> Node:
        number = len(self.all)
        worlds = (World(self.nodes, (number,)),)
        node = self.all[number] = Node(self, number, index, room, disks, **{"worlds": worlds, "seed": 42, **config})
        return node

    async def say(self, speaker: int, message: Message) -> None:
        self.said.append((speaker, message))
        for number in self.all:
            if number != speaker:
                self._hear(speaker, number, message)

    async def say_to(self, speaker: int, node: int, message: Message) -> None:
        assert node != speaker
        self.said.append((speaker, message))
        self._hear(speaker, node, message)

    def _hear(self, speaker: int, node: int, message: Message) -> None:
        body = encode(message)
        assert len(body) <= NEWS_MAX
        if node not in self.deaf:
            self.all[node].placing.hear(speaker, body)

    def places(self) -> list[tuple[int, ProposedPlacement]]:
        """Placements that were named, and by whom."""
        return [(speaker, message) for speaker, message in self.said if isinstance(message, ProposedPlacement)]

    def leave(self, number: int) -> None:
        for other, node in self.all.items():
            if other != number:
                node.placing.left(number)
