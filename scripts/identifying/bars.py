"""From which open on a job is to be foreseen, and whether it was. Pure; the rules are those of issue 16.

A rank is judged from its open 64 on (nothing or a wrong seed said: 256), or from T seconds after its first open, if
that is later; one that opens fewer files in an epoch: not before its second epoch. A case ends 1,000 opens after
the bar of its last rank, at the latest after two epochs. Where the bar lies after two epochs there is nothing to
judge, unless the case goes on `beyond` them: then it ends two epochs after its bar at the latest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from identifying.cells import NOTHING, Cell
from identifying.opens import Opens, opens
from nopfsfs.plan.visible_opens import VisibleOpens

OPEN_S = 0.0005  # between any two opens of the mount
SHARE = 0.99
AFTER_BAR = 1000
EPOCHS = 2
FROM_OPEN, FROM_OPEN_UNSAID = 64, 256
T_SAID_S, T_S, T_UNSAID_MIDDLE_S = 0.5, 2.0, 10.0
# Ranks drift apart by less than this share of what they have opened.
DRIFT = 1.25


@dataclass(frozen=True, eq=False)
class Case:
    """A cell's opens up to its end, and which of them are judged, bool[m]; `second`: those of a rank's second epoch."""

    opens: Opens
    judged: NDArray[np.bool_]

    @property
    def second(self) -> NDArray[np.bool_]:
        second: NDArray[np.bool_] = self.opens.epochs == 1
        return second


def seconds(cell: Cell, patience: float = 1.0) -> float:
    """T, `patience` times what the issue says."""
    if cell.said == NOTHING and cell.begin == "middle":
        return patience * T_UNSAID_MIDDLE_S
    return patience * (T_SAID_S if cell.true_said and cell.begin != "middle" else T_S)


def from_open(cell: Cell) -> int:
    return FROM_OPEN if cell.true_said else FROM_OPEN_UNSAID


def case(cell: Cell, *, beyond: bool, showing: VisibleOpens | None = None, patience: float = 1.0) -> Case:
    """The case of a cell. `showing`: only the opens of some rows are seen, and it is those that count. `patience`: of
    `seconds`."""
    apart = showing.spacing if showing is not None else 1
    lanes, two_epochs = len(cell.ranks), _two_epochs(cell)
    bar = max(seconds(cell, patience) / OPEN_S, DRIFT * lanes * max(apart * from_open(cell), cell.each))
    most = int(bar + DRIFT * 2 * lanes * apart) + apart * AFTER_BAR + 1
    if not beyond:
        most = min(most, two_epochs)
    there = opens(cell, most)
    if showing is not None:
        there = there.showing(showing.mask)
    judged = judge(cell, there, patience)
    begun = _bar(cell, there, judged)
    end = begun + min(AFTER_BAR, EPOCHS * lanes * cell.each // apart)
    if not beyond:
        end = min(begun + AFTER_BAR, len(there))
    return Case(there.until(end), judged[:end])


def judge(cell: Cell, there: Opens, patience: float = 1.0) -> NDArray[np.bool_]:
    """Which opens come after their rank's bar, bool[m]."""
    first = np.full(len(cell.ranks), there.number[-1] if len(there) else 0)
    np.minimum.at(first, there.lanes, there.number)
    waited = (there.number - first[there.lanes]) * OPEN_S
    judged = (there.nth >= from_open(cell)) & (waited >= seconds(cell, patience) - OPEN_S / 2)
    if cell.each < from_open(cell):
        judged &= there.epochs >= 1
    found: NDArray[np.bool_] = judged
    return found


def _bar(cell: Cell, there: Opens, judged: NDArray[np.bool_]) -> int:
    """The open at which the last rank is past its bar; their number where one is not."""
    after = np.full(len(cell.ranks), len(there))
    at = np.flatnonzero(judged)
    np.minimum.at(after, there.lanes[at], at)
    return int(after.max())


def _two_epochs(cell: Cell) -> int:
    return len(cell.ranks) * (EPOCHS * cell.each - cell.skipped)


def share(foreseen: NDArray[np.uint8], which: NDArray[np.bool_]) -> float | None:
    """Of the opens in question those that were foreseen; None where there are none."""
    return float(foreseen[which].mean()) if which.any() else None


def worst_rank(foreseen: NDArray[np.uint8], there: Opens, which: NDArray[np.bool_]) -> float | None:
    """The share of the rank of which least was foreseen; None where there is nothing to judge."""
    total = np.bincount(there.lanes[which])
    good = np.bincount(there.lanes[which], weights=foreseen[which])
    return float((good[total > 0] / total[total > 0]).min()) if total.any() else None
