"""Settings that follow from a calibration: with how many requests at the source the tuner begins, and which disk fills
first."""

from __future__ import annotations

import dataclasses
import os

from nopfsfs.config import MountConfig
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.system.bounded_run import answers
from nopfsfs.system.state_dirs import calibration_path, trusted_users

IN_FLIGHT = 2  # reads in flight for each that the source works on, so that the source never waits for the next one
FEWEST, MOST = 8, 64
ANSWER_S = 30.0  # a file system that takes longer is taken for dead


def apply(config: MountConfig) -> MountConfig:
    """Return `config` with the settings from the calibration that it names, or that `nopfs calibrate` has written to
    its usual place. A named file is trusted; a file in the usual place is ignored if it belongs to a user who is not
    trusted. Call it for a source that answers. Raises NopfsError for a named file that cannot be read."""
    named = config.calibration
    if named and not answers(os.path.abspath(named), ANSWER_S):
        raise NopfsError(Exit.USAGE, f"{named} did not answer within {ANSWER_S:.0f} s; name a calibration elsewhere")
    path = os.path.realpath(named) if named else calibration_path(config.index_dir, config.source)
    if not named and not os.path.lexists(path):
        return config
    from nopfsfs.performance.cluster_file import class_name, read_cluster  # with numpy: plain mounts need none of it

    try:
        cluster = read_cluster(path, None if named else trusted_users(config.uid))
    except NopfsError:
        if named:
            raise
        return config  # a file of another user or of another version does not prevent the mount
    at_once = min(MOST, max(FEWEST, IN_FLIGHT * cluster.source.at_once))
    rates = {one.name: one.read_rate for one in cluster.classes}
    return dataclasses.replace(
        config,
        calibration=path,
        calibrated_concurrency=at_once,
        disks=tuple(sorted(config.disks, key=lambda disk: -rates.get(class_name(disk.path), 0.0))),
    )
