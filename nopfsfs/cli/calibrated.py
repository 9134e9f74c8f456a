"""What a calibration says about how to mount: how many reads of the source, and in which order the disks are filled."""

from __future__ import annotations

import os
from typing import Any

from nopfsfs.rundir import calibration_path

IN_FLIGHT = 2  # reads for each that the source works on: it must not wait for the next
FEWEST, MOST = 8, 64


def apply(values: dict[str, Any], defaults: dict[str, Any], index_dir: str, source: str) -> None:
    """Take the calibration that is named in `values`, or that lies where `nopfs calibrate` writes it, and say in
    `values` and `defaults` what follows from it. Raises NopfsError: the one that is named cannot be used."""
    named = values.get("calibration")
    path = named or calibration_path(index_dir, source)
    if not named and not os.path.exists(path):
        return
    from nopfsfs.clusterfile import read_cluster  # with numpy: plain mounts need none of it
    from nopfsfs.errors import NopfsError

    try:
        cluster = read_cluster(path)
    except NopfsError:
        if named:
            raise
        return  # a leftover of another version is no reason not to mount
    values["calibration"] = path
    values.setdefault("source_concurrency", min(MOST, max(FEWEST, IN_FLIGHT * cluster.source.at_once)))
    rates = {one.name: one.read_rate for one in cluster.classes}
    defaults["disks"] = tuple(sorted(defaults["disks"], key=lambda disk: -rates.get(disk.path, 0.0)))
