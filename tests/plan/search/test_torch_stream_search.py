"""The search for a place in the generator's stream, with loaders of real torch and by the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.search import torch_stream_search
from nopfsfs.plan.search.torch_stream_search import GlobalSearch, SearchedFiles, StreamPlace, Words, agreement
from tests.conftest import long, slow
from tests.plan.samplers.orders import state_text


def _worker(order: np.ndarray, worker: int, workers: int, batch: int, count: int) -> np.ndarray:
    """What one worker process opens first."""
    places = np.arange(len(order))
    return order[places // batch % workers == worker][:count]


def _run(search: GlobalSearch) -> list[StreamPlace]:
    found: list[StreamPlace] = []
    while not search.done and not found:
        found += search.step()
    return found


@pytest.mark.parametrize("n", [slow(130), 300, slow(1000), slow(20_011), long(1_281_167)])
@pytest.mark.parametrize(("batch", "workers"), [(64, 2), (8, 8), (1, 4), (2, 3), (3, 1), long(5, 16)])
@pytest.mark.parametrize("direct", [False, True])
def test_a_place_is_found_from_one_worker_among_several(n: int, batch: int, workers: int, direct: bool) -> None:
    seed, offset = 42, 300_007
    spec = Spec("global", seed, (("direct", int(direct)), ("offset", offset)))
    order = registry.sampler("global").shared(spec, n, 0, 5000)
    readers = [_worker(order, w, workers, batch, 16) for w in range(workers)][::-1]
    readers = [each for each in readers if len(each)]
    other = np.random.default_rng(0).permutation(n)  # another order of the files
    targets = [SearchedFiles(n, each) for each in readers] + [SearchedFiles(n, other[each]) for each in readers]
    search = GlobalSearch(seed, targets, limit=1 << 20)
    (found,) = _run(search)
    assert found.word == offset + 2
    assert found.direct == direct
    assert found.target == len(readers) - 1
    agreed, shown = agreement(order, readers[-1])
    assert agreed == len(readers[-1])
    if batch < 8 and workers > 1:
        assert shown == workers
    np.testing.assert_array_equal(registry.order(search.spec(found), n)[:5000], order)


@pytest.mark.parametrize("opens", [6, 7])
def test_six_opens_of_a_thousand_files_are_enough(opens: int) -> None:
    order = registry.order(Spec("global", 1, (("offset", 800_000),)), 1000)
    (found,) = _run(GlobalSearch(1, [SearchedFiles(1000, order[:opens])]))
    assert found.word == 800_002


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("offset", [100_000, 100_001])
@pytest.mark.parametrize("start", [0, 77_777])
def test_half_of_the_words_are_looked_at_first(offset: int, start: int, direct: bool) -> None:
    spec = Spec("global", 3, (("direct", int(direct)), ("offset", offset)))
    order = registry.sampler("global").shared(spec, 1000, 0, 20)
    halves = [
        _run(GlobalSearch(3, [SearchedFiles(1000, order)], limit=1 << 17, start=start, which=which))
        for which in (Words.LIKELY, Words.REST)
    ]
    # the loader draws a pair before that of the sampler
    assert [[one.word for one in half] for half in halves] == (
        [[offset + 2], []] if direct or offset % 2 == 0 else [[], [offset + 2]]
    )


def test_nothing_is_found_where_nothing_is() -> None:
    rng = np.random.default_rng(1)
    targets = [SearchedFiles(n, rng.permutation(n)[:32]) for n in (40, 1000, 1000, 30_000) for _ in range(3)]
    search = GlobalSearch(7, targets, limit=1 << 19)
    assert _run(search) == []
    assert search.position == 1 << 19


def test_the_search_goes_on_from_a_known_place_and_from_a_state() -> None:
    order = registry.order(Spec("global", 5, (("offset", 700_000),)), 5000)
    target = SearchedFiles(5000, order[:20])
    (found,) = _run(GlobalSearch(5, [target], limit=800_000, start=600_001))
    assert found.word == 700_002
    assert _run(GlobalSearch(5, [target], limit=800_000, start=700_004)) == []
    state = state_text(torch_generator.generator(5, 600_000))
    search = GlobalSearch(state, [target], limit=200_000)
    (found,) = _run(search)
    assert found.word == 100_002
    np.testing.assert_array_equal(registry.order(search.spec(found), 5000), order)


@pytest.mark.parametrize("chunk_end", [-2, -1, 0, 1])
def test_places_where_one_step_ends_and_the_next_begins(chunk_end: int) -> None:
    offset = torch_stream_search.CHUNK + chunk_end - 2
    for direct in (0, 1):
        spec = Spec("global", 9, (("direct", direct), ("offset", offset)))
        order = registry.order(spec, 100_000)
        (found,) = _run(GlobalSearch(9, [SearchedFiles(100_000, order[:300])], limit=1 << 20))
        assert found.word == offset + 2
        assert found.log_chance == pytest.approx(-300 * math.log(100_000), rel=0.01), "all 300 agree"


@pytest.mark.parametrize("n", [1, 2, 3])
def test_data_sets_too_small_to_tell_are_not_found(n: int) -> None:
    search = GlobalSearch(0, [SearchedFiles(n, np.arange(n))], limit=1 << 16)
    assert _run(search) == []


@pytest.mark.parametrize(("n", "samples"), [(0, [0]), (5, []), (5, [5]), (5, [-1])])
def test_targets_that_cannot_be_are_refused(n: int, samples: list[int]) -> None:
    with pytest.raises(ValueError):
        GlobalSearch(0, [SearchedFiles(n, np.array(samples, dtype=np.int64))])


def test_seeds_that_torch_refuses_are_refused() -> None:
    with pytest.raises(ValueError):
        GlobalSearch(2**64, [])
    with pytest.raises(ValueError):
        GlobalSearch("abcd", [])


def _initialise(torch, seed: int) -> None:
    """Draws as a small model's initialisation does: an odd number of words of several kinds."""
    torch.manual_seed(seed)
    for shape in ((64, 3, 7, 7), (512, 512), (33,), (7, 5)):
        torch.empty(shape).uniform_()
        torch.empty(shape).normal_()
    torch.rand(3, dtype=torch.float64)


@pytest.mark.framework
@pytest.mark.parametrize("workers", [0, slow(2)])
@pytest.mark.parametrize("kind", ["shuffle", long("subset")])
def test_a_real_loader_after_a_model_was_initialised(kind: str, workers: int) -> None:
    torch = pytest.importorskip("torch")
    n, batch = 20_011, 16
    _initialise(torch, 42)
    sampler = torch.utils.data.SubsetRandomSampler(range(n)) if kind == "subset" else None
    loader = torch.utils.data.DataLoader(
        range(n), batch_size=batch, shuffle=sampler is None, sampler=sampler, num_workers=workers
    )
    epochs = [[i for b in loader for i in b.tolist()] for _ in range(3)]
    first = np.array(epochs[0])
    readers = [_worker(first, w, max(workers, 1), batch, 32) for w in range(max(workers, 1))]
    search = GlobalSearch(42, [SearchedFiles(n, each) for each in readers])
    (found,) = _run(search)
    assert found.direct == (kind == "subset")
    for epoch, order in enumerate(epochs):
        np.testing.assert_array_equal(registry.order(search.spec(found), n, epoch), order)
