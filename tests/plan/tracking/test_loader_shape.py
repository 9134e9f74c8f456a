"""Workers and batch size are found from who opens what."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.plan.epoch_order import DataSet, FileOrder
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.tracking.loader_shape import PREFETCH, LoaderShape


def opens(n: int, workers: int, batch: int, seed: int) -> list[tuple[int, int]]:
    """(reader, place): worker w reads batches w, w + W, ...; workers interleave at random."""
    streams = [
        [(100 + w, p) for k in range(w, -(-n // batch), workers) for p in range(k * batch, min(n, (k + 1) * batch))]
        for w in range(workers)
    ]
    rng = random.Random(seed)
    result = []
    while any(streams):
        stream = rng.choice([s for s in streams if s])
        result.append(stream.pop(0))
    return result


@given(workers=st.integers(2, 8), batch=st.integers(2, 64), seed=st.integers(0, 99))
def test_finds_workers_and_batch(workers: int, batch: int, seed: int) -> None:
    watch = LoaderShape()
    known_after = next(
        i
        for i, (reader, place) in enumerate(opens(batch * workers * 5, workers, batch, seed))
        if watch.see(reader, place)
    )
    assert watch.inflight == workers * PREFETCH * batch + batch
    assert known_after <= 5 * workers * batch


def test_files_opened_twice_change_nothing() -> None:
    watch = LoaderShape()
    for reader, place in opens(640, 2, 64, 1):
        watch.see(reader, place)
        watch.see(reader, place)
    assert watch.inflight == 2 * PREFETCH * 64 + 64


def test_one_reader_in_order_tells_nothing() -> None:
    watch = LoaderShape()
    assert not any(watch.see(7, place) for place in range(1000))
    assert watch.inflight is None


def test_random_opens_tell_nothing() -> None:
    rng = random.Random(3)
    watch = LoaderShape()
    assert not any(watch.see(rng.randrange(4), rng.randrange(100_000)) for _ in range(20_000))


@pytest.mark.parametrize("readers", [1, 2, 8])
@pytest.mark.parametrize("seed", range(3))
def test_processes_that_read_two_orders_at_once_tell_nothing(readers: int, seed: int) -> None:
    """Each reads one in the order of the plan, and another that is not known."""
    rng = random.Random(seed)
    watch, length = LoaderShape(), 20_000
    for place in range(length):
        for reader in range(readers):
            assert not watch.see(reader, place)
            if rng.random() < 0.3:
                assert not watch.see(reader, rng.randrange(length))


def test_a_loader_among_many_processes_that_have_ended_is_recognised() -> None:
    watch = LoaderShape()
    for reader in range(1000, 3000):
        watch.see(reader, 5)
    assert any(watch.see(reader, place) for reader, place in opens(8 * 16 * 6, 8, 16, 1))
    assert watch.inflight == 8 * PREFETCH * 16 + 16


def test_a_track_widens_its_window_while_it_is_followed() -> None:
    """The open by which K becomes known may itself have lain beyond the window until then."""
    n, workers, batch = 512, 2, 64
    rows = np.arange(n, dtype=np.int64)
    for seed in range(20):
        follower = Follower([DataSet(0, "train", (FileOrder(("image_folder",), rows),))], 42, "sequential")
        follower.settle()
        who, places = zip(*opens(n, workers, batch, seed), strict=True)
        predicted = follower.observe(np.array(places), np.array(who))
        assert follower.status().k == workers * PREFETCH * batch + batch
        assert predicted[n // 2 :].all()
