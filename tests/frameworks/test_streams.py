"""The models of streams of shards against Hugging Face datasets and MosaicML Streaming."""

from __future__ import annotations

import builtins
import io
import os
import sys
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from nopfsfs.dataset.file_orders import ORDERS
from nopfsfs.dataset.tree_scan import scan
from nopfsfs.plan.samplers import huggingface, registry, sharding
from nopfsfs.plan.samplers.sampler import Spec

pytestmark = [pytest.mark.framework, pytest.mark.filterwarnings("ignore")]


def _opened(shards: list[int], log: str) -> Iterator[dict[str, int]]:
    for shard in shards:
        with open(f"{log}.{os.getpid()}", "a") as f:
            print(shard, file=f)
        for _ in range(4):
            yield {"shard": shard}


def _stream(n: int, seed: int, log: Path, inputs: int = 10) -> Any:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"shard": datasets.Value("int64")})
    stream = datasets.IterableDataset.from_generator(
        _opened, features=features, gen_kwargs={"shards": list(range(n)), "log": str(log)}
    )
    return stream.shuffle(seed=seed, buffer_size=1, max_buffer_input_shards=inputs)


def _of_rank(stream: Any, rank: int, world: int, epoch: int = 0, strategy: str = "auto") -> Any:
    split = pytest.importorskip("datasets.distributed").split_dataset_by_node(stream, rank, world, strategy=strategy)
    split.set_epoch(epoch)
    return split


def _logs(log: Path) -> list[list[int]]:
    """What each process opened, in order; it is forgotten then."""
    found = []
    for path in sorted(log.parent.glob(log.name + ".*")):
        found.append(list(dict.fromkeys(map(int, path.read_text().split()))))
        path.unlink()
    return found


def _turns(order: Any, inputs: int) -> list[list[int]]:
    """The shards that are opened at about the same time, each by a thread of its own, in any order."""
    return [sorted(order[at : at + inputs]) for at in range(0, len(order), inputs)]


@pytest.mark.parametrize("n", [1, 7, 12, 40])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("inputs", "name"), [(10, "hf_streaming"), (1, "hf_stream")])
def test_shards_of_ranks(n: int, world: int, inputs: int, name: str, tmp_path: Path) -> None:
    for epoch, seed in ((0, 0), (0, 42), (1, 42), (5, 7)):
        for rank in range(world):
            assert list(_of_rank(_stream(n, seed, tmp_path / "log", inputs), rank, world, epoch))
            (real,) = _logs(tmp_path / "log")
            ours = registry.order(Spec(name, seed), n, epoch, world, rank).tolist()
            assert _turns(ours, min(n, inputs)) == _turns(real, min(n, inputs))


@pytest.mark.parametrize("strategy", ["shards", "examples"])
@pytest.mark.parametrize("n", [24, 25])
def test_shards_said_to_be_shared_out_or_not(strategy: str, n: int, tmp_path: Path) -> None:
    for rank in range(2):
        assert list(_of_rank(_stream(n, 3, tmp_path / "log", 5), rank, 2, 0, strategy))
        spec = Spec("hf_streaming", 3, (("input_shards", 5), ("strategy", strategy)))
        (real,) = _logs(tmp_path / "log")
        assert _turns(registry.order(spec, n, 0, 2, rank).tolist(), 5) == _turns(real, 5)


@pytest.mark.parametrize("workers", [2, 3])
def test_shards_of_workers(workers: int, tmp_path: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    n, world, rank, epoch = 70, 2, 1, 2
    stream = _of_rank(_stream(n, 42, tmp_path / "log"), rank, world, epoch)
    assert len(list(data.DataLoader(stream, batch_size=None, num_workers=workers))) == n // world * 4
    real = _logs(tmp_path / "log")
    own = registry.order(Spec("hf_stream", 42), n, epoch, world, rank)
    lanes = [huggingface.in_turn(own[worker::workers], 10) for worker in range(workers)]
    assert sorted(_turns(lane.tolist(), 10) for lane in lanes) == sorted(_turns(lane, 10) for lane in real)
    merged = sharding.interleave(lanes)
    ours = registry.order(Spec("hf_streaming", 42).with_option("workers", workers), n, epoch, world, rank)
    assert ours.tolist() == merged[merged >= 0].tolist()


@pytest.mark.parametrize(
    ("names", "suffix"),
    [
        ([f"{split}-{at:05}-of-00012" for split in ("train", "validation") for at in range(12)], ".jsonl"),
        ([f"{split}/{at}" for split in ("train", "test") for at in range(12)], ".jsonl"),
        ([f"part/{at}" for at in range(3)] + ["one"], ".jsonl"),
    ],
)
def test_shards_as_listed(names: list[str], suffix: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for name in names:
        path = tmp_path / "data" / (name + suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"name": "{name}"}}\n')
    (tmp_path / "data" / "README.md").write_text("")
    stream = datasets.load_dataset(
        "json", data_dir=str(tmp_path / "data"), streaming=True, split="train", cache_dir=str(tmp_path / "cache")
    )
    index = scan(str(tmp_path / "data")).index
    rows = ORDERS["hf_shards"](index, 0, None).tolist()
    assert [os.fsdecode(index.path(row)).removesuffix(suffix) for row in rows] == [one["name"] for one in stream]


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """What shuffles and deals out, without the rest of the package, which wants the clients of all clouds."""
    found = find_spec("streaming")
    if found is None or not found.submodule_search_locations:
        pytest.skip("mosaicml-streaming is not installed")
    where = Path(next(iter(found.submodule_search_locations)))
    for name, path in (("streaming", where), ("streaming.base", where / "base")):
        module = ModuleType(name)
        module.__path__ = [str(path)]
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("algo", ["py1e", "py1br", "py1s", "py2s", "naive"])
@pytest.mark.parametrize(("nodes", "canonical"), [(1, 0), (1, 4), (2, 0), (2, 6), (4, 2)])
@pytest.mark.parametrize("block", [0, 500])
@pytest.mark.usefixtures("streaming")
def test_shards_of_mosaic(algo: str, nodes: int, canonical: int, block: int) -> None:
    from streaming.base.partition import get_partitions
    from streaming.base.shuffle import get_shuffle

    rng = np.random.default_rng(1)
    for n, epoch in ((20, 0), (90, 3)):
        sizes = rng.integers(40, 160, n)
        runs = canonical or {"py1s": 64, "py2s": 64}.get(algo, 1) * nodes
        ids = get_partitions("relaxed", int(sizes.sum()), runs, nodes, 2, 3, 4)
        shuffled = get_shuffle(algo, sizes, runs, 42, epoch, block or max(4_000_000 // runs, 1 << 18))
        shard_of = np.repeat(np.arange(n), sizes)[shuffled]
        options = {"algo": algo, "canonical": canonical, "block": block, "sizes": ",".join(map(str, sizes))}
        spec = registry.make_spec(registry.sampler("mosaic"), 42, options)
        for node in range(nodes):
            mine = ids[node].transpose(2, 1, 3, 0).reshape(-1)  # batch by batch, of all workers and ranks
            real = list(dict.fromkeys(shard_of[mine[mine >= 0]].tolist()))
            assert registry.order(spec, n, epoch, nodes, node).tolist() == real


def _write(kind: str, path: Path, number: int) -> None:
    if kind == "tar":
        with tarfile.open(path, "w") as tar:
            for at in range(20):
                info = tarfile.TarInfo(f"{number:05}{at:03}.txt")
                info.size = 1
                tar.addfile(info, io.BytesIO(b"x"))
    elif kind == "parquet":
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.table({"x": [number] * 200}), str(path))
    else:
        path.write_text(f'{{"x": {number}}}\n' * 200)


@pytest.mark.parametrize(("kind", "builder"), [("tar", "webdataset"), ("parquet", "parquet"), ("jsonl", "json")])
def test_a_stream_opens_each_shard_once(
    kind: str, builder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    n = 40
    (tmp_path / "data").mkdir()
    for number in range(n):
        _write(kind, tmp_path / "data" / f"train-{number:05}.{kind}", number)
    stream = datasets.load_dataset(
        builder, data_dir=str(tmp_path / "data"), streaming=True, split="train", cache_dir=str(tmp_path / "cache")
    ).shuffle(seed=42, buffer_size=100)
    opened: list[int] = []
    real = builtins.open

    def logged(file: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str) and file.startswith(str(tmp_path / "data")):
            opened.append(int(Path(file).stem.removeprefix("train-")))
        return real(file, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", logged)
    for epoch in range(2):
        opened.clear()
        stream.set_epoch(epoch)
        assert list(stream)
        ours = registry.order(Spec("hf_streaming", 42), n, epoch).tolist()
        assert _turns(opened, 10) == _turns(ours, 10)
