"""What readers of a pace got, in contests of the tuner."""

from __future__ import annotations

import numpy as np

from nopfsfs.sim.tuning.contest import BIN, ContestResult


def starved(result: ContestResult, mount: int = 0) -> float:
    """The seconds in which the reader of a mount waited; it reads at a pace, from the beginning to the end."""
    begun = np.arange(len(result.ended)) * BIN
    return float((begun - result.ended[:, mount] / result.contest.mounts[mount].pace).max())
