"""One base for the tuners of a job: who tells whom, and what a node without news does."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from nopfsfs.policy.source_base import SourceMemory
from nopfsfs.policy.tuner import SlowdownTuner
from nopfsfs.protocol.between_supervisors import FoundOfSource, SourceAgreed, SourceSeen, from_cluster
from nopfsfs.protocol.codec import Message, encode
from nopfsfs.protocol.columns import SIZE_CLASSES
from nopfsfs.protocol.supervisor_peer import ALL_OTHERS
from nopfsfs.supervisor.cluster.shared_base import KNOWN_S, SharedBase
from tests.asynchronous import in_trio


def memory(seconds: float, evidence: float = 50.0) -> SourceMemory:
    """What a drain has shown of the requests of one size."""
    log2_ns = [None if at != 3 else math.log2(seconds * 1e9) for at in range(SIZE_CLASSES)]
    return SourceMemory(tuple(log2_ns), tuple(evidence if at == 3 else 0.0 for at in range(SIZE_CLASSES)))


def base_of(tuner: SlowdownTuner) -> float | None:
    """Seconds that the tuner takes for idle."""
    log2_ns = tuner.memory.log2_ns[3]
    return None if log2_ns is None else float(2**log2_ns / 1e9)


class Job:
    """Nodes whose messages arrive at once, as bytes."""

    def __init__(self, count: int) -> None:
        self.leader = 0
        self.sent: list[tuple[int, int, str]] = []  # from, to, what
        self.tuners = [SlowdownTuner() for _ in range(count)]
        self.nodes = [self._make(number) for number in range(count)]

    def _make(self, number: int) -> SharedBase:
        async def send(to: int, message: Message) -> None:
            self.sent.append((number, to, type(message).__name__))
            for other in range(len(self.nodes)) if to == ALL_OTHERS else [to]:
                if other != number:
                    decoded = from_cluster.decode(encode(message))
                    assert isinstance(decoded, SourceSeen | SourceAgreed)
                    self.nodes[other].receive(number, decoded)

        return SharedBase(number, send, lambda: self.leader)

    async def look(self) -> list[float | None]:
        """All nodes look, the leader last; the base of each tuner."""
        for node in reversed(self.nodes):
            await node.look()
        for node, tuner in zip(self.nodes, self.tuners, strict=True):
            node.update(tuner)
        return [base_of(tuner) for tuner in self.tuners]


@in_trio
async def test_all_go_by_the_median_of_what_all_have_found() -> None:
    job = Job(3)
    for node, seconds in zip(job.nodes, (0.02, 0.03, 0.5), strict=True):
        node.share(memory(seconds))
    assert await job.look() == pytest.approx([0.03] * 3)


@in_trio
async def test_a_node_that_has_found_nothing_yet_goes_by_the_others() -> None:
    job = Job(3)
    job.nodes[2].share(memory(0.04))
    assert await job.look() == pytest.approx([0.04] * 3)


@in_trio
async def test_nothing_is_said_twice() -> None:
    job = Job(3)
    for node in job.nodes:
        node.share(memory(0.02))
    await job.look()
    assert sorted(job.sent) == [(0, ALL_OTHERS, "SourceAgreed"), (1, 0, "SourceSeen"), (2, 0, "SourceSeen")]
    await job.look()
    assert len(job.sent) == 3
    job.nodes[1].share(memory(0.021))
    await job.look()
    assert len(job.sent) <= 5


@in_trio
async def test_without_others_nobody_is_told_anything() -> None:
    job = Job(1)
    job.nodes[0].share(memory(0.02))
    assert await job.look() == [None]
    assert job.sent == []


@in_trio
async def test_when_the_leader_leaves_the_next_one_agrees_with_those_that_are_left() -> None:
    job = Job(3)
    for node in job.nodes:
        node.share(memory(0.02))
    await job.look()
    job.leader = 1
    job.nodes[1].left(0)
    job.nodes[2].share(memory(0.05, 90))
    await job.look()
    assert [base_of(tuner) for tuner in job.tuners[1:]] == pytest.approx([0.05] * 2)


def test_a_node_that_reads_no_more_does_not_hold_the_others_to_what_it_knew() -> None:
    async def main() -> None:
        job = Job(3)
        job.nodes[2].share(memory(0.02, 120))
        await job.look()
        await trio.sleep(KNOWN_S + 1)
        job.nodes[0].share(memory(0.2, 10))
        job.nodes[1].share(memory(0.2, 10))
        assert await job.look() == pytest.approx([0.2] * 3)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.0))


@in_trio
async def test_only_the_leader_is_believed() -> None:
    job = Job(3)
    job.nodes[2].receive(1, SourceAgreed(_payload(0.5)))
    job.nodes[2].update(job.tuners[2])
    assert base_of(job.tuners[2]) is None
    job.nodes[2].receive(0, SourceAgreed(_payload(0.5)))
    job.nodes[2].update(job.tuners[2])
    assert base_of(job.tuners[2]) == pytest.approx(0.5)


def _payload(seconds: float) -> FoundOfSource:
    found = memory(seconds)
    return FoundOfSource(found.log2_ns, found.evidence, found.knees)


@in_trio
async def test_what_others_have_said_is_not_said_again() -> None:
    job = Job(2)
    job.nodes[1].share(memory(0.02, 100))
    await job.look()
    assert max(job.tuners[0].memory.evidence) == 100
    assert max(job.tuners[0].base.found_here.evidence) == 0


@pytest.mark.parametrize(
    ("log2_ns", "evidence"), [((1.0,), (1.0,)), ((math.nan,) * SIZE_CLASSES, (1.0,) * SIZE_CLASSES), ((), ())]
)
def test_what_cannot_be_a_base_is_refused(log2_ns: tuple[float, ...], evidence: tuple[float, ...]) -> None:
    with pytest.raises(ValueError):
        Job(2).nodes[0].receive(1, SourceSeen(FoundOfSource(log2_ns, evidence, ())))
