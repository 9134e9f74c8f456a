"""Observed times of fetches, and the decision where to fetch from. Pure.

The observations begin with the rates of the model (`model.Times`). Each fetch counts for more than those before. So a
disk that is busy with something else, or a source that has become slow, is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass

from nopfsfs.performance.model import Cluster

HALF_LIFE = 1000.0  # fetches, after which an observation counts half
PRIOR = 64.0  # fetches that a calibration counts for; with fewer of either kind, nothing is decided
# Copies on disk stop paying when they take so many times as long as the source, and pay again below the inverse.
SLOWER = 1.25


@dataclass(slots=True)
class ObservedService:
    """Fetches of one kind: their number, bytes and seconds; those of long ago count less."""

    files: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0

    def see(self, files: float, size: float, seconds: float) -> None:
        """Add `files` fetches of `size` bytes in all, which took `seconds`."""
        if files <= 0:
            return
        kept = 0.5 ** (files / HALF_LIFE)
        self.files = self.files * kept + files
        self.bytes = self.bytes * kept + size
        self.seconds = self.seconds * kept + seconds

    @property
    def per_file(self) -> float | None:
        """Mean seconds of a fetch, None before the first."""
        return self.seconds / self.files if self.files else None

    @property
    def per_byte(self) -> float | None:
        """Seconds of a fetch for each of its bytes, which makes fetches of larger and smaller files comparable."""
        return self.seconds / self.bytes if self.bytes else None

    @property
    def per_second(self) -> float | None:
        """Mean bytes per second of one fetch."""
        return self.bytes / self.seconds if self.seconds else None


class Observed:
    """Observations of the source and the disk tiers. `cluster`: as calibrated, or None; `mean`: bytes of a file."""

    def __init__(self, cluster: Cluster | None, mean: float) -> None:
        self.source, self.disk = ObservedService(), ObservedService()
        self.disk_pays = True
        if cluster is None or mean <= 0:
            return
        source = cluster.source
        alone = source.latency + mean * source.at_once / source.share(1)  # one of `at_once` fetches under way
        self.source.see(PRIOR, PRIOR * mean, PRIOR * alone)
        disks = [one for one in cluster.classes if one.name != "ram"]
        if disks:
            worst = min(one.read_rate / one.threads for one in disks)
            self.disk.see(PRIOR, PRIOR * mean, PRIOR * mean / worst)

    def decide(self) -> bool:
        """Decide whether a copy on disk is read sooner than the source (paper, section 4: argmin over where a sample
        is). The decision stays while too few fetches were seen: where no copies are made, none is seen of the disk."""
        disk, source = self.disk.per_byte, self.source.per_byte
        if disk is not None and source is not None and min(self.disk.files, self.source.files) >= PRIOR:
            if disk > SLOWER * source:
                self.disk_pays = False
            elif disk * SLOWER < source:
                self.disk_pays = True
        return self.disk_pays
