"""`nopfsfs.register`: what it tells the daemon of live samplers, names and orders."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nopfsfs
from nopfsfs.control import find_mount
from nopfsfs.control.find_mount import Located
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse.mount_table import parse_mountinfo
from nopfsfs.plan.generators import torch_generator
from nopfsfs.plan.samplers import registry
from nopfsfs.registration import api, plan_tables, torch_objects
from tests.answering import answering

torch = pytest.importorskip("torch")
data = torch.utils.data


KINDS = (
    *("subset_random", "random", "random in a loader", "loader", "distributed", "sequential"),
    *("last dropped", "in order, last dropped"),
)


class Files(data.Dataset):  # type: ignore[name-defined,misc]
    """A data set of n files below /mnt/fast/train."""

    def __init__(self, n: int = 50, root: str = "/mnt/fast/train") -> None:
        self.n, self.root = n, root

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> int:
        return i


class Daemon:
    """What came: requests, and what was in the files that they named."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.orders: list[Any] = []
        self.refuses = False

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.refuses:
            raise ValueError("plan 1: root: nowhere is not there")
        self.requests.append(request)
        for path in request["plans"][0].get("order", ()):
            assert os.stat(os.path.dirname(path)).st_mode & 0o77 == 0
            self.orders.append(np.load(path).tolist() if path.endswith(".npy") else Path(path).read_text().splitlines())
        return {}

    @property
    def plan(self) -> dict[str, Any]:
        plan: dict[str, Any] = dict(self.requests[-1]["plans"][0])
        return plan


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """The daemon of a mount at /mnt/fast."""
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "tmp").mkdir()
    (mount,) = parse_mountinfo(f"9 1 0:9 / /mnt/fast rw - fuse.nopfs src rw,user_id={os.geteuid()}")
    monkeypatch.setattr(find_mount, "read_mounts", lambda: [mount])
    located = Located("/mnt/fast", mount, str(state))
    monkeypatch.setattr(find_mount, "locate_living", lambda path, env: located)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    for name in "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE":
        monkeypatch.delenv(name, raising=False)
    # Samplers of torch's global generator, and of one in a given state, may not be in the registry: nothing to check.
    monkeypatch.setattr(api, "parse_plans", lambda tables: tables)
    made = Daemon()
    with answering(state, made):
        yield made
    assert list((tmp_path / "tmp").iterdir()) == []


def words_of(text: str) -> np.random.RandomState:
    raw = np.frombuffer(base64.b64decode(text), "<u4")
    state = np.random.RandomState(0)
    state.set_state(("MT19937", raw[:624].astype(np.uint32), int(raw[624]), 0, 0.0))
    return state


@pytest.mark.parametrize("drawn", [0, 1, 622, 623, 624, 625, 1248, 5000])
def test_the_state_of_a_generator_is_where_it_stands(drawn: int) -> None:
    generator = torch.Generator().manual_seed(3)
    torch.randint(0, 9, (drawn,), generator=generator)

    state = words_of(torch_objects.state_text(generator))

    expected = torch.randperm(2000, generator=generator).tolist()
    assert torch_generator.randperm(state, 2000).tolist() == expected


def test_a_distributed_sampler(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = data.DistributedSampler(Files(), 16, 5, seed=9, drop_last=True)
    sampler.set_epoch(3)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")

    assert nopfsfs.register("/mnt/fast", sampler)

    expected = {"sampler": "distributed", "seed": 9, "epoch": 3, "world_size": 16, "root": "train"}
    assert daemon.plan == {**expected, "ranks": [4, 5, 6, 7], "options": {"drop_last": True}}
    (plan,) = plan_tables.parse(daemon.requests[0])
    assert plan.ranks == (4, 5, 6, 7)
    nopfsfs.register("/mnt/fast", data.DistributedSampler(Files(), 16, 6, shuffle=False))
    assert daemon.plan["ranks"] == [6]  # not what RANK says
    assert daemon.plan["options"] == {"sequential": True}


def test_a_loader(daemon: Daemon) -> None:
    generator = torch.Generator().manual_seed(1)
    loader = data.DataLoader(Files(), 8, shuffle=True, num_workers=2, prefetch_factor=3, generator=generator)

    nopfsfs.register("/mnt/fast", loader)

    plan = daemon.plan
    assert plan["sampler"] == "random"
    assert plan["loader"] == {"workers": 2, "prefetch": 3, "batch": 8}
    assert set(plan["options"]) == {"state"}
    state = words_of(plan["options"]["state"])
    torch_generator.words(state, 2)  # the base seed
    assert torch_generator.randperm(state, 50).tolist() == [int(i) for batch in make_plain(loader) for i in batch]


def make_plain(loader: Any) -> Any:
    """The same loader without worker processes."""
    return data.DataLoader(loader.dataset, 8, shuffle=True, generator=loader.generator)


def test_the_global_generator(daemon: Daemon) -> None:
    torch.manual_seed(5)
    loader = data.DataLoader(Files(), 8, shuffle=True)

    nopfsfs.register("/mnt/fast", loader)

    assert daemon.plan["sampler"] == "global"
    state = words_of(daemon.plan["options"]["state"])
    for _ in range(2):
        torch_generator.words(state, 2)  # the base seed
        seed = int(torch_generator.words(state, 2)[-1])
        expected = torch_generator.randperm(torch_generator.generator(seed), 50).tolist()
        assert expected == [int(i) for batch in loader for i in batch]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda g: data.RandomSampler(Files(), generator=g), {"base_seed": "never"}),
        (lambda g: data.RandomSampler(Files(), True, 7, g),
         {"base_seed": "never", "replacement": True, "num_samples": 7}),
        (lambda g: data.DataLoader(Files(), sampler=data.RandomSampler(Files(), generator=g)), {"base_seed": "never"}),
        (lambda g: data.DataLoader(Files(), 1, True, generator=g, num_workers=1, persistent_workers=True),
         {"base_seed": "once"}),
        (lambda g: data.DataLoader(Files(), 1, True, num_workers=1, persistent_workers=True), {"step": 2}),
        (lambda g: data.RandomSampler(Files()), {}),
        (lambda g: data.DataLoader(Files(), sampler=data.RandomSampler(Files()), generator=g),
         {"offset": -2, "step": 2}),
    ],
)  # fmt: skip
def test_who_draws_from_which_generator(daemon: Daemon, make: Any, expected: dict[str, Any]) -> None:
    nopfsfs.register("/mnt/fast", make(torch.Generator().manual_seed(1)))
    assert {name: value for name, value in daemon.plan["options"].items() if name != "state"} == expected


def test_in_order(daemon: Daemon) -> None:
    nopfsfs.register("/mnt/fast/val", data.DataLoader(Files(), 4))
    assert daemon.plan == {"sampler": "sequential", "loader": {"workers": 0, "batch": 4}, "root": "val"}


def epochs_of(sampler: Any, count: int) -> list[list[int]]:
    found = []
    for epoch in range(count):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        found.append([int(i) for i in sampler])
    return found


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_last_batch_that_is_dropped(daemon: Daemon, drop_last: bool) -> None:
    files = Files()
    options = [{"drop_batch": 8}] if drop_last else [{}]
    for sampler in (
        data.SequentialSampler(files),
        data.RandomSampler(files, generator=torch.Generator().manual_seed(1)),
        data.RandomSampler(files),
        data.DistributedSampler(files, 4, 1),
    ):
        nopfsfs.register("/mnt/fast", data.DataLoader(files, 8, sampler=sampler, drop_last=drop_last))
        told = daemon.plan.get("options", {})
        assert [{name: value for name, value in told.items() if name == "drop_batch"}] == options


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_part_is_told_as_its_orders(daemon: Daemon, kind: str, own: bool) -> None:
    torch.manual_seed(11)
    generator = torch.Generator().manual_seed(2) if own else None
    (part,) = (data.Subset(data.Subset(Files(), list(range(0, 50, 2))), [3, 1, 20, 7, 9, 11, 2]),)
    files = [6, 2, 40, 14, 18, 22, 4]
    sampler, of_part = {
        "subset_random": lambda: (data.SubsetRandomSampler(files, generator), False),
        "random": lambda: (data.RandomSampler(part, generator=generator), True),
        "random in a loader": lambda: (
            data.DataLoader(part, sampler=data.RandomSampler(part, generator=generator)), False
        ),
        "loader": lambda: (data.DataLoader(part, 2, True, generator=generator), False),
        "distributed": lambda: (data.DistributedSampler(part, 2, 1, seed=4), True),
        "sequential": lambda: (data.DataLoader(part, 3), False),
        "last dropped": lambda: (data.DataLoader(part, 3, True, generator=generator, drop_last=True), False),
        "in order, last dropped": lambda: (data.DataLoader(part, 3, drop_last=True), False),
    }[kind]()  # fmt: skip

    nopfsfs.register("/mnt/fast", sampler, root="train", epochs=3)

    count = 1 if kind in ("sequential", "in order, last dropped") else 3
    if isinstance(sampler, data.DataLoader):
        expected = [[int(i) for batch in sampler for i in batch] for _ in range(count)]
    else:
        expected = [[files[i] if of_part else i for i in epoch] for epoch in epochs_of(sampler, count)]
    assert daemon.orders == expected
    assert daemon.plan.get("repeats", False) == (kind == "distributed")
    assert daemon.plan["root"] == "train"


def test_a_name_with_options(daemon: Daemon) -> None:
    nopfsfs.register(
        "/mnt/fast", "random", seed=np.int64(3), base_seed="once", epoch=2, ranks=range(2), root="/mnt/fast"
    )
    expected = {
        "sampler": "random",
        "seed": 3,
        "options": {"base_seed": "once"},
        "epoch": 2,
        "ranks": [0, 1],
        "root": "",
    }
    assert daemon.plan == expected
    nopfsfs.register("/mnt/fast", "keras_directory", seed=3, subset="training", files="keras_images")
    assert daemon.plan["options"] == {"subset": "training"}
    assert daemon.plan["files"] == "keras_images"


@pytest.mark.parametrize(
    ("given", "orders"),
    [
        (np.array([2, 0, 1], np.uint8), [[2, 0, 1]]),
        ([2, 0, 1], [[2, 0, 1]]),
        (range(3), [[0, 1, 2]]),
        ([[2, 0, 1], [0, 1]], [[2, 0, 1], [0, 1]]),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (torch.tensor([1, 0]), [[1, 0]]),
        ([torch.tensor([1, 0]), np.array([0, 1])], [[1, 0], [0, 1]]),
        (["a/1.jpg", Path("b/ü.jpg")], [["a/1.jpg", "b/ü.jpg"]]),
        ([["a"], ["b", "c"]], [["a"], ["b", "c"]]),
    ],
)
def test_an_order_of_ones_own(daemon: Daemon, given: Any, orders: list[Any]) -> None:
    nopfsfs.register("/mnt/fast", given, root="train", repeats=True)
    assert daemon.orders == orders
    (plan,) = plan_tables.parse(daemon.requests[0])
    assert (plan.sampler, plan.repeats, plan.root) == ("explicit", True, "train")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "sampler: name one"),
        ({"sampler": []}, "sampler: list is no sampler"),
        ({"sampler": object()}, "sampler: object is no sampler"),
        ({"sampler": [0.5]}, "sampler: float64 of shape"),
        ({"sampler": [[1, 2], "x"]}, "sampler: <U1 of shape"),
        ({"sampler": ["a\nb"]}, "sampler: position 0: 'a\\\\nb' is not a path"),
        ({"sampler": [1, 0], "seed": 3}, "seed: goes with a sampler's name"),
        ({"sampler": [1, 0], "drop_last": True}, "drop_last: options go with"),
        ({"sampler": "random", "root": "/elsewhere"}, "root: /elsewhere is not below /mnt/fast"),
        ({"sampler": data.WeightedRandomSampler([0.5, 0.5], 2)}, "WeightedRandomSampler is not known"),
        ({"sampler": data.DataLoader(Files(), batch_sampler=[[0], [1]])}, "sampler: list is not known"),
        ({"sampler": data.RandomSampler(data.Subset(Files(), [1]), True)}, "sampler: replacement or num_samples"),
        ({"sampler": data.SubsetRandomSampler(range(9)), "epochs": 0}, "epochs: 0 epochs of 9 samples"),
    ],
)
def test_what_cannot_be_described(daemon: Daemon, words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        nopfsfs.register("/mnt/fast", **words)
    assert "\n" not in str(raised.value)
    assert daemon.requests == []


def test_a_table_that_is_no_plan_is_not_sent(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "parse_plans", plan_tables.parse_plans)
    with pytest.raises(ValueError, match=r"^options.buffer: random has no such option"):
        nopfsfs.register("/mnt/fast", "random", seed=3, buffer=3)
    assert daemon.requests == []


def test_a_mount_that_refuses(daemon: Daemon) -> None:
    daemon.refuses = True
    with pytest.raises(NopfsError, match="the mount at /mnt/fast takes no such plan: plan 1: root: nowhere") as raised:
        nopfsfs.register("/mnt/fast", [1, 0])
    assert raised.value.exit_code is Exit.USAGE


def test_without_a_mount(tmp_path: Path) -> None:
    with pytest.raises(NopfsError, match="is in no nopfs mount") as raised:
        nopfsfs.register(tmp_path, "sequential")
    assert raised.value.exit_code is Exit.NOT_MOUNTED
    assert nopfsfs.register(tmp_path, "sequential", missing_ok=True) is False


def test_to_import_is_cheap() -> None:
    code = "import sys, nopfsfs; assert 'numpy' not in sys.modules and 'trio' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys, nopfsfs.registration.api; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_samplers_are_told_by_names_of_the_registry() -> None:
    assert {"distributed", "random", "sequential"} <= set(registry.SAMPLERS)
