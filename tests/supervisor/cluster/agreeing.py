"""Nodes whose supervisors agree on a placement, for tests: in virtual time, so that no limit passes while a machine is
busy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio
import trio.testing

from nopfsfs.dataset.index import Index
from nopfsfs.dataset.tree_scan import scan
from nopfsfs.policy.homes import Home
from nopfsfs.protocol.columns import HOME_HERE
from nopfsfs.supervisor.cluster import placement_agreement as module
from tests.asynchronous import without_threads
from tests.supervisor.cluster.nodes import Bus, Node
from tests.waiting import until

TRAIN, VAL = 160, 40
CHARGE = 4096 + 1024


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """train/ and val/ of twenty classes, and a README."""
    root = tmp_path_factory.mktemp("tree")
    (root / "README").write_text("x")
    for part, count in (("train", TRAIN), ("val", VAL)):
        for number in range(count):
            path = root / part / f"class{number % 20:02}" / f"{number:04}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x" * 100)
    return scan(str(root)).index


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    without_threads(monkeypatch)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"LOOK_S": 0.01, "ROOMS_S": 0.2, "FOLLOWER_S": 0.3, "SENDING_S": 0.5, "BEGIN_S": 0.5, "BEGIN_LATE_S": 1,
              "HOLD_BACK_S": 0.4}  # fmt: skip
    for name, value in limits.items():
        monkeypatch.setattr(module, name, value)


def rows_of(index: Index, part: str) -> np.ndarray:
    return np.array([row for row in range(index.n_dirs, index.n) if index.path(row).startswith(part.encode())])


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(node.agreement.run)
        yield nursery
        nursery.cancel_scope.cancel()


async def placed(number: int, *nodes: Node) -> None:
    await until(lambda: all(node.agreement.status()["number"] >= number for node in nodes))


def check(bus: Bus, gone: tuple[int, ...] = ()) -> None:
    """All nodes that are there agree, and each keeps what lives there."""
    there = [node for number, node in bus.all.items() if number not in gone]
    homes = []
    for node in there:
        holder = node.holder.astype(np.int64)
        home = np.where(holder == HOME_HERE, node.number, holder - 1)
        homes.append(home)
        policy = node.loop.policy
        assert np.isin(policy.residency.home[holder == HOME_HERE], (Home.RAM, Home.DISK)).all()
        assert policy.residency.homes.used <= policy.split.homes
    for home in homes[1:]:
        assert (home == homes[0]).all()
    assert not set(homes[0].tolist()) & set(gone)
