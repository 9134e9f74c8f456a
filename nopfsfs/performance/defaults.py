"""The rates that are assumed for a node that nobody has measured (`nopfs calibrate` measures).

The rates are guesses, of the order of magnitude that a training job finds. Such a node has a busy parallel file system,
DDR4 copied by one process, a SATA SSD and 10 Gbit/s Ethernet.
"""

from __future__ import annotations

from nopfsfs.performance.model import Cluster, Curve, SourceModel, StorageClass

SOURCE_RATE, LATENCY_S, AT_ONCE = 500e6, 0.005, 64
RAM_RATE = 5e9
DISK_READ, DISK_WRITE = 500e6, 300e6
NETWORK = 1.25e9
RAM = StorageClass("ram", (0,), 4, Curve.flat(RAM_RATE), Curve.flat(RAM_RATE))
DISK = StorageClass("disk", (0,), 4, Curve.flat(DISK_READ), Curve.flat(DISK_WRITE))
STAGING = StorageClass("staging", (0,), 4, Curve.flat(RAM_RATE), Curve.flat(RAM_RATE))
# Training takes no time beside the bytes: only the user knows how long it takes.
DEFAULTS = Cluster(
    "defaults", 1, RAM_RATE, NETWORK, SourceModel(Curve.flat(SOURCE_RATE), latency=LATENCY_S, at_once=AT_ONCE), STAGING,
    (RAM, DISK),
)  # fmt: skip
TEXT = (
    "source 500 MB/s, 5 ms a file, 64 at once; RAM 5 GB/s; disk 500 MB/s read, 300 MB/s write; network 1.25 GB/s; "
    "training takes no time"
)
