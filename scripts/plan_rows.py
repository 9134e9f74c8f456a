"""The rows of the table in docs/plans.md: the usual configurations of each framework, and what cannot be known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from plan_play import Reading

from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import GivenOrders, Spec, Value

SEED = 42
SHARDS = 2000
# Words that a model of some 25.6 million parameters draws from torch's global generator when it is made on the CPU.
DRAWN = 25_600_000


@dataclass(frozen=True)
class Row:
    """`program`: what it does, in code; `plan`: as a plan file says it; `why` it cannot be known."""

    framework: str
    program: str
    reading: Reading
    why: str = ""

    @property
    def plan(self) -> str:
        """The sampler with its options, seed and subset left out."""
        spec = self.reading.spec
        if spec is None:
            return ""
        shown = [f"{name} = {_toml(spec.sampler, name, value)}" for name, value in spec.options]
        subset = f", subset `{self.reading.subset.sampler}`" if self.reading.subset else ""
        return f"`{spec.sampler}`" + (f" `{{ {', '.join(shown)} }}`" if shown else "") + subset


def _toml(sampler: str, name: str, value: Value) -> str:
    if registry.sampler(sampler).options[name].kind is bool:
        return str(bool(value)).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _read(sampler: str, several: bool = False, **options: Value) -> Reading:
    """By one process, or rank 3 of 8; files as the framework lists them."""
    family = registry.sampler(sampler)
    one = Reading(registry.make_spec(family, SEED, options), files=family.files[0])
    return replace(one, world=8, ranks=(3,)) if several else one


def _subset(name: str, **options: Value) -> Spec:
    return registry.make_spec(registry.subset(name), SEED, options)


def torch_rows() -> Iterator[Row]:
    """PyTorch and what is built on it."""
    torch = "PyTorch"
    yield Row(torch, "`DistributedSampler(data, seed=42)`, one process", _read("distributed"))
    yield Row(torch, "the same, rank 3 of 8", _read("distributed", True))
    yield Row(torch, "the same, resumed at epoch 17", replace(_read("distributed", True), start=17))
    yield Row(torch, "the same, `set_epoch` forgotten", replace(_read("distributed", True), repeats=True))
    yield Row(torch, "`DataLoader(shuffle=True, generator=g)`, `g.manual_seed(42)`", _read("random"))
    yield Row(torch, "`RandomSampler(data, generator=g)`", _read("random", base_seed="never"))
    yield Row(torch, "`RandomSampler(data, True, generator=g)`: with replacement", _read("random", replacement=True))
    yield Row(torch, "`DataLoader(shuffle=True)` after `torch.manual_seed(42)`", _read("global"))
    yield Row(torch, "the same with `persistent_workers=True`", _read("global", step=2))
    yield Row(torch, "the same, validation after each epoch", replace(_read("global", step=6), validation=True))
    yield Row(torch, "the same, after a model drew 25.6 million words", _read("global", offset=DRAWN))
    stateful = "torchdata's `StatefulDataLoader(shuffle=True)` after `torch.manual_seed(42)`"
    yield Row(torch, stateful, _read("torchdata"))
    yield Row(torch, "the same with workers", _read("torchdata", every=2))
    yield Row(torch, "`SubsetRandomSampler(range(n), generator=g)`", _read("subset_random"))
    yield Row(torch, "`SubsetRandomSampler(range(n))` after `torch.manual_seed(42)`", _read("global", direct=True))
    split = replace(_read("distributed"), subset=_subset("random_split"))
    yield Row(torch, "`random_split(data, [0.8, 0.2], g)`, then `DistributedSampler`", split)
    split = replace(_read("global", offset=19_999), subset=_subset("random_split"))
    yield Row(torch, "`manual_seed(42)`, `random_split(data, [0.8, 0.2])`, `DataLoader(shuffle=True)`", split)
    split = replace(_read("global", offset=19_999 + DRAWN), subset=_subset("random_split"))
    yield Row(torch, "the same, and a model drew 25.6 million words in between", split)
    split = replace(_read("global", offset=DRAWN + 19_999), subset=_subset("random_split", offset=DRAWN))
    yield Row(torch, "the same, but the model drew them before the split", split)
    weighted = replace(_read("weighted"), data="uneven")
    yield Row(torch, "`WeightedRandomSampler`, 1 / files of the class, after `torch.manual_seed(42)`", weighted)
    weighted = replace(_read("weighted", offset=-2, step=2), data="uneven")
    yield Row(torch, "the same with `generator=g`, `g.manual_seed(42)`", weighted)
    weighted = replace(_read("weighted", offset=DRAWN), data="uneven")
    yield Row(torch, "the same on the global generator, after a model drew 25.6 million words", weighted)
    yield Row(torch, "`DataLoader()`, in order", _read("sequential"))
    lightning = "Lightning"
    yield Row(lightning, "`seed_everything(42)`, rank 3 of 8", _read("lightning", True))
    fit = replace(_read("lightning", offset=DRAWN, step=6), validation=True)
    yield Row(lightning, "one process, after a model drew 25.6 million words", fit)
    accelerate = "Accelerate"
    yield Row(accelerate, "`set_seed(42)`, `prepare`, rank 3 of 8", _read("accelerate", True, batch=32))
    yield Row(accelerate, "`use_seedable_sampler=True`, rank 3 of 8", _read("hf_trainer", True, batch=32))
    timm = "timm"
    yield Row(timm, "`create_loader(is_training=True)`, rank 3 of 8", _read("timm", True))
    yield Row(timm, "one process, after a model drew 25.6 million words", _read("timm", offset=DRAWN))
    yield Row(timm, "`RepeatAugSampler`, rank 3 of 8", _read("repeat_aug", True))
    trainer = "transformers"
    yield Row(trainer, "`Trainer`, one process", _read("hf_trainer", batch=8))
    yield Row(trainer, "`Trainer`, rank 3 of 8", _read("hf_trainer", True, batch=8))


def tensorflow_rows() -> Iterator[Row]:
    """tf.data and Keras, with a map of 16 parallel calls."""
    return (replace(row, reading=replace(row.reading, parallel=16)) for row in _tensorflow_rows())


def _tensorflow_rows() -> Iterator[Row]:
    tf = "tf.data"
    yield Row(tf, "`list_files(pattern, seed=42)`", _read("tf_list_files"))
    yield Row(tf, "`list_files(..., seed=42).shuffle(1000, seed=42)`", _read("tf_list_files", twice=True, buffer=1000))
    yield Row(tf, "`shuffle(n, seed=42)`", _read("tf_shuffle"))
    yield Row(tf, "the same, `reshuffle_each_iteration=False`", _read("tf_shuffle", fixed=True))
    yield Row(tf, "`tf.random.set_seed(42)`, `shuffle(n)`", _read("tf_shuffle", seeded="global"))
    yield Row(tf, "`shuffle(1000, seed=42)`", _read("tf_shuffle", buffer=1000))
    yield Row(tf, "`shuffle(3333, seed=42)`: a buffer that is not usual", _read("tf_shuffle", buffer=3333))
    yield Row(tf, "`shuffle(n, seed=42).shard(8, 3)`", _read("tf_shuffle_shard", True))
    yield Row(tf, "`shard(8, 3).shuffle(n, seed=42)`", _read("tf_shard_shuffle", True))
    taken = replace(_read("sequential"), subset=_subset("tf_take_skip"))
    yield Row(tf, "`shuffle(n, 42, reshuffle_each_iteration=False).take(0.8 n)`", taken)
    keras = "Keras"
    yield Row(keras, "`model.fit` over `shuffle(n, seed=42)`", _read("tf_shuffle", step=2))
    yield Row(keras, "`image_dataset_from_directory(seed=42)`", _read("keras_directory"))
    yield Row(keras, "the same, `validation_split=0.2`", _read("keras_directory", validation_split=0.2))
    yield Row(keras, "the same in `model.fit`", _read("keras_directory", validation_split=0.2, step=2))


def other_rows() -> Iterator[Row]:
    """Everything else that can be known."""
    grain = "Grain"
    yield Row(grain, "`IndexSampler(shuffle=True, seed=42)`", _read("grain"))
    yield Row(grain, "the same with `ShardOptions(3, 8)`", _read("grain", True))
    yield Row(grain, "`MapDataset.shuffle(seed=42)[3::8]`", _read("grain", True, sharding="slice"))
    datasets = "datasets"
    yield Row(datasets, "`dataset.shuffle(seed=42)`", _read("hf_datasets"))
    part = replace(_read("distributed"), files="hf_imagefolder", subset=_subset("hf_split", test_size=0.2))
    yield Row(datasets, "`train_test_split(0.2, seed=42)`, then `DistributedSampler`", part)
    numpy = "NumPy"
    yield Row(numpy, "`default_rng(42).permutation(n)` each epoch", _read("numpy"))
    yield Row(numpy, "`default_rng(42 + epoch).permutation(n)`", _read("numpy", carry="seed+epoch"))
    yield Row(
        numpy, "`np.random.seed(42)`, `np.random.shuffle(files)` each epoch", _read("numpy_legacy", carry="shuffle")
    )
    python = "Python"
    yield Row(python, "`random.seed(42)`, `random.shuffle(files)` each epoch", _read("python"))
    yield Row(
        python, "`random.Random(42).sample(files, n)` each epoch", _read("python", method="sample", carry="stream")
    )
    web = "WebDataset"
    yield Row(web, "`shardshuffle=100, seed=42`: order of shards", _shards(_read("webdataset")))
    yield Row(web, "`detshuffle=True, seed=42`", _shards(_read("webdataset", method="detshuffle")))
    yield Row(web, "`SimpleShardList(urls, seed=42)`, rank 3 of 8", _shards(_read("webdataset_split", True)))
    clip: dict[str, Value] = {"method": "detshuffle", "shardshuffle": 2000, "initial": 500}
    yield Row(
        web, "open_clip: `detshuffle2` before the splits, rank 3 of 8", _shards(_read("webdataset_split", True, **clip))
    )
    stream = "datasets"
    yield Row(stream, "streaming, `shuffle(seed=42)`, datasets 5", _shards(_read("hf_streaming")))
    yield Row(stream, "the same, rank 3 of 8, 4 workers", _shards(_read("hf_streaming", True, workers=4)))
    yield Row(stream, "the same before datasets 5", _shards(_read("hf_stream")))
    mosaic = "MosaicML"
    same = f"4096*{SHARDS}"
    yield Row(mosaic, "`StreamingDataset(shuffle=True, shuffle_seed=42)`", _shards(_read("mosaic", sizes=same)))
    yield Row(mosaic, "the same, `shuffle_algo='py1s'`", _shards(_read("mosaic", sizes=same, algo="py1s")))
    dali = "DALI"
    yield Row(dali, "`readers.file(random_shuffle=True)`", _read("dali"))
    yield Row(dali, "the same, shard 3 of 8", _read("dali", True))
    yield Row(dali, "`shuffle_after_epoch=True`", _read("dali", shuffle_after_epoch=True))
    rng = np.random.default_rng(876_234_987_123)  # a seed that a mount does not try
    yours = Spec("explicit", data=GivenOrders(tuple(rng.permutation(20_000) for _ in range(3))))
    yield Row("your own", "an order in a plan file", Reading(yours))


def unknown_rows() -> Iterator[Row]:
    """What nobody can foresee: no seed, or one that the system drew."""
    drawn = "the seed is drawn from the system"
    yield Row("PyTorch", "`DataLoader(shuffle=True)` without `manual_seed`", Reading(None), drawn)
    yield Row("tf.data", "`shuffle(n)` without a seed", Reading(None, files="sorted_files", parallel=16), drawn)
    yield Row("WebDataset", "`ResampledShards`", _shards(Reading(None)), "draws from the system whatever the seed")
    yield Row("NumPy", "`np.random.default_rng()`", Reading(None), drawn)


def _shards(reading: Reading) -> Reading:
    return replace(reading, data="shards", files="shards")


def rows() -> list[Row]:
    """All of them."""
    return [*torch_rows(), *tensorflow_rows(), *other_rows(), *unknown_rows()]
