"""Events of the other nodes, as the peer process reports them. Their channel is closed when no more can come."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterMessage:
    """A message of the supervisor of a node (`protocol/between_supervisors.py`), not decoded yet."""

    node: int
    body: bytes


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A node that will send nothing more."""

    node: int


ClusterEvent = ClusterMessage | NodeLeft
