"""The rates of a mount's source and tiers: read from a calibration, refined by what the stager is seen to do."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.errors import NopfsError
from nopfsfs.performance.cluster_file import read_cluster
from nopfsfs.performance.defaults import DEFAULTS
from nopfsfs.performance.model import Cluster
from nopfsfs.performance.observed import Observed, ObservedService
from nopfsfs.policy.choice import ExpectedLanes
from nopfsfs.protocol.columns import Metric
from nopfsfs.system.bounded_run import answers

log = logging.getLogger(__name__)
ANSWER_S = 5.0  # it was read a moment ago, or the mount is taken over: then its readers wait
_SOURCE = (Metric.SOURCE_FETCHES, Metric.SOURCE_FETCHED_BYTES, Metric.SOURCE_FETCH_NS)
_DISK = (Metric.DISK_FETCHES, Metric.DISK_FETCHED_BYTES, Metric.DISK_FETCH_NS)


class MeasuredRates:
    """`path`: of the calibration, None: there is none. `metrics`: the stager's block. `charges` i64[n]:
    bytes that each file takes, 0 for a row that is none. `disks`: whether there are tiers on disk."""

    def __init__(self, path: str | None, metrics: memoryview, charges: NDArray[np.int64], *, disks: bool) -> None:
        self._disks = disks
        self.calibrated = _read(path)
        self._metrics = metrics
        self._observed = Observed(self.calibrated, int(charges.sum()) / max(1, int(np.count_nonzero(charges))))
        self._before = {name: int(metrics[name]) for name in (*_SOURCE, *_DISK)}

    @property
    def lanes(self) -> dict[str, int]:
        """The times that the stager expects of source, disks and nodes before it has seen them."""
        return ExpectedLanes.of(self.calibrated or DEFAULTS).numbers()

    def look(self) -> bool:
        """Take in what was fetched since the last look; whether it pays to keep copies on disk."""
        for service, names in ((self._observed.source, _SOURCE), (self._observed.disk, _DISK)):
            now = [int(self._metrics[name]) for name in names]
            files, size, nanoseconds = (new - self._before[name] for new, name in zip(now, names, strict=True))
            self._before |= dict(zip(names, now, strict=True))
            service.see(files, size, nanoseconds / 1e9)
        if not self._disks:
            return True
        paid = self._observed.disk_pays
        pays = self._observed.decide()
        if pays != paid:
            log.warning(
                "copies on disk %s: a file takes %.1f ms from disk, %.1f ms from the source",
                "pay again" if pays else "do not pay, and no more are made",
                1e3 * (self._observed.disk.per_file or 0), 1e3 * (self._observed.source.per_file or 0),
            )  # fmt: skip
        return pays

    def status(self) -> dict[str, Any]:
        """For the record: seconds and bytes per second of one fetch, null where nothing is known."""
        return {
            "calibrated": self.calibrated is not None,
            "source": _service(self._observed.source),
            "disk": _service(self._observed.disk),
            "disk_pays": self._observed.disk_pays,
        }


def _service(service: ObservedService) -> dict[str, float | None]:
    return {"seconds_per_file": service.per_file, "bytes_per_second": service.per_second}


def _read(path: str | None) -> Cluster | None:
    if path is None:
        return None
    if not answers(path, ANSWER_S):
        log.warning("going on without the calibration: %s did not answer within %.0f s", path, ANSWER_S)
        return None
    try:
        return read_cluster(path)
    except NopfsError as e:
        log.warning("going on without the calibration: %s", e)
        return None
