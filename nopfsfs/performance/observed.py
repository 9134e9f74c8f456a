"""What fetches were observed to take, and what follows from it for where to fetch from. Pure.

The model's rates (`model.Times`) are where it begins; each fetch that is seen counts for more than those before, so
that a disk that is busy with something else, or a source that has become slow, is noticed. """

from __future__ import annotations

from dataclasses import dataclass

from nopfsfs.performance.model import Cluster

HALF_LIFE = 1000.0  # fetches, after which what was seen counts half
PRIOR = 64.0  # fetches that a calibration counts for; fewer of either kind are not judged by
# A copy on disk stops to pay when it takes so many times as long as the source, and pays again below the inverse.
SLOWER = 1.25


@dataclass(slots=True)
class ObservedService:
    """Fetches of one kind: their number, bytes and seconds, those of long ago counted less."""

    files: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0

    def see(self, files: float, size: float, seconds: float) -> None:
        """Some more fetches."""
        if files <= 0:
            return
        kept = 0.5 ** (files / HALF_LIFE)
        self.files = self.files * kept + files
        self.bytes = self.bytes * kept + size
        self.seconds = self.seconds * kept + seconds

    @property
    def per_file(self) -> float | None:
        """Mean seconds of a fetch, None before there was any."""
        return self.seconds / self.files if self.files else None

    @property
    def per_byte(self) -> float | None:
        """Seconds of a fetch for each of its bytes: so may those of larger files be compared with those of smaller."""
        return self.seconds / self.bytes if self.bytes else None

    @property
    def per_second(self) -> float | None:
        """Mean bytes per second of one fetch."""
        return self.bytes / self.seconds if self.seconds else None


class Observed:
    """The source and the disk tiers. `cluster`: as it was calibrated, if it was; `mean`: bytes of a file."""

    def __init__(self, cluster: Cluster | None, mean: float) -> None:
        self.source, self.disk = ObservedService(), ObservedService()
        self.disk_pays = True
        if cluster is None or mean <= 0:
            return
        source = cluster.source
        alone = source.latency + mean * source.at_once / source.share(1)  # as one of those under way at once
        self.source.see(PRIOR, PRIOR * mean, PRIOR * alone)
        disks = [one for one in cluster.classes if one.name != "ram"]
        if disks:
            worst = min(one.read_rate / one.threads for one in disks)
            self.disk.see(PRIOR, PRIOR * mean, PRIOR * mean / worst)

    def decide(self) -> bool:
        """Whether a copy on disk is read sooner than the source (paper, section 4: argmin over where a sample is). As
        before while too little was seen: where copies are not made, no more is seen of the disk."""
        disk, source = self.disk.per_byte, self.source.per_byte
        if disk is not None and source is not None and min(self.disk.files, self.source.files) >= PRIOR:
            if disk > SLOWER * source:
                self.disk_pays = False
            elif disk * SLOWER < source:
                self.disk_pays = True
        return self.disk_pays
