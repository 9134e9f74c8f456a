"""The model of DALI's file reader against DALI on the CPU; its list holds one file many times, told apart by label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec

dali = pytest.importorskip("nvidia.dali")
pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]


def _read(path: Path, n: int, count: int, **options) -> list[int]:
    path.write_bytes(b"a")
    batch = 64 if n > 2000 else 1
    checkpointing = options.pop("checkpointing", False)
    pipe = dali.Pipeline(batch_size=batch, num_threads=1, device_id=None, seed=1, enable_checkpointing=checkpointing)
    with pipe:
        pipe.set_outputs(dali.fn.readers.file(files=[str(path)] * n, labels=list(range(n)), **options)[1])
    pipe.build()
    found: list[int] = []
    while len(found) < count:
        found += np.asarray(pipe.run()[0].as_array()).ravel().tolist()
    return found[:count]


@pytest.mark.parametrize("n", [1, 2, 3, 10, 17, 1000, 1001, 65_535, 65_536, 70_001])
def test_random_shuffle_whatever_the_seed(n: int, tmp_path: Path) -> None:
    order = registry.order(Spec("dali"), n).tolist()
    epochs = 2 if n < 2000 else 1
    for seed in (3, 4):
        # a buffer of one sample gives them away in the order in which they are read
        assert _read(tmp_path / "f", n, epochs * n, random_shuffle=True, initial_fill=1, seed=seed) == order * epochs


@pytest.mark.parametrize("n", [1, 2, 3, 10, 17, 1001, 70_001])
@pytest.mark.parametrize("seed", [None, 9])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_shuffle_after_epoch(n: int, seed: int | None, checkpointing: bool, tmp_path: Path) -> None:
    given = {} if seed is None else {"shuffle_after_epoch_seed": seed}
    spec = Spec("dali").with_option("shuffle_after_epoch", 1).with_option("checkpointing", int(checkpointing))
    spec = spec.with_option("shuffle_after_epoch_seed", seed or 0)
    epochs = 3 if n < 2000 else 1
    real = _read(tmp_path / "f", n, epochs * n, shuffle_after_epoch=True, checkpointing=checkpointing, **given)
    assert real == [i for epoch in range(epochs) for i in registry.order(spec, n, epoch).tolist()]


@pytest.mark.parametrize("n", [9, 10, 17])
@pytest.mark.parametrize("options", ["", "sequential", "stick_to_shard", "shuffle_after_epoch"])
def test_shards(n: int, options: str, tmp_path: Path) -> None:
    spec = Spec("dali").with_option(options, 1) if options else Spec("dali")
    given = {options: True} if options in ("stick_to_shard", "shuffle_after_epoch") else {}
    if options in ("", "stick_to_shard"):
        given |= {"random_shuffle": True, "initial_fill": 1}
    for rank in range(3):
        expected = [i for epoch in range(4) for i in registry.order(spec, n, epoch, 3, rank).tolist()]
        assert _read(tmp_path / "f", n, len(expected), shard_id=rank, num_shards=3, **given) == expected
