"""A disk tier that cannot be opened is tried again until it can."""

from __future__ import annotations

import errno
from itertools import pairwise

from nopfsfs.stager.disk_openings import DiskOpenings
from nopfsfs.system.outages import Outages


def test_a_tier_that_vanished_is_tried_less_and_less_often_and_used_when_it_is_back() -> None:
    now, broken, tried = [0.0], {2}, []
    outages = Outages(lambda: now[0])

    def open_one(number: int) -> None:
        tried.append((number, now[0]))
        if number in broken:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    openings = DiskOpenings([1, 2], ["/a", "/b"], open_one, outages, lambda: now[0])
    openings.look()
    assert tried == [(1, 0.0), (2, 0.0)]
    assert [(one["what"], one["why"]) for one in outages.all()] == [
        ("disk tier /b", "cannot be opened: No such file or directory")
    ]
    for _ in range(600):
        pause = openings.pause()
        assert pause is not None
        assert pause <= 60.0
        now[0] += 1.0
        openings.look()
    times = [at for number, at in tried[2:] if number == 2]
    gaps = [later - before for before, later in pairwise(times)]
    assert gaps[:3] == [2.0, 4.0, 8.0]
    assert set(gaps[6:]) == {60.0}
    broken.clear()
    now[0] += 60.0
    openings.look()
    assert openings.pause() is None
    assert outages.all() == []
