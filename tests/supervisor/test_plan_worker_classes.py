"""Samplers whose order depends on how many files each class has get that from the listing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nopfsfs.config import MountConfig
from nopfsfs.dataset.tree_scan import scan
from nopfsfs.plan.samplers import registry
from nopfsfs.supervisor.plan_worker import PlanWorker, data_sets, make_follower
from tests.asynchronous import in_trio

SIZES = {"a": 3, "b": 1, "c": 7}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, files in SIZES.items():
        (tmp_path / name).mkdir()
        for number in range(files):
            (tmp_path / name / f"{number}.jpg").write_bytes(b"x")
        (tmp_path / name / "notes.txt").write_bytes(b"x")
    return tmp_path


def test_file_orders_know_the_classes(source: Path) -> None:
    whole = next(one for one in data_sets(scan(source).index) if one.key == 0)
    by_name = {name: order for order in whole.orders for name in order.names}
    assert by_name["image_folder"].classes == "3,1,7"
    assert by_name["sorted_files"].classes == ""  # the notes are among them


@in_trio
async def test_a_plan_that_says_no_classes(source: Path) -> None:
    index, config = scan(source).index, MountConfig(source=str(source), mountpoint="/nowhere")
    follower = make_follower(index, config)
    plans = PlanWorker(cast(Any, SimpleNamespace(follower=follower, outages=None)), index, config)
    plans._made.set()
    await plans.register({"command": "register", "plans": [{"sampler": "weighted", "seed": 1}]})
    (track,) = (track for track in follower.believed() if track.given)
    order = follower.datasets[track.hypothesis.dataset].orders[track.hypothesis.order]
    spec = registry.make_spec(registry.sampler("weighted"), 1, {"classes": "3,1,7"})
    assert track.places.now.rows.tolist() == order.rows[registry.order(spec, 11)].tolist()

    plan = {"sampler": "weighted", "seed": 1, "files": "sorted_files"}
    with pytest.raises(ValueError, match="classes"):
        await plans.register({"command": "register", "plans": [plan]})
