"""Our own policy as mounts run it: the node policy of every node, fed with the reads of the node's ranks.

Nothing in here decides what is fetched, kept or evicted: `policy.node_policy` does, and between the nodes
`placement.methods`. What a stager does is done at once. Where each read comes from is noted; `fluid` finds the times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.placement import methods
from nopfsfs.placement.methods import NOWHERE
from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.copy_flags import ON_DISK
from nopfsfs.policy.homes import Home
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.protocol.supervisor_stager import StagerCommand
from nopfsfs.sim.fluid import PEER, SOURCE, STORED, Reads
from nopfsfs.sim.policies import Policy, SimJob

Ints = NDArray[np.int64]
Origin = tuple[int, int]  # as in `Reads`: where a read comes from, and the holder
EPOCHS_KNOWN = 4  # in which next uses are looked for, this one included


class NodeStream:
    """The reads of a node in all epochs: a position in the stream is that of an epoch after the other."""

    def __init__(self, job: SimJob, node: int) -> None:
        self._job, self._columns = job, job.columns(node)
        self.length = job.orders.epoch(0)[:, self._columns].size
        self._rows: dict[int, Ints] = {}  # by epoch
        self._places: dict[int, NDArray[np.int32]] = {}

    def rows(self, epoch: int) -> Ints:
        """The samples of an epoch, i64[length]."""
        found = self._rows.get(epoch)
        if found is None:
            found = self._rows[epoch] = self._job.orders.epoch(epoch)[:, self._columns].reshape(-1).astype(np.int64)
        return found

    def forget_before(self, epoch: int) -> None:
        """Forget the epochs that are over."""
        for known in (self._rows, self._places):
            for gone in [one for one in known if one < epoch]:
                del known[gone]

    def upcoming(self, start: int, count: int) -> Ints:
        """The rows at positions start .. start+count-1, i64[<= count]; as of `Upcoming` in `stream_scan`."""
        found: list[Ints] = []
        while count > 0 and start // self.length < self._job.epochs:
            epoch, at = divmod(start, self.length)
            found.append(self.rows(epoch)[at : at + count])
            start, count = start + len(found[-1]), count - len(found[-1])
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def next_uses(self, rows: Ints, position: int) -> Ints:
        """The position of the next read of each of m rows, i64[m]; -1 where none is known."""
        found = np.full(len(rows), -1, np.int64)
        first = position // self.length
        for epoch in range(first, min(first + EPOCHS_KNOWN, self._job.epochs)):
            place = self._place(epoch)[rows]
            at = epoch * self.length + place.astype(np.int64)
            new = (found < 0) & (place >= 0) & (at >= position)
            found[new] = at[new]
        return found

    def _place(self, epoch: int) -> NDArray[np.int32]:
        """The place of each sample in an epoch, i32[F], -1: another node reads it."""
        found = self._places.get(epoch)
        if found is None:
            found = self._places[epoch] = np.full(len(self._job.sizes), -1, np.int32)
            rows = self.rows(epoch)
            found[rows[::-1]] = np.arange(len(rows), dtype=np.int32)[::-1]
        return found


class MountedNode:
    """The policy of one node, and a stager that does at once what it is told. `nodes`: all of them, by number."""

    def __init__(self, job: SimJob, node: int, placed: methods.Placement | None, nodes: Sequence[MountedNode]) -> None:
        self._node, self._placed, self._nodes = node, placed, nodes
        self._sizes: memoryview = job.sizes.data
        self.stream = NodeStream(job, node)
        room = job.room[node].tolist()
        capacity = job.cluster.staging.capacity
        memory, staging = room[0] if room else 0, capacity[node % len(capacity)]
        whole = max([staging, *room])
        split = MemorySplit(memory + staging, memory, staging, 0, 0, 0, whole)
        self.policy = NodePolicy(job.sizes.copy(), np.zeros(len(job.sizes), np.uint8), split, room[1:])
        self.policy.foresee(lambda rows: self.stream.next_uses(rows, self._position))
        self.policy.use_belady(placed is not None)  # each epoch reads another part of the files
        if placed is not None:
            local = placed.local(node, np.arange(len(job.sizes)))
            self.policy.apply_placement(local, self.policy.held())
        self._position = 0
        # Reads ahead of the reader: as many as the staging buffer holds, and no fewer than a step.
        step = job.orders.training.batch * job.cluster.ranks
        self._ahead = max(step, int(staging / max(1.0, float(job.sizes.mean()))))
        self._came: dict[int, Origin] = {}  # what was fetched for a read to come
        self.written = np.zeros(job.room.shape[1])  # bytes by class, beside what the origins say

    @property
    def kept(self) -> NDArray[np.bool_]:
        """The samples with their home here, b[F]."""
        home = self.policy.residency.home
        found: NDArray[np.bool_] = (home == Home.RAM) | (home == Home.DISK)
        return found

    def has(self, row: int) -> int:
        """The storage class of the copy here; NOWHERE without one."""
        residency = self.policy.residency
        if residency.is_staged(row):
            return 0
        return residency.homes.tier(row) if residency.state_of[row] & ON_DISK else NOWHERE

    def read_some(self, rows: Ints) -> list[Origin]:
        """Let the ranks read the next rows of the stream; return where each comes from."""
        while True:
            self.policy.advance(self._position, self._ahead, self.stream.upcoming)
            if not self._obey():
                break
        return [self._read(row) for row in rows.tolist()]

    def pull(self, row: int) -> None:
        """Take a row with its home here that another node has read from the source."""
        if self.has(row) == NOWHERE:
            self.policy.pull(row)
            self._obey(pulled=True)

    def _read(self, row: int) -> Origin:
        policy = self.policy
        policy.opened(row)
        origin = self._came.pop(row, None)
        if origin is None:
            at = self.has(row)
            origin = (at, self._node) if at != NOWHERE else self._demand(row)
        policy.read(row, self._sizes[row])
        policy.released(row)
        self._position += 1
        return origin

    def _demand(self, row: int) -> Origin:
        """A read for which nothing was fetched."""
        if self._sizes[row] <= self.policy.split.whole_limit:
            return self._stage(row)
        return SOURCE, 0

    def _obey(self, *, pulled: bool = False) -> bool:
        """Do what the policy commands; return whether there was anything. `pulled`: for another node's read."""
        commands = self.policy.take_commands()
        for do, rows, value in commands:
            for row in rows:
                self._do(do, row, value, pulled=pulled)
        return bool(commands)

    def _do(self, do: StagerCommand, row: int, value: int, *, pulled: bool) -> None:
        policy = self.policy
        if do == StagerCommand.FETCH and pulled:
            policy.staged(row)
        elif do == StagerCommand.FETCH:
            self._came[row] = self._stage(row)
        elif do == StagerCommand.EVICT:
            policy.evicted(row)
            self._came.pop(row, None)
        elif do == StagerCommand.TO_DISK:
            policy.on_disk(row, value)
            if not pulled and self._came.get(row) != (STORED + value, self._node):
                self.written[value] += self._sizes[row]
        elif do == StagerCommand.OFF_DISK:
            policy.off_disk(row)
        elif do == StagerCommand.DROP:
            policy.dropped(row)
        elif do == StagerCommand.PUSH:
            policy.push_failed(row)

    def _stage(self, row: int) -> Origin:
        """Bring a row into memory; return where it comes from."""
        at = self.has(row)
        home = NOWHERE if self._placed is None else int(self._placed.home[row])
        peer = self._nodes[home].has(row) if at == NOWHERE and home not in (NOWHERE, self._node) else NOWHERE
        self.policy.staged(row)
        if at != NOWHERE:
            return at, self._node
        if peer != NOWHERE:
            return PEER + peer, home
        here = self._class_of_home(row)
        if self._placed is None or home in (NOWHERE, self._node):
            return (SOURCE, 0) if here == NOWHERE else (STORED + here, self._node)
        self._nodes[home].pull(row)
        if here == 0:
            self.written[0] += self._sizes[row]  # a second copy
        return STORED + int(self._placed.home_class[row]), home

    def _class_of_home(self, row: int) -> int:
        """The storage class here that is the row's home; NOWHERE if it has none."""
        residency = self.policy.residency
        if int(residency.home_of[row]) == Home.DISK:
            return residency.homes.tier(row)
        return 0 if int(residency.home_of[row]) == Home.RAM else NOWHERE


class MountPolicy(Policy):
    """Mounts on all nodes. Each read is decided one by one: some 30 microseconds of a processor for each."""

    def prepare(self) -> None:
        job, count = self.job, self.job.cluster.nodes
        placed = methods.homes(job.readers, job.epochs, job.sizes, job.room) if count > 1 and job.room.size else None
        self._nodes: list[MountedNode] = []
        self._nodes += [MountedNode(job, node, placed, self._nodes) for node in range(count)]

    def reads(self, epoch: int) -> Reads:
        job = self.job
        samples, step = job.orders.epoch(epoch), job.orders.training.batch
        where, holder = np.zeros(samples.shape, np.uint8), np.zeros(samples.shape, np.uint16)
        for node in self._nodes:
            node.stream.forget_before(epoch)
            node.written[:] = 0
        for first in range(0, len(samples), step):
            part = slice(first, first + step)
            for number, node in enumerate(self._nodes):
                mine = (part, job.columns(number))
                shape = samples[mine].shape
                found = np.array(node.read_some(samples[mine].reshape(-1).astype(np.int64)))
                where[mine], holder[mine] = found[:, 0].reshape(shape), found[:, 1].reshape(shape)
        written = np.stack([node.written for node in self._nodes], axis=1)
        return Reads(samples, where, holder, written=written)

    @property
    def distinct_share(self) -> float:
        kept = np.any([node.kept for node in self._nodes], axis=0)
        return float(kept.mean()) if len(kept) else 1.0
