"""The answer to "which storage should I buy?": one policy with many capacities of the fastest and the last storage
class. Pure, except for the run function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from nopfsfs.errors import Exit, NopfsError
from nopfsfs.performance.model import Cluster
from nopfsfs.sim.run import Outcome

NEAR = 0.01  # of the best time: a point within that is as good
Run = Callable[[Cluster], Outcome]


@dataclass(frozen=True, slots=True)
class Point:
    """A combination: bytes on each node of the first class and the last, None for a class that was left as it is."""

    ram: int | None
    disk: int | None
    outcome: Outcome

    @property
    def bytes(self) -> int:
        return (self.ram or 0) + (self.disk or 0)


def clusters(cluster: Cluster, rams: Sequence[int], disks: Sequence[int]) -> Iterator[tuple[int | None, int | None]]:
    """Every combination of capacities. Raises NopfsError: the cluster lacks a class that should change."""
    if rams and not cluster.classes:
        raise NopfsError(Exit.USAGE, f"--sweep-ram: {cluster.name} has no storage class; write a [[class]] in its file")
    if disks and len(cluster.classes) < 2:
        raise NopfsError(
            Exit.USAGE, f"--sweep-disk: {cluster.name} has no second storage class; write a [[class]] in its file"
        )
    for ram in rams or (None,):
        for disk in disks or (None,):
            yield ram, disk


def changed(cluster: Cluster, ram: int | None, disk: int | None) -> Cluster:
    """The cluster with these capacities on every node."""
    classes = list(cluster.classes)
    if ram is not None:
        classes[0] = replace(classes[0], capacity=(ram,))
    if disk is not None:
        classes[-1] = replace(classes[-1], capacity=(disk,))
    return replace(cluster, classes=tuple(classes))


def sweep(cluster: Cluster, rams: Sequence[int], disks: Sequence[int], run: Run) -> list[Point]:
    """Run every combination, RAM by RAM."""
    return [
        Point(ram, disk, run(changed(cluster, ram, disk))) for ram, disk in list(clusters(cluster, rams, disks))
    ]  # fmt: skip


def cheapest(points: Sequence[Point]) -> Point | None:
    """The point with the least capacity among those within `NEAR` of the best time; of equal ones the faster. None
    where no point works."""
    timed = [(point.outcome.seconds, point) for point in points if point.outcome.seconds is not None]
    if not timed:
        return None
    limit = min(seconds for seconds, _ in timed) * (1 + NEAR)
    near = [(point.bytes, seconds, at) for at, (seconds, point) in enumerate(timed) if seconds <= limit]
    return timed[min(near)[2]][1]
