"""The opens that show, when not all do: those of tripwires, some rows apart, chosen without regard to any order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class VisibleOpens:
    """`mask` b[rows]: whose opens show; `spacing`: one in so many, on average; `apart`: the same, exactly, of all
    files."""

    mask: NDArray[np.bool_]
    spacing: int
    apart: float = 0.0

    def __post_init__(self) -> None:
        if not self.apart:
            object.__setattr__(self, "apart", float(self.spacing))

    def window(self, k: int) -> int:
        """K in opens that show, for a loader that is K places ahead: as many as K places rarely hold more of."""
        if self.spacing == 1:
            return k
        mean = k / self.spacing
        return math.ceil(mean + 2 * math.sqrt(mean) + 2)
