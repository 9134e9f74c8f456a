"""The stream that a mount hands out: positions that only grow, whoever reads.

Owns the blend of those who read now, and the generation: within one, what was foretold holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.tracking.blended_stream import BlendedStream, Stream, weights
from nopfsfs.plan.tracking.track import Track

# Places that blended readers may drift apart before their speeds are measured anew.
_DRIFT = 1024


class AccessStream:
    """The positions of one mount's stream, which only grow."""

    def __init__(self) -> None:
        self.generation = 0
        self._blend = BlendedStream(())
        self._shift = 0  # stream position of this mount less that of the blend
        self._reported = 0

    def settle(self, streams: Sequence[Stream], opens: int) -> None:
        """Take the streams that are read now; `opens`: the mount's count. Starts a new generation when they are others
        than before, or have drifted too far apart."""
        key = tuple((id(stream), stream.generation) for stream in streams)
        if key == self._blend.key and (len(streams) < 2 or self._blend.spread() < _DRIFT):
            return
        before = self.position
        if self._blend.key:
            self.generation += 1
        rates = [stream.agreement.rate(opens) if isinstance(stream, Track) else 1.0 for stream in streams]
        self._blend = BlendedStream(list(zip(streams, weights(rates), strict=True)))
        self._shift = before - self._blend.position

    @property
    def position(self) -> int:
        """Stream position of the first access that is still to come; never decreases."""
        self._reported = max(self._reported, self._blend.position + self._shift)
        return self._reported

    def upcoming(self, start: int, count: int) -> NDArray[np.int64]:
        """Rows at the positions start .. start+count-1, int64[<= count]; as of `Stream`."""
        return self._blend.upcoming(start - self._shift, count)

    def next_uses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first position still to come of each row, int64[m]; -1 where none is known. A row that the blend reads
        at a position below `position` counts as read at `position`."""
        uses = self._blend.next_uses(rows)
        return np.where(uses >= 0, np.maximum(uses + self._shift, self.position), -1)
