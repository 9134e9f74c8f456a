"""What is built on PyTorch against the real Lightning, Accelerate, transformers and timm."""

from __future__ import annotations

import numpy as np
import pytest

from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from tests.framework_setup import import_torchvision

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.framework

SIZES = (1, 2, 3, 17, 100, 1000)


@pytest.fixture(autouse=True)
def generator():
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)


def _spec(name: str, seed: int = 0, **options) -> Spec:
    return registry.make_spec(registry.sampler(name), seed, options)


def _read(loader) -> list[int]:
    return [i for batch in loader for i in batch.tolist()]


# -- torchdata --


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("drawn", [0, 3])
@pytest.mark.parametrize(("n", "workers"), [(1, 0), (2, 2), (97, 0), (97, 2), (1000, 0)])
def test_stateful_loader(n: int, workers: int, drawn: int) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    torch.manual_seed(42)
    torch.empty(drawn).uniform_()
    made = loaders.StatefulDataLoader(range(n), 16, shuffle=True, num_workers=workers)
    again = loaders.StatefulDataLoader(range(n), 16, shuffle=True, num_workers=workers)
    spec = _spec("torchdata", 42, offset=drawn, every=2 if workers else 1)
    for epoch in range(3):
        order = registry.order(spec, n, epoch).tolist()
        batches = iter(made)
        first = next(batches).tolist()
        state = made.state_dict()
        assert first + [i for batch in batches for i in batch.tolist()] == order
    again.load_state_dict(state)  # in the middle of the last epoch
    assert _read(again) == order[16:]
    assert _read(again) == registry.order(spec, n, 3).tolist()


# -- timm --


@pytest.fixture
def timm_data():
    import_torchvision()
    pytest.importorskip("timm")
    from timm import data

    return data


@pytest.mark.parametrize("repeats", [3, 2, 1, 1.5, 2.7])
@pytest.mark.parametrize("n", [*SIZES, 255, 256, 257, 2000])
def test_repeat_aug(timm_data, n: int, repeats: float) -> None:
    spec = _spec("repeat_aug", repeats=float(repeats))
    for world in (1, 2, 3, 8):
        for rank in range(world):
            sampler = timm_data.distributed_sampler.RepeatAugSampler(range(n), world, rank, num_repeats=repeats)
            for epoch in (0, 1, 9):
                sampler.set_epoch(epoch)
                order = registry.order(spec, n, epoch, world, rank)
                np.testing.assert_array_equal(order, list(sampler))
                head = registry.sampler("repeat_aug").order(spec, n, epoch, world, (rank,), 7)
                np.testing.assert_array_equal(head, order[:7])


class _Images(torch.utils.data.Dataset):
    """n data whose label says which was read."""

    transform = None

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int):
        return np.zeros((3, 8, 8), dtype=np.uint8), i


def _timm_loader(timm_data, n: int, **options):
    return timm_data.create_loader(
        _Images(n),
        input_size=(3, 8, 8),
        batch_size=1,
        is_training=True,
        num_workers=0,
        use_prefetcher=False,
        collate_fn=lambda batch: torch.tensor([i for _, i in batch]),
        **options,
    )


@pytest.mark.parametrize("n", SIZES)
def test_timm_in_one_process(timm_data, n: int) -> None:
    loader = _timm_loader(timm_data, n)
    torch.manual_seed(42)
    for epoch in range(3):
        np.testing.assert_array_equal(registry.order(_spec("timm", 42), n, epoch), _read(loader))


@pytest.mark.parametrize("repeats", [0, 3])
@pytest.mark.parametrize("n", [17, 1000])
def test_timm_in_several_processes(timm_data, n: int, repeats: int, monkeypatch) -> None:
    world = 3
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: world)
    monkeypatch.setattr("torch.distributed.is_available", lambda: True)
    for rank in range(world):
        monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
        loader = _timm_loader(timm_data, n, distributed=True, num_aug_repeats=repeats)
        for epoch in (0, 4):
            loader.sampler.set_epoch(epoch)
            spec = _spec("repeat_aug") if repeats else _spec("timm", 42)
            np.testing.assert_array_equal(registry.order(spec, n, epoch, world, rank), _read(loader))


# -- Accelerate, transformers --


def _shards(n: int, batch: int, world: int, seedable: bool, offset: int = 0, **options) -> list:
    """The loaders of all processes as `Accelerator.prepare` makes them, each after manual_seed(42)."""
    from accelerate import Accelerator
    from accelerate.data_loader import prepare_data_loader

    Accelerator(cpu=True)  # the state that the loaders look at
    even = not options.pop("uneven", False)
    loaders = []
    for rank in range(world):
        torch.manual_seed(42)
        torch.rand(offset)
        loader = torch.utils.data.DataLoader(range(n), batch_size=batch, shuffle=True, **options)
        loaders.append(
            prepare_data_loader(
                loader,
                num_processes=world,
                process_index=rank,
                put_on_device=False,
                rng_types=["generator"],
                even_batches=even,
                use_seedable_sampler=seedable,
                data_seed=42 if seedable else None,
            )
        )
    return loaders


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("seedable", [False, True])
@pytest.mark.parametrize("options", [{}, {"uneven": True}, {"drop_last": True}])
def test_accelerate_in_several_processes(n: int, seedable: bool, options: dict) -> None:
    pytest.importorskip("accelerate")
    for world in (2, 3, 5):
        for batch in (1, 4, 7):
            loaders = _shards(n, batch, world, seedable, 0 if seedable else 5, **options)
            given = {} if seedable else {"offset": 5}
            spec = _spec("hf_trainer" if seedable else "accelerate", 42, batch=batch, **given, **options)
            for epoch in range(3):
                for rank, loader in enumerate(loaders):
                    order = registry.order(spec, n, epoch, world, rank)
                    np.testing.assert_array_equal(order, _read(loader))


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_split_batches_are_batches_of_one_process(even: bool, drop_last: bool) -> None:
    pytest.importorskip("accelerate")
    from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler

    for n in SIZES:
        for world, batch in ((2, 8), (3, 6)):
            for rank in range(world):
                sampler = SeedableRandomSampler(range(n), data_seed=1)
                batches = torch.utils.data.BatchSampler(sampler, batch, drop_last)
                real = [i for b in BatchSamplerShard(batches, world, rank, True, even) for i in b]
                spec = _spec("hf_trainer", 1, batch=batch // world, uneven=not even, drop_last=drop_last)
                np.testing.assert_array_equal(registry.order(spec, n, 0, world, rank), real)


@pytest.mark.parametrize("drop_last", [True, False])
def test_accelerate_in_one_process(drop_last: bool) -> None:
    pytest.importorskip("accelerate")
    for n in (17, 1000):
        (loader,) = _shards(n, 4, 1, False, 5, drop_last=drop_last)
        spec = _spec("accelerate", 42, offset=5, batch=4, drop_last=drop_last)
        for epoch in range(3):
            np.testing.assert_array_equal(registry.order(spec, n, epoch), _read(loader))


class _Rows(torch.utils.data.Dataset):
    def __init__(self, n: int) -> None:
        self.n, self.read = n, []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict:
        self.read.append(i)
        return {"x": torch.zeros(1), "labels": torch.zeros(1)}


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x, labels):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}


@pytest.mark.parametrize("options", [{}, {"seed": 7}, {"seed": 7, "data_seed": 9}])
def test_transformers_trainer(options: dict, tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    n, epochs, batch = 103, 3, 8
    rows = _Rows(n)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=epochs,
        per_device_train_batch_size=batch,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        **options,
    )
    transformers.Trainer(_Model(), arguments, train_dataset=rows).train()
    seed = options.get("data_seed", options.get("seed", 42))
    expected = [registry.order(_spec("hf_trainer", seed), n, epoch) for epoch in range(epochs)]
    np.testing.assert_array_equal(rows.read, np.concatenate(expected))


# -- Lightning --


# of Lightning itself: a use of torch that torch retires; a loader without workers, a loop that is not run
@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:The `srun` command is available on your system but is not used")
@pytest.mark.parametrize("validation", [False, True])
def test_lightning_in_one_process(validation: bool, tmp_path) -> None:
    import_torchvision()
    lightning = pytest.importorskip("lightning")
    n, epochs = 97, 3

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.read: list[int] = []

        def training_step(self, batch, _):
            self.read += batch.tolist()
            return self.layer(batch[:, None].float()).mean()

        def validation_step(self, batch, _) -> None:
            pass

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    module = Module()
    loader = torch.utils.data.DataLoader(range(n), batch_size=4, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(tmp_path),
    )
    torch.manual_seed(42)
    trainer.fit(module, loader, torch.utils.data.DataLoader(range(5)) if validation else None)
    spec = _spec("lightning", 42, step=6 if validation else 4)
    expected = [registry.order(spec, n, epoch) for epoch in range(epochs)]
    np.testing.assert_array_equal(module.read, np.concatenate(expected))


def test_lightning_in_several_processes(monkeypatch) -> None:
    import_torchvision()
    pytest.importorskip("lightning")
    from lightning.pytorch.trainer.connectors.data_connector import _get_distributed_sampler

    monkeypatch.setenv("PL_GLOBAL_SEED", "42")
    loader = torch.utils.data.DataLoader(range(97), shuffle=True)
    for rank in range(3):
        sampler = _get_distributed_sampler(loader, True, 0, num_replicas=3, rank=rank)
        for epoch in (0, 5):
            sampler.set_epoch(epoch)
            np.testing.assert_array_equal(registry.order(_spec("lightning", 42), 97, epoch, 3, rank), list(sampler))
