"""A stream of what comes next, blended from those of several readers.

Positions of the blended stream go round the parts in turn, `weight` places of each. So a reader who is twice as fast is
foreseen twice as far. With one part it is that part's own stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# Weights are whole numbers up to this.
MOST = 16


class Stream(Protocol):
    """The stream of one reader: positions, and the rows there."""

    @property
    def generation(self) -> int:
        """Changes when what was foretold before no longer holds."""
        ...

    @property
    def position(self) -> int:
        """The first position that is still to come."""
        ...

    def upcoming(self, start: int, count: int) -> NDArray[np.int64]:
        """The rows at positions start .. start+count-1, fewer where not known further; -1 where nothing is read."""
        ...

    def next_uses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first position still to come of each row, int64[m]; -1 where none is known."""
        ...


@dataclass(frozen=True, eq=False)
class _WeightedStream:
    stream: Stream
    start: int  # its position where the blend begins
    weight: int
    before: int  # places of other parts before it in each round

    def blended(self, position: int, total: int) -> int:
        """The blended place of one of its positions."""
        rounds, rest = divmod(position - self.start, self.weight)
        return rounds * total + self.before + rest

    def blended_all(self, positions: NDArray[np.int64], total: int) -> NDArray[np.int64]:
        """`blended` of many positions."""
        rounds, rest = np.divmod(positions - self.start, self.weight)
        return rounds * total + self.before + rest


class BlendedStream:
    """`parts`: the streams, each with its weight, as their positions are now."""

    def __init__(self, parts: Sequence[tuple[Stream, int]]) -> None:
        self._total = sum(weight for _, weight in parts)
        self._parts: list[_WeightedStream] = []
        before = 0
        for stream, weight in parts:
            self._parts.append(_WeightedStream(stream, stream.position, weight, before))
            before += weight
        self.key = tuple((id(stream), stream.generation) for stream, _ in parts)

    def next_uses(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first place still to come of each row, as in `Stream`."""
        never = np.iinfo(np.int64).max
        first = np.full(len(rows), never, dtype=np.int64)
        for part in self._parts:
            uses = part.stream.next_uses(rows)
            known = uses >= 0
            first[known] = np.minimum(first[known], part.blended_all(uses[known], self._total))
        return np.where(first < never, first, -1)

    @property
    def position(self) -> int:
        """The first place that is still to come."""
        return min((part.blended(part.stream.position, self._total) for part in self._parts), default=0)

    def spread(self) -> int:
        """The number of places by which the parts have drifted apart: the weights no longer fit when that grows."""
        places = [part.blended(part.stream.position, self._total) for part in self._parts]
        return max(places) - min(places) if places else 0

    def upcoming(self, start: int, count: int) -> NDArray[np.int64]:
        """The rows at some places, as in `Stream`. Ends where the stream of any part does."""
        if not self._parts:
            return np.zeros(0, dtype=np.int64)
        if len(self._parts) == 1:
            part = self._parts[0]
            return part.stream.upcoming(start + part.start, count)
        total = self._total
        end = start + count
        rows = np.full(count, -1, dtype=np.int64)
        first_round, last_round = start // total, -(-end // total)
        for part in self._parts:
            begin = part.start + first_round * part.weight
            wanted = (last_round - first_round) * part.weight
            found = part.stream.upcoming(begin, wanted)
            at = np.arange(wanted, dtype=np.int64)
            places = (first_round + at // part.weight) * total + part.before + at % part.weight
            inside = (places >= start) & (places < end)
            known = inside[: len(found)]
            rows[places[: len(found)][known] - start] = found[known]
            if len(found) < wanted:
                end = min(end, max(int(places[len(found)]), start))
        return rows[: end - start]


def weights(rates: Sequence[float]) -> list[int]:
    """Whole numbers in about the proportion of the rates, the least of them 1."""
    least = max(min(rates, default=0.0), max(rates, default=0.0) / MOST, 1e-9)
    return [max(1, min(MOST, round(rate / least))) for rate in rates]
