"""Seeds in the middle of a large epoch, from what all readers opened lately."""

from __future__ import annotations

import numpy as np
import pytest

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.search.by_seed import BySeed, together
from nopfsfs.plan.search.candidates import FileList, Seeds
from nopfsfs.plan.search.suspects import OpensView

N, SEED = 40_000, 700


def _way(n: int = N) -> BySeed:
    (way,) = together([FileList(0, 0, n, ("image_folder",))], Seeds(SEED - 2))
    return way


def _view(rows: np.ndarray, readers: int) -> OpensView:
    return OpensView(rows, 1 + np.arange(len(rows)) % readers, N)


@pytest.mark.parametrize("readers", [1, 4, 32])
def test_what_all_readers_opened_last_tells_the_seed(readers: int) -> None:
    rng = np.random.default_rng(0)
    lately = torch_generator.randperm(torch_generator.generator(SEED), N)[25_000:25_128]
    before = np.setdiff1d(rng.integers(0, N, 128), lately)
    search = _way().begin(_view(np.append(before, lately), readers), lambda rows: rows)
    assert search is not None
    assert search.step()[0][0] == SEED, "among the epochs of the seed that was said, which come first"


def test_few_opens_or_files_tell_too_little() -> None:
    rows = torch_generator.randperm(torch_generator.generator(SEED), N)[25_000:25_060]
    assert _way().begin(_view(rows, 4), lambda rows: rows) is None
    few_of_each = np.arange(128)
    assert _way().begin(OpensView(few_of_each, few_of_each // 3 + 1, N), lambda rows: rows) is None
    assert together([FileList(0, 0, 30_000, ("image_folder",))], Seeds(SEED)) == []


def test_where_tripwires_alone_show_opens_lie_too_far_apart() -> None:
    assert together([FileList(0, 0, N, ("image_folder",))], Seeds(SEED), spacing=16) == []
