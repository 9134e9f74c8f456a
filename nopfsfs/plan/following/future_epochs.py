"""The epochs further ahead of tracks that read another part of the files in each epoch. They are computed when the
track is locked, kept as it goes on, also while another reads (a validation), and forgotten with the track.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nopfsfs.plan.epoch_order import DataSet, Hypothesis, build, files_of, successor
from nopfsfs.plan.following.follower_output import BackgroundJob
from nopfsfs.plan.following.foresight import EpochRows, places, reads_a_part
from nopfsfs.plan.tracking.track import Track

TABLES = 2  # epochs whose order is known in full from the track: what it reads now, and the next
MOST = 2  # tracks of which more is foreseen, those that were read last: each takes 8 bytes for each file


class FutureEpochs:
    """The `EpochRows` of up to `MOST` tracks."""

    def __init__(self) -> None:
        self._tracks: list[tuple[Track, EpochRows]] = []
        self._whole: list[tuple[Track, Hypothesis]] = []  # of these epochs it is known that they read all

    @property
    def known(self) -> bool:
        """True: more is foreseen than the tables of the tracks show."""
        return any(foresight.known > TABLES and _has_a_future(track) for track, foresight in self._tracks)

    def job(self, tracks: Sequence[Track], datasets: Sequence[DataSet]) -> BackgroundJob | None:
        """The next computation; `tracks`: all there are. To be run, then delivered, before the next is asked for."""
        self._forget(tracks)
        for track in tracks:
            if _has_a_future(track) and track.places.ahead is not None:
                foresight = self._follow(track, datasets)
                if foresight is not None and foresight.wants:
                    following = successor(foresight.last)
                    if following != foresight.last:
                        return self._job(foresight, following, datasets)
        return None

    def _job(self, foresight: EpochRows, following: Hypothesis, datasets: Sequence[DataSet]) -> BackgroundJob:
        def compute() -> None:
            foresight.write(build(following, datasets))

        return BackgroundJob(compute, lambda _: foresight.add(following))

    def next_uses(
        self, rows: NDArray[np.int64], uses: NDArray[np.int64], position: int, reading: Sequence[object]
    ) -> NDArray[np.int64]:
        """The next stream positions of these rows, i64[m]: `uses`, filled in from what else is known. `uses`: the
        positions that the tables of the tracks that are `reading` now show, else -1. `position`: of the stream. A track
        waits for its readers, unless others read its data set: then its job has ended."""
        missing = np.flatnonzero(uses < 0)
        some, found = rows[missing], np.full(len(missing), -1, np.int64)
        read = {track.hypothesis.dataset for track in reading if isinstance(track, Track)}
        for track, foresight in self._tracks:
            ended = track not in reading and track.hypothesis.dataset in read
            if not len(missing) or ended or not _has_a_future(track) or not _keep_up(foresight, track):
                continue
            shift = position - track.position
            here = np.full(len(some), -1, np.int64)
            if track not in reading:  # it waits, and will go on
                here = track.next_uses(some)
            epoch = foresight.next_epochs(some, TABLES if track.places.ahead is not None else 1)
            length = track.places.now.length
            later = shift + track.places.base + epoch * length + places(some, length)
            use = np.where(here >= 0, here + shift, np.where(epoch >= 0, later, -1))
            found = np.where(found < 0, use, np.where(use < 0, found, np.minimum(found, use)))
        uses[missing] = found
        return uses

    def _forget(self, tracks: Sequence[Track]) -> None:
        """Drop the rows of tracks that are no more, or that are not what they were thought to be."""
        self._tracks = [one for one in self._tracks if one[0] in tracks and _has_a_future(one[0])]
        self._whole = [one for one in self._whole if one[0] in tracks]

    def _follow(self, track: Track, datasets: Sequence[DataSet]) -> EpochRows | None:
        """The foresight of this track, up to its epoch; None where it has none."""
        here = track.hypothesis
        found = next((foresight for one, foresight in self._tracks if one is track), None)
        if found is not None:
            if _keep_up(found, track):
                return found
            self._tracks = [one for one in self._tracks if one[0] is not track]
        before = [one for one, _ in self._tracks if one.agreement.last_own < track.agreement.last_own]
        if (len(self._tracks) >= MOST and not before) or (track, here) in self._whole:
            return None
        files = files_of(here, datasets)
        if not reads_a_part(track.places.now, len(files)):
            self._whole = [one for one in self._whole if one[0] is not track] + [(track, here)]
            return None
        if len(self._tracks) >= MOST:
            longest_ago = min(before, key=lambda one: one.agreement.last_own)
            self._tracks = [one for one in self._tracks if one[0] is not longest_ago]
        made = EpochRows(int(files.max()) + 1, here)
        made.write(track.places.now)
        made.add(here)
        self._tracks.append((track, made))
        return made


def _has_a_future(track: Track) -> bool:
    """True: the epochs to come of a track are known, and not all the same."""
    return track.locked and not track.repeats


def _keep_up(foresight: EpochRows, track: Track) -> bool:
    """Go on to the epoch that the track reads now; whether it is one of those that were foreseen."""
    here = track.hypothesis
    while foresight.first != here:
        if foresight.known <= 1:
            return False
        foresight.first = successor(foresight.first)
        foresight.advance()
    return True
