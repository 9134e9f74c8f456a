"""torch's samplers on its global generator, replacement, states and random_split against the real classes; golden
values for where there is no torch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers import registry, torch_global
from nopfsfs.plan.samplers.sampler import Spec
from tests.examples import examples
from tests.plan.loaders import read
from tests.plan.samplers.orders import digest_of, state_text

SIZES = (1, 2, 3, 17, 97, 1000)
SEEDS = (0, 42, 2**32 + 5, -7)


@pytest.fixture
def torch():
    module = pytest.importorskip("torch")
    state = module.get_rng_state()
    yield module
    module.set_rng_state(state)


def _spec(name: str, seed: int = 0, **options) -> Spec:
    return registry.make_spec(registry.sampler(name), seed, options)


def _made_again(spec: Spec) -> Spec:
    """The spec as a user would have made it: without options that have their defaults."""
    family = registry.sampler(spec.sampler)
    options = {name: bool(v) if family.options[name].kind is bool else v for name, v in spec.options}
    return registry.make_spec(family, spec.seed, options)


# -- golden values: captured from torch 2.13 --


@pytest.mark.parametrize(
    ("spec", "epoch", "expected"),
    [
        (Spec("global", 42), 0, [8, 0, 9, 1, 4, 5, 6, 3, 2, 7]),
        (Spec("global", 42), 3, [4, 3, 8, 9, 2, 0, 5, 1, 6, 7]),
        (Spec("global", 42, (("step", 6),)), 1, [6, 9, 3, 2, 0, 8, 4, 7, 1, 5]),
        (
            Spec("random", 42, (("num_samples", 25), ("replacement", 1))),
            1,
            [9, 2, 0, 5, 9, 3, 4, 9, 6, 2, 0, 6, 2, 7, 9, 7, 3, 3, 4, 3, 7, 0, 9, 0, 9],
        ),
        (
            Spec("random", 42, (("num_samples", 25),)),
            1,
            [0, 8, 3, 1, 2, 9, 6, 4, 7, 5, 6, 4, 3, 8, 7, 2, 9, 5, 0, 1, 7, 4, 0, 8, 2],
        ),
        (Spec("torchdata", 42), 1, [8, 3, 0, 1, 7, 2, 9, 5, 4, 6]),
        (Spec("torchdata", 42, (("every", 2), ("offset", 5))), 1, [3, 1, 8, 9, 0, 2, 6, 5, 4, 7]),
        (Spec("subset_random", 42, (("base_seed", "never"),)), 2, [7, 5, 0, 3, 1, 6, 9, 8, 4, 2]),
    ],
)
def test_golden(spec: Spec, epoch: int, expected: list[int]) -> None:
    assert registry.order(spec, 10, epoch).tolist() == expected


def test_golden_of_a_million() -> None:
    assert digest_of(registry.order(Spec("global", 42), 1_000_003)) == "43dcc1fc7e6b5803"


# -- against torch --


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("drawn", [0, 1, 700])
def test_shuffle_after_manual_seed(torch, n: int, seed: int, drawn: int) -> None:
    torch.manual_seed(seed)
    torch.rand(drawn)
    loader = torch.utils.data.DataLoader(range(n), batch_size=4, shuffle=True)
    spec = _spec("global", seed, offset=drawn)
    for epoch in range(4):
        np.testing.assert_array_equal(registry.order(spec, n, epoch), read(loader))


def test_shuffle_with_persistent_workers(torch) -> None:
    torch.manual_seed(42)
    loader = torch.utils.data.DataLoader(range(97), shuffle=True, num_workers=1, persistent_workers=True)
    for epoch in range(3):
        np.testing.assert_array_equal(registry.order(_spec("global", 42, step=2), 97, epoch), read(loader))


@pytest.mark.parametrize("validations", [0, 1, 2])
@pytest.mark.parametrize("left", [None, 3])
def test_shuffle_with_validation_in_between(torch, validations: int, left: int | None) -> None:
    torch.manual_seed(42)
    loader = torch.utils.data.DataLoader(range(97), batch_size=4, shuffle=True)
    other = torch.utils.data.DataLoader(range(10))
    spec = _spec("global", 42, step=4 + 2 * validations)
    for epoch in range(4):
        taken = read(loader, left)
        np.testing.assert_array_equal(registry.order(spec, 97, epoch)[: len(taken)], taken)
        for _ in range(validations):
            read(other)


def test_a_sampler_without_a_loader(torch) -> None:
    torch.manual_seed(3)
    sampler = torch.utils.data.RandomSampler(range(50))
    for epoch in range(3):
        np.testing.assert_array_equal(registry.order(_spec("global", 3, offset=-2, step=2), 50, epoch), list(sampler))


@pytest.mark.parametrize("n", [1, 3, 17, 40, 1000])
@pytest.mark.parametrize("count", [1, 16, 17, 31, 32, 33, 40, 64, 100])
@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_replacement_and_number_of_samples(torch, n: int, count: int, replacement: bool, own: bool) -> None:
    torch.manual_seed(5)
    generator = torch.Generator().manual_seed(5) if own else None
    sampler = torch.utils.data.RandomSampler(range(n), replacement, count, generator)
    loader = torch.utils.data.DataLoader(range(n), batch_size=8, sampler=sampler, generator=generator)
    options = {"replacement": replacement, "num_samples": count}
    spec = _spec("random" if own else "global", 5, **options)
    family = registry.sampler(spec.sampler)
    for epoch in range(3):
        order = registry.order(spec, n, epoch)
        np.testing.assert_array_equal(order, read(loader))
        for head in (0, 1, 20, 33, 1000):
            np.testing.assert_array_equal(family.shared(spec, n, epoch, head), order[:head])


@pytest.mark.parametrize("n", [17, 100])
@pytest.mark.parametrize("count", [10, 17, 40])
def test_epochs_left_early_with_a_number_of_samples(torch, n: int, count: int) -> None:
    generator = torch.Generator().manual_seed(5)
    sampler = torch.utils.data.RandomSampler(range(n), num_samples=count, generator=generator)
    early = 0
    for epoch, left in enumerate([3, None, 5, None]):
        spec = _spec("random", 5, base_seed="never", num_samples=count, left_early=early)
        order = registry.order(spec, n, epoch)
        if left is None:
            np.testing.assert_array_equal(order, list(sampler))
        elif count // n < 2:  # else it depends on how far the epoch was read
            iterator = iter(sampler)
            np.testing.assert_array_equal(order[:left], [next(iterator) for _ in range(left)])
            early += 1
        else:
            list(sampler)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("base_seed", ["epoch", "once", "never"])
def test_subset_random_sampler(torch, n: int, base_seed: str) -> None:
    generator = torch.Generator().manual_seed(42)
    indices = list(range(0, 2 * n, 2))
    data = torch.utils.data
    loader = data.DataLoader(
        range(2 * n),
        sampler=data.SubsetRandomSampler(indices, generator),
        generator=generator if base_seed != "never" else None,
        num_workers=int(base_seed == "once"),
        persistent_workers=base_seed == "once",
    )
    for epoch in range(3):
        order = registry.order(_spec("subset_random", 42, base_seed=base_seed), n, epoch)
        np.testing.assert_array_equal(2 * order, read(loader))


def test_random_finds_subset_random_as_epochs_left_early(torch) -> None:
    family = registry.sampler("random")
    spec = Spec("random", 42)
    for epoch in range(4):
        np.testing.assert_array_equal(
            registry.order(spec, 97, epoch), registry.order(Spec("subset_random", 42), 97, epoch)
        )
        found = [family.following(spec, epoch)[i] for i in (0, 1)]
        spec = next(s for s, _ in found if s.number("left_early") == epoch + 1)
        if epoch:
            assert found[0][0] == spec


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("drawn", [0, 33])
@pytest.mark.parametrize("validations", [0, 1])
def test_subset_random_sampler_on_the_global_generator(torch, n: int, drawn: int, validations: int) -> None:
    torch.manual_seed(9)
    torch.rand(drawn)
    loader = torch.utils.data.DataLoader(range(n), sampler=torch.utils.data.SubsetRandomSampler(range(n)))
    spec = _spec("global", 9, direct=True, offset=drawn, step=4 + 2 * validations)
    for epoch in range(3):
        np.testing.assert_array_equal(registry.order(spec, n, epoch), read(loader))
        for _ in range(validations):
            read(torch.utils.data.DataLoader(range(3)))


@pytest.mark.parametrize("drawn", [0, 1, 623, 624, 625, 5000])
def test_the_state_of_a_live_generator(torch, drawn: int) -> None:
    generator = torch.Generator().manual_seed(77)
    torch.rand(drawn, generator=generator)
    state = torch_generator.torch_state(generator.get_state().numpy().tobytes())
    assert state_text(torch_generator.generator_from_state(state)) == state
    loader = torch.utils.data.DataLoader(range(97), shuffle=True, generator=generator)
    for epoch in range(2):
        np.testing.assert_array_equal(registry.order(_spec("random", state=state), 97, epoch), read(loader))
    torch.manual_seed(77)
    torch.rand(drawn)
    state = torch_generator.torch_state(torch.get_rng_state().numpy().tobytes())
    loader = torch.utils.data.DataLoader(range(97), shuffle=True)
    for epoch in range(2):
        np.testing.assert_array_equal(registry.order(_spec("global", state=state), 97, epoch), read(loader))


LENGTHS = ("0.8,0.2", "0.9,0.1", "0.8,0.1,0.1", "0.7,0.15,0.15", "0.5,0.5", "1", "0.3,0.3,0.2,0.2")


@pytest.mark.filterwarnings("ignore:Length of split at index")
@pytest.mark.parametrize("n", [1, 2, 3, 17, 1000, 1001, 1005])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("own", [False, True])
def test_random_split(torch, n: int, lengths: str, own: bool) -> None:
    rule = registry.subset("random_split")
    torch.manual_seed(6)
    generator = torch.Generator().manual_seed(6) if own else torch.default_generator
    sizes = [float(word) for word in lengths.split(",")]
    parts = torch.utils.data.random_split(range(n), sizes, generator)
    for index, part in enumerate(parts):
        spec = registry.make_spec(rule, 6, {"lengths": lengths, "part": index})
        np.testing.assert_array_equal(rule.samples(spec, n), part.indices)
        counts = ",".join(str(len(other)) for other in parts)
        if counts != "1":  # torch takes 1 for the fraction
            spec = registry.make_spec(rule, 6, {"lengths": counts, "part": index})
            np.testing.assert_array_equal(rule.samples(spec, n), part.indices)


def test_random_split_then_shuffle(torch) -> None:
    torch.manual_seed(8)
    part = torch.utils.data.random_split(range(1000), [0.8, 0.2])[0]
    loader = torch.utils.data.DataLoader(part, shuffle=True)
    indices = registry.subset("random_split").samples(Spec("random_split", 8), 1000)
    order = registry.order(_spec("global", 8, offset=999), 800)
    np.testing.assert_array_equal(indices[order], read(loader))


# -- properties --


def test_random_split_variants_are_different_parts_that_cover_all() -> None:
    rule = registry.subset("random_split")
    specs = rule.variants(3)
    assert len(set(specs)) == len(specs)
    assert specs[0] == Spec("random_split", 3)
    for lengths in {str(spec.get("lengths", "0.8,0.2")) for spec in specs}:
        parts = [rule.samples(s, 1001) for s in specs if s.get("lengths", "0.8,0.2") == lengths]
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(1001))


@pytest.mark.parametrize("lengths", ["", "a,b", "0.8,0.3", "-1,11", "5,4", "nan", "inf,1", "2.5,7.5", "1.5,-0.5"])
def test_lengths_that_torch_refuses_are_refused(lengths: str) -> None:
    with pytest.raises(ValueError, match="lengths"):
        registry.subset("random_split").samples(Spec("random_split", 0, (("lengths", lengths),)), 10)


def test_a_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="part"):
        registry.subset("random_split").samples(Spec("random_split", 0, (("part", 2),)), 10)


@given(st.integers(0, 40), st.integers(0, 10), st.integers(-2, 9), st.integers(1, 20), st.booleans())
@settings(max_examples=examples(60))
def test_another_step_keeps_this_epoch_and_moves_the_next(
    n: int, epoch: int, offset: int, step: int, direct: bool
) -> None:
    family = registry.sampler("global")
    spec = _spec("global", 1, offset=offset, step=step, direct=direct)
    word = torch_global.first_word(spec, n, epoch)
    own = max(n - 1, 0) - 2 if direct else 0
    found = family.following(spec, epoch)
    assert found[0] == (spec, epoch + 1)
    assert len(set(found)) == len(found) <= 12
    for other, after in found:
        if after == epoch + 1:
            assert torch_global.first_word(other, n, epoch) == word
            taken = int(other.get("step", 4))
            assert torch_global.first_word(other, n, epoch + 1) == word + taken + own
            assert other == _made_again(other)
    moved = torch_global.beginning_at(spec, n, epoch, 1000)
    assert torch_global.first_word(moved, n, epoch) == 1000


NAMES = ("distributed", "random", "global", "accelerate", "hf_trainer", "repeat_aug", "timm", "lightning")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 42, 2**40])
def test_what_is_tried_is_different_and_names_no_default(name: str, seed: int) -> None:
    family = registry.sampler(name)
    specs = (*family.variants(seed), *family.unusual(seed))
    assert len(set(specs)) == len(specs)
    assert len(family.variants(seed)) <= 6
    for spec in specs:
        assert spec == _made_again(spec)
        assert family.epochs(spec) >= 1
        dealt = family.dealt_out(spec, 4) or spec
        assert family.order(dealt, 50, 0, 2, (0, 1)).max() < 50


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("global", {"offset": -3}),
        ("global", {"direct": True, "num_samples": 5}),
        ("random", {"left_early": 1, "replacement": True}),
        ("random", {"state": "abcd"}),
        ("random", {"state": "no base64!"}),
        ("accelerate", {"offset": -1, "batch": 4}),
        ("accelerate", {}),
        ("hf_trainer", {}),
    ],
)
def test_what_cannot_be_is_refused(name: str, options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options), "batch")):
        registry.sampler(name).order(_spec(name, 0, **options), 10, 0, 2, (0,))


@given(st.integers(1, 300), st.integers(1, 5), st.integers(1, 9), st.booleans(), st.booleans(), st.integers(0, 3))
@settings(max_examples=examples(100))
def test_batches_dealt_out(n: int, world: int, batch: int, uneven: bool, drop_last: bool, epoch: int) -> None:
    family = registry.sampler("hf_trainer")
    spec = _spec("hf_trainer", 1, batch=batch, uneven=uneven, drop_last=drop_last)
    parts = [family.order(spec, n, epoch, world, (rank,)) for rank in range(world)]
    together = family.order(spec, n, epoch, world, range(world))
    for rank, part in enumerate(parts):
        lane = together[rank::world]
        np.testing.assert_array_equal(lane[lane >= 0], part)
        for count in (0, 1, batch, 2 * batch + 1, 400):
            np.testing.assert_array_equal(family.order(spec, n, epoch, world, (rank,), count), part[:count])
            head = family.order(spec, n, epoch, world, range(world), count)
            np.testing.assert_array_equal(head, together[: count * world])
    counts = np.bincount(np.concatenate(parts), minlength=n)
    assert len({len(part) for part in parts}) == 1 or uneven
    if drop_last:
        assert counts.max(initial=0) <= 1
    else:
        assert counts.min() >= 1
