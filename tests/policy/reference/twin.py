"""A policy that hands each event to its reference, too, and compares the states and the commands of both.

The reference may forget a copy that has lost its last hold, until something else happens to its row. The new policy
evicts such a copy at once; then the reference is made to have done so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from nopfsfs.policy.budget import MemorySplit
from nopfsfs.policy.copy_flags import Copy, Hold
from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.protocol.supervisor_stager import StagerCommand
from tests.policy.reference.node_policy import NodePolicy as Reference

OTHER_NAMES = {
    "kernel_reads": "backed", "pages_lost": "pages_gone", "use_belady": "replace", "apply_placement": "place",
    "withdraw_placement": "unplace", "take_commands": "orders", "offer": "passing.hold", "end_offer": "passing.end",
    "pull": "passing.pull", "cancel_pull": "passing.pull_no_more", "rotate_recent": "window.rotate_recent",
}  # fmt: skip
EVENTS = (
    *OTHER_NAMES, "staged", "fetch_failed", "fetch_stuck", "evicted", "pushed", "push_failed", "dropped", "on_disk",
    "off_disk", "changed", "stager_restarted", "adopt", "resync", "opened", "without_closes", "read", "released",
    "events_lost", "restart", "advance", "use_disk", "resize", "foresee", "let_pass",
)  # fmt: skip
ARRAYS = {
    "_staged": Copy.STAGED, "_fetching": Copy.FETCHING, "_evicting": Copy.EVICTING, "_streaming": Copy.STREAM,
    "_on_disk": Copy.ON_DISK, "_backed": Copy.KERNEL_READS, "may_pass": Copy.MAY_PASS,
}  # fmt: skip
Commands = list[tuple[StagerCommand, list[int], int]]


class Twin(NodePolicy):
    """`earlier`: evictions that the reference would have come to later, by the event that showed them."""

    earlier: ClassVar[Counter[str]] = Counter()

    def __init__(self, charges: Any, paged: Any, split: MemorySplit, disk_room: list[int]) -> None:
        super().__init__(charges, paged, split, disk_room)
        self.old = Reference(charges.copy(), paged.copy(), split, disk_room)
        self._extra: set[int] = set()  # evicted earlier, since commands were taken
        self._inside = False

    def _both(self, name: str, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return method(self, *args, **kwargs)
        self._inside = True
        try:
            answer = method(self, *args, **kwargs)
        finally:
            self._inside = False
        if name in ("stager_restarted", "resync"):  # which discard the commands
            self._extra.clear()
        old = self._tell_old(name, *args, **kwargs)
        self._align(name)
        if name == "take_commands":
            self._compare(answer, old)
        else:
            assert answer == old, name
        self._check(name)
        return answer

    def _tell_old(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "foresee":
            self.old.window.behind.next_uses = self.old.kept.next_uses = args[0]
            return None
        if name == "let_pass":
            self.old.may_pass[args[0]] = True
            return None
        part: Any = self.old
        for attribute in OTHER_NAMES.get(name, name).split("."):
            part = getattr(part, attribute)
        return part(*args, **kwargs)

    def _align(self, name: str) -> None:
        evicting = self.residency.state & Copy.EVICTING != 0
        assert not (self.old._evicting & ~evicting).any(), f"{name}: an eviction that did not come"
        for row in np.flatnonzero(evicting & ~self.old._evicting).tolist():
            self.earlier[name] += 1
            self._extra.add(row)
            self.old._evicting[row] = True

    def _compare(self, new: Commands, old: Commands) -> None:
        """The same commands in the same order; evictions may stand elsewhere among them."""
        one, other = ([(do, row, value) for do, rows, value in all_ for row in rows or [-1]] for all_ in (new, old))
        assert [command for command in one if command[0] != StagerCommand.EVICT] == [
            command for command in other if command[0] != StagerCommand.EVICT
        ]
        evictions = Counter(row for do, row, _ in one if do == StagerCommand.EVICT)
        evictions.subtract(row for do, row, _ in other if do == StagerCommand.EVICT)
        assert all(count == (row in self._extra) for row, count in evictions.items() if count or row in self._extra)
        self._extra.clear()

    def _check(self, name: str) -> None:
        r, o = self.residency, self.old
        present = r.state & (Copy.STAGED | Copy.EVICTING) == Copy.STAGED
        assert not (present & (r.holds == 0)).any(), f"{name}: staged without a hold"
        for array, flag in ARRAYS.items():
            assert ((r.state & flag != 0) == getattr(o, array)).all(), (name, array)
        assert ((r.holds & Hold.WRITING != 0) == o._writing).all(), name
        assert ((r.holds & Hold.PUSHING != 0) == o.window.pushing).all(), name
        assert (r.home == o.home).all(), name
        assert (self.pushes.paged == o.paged).all(), name
        assert (self.pushes.home == o.window.home).all(), name
        assert (r.charges == o.charges).all(), name
        assert vars(self.fetches._pending) == vars(o._awaited), name
        assert (self.open._rows.keys(), r._undecided) == (o._open._rows.keys(), list(o._read)), name
        assert (r.kept._rows, r.again, r.scan_anew) == (o.kept._rows, o._anew, o._look_again), name
        assert (self.fetches.at, self.pushes.at) == (o._fetch_at, o._push_at), name
        assert (r.stream_used, self.fetches.outstanding, self.pages_used) == (
            o.stream_used, o.fetches_outstanding, o.pages_used,
        ), name  # fmt: skip
        assert (r.offered_bytes, r.homes.used, r.total) == (o.passing.held_bytes, o.homes_used, o.total), name
        assert self.pushes.evictions_read == o.evictions_read, name


def _doubled(name: str) -> Callable[..., Any]:
    method = getattr(NodePolicy, name)
    return lambda self, *args, **kwargs: self._both(name, method, *args, **kwargs)


for event in EVENTS:
    setattr(Twin, event, _doubled(event))
