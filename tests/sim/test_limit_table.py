"""The tuner beside its rivals, as `nopfs simulate --tuner` shows them."""

from __future__ import annotations

import math

import pytest

from nopfsfs.sim.tuning import limit_table, trials
from nopfsfs.sim.tuning.limit_table import LimitRecord
from nopfsfs.sim.tuning.rivals import FixedLimit


def test_a_fixed_limit_has_that_limit() -> None:
    [policy] = trials.policies(limit_table.tuner_of("fixed-16"), trials.SOURCES["wide"], 0, 1)
    made = policy()
    assert isinstance(made, FixedLimit)
    assert made.step(None).limit == 16  # type: ignore[arg-type]


def test_every_name_is_a_tuner() -> None:
    for name in (*limit_table.USUAL, *limit_table.NAMES):
        assert len(trials.policies(limit_table.tuner_of(name), trials.SOURCES["small"], 0, 2)) == 2


@pytest.mark.parametrize("name", ["fixed-0", "fixed-1025", "fixed-", "fixed-64x", "homes", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="choose among ours, "):
        limit_table.tuner_of(name)


def test_figures_are_those_of_the_trials() -> None:
    done: list[float] = []
    [alone] = limit_table.simulated(["small"], ["fixed-8"], 1, 3, done.append)
    [two] = limit_table.simulated(["small"], ["fixed-8"], 2, 3, done.append)
    assert done == [1, 1]
    assert alone.figures == trials.alone("fixed 8", "small", 3)
    assert two.figures == trials.company("fixed 8", "small", 3, mounts=2)
    assert set(alone.record()) == {
        "source", "policy", "mounts", "seed", "share_of_best", "seconds_to_90", "under_way", "demand_p99",
    }  # fmt: skip
    assert set(two.record()) == {"source", "policy", "mounts", "seed", "share_of_best", "jain", "demand_p99"}


def test_a_table_for_each_source() -> None:
    never = {"share": 0.5, "seconds to 90 %": math.inf, "under way": 64.2, "p99": 1.0}
    records = [
        LimitRecord("wide", "fixed-64", 1, 0, never),
        LimitRecord("wide", "ours", 1, 0, {**never, "seconds to 90 %": 2}),
        LimitRecord("small", "ours", 1, 0, never),
    ]  # fmt: skip
    assert limit_table.text(records).splitlines() == [
        "source wide, 1 mount; at best 2,492 requests a second, 117 requests under way bring 90 % of it; 40 ms idle",
        "policy    of best  s to 90 %  under way  demand p99",
        "fixed-64     0.50          -         64        1.00",
        "ours         0.50        2.0         64        1.00",
        "",
        "source small, 1 mount; at best 1,970 requests a second, 19 requests under way bring 90 % of it; 8 ms idle",
        "policy  of best  s to 90 %  under way  demand p99",
        "ours       0.50          -         64        1.00",
    ]
    assert records[0].record()["seconds_to_90"] is None
