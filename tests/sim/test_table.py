"""Tables of what came of a simulation."""

from __future__ import annotations

from nopfsfs.sim import table
from nopfsfs.sim.run import Outcome
from nopfsfs.sim.sweep import Point
from tests.sim.clusters import FEW, IMPOSSIBLE, TINY, TRAINING, outcome


def test_a_row_for_each_policy() -> None:
    text = table.policies([outcome("homes", 6.0), IMPOSSIBLE, outcome("nopfs", 3700.0, stall=0.0)])

    assert text.splitlines() == [
        "policy              time  stall  over bound  from ram  from ssd  from peer  from source  reads epoch 1"
        "  reads later  distinct",
        "homes              6.0 s  1.0 s        1.20     25.0%         -      25.0%        50.0%          1,000"
        "           20     50.0%",
        "lbann-dynamic  -: it does not fit",
        "nopfs          1 h 1 min    0 s      740.00     25.0%         -      25.0%        50.0%          1,000"
        "           20     50.0%",
    ]


def test_in_the_mode_of_the_thesis_nothing_is_said_of_reads() -> None:
    found = Outcome("naive", "few", "tiny", 2, seconds=7.0, bound_seconds=0.0, stall_seconds=1e-14)

    assert table.policies([found]).splitlines() == [
        "policy   time  stall  over bound",
        "naive   7.0 s   0 ms           -",
    ]


def test_nothing_works() -> None:
    assert table.policies([IMPOSSIBLE]).splitlines()[1] == "lbann-dynamic  -: it does not fit"


def test_one_epoch_has_no_later_ones() -> None:
    one = Outcome("naive", "few", "tiny", 2, 1.0, 1.0, 0.0, [7], served={"peer": 0.0, "source": 1.0})

    assert table.policies([one]).splitlines()[1].split()[-3:] == ["7", "-", "-"]


def test_the_header_says_what_was_simulated() -> None:
    assert table.header(TINY, FEW, 100_000_000, TRAINING, as_thesis=False, bound=61.0) == (
        "tiny, 2 nodes x 1 rank; few, 100 samples, 95.4 MiB; 3 epochs, batch 5; physical mode; bound 1 min 1 s"
    )
    assert table.header(TINY, FEW, 1, TRAINING, as_thesis=True, bound=None).endswith("thesis mode; bound -")


def test_a_grid_marks_the_cheapest() -> None:
    times = {(0, 0): 9.0, (0, 1 << 30): 5.0, (2 << 30, 0): 5.02, (2 << 30, 1 << 30): 5.0}
    points = [Point(ram, disk, outcome("homes", seconds)) for (ram, disk), seconds in times.items()]

    assert table.grid(points, points[1], "homes", ["ram", "ssd"]).splitlines() == [
        "homes        ssd 0 B  ssd 1.0 GiB",
        "ram 0 B       9.0 s        5.0 s*",
        "ram 2.0 GiB   5.0 s        5.0 s",
        "* cheapest within 1% of the best: ram 0 B, ssd 1.0 GiB on each node, 5.0 s",
    ]


def test_a_grid_of_one_class_and_of_what_does_not_work() -> None:
    points = [Point(0, None, IMPOSSIBLE), Point(1 << 20, None, outcome("lbann-dynamic", 5.0))]

    assert table.grid(points, points[1], "lbann-dynamic", ["ram"]).splitlines() == [
        "lbann-dynamic  ram as it is",
        "ram 0 B                  -",
        "ram 1.0 MiB          5.0 s*",
        "-: it does not fit",
        "* cheapest within 1% of the best: ram 1.0 MiB on each node, 5.0 s",
    ]
    assert table.grid(points[:1], None, "lbann-dynamic", ["ram"]).splitlines()[-1] == "-: it does not fit"
