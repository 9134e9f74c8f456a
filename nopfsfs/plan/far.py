"""The foresight of one track: made when it is locked and each epoch reads a part, kept as it goes on, forgotten when
another is followed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epochs import DataSet, EpochOrder, Hypothesis, build, files_of
from nopfsfs.plan.foresight import TABLES, Foresight, places, reads_a_part, successor
from nopfsfs.plan.report import Job
from nopfsfs.plan.track import State, Track


class Far:
    """See the module."""

    def __init__(self) -> None:
        self._foresight: Foresight | None = None
        self._track: Track | None = None
        self._whole: Hypothesis | None = None  # of this it is known that each epoch reads all

    @property
    def known(self) -> bool:
        """Whether more is foreseen than the tables of a track show."""
        return self._foresight is not None and self._foresight.known > TABLES

    def job(self, track: Track | None, datasets: Sequence[DataSet]) -> Job | None:
        """What to compute next; `track`: the only one that is read, if there is one such."""
        if track is None or track.state is not State.LOCKED or track.ahead is None:
            return None
        foresight = self._follow(track, datasets)
        if foresight is None or not foresight.wants:
            return None
        following = successor(foresight.last, repeats=track.repeats)
        if following == foresight.last:
            return None

        def deliver(order: EpochOrder) -> None:
            if self._foresight is foresight and successor(foresight.last, repeats=track.repeats) == order.hypothesis:
                foresight.add(order)

        return Job(lambda: build(following, datasets), deliver)

    def next_uses(self, rows: NDArray[np.int64], uses: NDArray[np.int64], end: Callable[[], int]) -> NDArray[np.int64]:
        """`uses` i64[m]: the next stream positions of these rows, as far as the tables of the track show, else -1; with
        these filled in from further epochs. `end()`: the position at which the tables end."""
        foresight, track = self._foresight, self._track
        if foresight is None or track is None or not self._keep_up(foresight, track) or not self.known:
            return uses
        missing = np.flatnonzero(uses < 0)
        epoch = foresight.next_epochs(rows[missing])
        length = track.now.length
        later = end() + (epoch - TABLES) * length + places(rows[missing], length)
        uses[missing] = np.where(epoch >= 0, later, -1)
        return uses

    def _follow(self, track: Track, datasets: Sequence[DataSet]) -> Foresight | None:
        """The foresight of this track, up to its epoch."""
        found = self._foresight
        if found is not None and self._track is track and self._keep_up(found, track):
            return found
        here = track.hypothesis
        self._foresight = self._track = None
        if self._whole == here:
            return None
        files = files_of(here, datasets)
        if not reads_a_part(track.now, len(files)):
            self._whole = here
            return None
        self._track, self._foresight = track, Foresight(int(files.max()) + 1, here)
        self._foresight.add(track.now)
        return self._foresight

    @staticmethod
    def _keep_up(foresight: Foresight, track: Track) -> bool:
        """Go on to the epoch that the track reads now; whether it is one of those that were foreseen."""
        here = track.hypothesis
        while foresight.first != here:
            if foresight.known <= 1:
                return False
            foresight.first = successor(foresight.first, repeats=track.repeats)
            foresight.advance()
        return True
