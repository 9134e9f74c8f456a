"""The node that reads each sample, in the epochs that a plan foresees: what a placement of the cluster goes by."""

from __future__ import annotations

import numpy as np

from nopfsfs.placement.access_counts import Nodes, dealt
from nopfsfs.plan.epoch_order import Hypothesis, successor
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import STRIDED, Dealt

KEPT_BYTES = 512 << 20  # of what all epochs together take; more files: fewer epochs, which say nearly as much
RANKS_MOST = 64  # with orders of their own
ONCE = 2  # ranks of which each reads all: then together they read more than so many times the files


def readers(hypothesis: Hypothesis, n: int, nodes: int, epochs: int) -> list[Nodes] | None:
    """By epoch, from that of the hypothesis on, the node that reads each of n samples, u16[n], or NOBODY. Samples with
    several readers have the first. Ranks are dealt out to the nodes in blocks. None where it cannot be said which node
    reads what. Every rank may read all, or it may not be known how many ranks there are on each node."""
    if hypothesis.world % nodes or n == 0 or not _deals(hypothesis, n):
        return None
    found: list[Nodes] = []
    for _ in range(max(1, min(epochs, KEPT_BYTES // (2 * n)))):
        try:
            found.append(_epoch(hypothesis, n, nodes))
        except ValueError:  # the sampler refuses
            return None
        hypothesis = successor(hypothesis)
    return found


def _deals(hypothesis: Hypothesis, n: int) -> bool:
    """True when the ranks share the samples."""
    spec, world = hypothesis.spec, hypothesis.world
    family = registry.sampler(spec.sampler)
    if family.dealt is not Dealt.OWN or world == 1:
        return family.dealt is not Dealt.ALL or world == 1 or bool(spec.number(STRIDED))
    if world > RANKS_MOST or spec.data is not None:
        return False
    try:
        return len(family.order(spec, n, hypothesis.epoch, world, (0,))) * world <= ONCE * n
    except ValueError:
        return False


def _epoch(hypothesis: Hypothesis, n: int, nodes: int) -> Nodes:
    world = hypothesis.world
    order = registry.sampler(hypothesis.spec.sampler).order(
        hypothesis.spec, n, hypothesis.epoch, world, range(world)
    )  # fmt: skip
    if order.min(initial=0) < 0:  # places at which a rank reads nothing
        order = np.where(order < 0, n, order)
    return dealt(order, n + 1, world, world // nodes)[:n]
