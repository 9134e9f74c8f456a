"""The orders of tf.data and of Keras' directories against the real data sets, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from nopfsfs.plan.generators import philox
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec, Value
from nopfsfs.plan.samplers.tensorflow import iterator_seeds, op_seeds
from nopfsfs.plan.search import tf_buffer_search

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
tf = pytest.importorskip("tensorflow", exc_type=ImportError)
keras = pytest.importorskip("keras", exc_type=ImportError)
pytestmark = [
    pytest.mark.framework,
    # TensorFlow's and Keras' own modules warn about their own future, and when an epoch ends early
    pytest.mark.filterwarnings("ignore"),
]

SIZES = (1, 2, 3, 17, 1000)


def _spec(name: str, seed: int, **options: Value) -> Spec:
    return registry.make_spec(registry.sampler(name), seed, options)


@pytest.fixture(autouse=True)
def no_global_seed() -> Iterator[None]:
    """set_seed lasts for the process, and nothing public takes it back."""
    from tensorflow.python.eager import context

    context.context()._seed = None
    yield
    context.context()._seed = None


def _read(dataset) -> list[int]:
    return [int(x) for x in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("buffer", [1, 2, 16, 999, 5000])
def test_shuffle(n: int, buffer: int) -> None:
    for seed in (0, 42, 2**40 + 3, -5):
        for fixed in (False, True):
            files = tf.data.Dataset.range(n).shuffle(buffer, seed, reshuffle_each_iteration=not fixed)
            spec = _spec("tf_shuffle", seed, buffer=buffer, fixed=fixed)
            for epoch in range(2):
                assert registry.order(spec, n, epoch).tolist() == _read(files)


@pytest.mark.parametrize("seed", [0, 1, 42, 2**31 - 1, 2**35 + 1, -7])
def test_whose_seed_it_is(seed: int) -> None:
    n = 100
    tf.random.set_seed(seed)
    for index in range(3):
        files = tf.data.Dataset.range(n).shuffle(n)
        assert registry.order(_spec("tf_shuffle", seed, seeded="global", op_index=index), n).tolist() == _read(files)
    for own in (0, 42, 2**33):
        files = tf.data.Dataset.range(n).shuffle(n, own)
        spec = _spec("tf_shuffle", own, seeded="both", global_seed=seed)
        assert [registry.order(spec, n, epoch).tolist() for epoch in range(2)] == [_read(files), _read(files)]


@pytest.mark.parametrize("n", [1, 7, 100, 1000])
@pytest.mark.parametrize("world", [1, 3, 4])
def test_shards(n: int, world: int) -> None:
    for rank in range(min(world, n)):
        after = tf.data.Dataset.range(n).shuffle(50, 42).shard(world, rank)
        before = tf.data.Dataset.range(n).shard(world, rank).shuffle(50, 42)
        for epoch in range(2):
            for name, files in (("tf_shuffle_shard", after), ("tf_shard_shuffle", before)):
                assert registry.order(_spec(name, 42, buffer=50), n, epoch, world, rank).tolist() == _read(files)


def test_skip_and_take_after_the_shuffle() -> None:
    files = tf.data.Dataset.range(100).shuffle(100, 42).skip(20).take(30)
    spec = _spec("tf_shuffle", 42, skip=20, take=30)
    assert [registry.order(spec, 100, epoch).tolist() for epoch in range(2)] == [_read(files), _read(files)]


@pytest.mark.parametrize("fraction", [0.8, 0.2, 0.33])
def test_parts_of_files_shuffled_once(fraction: float) -> None:
    rule = registry.subset("tf_take_skip")
    for n in (1, 10, 97):
        files = tf.data.Dataset.range(n).shuffle(n, 42, reshuffle_each_iteration=False)
        k = int(fraction * n)
        for part, real in (("take", files.take(k)), ("skip", files.skip(k))):
            spec = registry.make_spec(rule, 42, {"fraction": fraction, "part": part})
            assert rule.samples(spec, n).tolist() == _read(real)


@pytest.fixture(scope="module")
def listing(tmp_path_factory) -> Path:
    """A directory of 200 empty files in 4 classes, with names whose bytes sort otherwise than words do."""
    root = tmp_path_factory.mktemp("listing")
    for i in range(200):
        path = root / "aBc\u00e9"[i % 4] / f"{'Zz_-'[i % 3]}{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return root


@pytest.mark.parametrize("seeded", ["op", "global", "both"])
def test_list_files(listing: Path, seeded: str) -> None:
    names = sorted(os.fsencode(path) for path in listing.glob("*/*"))
    options: dict[str, Value] = {"seeded": seeded} | ({"global_seed": 9} if seeded == "both" else {})
    seed = None if seeded == "global" else 42
    for again in ({}, {"twice": True, "buffer": 10}, {"twice": True, "buffer": 10, "fixed": True}):
        if seeded != "op":
            tf.random.set_seed(9 if seeded == "both" else 42)
        files = tf.data.Dataset.list_files(str(listing / "*/*"), shuffle=True, seed=seed)
        if again:
            files = files.shuffle(10, seed, reshuffle_each_iteration="fixed" not in again)
        spec = _spec("tf_list_files", 42, **options, **again)
        for epoch in range(3):
            assert [names[i] for i in registry.order(spec, 200, epoch)] == list(files.as_numpy_iterator())


N = 96


class _Opens:
    """Notes which samples a pipeline opens, in order; splits them into epochs."""

    def __init__(self) -> None:
        self.log: list[int] = []

    def _note(self, x) -> np.float32:
        self.log.append(int(x))
        return np.float32(x)

    def read(self, x):
        y = tf.reshape(tf.py_function(self._note, [x], tf.float32), [1])
        return y, y

    def shuffled(self):
        return tf.data.Dataset.range(N).shuffle(N, 42).map(self.read).batch(8)

    def epochs(self) -> list[list[int]]:
        return [self.log[at : at + N] for at in range(0, len(self.log), N)]


def _model(steps_per_execution: int = 1):
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(loss="mse", steps_per_execution=steps_per_execution)
    return model


def _loop(files) -> None:
    for _ in range(4):
        for _ in files:
            pass


def _evaluate(files) -> None:
    model = _model()
    for _ in range(4):
        model.evaluate(files, verbose=0)


OTHER = tf.data.Dataset.from_tensors((np.ones((8, 1)), np.ones((8, 1))))
# What iterates, and the pairs of seeds that its epochs take.
USES: tuple[tuple[str, Callable[..., object], tuple[int, ...]], ...] = (
    ("loop", _loop, (0, 1, 2, 3)),
    ("loop, prefetched", lambda files: _loop(files.prefetch(2)), (0, 1, 2, 3)),
    ("repeat", lambda files: list(files.repeat(4)), (0, 1, 2, 3)),
    ("fit", lambda files: _model().fit(files, epochs=4, verbose=0), (0, 2, 4, 6)),
    ("fit, as validation", lambda files: _model().fit(OTHER, validation_data=files, epochs=3, verbose=0), (0, 2, 4)),
    ("fit, 3 steps at once", lambda files: _model(3).fit(files, epochs=4, verbose=0), (0, 2, 4, 6)),
    ("fit, size unknown", lambda files: _model().fit(files.filter(lambda *_: True), epochs=3, verbose=0), (0, 1, 2)),
    ("evaluate", _evaluate, (0, 2, 4, 6)),
)


@pytest.mark.parametrize(("use", "pairs"), [use[1:] for use in USES], ids=[use[0] for use in USES])
def test_pairs_of_seeds_are_followed(use: Callable[..., object], pairs: tuple[int, ...]) -> None:
    """Each epoch is among those that may follow the one before; from the third on it is the first of them."""
    opens = _Opens()
    use(opens.shuffled())
    family = registry.sampler("tf_shuffle")
    spec, epoch = Spec("tf_shuffle", 42), 0
    for number, (taken, pair) in enumerate(zip(opens.epochs(), pairs, strict=True)):
        if number:
            coming = family.following(spec, epoch)
            fits = [one for one in coming if registry.order(one[0], N, one[1]).tolist() == taken]
            spec, epoch = fits[0]
            assert (spec, epoch) == coming[0] or number == 1
        assert epoch == number
        assert spec.number("pair") + int(spec.get("step", 1)) * epoch == pair
        assert registry.order(spec, N, epoch).tolist() == taken


def test_an_epoch_left_early_has_taken_its_pair() -> None:
    opens = _Opens()
    for _ in opens.shuffled():
        break
    assert opens.log == registry.order(Spec("tf_shuffle", 42), N).tolist()[: len(opens.log)]
    opens.log.clear()
    files = opens.shuffled()
    for epoch in range(3):
        opens.log.clear()
        next(iter(files))
        assert opens.log == registry.order(Spec("tf_shuffle", 42), N, epoch).tolist()[: len(opens.log)]


def test_fit_on_shuffled_listing_takes_every_pair_of_the_listing_and_every_second_of_the_shuffle() -> None:
    opens = _Opens()
    files = tf.data.Dataset.range(N).shuffle(N, 42).shuffle(10, 42).map(opens.read).batch(8)
    _model().fit(files, epochs=3, verbose=0)
    spec = _spec("tf_list_files", 42, twice=True, buffer=10, step=2)
    assert opens.epochs() == [registry.order(spec, N, epoch).tolist() for epoch in range(3)]


def test_fit_on_several_devices_begins_a_pair_that_it_leaves() -> None:
    """Building the model takes the first batches of the first pair; training has every other one from the next."""
    opens = _Opens()
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = _model()
    model.fit(opens.shuffled(), epochs=3, verbose=0)
    built = len(opens.log) - 3 * N
    assert 0 < built < N
    assert opens.log[:built] == registry.order(_spec("tf_shuffle", 42), N).tolist()[:built]
    opens.log = opens.log[built:]
    spec = _spec("tf_shuffle", 42, pair=1, step=2)
    assert opens.epochs() == [registry.order(spec, N, epoch).tolist() for epoch in range(3)]


def test_parallel_reads_stay_near_their_places_and_tell_the_buffer() -> None:
    opens = _Opens()
    files = tf.data.Dataset.range(5000).shuffle(300, 42).map(opens.read, num_parallel_calls=tf.data.AUTOTUNE)
    for i, _ in enumerate(files.batch(32).prefetch(tf.data.AUTOTUNE)):
        if i == 10:
            break
    spec = _spec("tf_shuffle", 42, buffer=300)
    words = philox.words(*iterator_seeds(op_seeds(spec), 0), 0, 256)
    assert tf_buffer_search.buffers(words, np.array(opens.log[:300]), 5000, slack=16)[0][0] == 300


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """A directory of 120 images in 3 classes; image i is all (i, i, i)."""
    root = tmp_path_factory.mktemp("images")
    for i in range(120):
        path = root / f"class{i // 40}" / f"{i:03}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(tf.io.encode_png(np.full((1, 1, 3), i, np.uint8)).numpy())
    return root


def _directory(images: Path, **options):
    return keras.utils.image_dataset_from_directory(images, image_size=(1, 1), verbose=False, **options)


def _pixels(files) -> list[int]:
    return [int(x) for batch, _ in files for x in np.asarray(batch).reshape(-1, 3)[:, 0]]


@pytest.mark.parametrize("batch", [2, 4, 32, None])
@pytest.mark.parametrize("split", [None, 0.2, 0.25])
@pytest.mark.parametrize("seed", [0, 42, 2**32 - 1])
def test_keras_directory(images: Path, batch: int | None, split: float | None, seed: int) -> None:
    for subset in ("training", "validation") if split else (None,):
        files = _directory(images, seed=seed, batch_size=batch, validation_split=split, subset=subset)
        given: dict[str, Value] = {"batch": batch} if batch else {"unbatched": True}
        if split:
            given |= {"validation_split": split, "subset": str(subset)}
        spec = _spec("keras_directory", seed, **given)
        for epoch in range(3):
            assert registry.order(spec, 120, epoch).tolist() == _pixels(files)


def test_keras_directory_with_both_subsets(images: Path) -> None:
    training, validation = _directory(images, seed=42, validation_split=0.2, subset="both")
    spec = _spec("keras_directory", 42, validation_split=0.2)
    last = _spec("keras_directory", 42, validation_split=0.2, subset="validation", fixed=True)
    for epoch in range(2):
        assert registry.order(spec, 120, epoch).tolist() == _pixels(training)
        assert registry.order(last, 120, epoch).tolist() == _pixels(validation)


def test_keras_directory_under_global_seeds(images: Path) -> None:
    tf.random.set_seed(9)
    files = _directory(images, seed=42)
    assert registry.order(_spec("keras_directory", 42, seeded="both", global_seed=9), 120).tolist() == _pixels(files)
    keras.utils.set_random_seed(7)
    for call in range(2):
        files = _directory(images)
        spec = _spec("keras_directory", 7, seeded="drawn", op_index=call)
        assert [registry.order(spec, 120, epoch).tolist() for epoch in range(2)] == [_pixels(files), _pixels(files)]


def test_keras_refuses_what_is_refused_here(images: Path) -> None:
    spec = _spec("keras_directory", 42, validation_split=0.001)
    with pytest.raises(ValueError):
        registry.order(spec, 120)
    with pytest.raises(ValueError):
        _directory(images, seed=42, validation_split=0.001, subset="training")
