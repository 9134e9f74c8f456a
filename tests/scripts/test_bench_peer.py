"""The benchmark of fetches between two ranks, of files of each size it names: few of them, all compared."""

from __future__ import annotations

from dataclasses import replace

import bench_peer
import pytest

pytestmark = [pytest.mark.mpi, pytest.mark.long]


@pytest.mark.parametrize("name", bench_peer.SIZES)
def test_files_of_each_size_are_fetched(name: str) -> None:
    (found,) = bench_peer.run(bench_peer.DEFAULT, replace(bench_peer.SIZES[name], fetches=8, rounds=1))
    assert found["fetch"]["seconds"] > 0
    assert found["pong"]["seconds"] > 0
