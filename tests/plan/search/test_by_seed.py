"""Seeds in the middle of a large epoch, from what all readers opened lately."""

from __future__ import annotations

import numpy as np
import pytest

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.search.by_seed import JOINT_LEAST, BySeed, joint
from nopfsfs.plan.search.candidates import FileList, Seeds
from nopfsfs.plan.search.suspects import OpensView

N, SEED = 40_000, 700


def _way(n: int = N) -> BySeed:
    (way,) = joint([FileList(0, 0, n, ("image_folder",))], Seeds(SEED - 2))
    return way


def _view(rows: np.ndarray, readers: int) -> OpensView:
    return OpensView(rows, 1 + np.arange(len(rows)) % readers, N)


def _lately(count: int) -> np.ndarray:
    return torch_generator.randperm(torch_generator.generator(SEED), N)[25_000 : 25_000 + count]


@pytest.mark.parametrize("readers", [1, 4, 32, 48, 64, 200])
def test_what_all_readers_opened_last_tells_the_seed(readers: int) -> None:
    lately = _lately(128)
    before = np.setdiff1d(np.random.default_rng(0).integers(0, N, 128), lately)
    search = _way().begin(_view(np.append(before, lately), readers), lambda rows: rows)
    assert search is not None
    assert search.step()[0][0] == SEED, "among the epochs of the seed that was said, which come first"


def test_files_of_other_data_sets_between_them_do_not_count() -> None:
    pairs = np.stack([_lately(128), np.arange(N, N + 128)], axis=1).reshape(-1)
    search = _way().begin(_view(pairs, 8), lambda rows: np.where(rows < N, rows, -1))
    assert search is not None
    assert search.step()[0][0] == SEED


def test_few_opens_or_files_tell_too_little() -> None:
    assert _way().begin(_view(_lately(JOINT_LEAST - 1), 4), lambda rows: rows) is None
    assert _way().begin(_view(_lately(JOINT_LEAST), 4), lambda rows: rows) is not None
    assert joint([FileList(0, 0, 32_768, ("image_folder",))], Seeds(SEED)) == []
    small, large = FileList(0, 0, 1000, ("image_folder",)), FileList(1, 0, 32_769, ("image_folder",))
    assert [way.target for way in joint([small, large, large], Seeds(SEED))] == [large]


def test_where_tripwires_alone_show_opens_lie_too_far_apart() -> None:
    assert joint([FileList(0, 0, N, ("image_folder",))], Seeds(SEED), spacing=16) == []
