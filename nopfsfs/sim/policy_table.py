"""The policies that can be simulated, by name."""

from __future__ import annotations

from collections.abc import Callable

from nopfsfs.sim import policies
from nopfsfs.sim.mounted_nodes import MountPolicy
from nopfsfs.sim.policies import Policy, SimJob

POLICIES: dict[str, Callable[[SimJob], Policy]] = {
    "perfect": policies.Perfect,
    "naive": policies.Naive,
    "staging": policies.StagingBuffer,
    "deepio-ordered": policies.DeepIOOrdered,
    "deepio-opportunistic": policies.DeepIOOpportunistic,
    "parallel-staging": policies.ParallelStaging,
    "lbann-dynamic": policies.LbannDynamic,
    "lbann-preloading": policies.LbannPreloading,
    "locality-aware": policies.LocalityAware,
    "nopfs": policies.NoPFS,
    "homes": policies.HomesPolicy,
    "belady": policies.BeladyOnly,
    "mount": MountPolicy,
}
