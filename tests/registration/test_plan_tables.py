"""What a request or a plan's table may hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nopfsfs.config import MountConfig, PlanSpec
from nopfsfs.registration.plan_tables import PLANS_MOST, PlanError, parse, parse_next
from nopfsfs.system.process_setup import Handoff


def one(**table: Any) -> PlanSpec:
    (plan,) = parse(json.loads(json.dumps({"command": "register", "plans": [table]})))
    return plan


def test_every_key() -> None:
    plan = one(
        sampler="distributed", root="./train//x/", files="timm", seed=-3, epoch=4, world_size=8, ranks="0-2,5",
        options={"drop_last": True}, loader={"workers": 8, "prefetch": 4, "batch": 16},
    )  # fmt: skip

    assert plan == PlanSpec(
        sampler="distributed", root="train/x", files="timm", seed=-3, epoch=4, world_size=8, ranks=(0, 1, 2, 5),
        options=(("drop_last", True),), inflight=8 * 4 * 16 + 16,
    )  # fmt: skip
    config = MountConfig(source="/s", mountpoint="/m", plans=(plan, one(order=["/x.npy"], repeats=True)))
    assert Handoff.decode(Handoff("super", config, {}, {}).encode()).config == config


def test_little_is_enough() -> None:
    assert one(sampler="sequential") == PlanSpec(sampler="sequential")
    assert one(order="/a/0.npy") == PlanSpec(sampler="explicit", order=("/a/0.npy",))
    assert one(sampler="sequential", root="").root == ""
    assert one(sampler="distributed", ranks=[1, 0]).ranks == (0, 1)
    assert one(sampler="distributed", loader={"batch": 8}).inflight == 8


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "plan 1: sampler: is missing"),
        ({"sampler": "magic"}, "plan 1: sampler: unknown sampler 'magic': known are"),
        ({"sampler": "auto"}, "sampler: a plan names its sampler"),
        ({"sampler": 3}, "sampler: a whole number is given, a string is expected"),
        ({"sampler": "distributed", "sead": 1}, "sead: no such key of a plan; known are sampler,"),
        ({"sampler": "distributed", "seed": 2**64}, "seed: 18446744073709551616 is not from"),
        ({"sampler": "distributed", "seed": True}, "seed: true or false is given"),
        ({"sampler": "distributed", "seed": 1.0}, "seed: a number is given, a whole number is expected"),
        ({"sampler": "sequential", "seed": 1}, "seed: sequential takes none"),
        ({"sampler": "distributed", "epoch": -1}, "epoch: -1 is not from 0"),
        ({"sampler": "distributed", "world_size": 0}, "world_size: 0 is not from 1"),
        ({"sampler": "distributed", "ranks": "3-1"}, "ranks: '3-1' is not a list of ranks"),
        ({"sampler": "distributed", "ranks": []}, "ranks: '' is not a list of ranks"),
        ({"sampler": "distributed", "ranks": ["a"]}, "ranks: a string is given"),
        ({"sampler": "distributed", "ranks": [1 << 20]}, "ranks: 1048576 is no rank"),
        ({"sampler": "distributed", "world_size": 4, "ranks": "0-5"}, r"ranks: 4-5 outside the world of 4 \(0-3\)"),
        ({"sampler": "distributed", "ranks": "0-4096"}, "ranks: 4097 on one node are more than 4096; say those"),
        ({"sampler": "distributed", "world_size": 1 << 20}, "ranks: 1048576 on one node are more than 4096"),
        ({"sampler": "distributed", "root": "/train"}, "root: '/train' is not below the mount"),
        ({"sampler": "distributed", "root": "a/../.."}, "is not below the mount"),
        ({"sampler": "distributed", "files": "alphabetical"}, "files: unknown file order 'alphabetical': known are"),
        ({"sampler": "distributed", "options": {"buffer": 1}}, "options.buffer: distributed has no such option"),
        ({"sampler": "distributed", "options": {"drop_last": 1}}, "options.drop_last: 1 is not true or false"),
        ({"sampler": "random", "options": {"base_seed": "x"}}, "options.base_seed: 'x' is none of epoch"),
        ({"sampler": "random", "options": {"left_early": 1 << 70}}, "options.left_early: .* more than 64 bits"),
        ({"sampler": "random", "options": {"left_early": float("inf")}}, "options.left_early: inf is not a number"),
        ({"sampler": "random", "options": {"left_early": [1]}}, "options.left_early: a list is given"),
        ({"sampler": "random", "options": [1]}, "options: a list is given, a table is expected"),
        ({"sampler": "random", "loader": {"batch": 0}}, "loader.batch: 0 is not from 1"),
        ({"sampler": "random", "loader": {"size": 3}}, "loader.size: no such key of a loader"),
        ({"sampler": "random", "loader": {"workers": 1 << 20, "batch": 1 << 20}}, "loader: .* accesses at a time"),
        ({"sampler": "random", "subset": {"seed": 3}}, "subset.name: is missing"),
        ({"sampler": "random", "subset": {"name": "half"}}, "subset.name: unknown subset 'half'"),
        ({"sampler": "random", "subset": {"name": "x", "part": 1}}, "subset.part: no such key of a subset"),
        ({"sampler": "random", "order": ["/x"]}, "order: is not for random"),
        ({"sampler": "random", "repeats": True}, "repeats: is for a given order only"),
        ({"sampler": "explicit"}, "order: is missing"),
        ({"order": []}, "order: 0 files are named"),
        ({"order": "x.npy"}, "order: 'x.npy' is not an absolute path"),
        ({"order": ["/x", 3]}, "order: a whole number is given"),
        ({"order": ["/x"], "seed": 3}, "seed: a given order has none"),
    ],
)
def test_a_table_that_is_no_plan(table: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message) as raised:
        one(**table)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"command": "register"}, "plans: a list of tables is expected"),
        ({"command": "register", "plans": {}}, "a list of tables"),
        ({"command": "register", "plans": []}, "plans: 0 are given"),
        ({"command": "register", "plans": [{}] * (PLANS_MOST + 1)}, "plans: 17 are given"),
        ({"command": "register", "plans": [3]}, "plan 1: a table is expected"),
    ],
)
def test_a_request_that_is_none(request_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(request_)


def test_further_keys_of_a_request_are_ignored() -> None:
    assert parse_next({"command": "plan", "next": 7, "of tomorrow": 1}) == 7
    (plan,) = parse({"command": "register", "plans": [{"sampler": "sequential"}], "of tomorrow": 1})
    assert plan.sampler == "sequential"


def test_next() -> None:
    assert parse_next({"command": "plan"}) == 0
    assert parse_next({"command": "plan", "next": 7}) == 7
    for request in {"next": -1}, {"next": True}, {"next": 1 << 40}, {"next": "3"}:
        with pytest.raises(ValueError, match="n"):
            parse_next({"command": "plan", **request})
