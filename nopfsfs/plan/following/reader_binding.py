"""The tracks of a mount, and to which of them a reader belongs.

Owns the tracks by the data sets that they explain, and the binding of readers (processes or threads) to tracks. A
reader is bound by what it opens: four opens in a row that a track foresaw. So the workers of two jobs on one data set
are told apart, and new workers of the next epoch are recognised. The binding does not ask whose child a worker is.
"""

from __future__ import annotations

from collections.abc import Iterable

from nopfsfs.plan.search.row_owners import RowOwners
from nopfsfs.plan.tracking.track import Track

# Opens foreseen by a track, less those foreseen by another, after which a reader belongs to it; and the most counted.
BOUND = 4
FIRMLY = 8
_READERS = 4096
# Tracks kept of one data set: training, validation, two jobs, and one that has ended.
_TRACKS = 4


class ReaderBinding:
    """The tracks by data set, and readers bound to tracks."""

    def __init__(self, ownership: RowOwners, count: int) -> None:
        """`count`: of data sets."""
        self._ownership = ownership
        self.serving: list[list[Track]] = [[] for _ in range(count)]
        self._bound: dict[int, tuple[Track, int]] = {}

    def tracks(self) -> list[Track]:
        """All, each once."""
        return list({id(track): track for tracks in self.serving for track in tracks}.values())

    def of(self, index: int) -> list[Track]:
        """The tracks of one data set, not those of larger ones that hold it; also where smaller ones hold all its
        files."""
        return [track for track in self.tracks() if track.hypothesis.dataset == index]

    # -- readers --

    def choose(self, tracks: list[Track], row: int, reader: int, now: int) -> Track:
        """To which of several tracks an open is to be shown; `now`: the mount's count of opens."""
        bound = self._bound.get(reader)
        own = bound[0] if bound is not None and bound[1] >= BOUND and bound[0] in tracks else None
        if own is not None and own.places.expects(row):
            return own
        expecting = [track for track in tracks if track.places.expects(row)]
        locked = [track for track in expecting if track.locked]
        if locked:
            # One whose readers have ended, or have gone on with another, expects some rows by chance: more, the fewer
            # opens show.
            return max(locked, key=lambda track: track.agreement.rate(now))
        return own or max(expecting or tracks, key=lambda track: track.agreement.last_hit)

    def foreseen(self, track: Track, reader: int) -> int:
        """The track has foreseen an open of the reader. Return how firmly the reader belongs to the track: at all from
        `BOUND` on, for a while from `FIRMLY` on."""
        bound = self._bound.get(reader)
        if bound is None:
            if len(self._bound) >= _READERS:
                self._bound.clear()
            self._bound[reader] = (track, 1)
        elif bound[0] is track:
            if bound[1] < FIRMLY:
                self._bound[reader] = (track, bound[1] + 1)
            return bound[1]
        elif bound[1] > 1:
            self._bound[reader] = (bound[0], bound[1] - 1)
        else:
            self._bound[reader] = (track, 1)
        return 0

    def contradicted(self, track: Track, reader: int) -> bool:
        """The track has not foreseen an open of the reader. True: the reader belongs to the track."""
        bound = self._bound.get(reader)
        if bound is None or bound[0] is not track:
            return False
        if bound[1] >= BOUND:
            return True
        del self._bound[reader]
        return False

    def bind(self, track: Track, readers: Iterable[int]) -> None:
        """Bind to the track the readers that were found to follow it."""
        for reader in readers:
            self._bound[reader] = (track, FIRMLY)

    # -- tracks --

    def enter(self, track: Track) -> None:
        """A new track, or one that now explains another data set. It takes the place of what was merely assumed of the
        same files; of the others those read last are kept."""
        index = track.hypothesis.dataset
        for owner in self._ownership.within(index):
            others = [
                one for one in self.serving[owner] if one is not track
                and (one.agreement.was_locked or one.given or one.hypothesis.dataset not in (index, owner))
            ]  # fmt: skip
            believed = sorted(others, key=lambda one: -one.agreement.last_own)[: _TRACKS - 1]
            self.serving[owner] = [track, *believed]
        kept = {id(one) for one in self.tracks()}
        self._bound = {reader: bound for reader, bound in self._bound.items() if id(bound[0]) in kept}
