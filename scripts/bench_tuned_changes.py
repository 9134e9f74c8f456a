"""The tuners of real mounts when something happens: the source changes, a mount ends by SIGKILL, many share it.

    make bench BENCH='tuner/mount/changes/*'
    make bench BENCH='fair/mount/*'

As in bench_tuned_mount, an earlier mount has seen what the idle source is.
"""

from __future__ import annotations

import contextlib
import errno
import math
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import tuned_mounts
from bench_entry import Entry, median_entry
from lab import Progress
from slow_source_load import BIN_S, Change
from slow_source_sharing import throughput_curve
from tuned_mounts import CURVES, Laboratory, Share, slower

from nopfsfs.sim.tuning.contest import jain_index
from nopfsfs.sim.tuning.rivals import FixedLimit

WELL, WINDOW_S = 0.85, 5.0  # of what the source can give, over so long
SETTLE_S = 12.0
FOLLOWED_S, RECOVERED_S = 30.0, 90.0  # how long to wait for it; what the bars grant is less
FAULT_S, STALLED_LIMIT_S = 30.0, 10.0
FAULTS = {
    "stall": Change(stalled=True), "errors": Change(errno=errno.EIO), "ten_times_longer": Change(slower=10.0)
}  # fmt: skip
CURVE, THRASHES = "knee24", "knee4"
PAIR_S = 10.0
MANY, MANY_SETTLE_S, MANY_S, FIXED = 8, 70.0, 40.0, 64
IDLE_STRAYS, STRAYS_A_SECOND, STRAY_THREADS = 600, 16.0, 4
MANY_SLOWER = 2.0  # two processors carry no 600 reads a second beside eight mounts and their readers
EACH, EACH_SETTLE_S, EACH_S = (2, 3, 4, 6), 8.0, 12.0  # fixed limits of each of the many
SELDOM_S = 1.0  # a fixed limit needs no look at the metrics of its mount


def seconds_until_well(series: Sequence[tuple[float, int]], best: float) -> float:
    """Seconds from the begin of the series until the first window in which the source gives as much as it should;
    infinite if there is none."""
    bins = round(WINDOW_S / BIN_S)
    for first in range(len(series) - bins + 1):
        if sum(ended for _, ended in series[first : first + bins]) >= WELL * best * WINDOW_S:
            return first * BIN_S
    return math.inf


def await_well(room: Laboratory, best: float, limit_s: float) -> float:
    """Seconds until all is well, from now on. Returns as soon as it is."""
    room.source.reset()
    end = time.monotonic() + limit_s + WINDOW_S
    found = math.inf
    while found == math.inf and time.monotonic() < end:
        time.sleep(1.0)
        found = seconds_until_well(room.source.counters(files=False, series=True).series, best)
    return found


# ---- a source that changes --------------------------------------------------------------------------------


def change_entries() -> Iterator[Entry]:
    """tuner/mount/changes/NAME: seconds until a lone mount gets 0.85 of what the source gives, after its bandwidth
    falls to a third, comes back, and after half a minute of a stall, of errors, of requests that take ten times as
    long; and how many requests the mount allows itself ten seconds into the stall."""
    prefix = "tuner/mount/changes"
    best = throughput_curve(CURVES[CURVE]).best
    with tuned_mounts.laboratory(CURVES[CURVE], 1) as room, Progress(5) as progress:
        room.read(1)
        room.mounts[0].control.set_limit(None)
        time.sleep(SETTLE_S)
        third = 1 / 3
        for name, change, share in (("third", Change(bandwidth=third), third), ("back", Change(), 1.0)):
            progress.doing(name)
            room.source.schedule(change)
            yield median_entry(f"{prefix}/bandwidth_{name}", "s", [await_well(room, share * best, FOLLOWED_S)])
            time.sleep(SETTLE_S)
            progress.step()
        for name, change in FAULTS.items():
            progress.doing(name)
            room.source.schedule(change)
            time.sleep(STALLED_LIMIT_S)
            if name == "stall":
                yield median_entry(f"{prefix}/limit_in_stall", "", [limit_of(room)])
            time.sleep(FAULT_S - STALLED_LIMIT_S)
            room.source.schedule(Change())
            yield median_entry(f"{prefix}/after_{name}", "s", [await_well(room, best, RECOVERED_S)])
            progress.step()


def limit_of(room: Laboratory) -> float:
    return float(room.mounts[0].control.tune()["limit"])


# ---- two mounts -------------------------------------------------------------------------------------------


def pair_entries() -> Iterator[Entry]:
    """fair/mount/2/weights_1_to_3: the ratio of what mounts with these weights get. after_kill: seconds until the one
    that is left gets 0.85 of the source, when the other's processes get SIGKILL."""
    best = throughput_curve(CURVES[CURVE]).best
    with tuned_mounts.laboratory(CURVES[CURVE], 2, (1 / 3, 1.0)) as room, Progress(2) as progress:
        room.read(2)
        progress.doing("weights")
        for mount in room.mounts:
            mount.control.set_limit(None)
        tuned_mounts.await_drain()
        small, large = room.measure(2, None, SETTLE_S, PAIR_S).rates
        yield median_entry("fair/mount/2/weights_1_to_3", "x", [large / small])
        progress.step()
        progress.doing("the other is killed")
        room.mounts[1].mount.kill()
        yield median_entry("fair/mount/2/after_kill", "s", [await_well(room, best, RECOVERED_S)])
        progress.step()


# ---- eight mounts -----------------------------------------------------------------------------------------


def many_entries() -> Iterator[Entry]:
    """fair/mount/8/knee24/{jain,share_of_best,share,demand_p99}: what eight mounts get of the source at half its speed,
    over the best of fixed limits in the same run and over the most that the source can give; and how long reads take
    that no plan foresaw, over that at the idle source (`slowest`). fair/mount/8/knee4/over_fixed_64: what they get of
    a source that thrashes, over what they get with 64 requests each."""
    with Progress(4 + len(EACH)) as progress:
        with tuned_mounts.laboratory(slower(CURVES[CURVE], MANY_SLOWER), MANY) as room:
            progress.doing("eight mounts: the idle source")
            room.read(0)
            time.sleep(FAULT_S)
            with strays(room, math.inf) as idle:
                while len(idle) < IDLE_STRAYS:
                    time.sleep(0.1)
            progress.step()
            progress.doing("eight mounts")
            room.read(MANY)
            with strays(room, STRAYS_A_SECOND) as busy:
                share = room.measure(MANY, None, MANY_SETTLE_S, MANY_S)
            progress.step()
            fixed = {}
            for limit in EACH:
                progress.doing(f"eight mounts: {limit} each")
                fixed[limit] = room.measure(MANY, partial(FixedLimit, limit, SELDOM_S), EACH_SETTLE_S, EACH_S).share
                progress.step()
        late = busy[-round(MANY_S * STRAYS_A_SECOND) :]
        yield from of_many(share, fixed, slowest(late) / slowest(idle))
        shares = []
        for policy in (None, partial(FixedLimit, FIXED)):
            progress.doing(f"eight mounts, {THRASHES}")
            with tuned_mounts.laboratory(CURVES[THRASHES], MANY) as room:
                room.read(MANY)
                shares.append(room.measure(MANY, policy, MANY_SETTLE_S, MANY_S).share)
            progress.step()
    yield median_entry(f"fair/mount/{MANY}/{THRASHES}/over_fixed_{FIXED}", "x", [shares[0] / shares[1]])


def of_many(share: Share, fixed: dict[int, float], demand_p99: float) -> Iterator[Entry]:
    """Entries of eight mounts of a source with a knee."""
    prefix = f"fair/mount/{MANY}/{CURVE}"
    yield median_entry(f"{prefix}/jain", "", [jain_index(np.array(share.rates))])
    yield median_entry(f"{prefix}/share_of_best", "", [share.share / max(fixed.values())])
    yield median_entry(f"{prefix}/share", "", [share.share])
    yield median_entry(f"{prefix}/demand_p99", "x", [demand_p99])
    for limit, got in fixed.items():
        yield median_entry(f"{prefix}/fixed_{limit}_each/share", "", [got])


def slowest(seconds: Sequence[float]) -> float:
    """The mean of the slowest 2 %, about whose middle the 99th percentile lies. That percentile itself is a matter of
    chance: 1 % of the reads of the slow source take 8 times as long as the others."""
    return statistics.mean(sorted(seconds)[-max(1, len(seconds) // 50) :])


@contextlib.contextmanager
def strays(room: Laboratory, a_second: float) -> Iterator[list[float]]:
    """Read random files of the first mount, in a few threads; the seconds that each took which the source had to be
    asked for."""
    found: list[float] = []
    ended = threading.Event()
    threads = [
        threading.Thread(target=_stray, args=(room, STRAY_THREADS / a_second, found, ended, seed))
        for seed in range(STRAY_THREADS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _stray(room: Laboratory, pause: float, found: list[float], ended: threading.Event, seed: int) -> None:
    mount, least = room.mounts[0].mount.path, room.curve.seconds / 2
    paths = [mount / path for path in tuned_mounts.data_set()[1]]
    chosen = random.Random(seed)
    while not ended.wait(pause):
        began = time.monotonic()
        chosen.choice(paths).read_bytes()
        if (seconds := time.monotonic() - began) >= least:
            found.append(seconds)
