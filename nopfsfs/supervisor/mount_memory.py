"""The shared memory of a mount: made by its first supervisor, handed on to each process and to later supervisors."""

from __future__ import annotations

import contextlib
import os

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.index import Index
from nopfsfs.fuse import taken_requests
from nopfsfs.policy import budget
from nopfsfs.protocol.columns import SUPERVISOR, Columns, MetricBlock, ServerMetrics, new_place
from nopfsfs.protocol.ring import Ring
from nopfsfs.supervisor.server_rings import ServerRings
from nopfsfs.system import end_switch
from nopfsfs.tiers.open_modes import OpenModes


class MountMemory:
    """Owns the descriptors of columns, metrics, modes, taken requests and end switches in `fds`. Owns `rings`: the
    stager's, and one for each of so many servers. All of `fds` are closed with `resources`, but for `ready` and
    `arena`."""

    def __init__(
        self, fds: dict[str, int], index: Index, servers: int, resources: contextlib.ExitStack, *, first: bool
    ) -> None:  # fmt: skip
        if first:
            fds |= {"columns": Columns.create(index.n), "gauges": MetricBlock.create()}
            fds["modes"] = OpenModes.create(index.n)
            fds["taken"] = taken_requests.create()
        with contextlib.suppress(OSError):  # without, a supervisor that is stopped stays when the mount ends
            fds |= {"end": end_switch.create(), "end-stager": end_switch.create()}
            end_switch.arm(fds["end"])
        self.rings = [Ring.create(f"{number}") for number in range(1 + servers)]
        for fd in (*(fds[name] for name in fds if name not in ("ready", "arena")), *self.rings):
            resources.callback(close, fd)
        self.columns = Columns(fds["columns"], index.n, writable=True)
        self.charges = charges(index, self.columns)
        self.metrics = MetricBlock(fds["gauges"], SUPERVISOR, writable=True).block
        self.server_metrics = ServerMetrics(fds["gauges"])
        self.stager_metrics = MetricBlock(fds["gauges"], writable=False).block
        self.stager_ring = Ring(self.rings[0], writable=False)
        self.server_rings = ServerRings([Ring(fd, writable=False) for fd in self.rings[1:]])


def charges(index: Index, columns: Columns | None = None) -> NDArray[np.int64]:
    """Bytes that each row costs the memory budget when it is held once (`budget.charges`), i64[n]. `columns`: of a
    mount, whose files may have changed."""
    size = index.size
    if columns is not None:
        new_size = columns.new_size[new_place(np.arange(index.n), columns.version)]
        size = np.where(columns.version > 0, new_size, size)
    regular = (index.mode & 0o170000) == 0o100000
    return np.where(regular, budget.charges(size), 0)


def close(fd: int) -> None:
    """Close a descriptor that may be closed already."""
    with contextlib.suppress(OSError):
        os.close(fd)
