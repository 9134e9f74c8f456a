"""Pictures of simulations."""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ET
import zlib

import pytest

from nopfsfs.sim import plot
from nopfsfs.sim.sweep import Point
from tests.sim.clusters import IMPOSSIBLE, outcome

TIMES = {"perfect": 5.0, "naive": 600.0, "homes": 6.0}
BARS = [outcome(name, seconds) for name, seconds in TIMES.items()]
NODES = [outcome(name, seconds / nodes, nodes=nodes) for nodes in (1, 2, 4, 5) for name, seconds in TIMES.items()]
POINTS = [Point(ram << 30, disk << 30, outcome("homes", 9.0 - ram - disk)) for ram in (0, 2, 4) for disk in (0, 1)]


def drawn(which: str, kind: str) -> bytes:
    match which:
        case "bars":
            return plot.bars([*BARS, IMPOSSIBLE], "few on tiny", kind)
        case "nodes":
            return plot.by_nodes([*NODES, IMPOSSIBLE], "few on tiny", kind)
        case "disks":
            points = [Point(None, point.disk, point.outcome) for point in POINTS[:2]]
            return plot.swept(points, points[1], ["ram", "ssd"], "few on tiny", kind)
        case _:
            return plot.swept(POINTS, POINTS[-1], ["ram", "ssd"], "few on tiny", kind)


def words(svg: bytes) -> set[str]:
    """Texts of a picture: matplotlib draws their letters, and says each in a comment."""
    parser = ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))
    root = ET.fromstring(svg, parser)
    assert root.tag.endswith("svg")
    return {(node.text or "").strip() for node in root.iter() if node.tag is ET.Comment}


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("bars", {"few on tiny", "time (minutes)", "bound", "compute", "stall", "homes", "not possible"}),
        ("nodes", {"few on tiny", "time (minutes)", "nodes", "bound", "perfect", "naive", "homes", "1", "2", "4"}),
        ("disks", {"few on tiny", "time (seconds)", "ssd on each node (GiB)", "time", "cheapest"}),
        ("sweep", {"few on tiny", "time (seconds)", "ram on each node (GiB)", "0 B ssd", "1.0 GiB ssd", "cheapest"}),
    ],
)
def test_a_picture_says_what_it_shows(which: str, said: set[str]) -> None:
    assert said <= words(drawn(which, "svg"))


@pytest.mark.parametrize("which", ["bars", "nodes", "sweep"])
def test_the_same_figures_give_the_same_file(which: str) -> None:
    first, second = drawn(which, "svg"), drawn(which, "svg")

    assert first == second
    assert b"<dc:date>" not in first


@pytest.mark.parametrize("which", ["bars", "nodes", "disks", "sweep"])
def test_a_png_is_whole(which: str) -> None:
    png = drawn(which, "png")

    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert png[-8:] == b"IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
    width, height = struct.unpack(">II", png[16:24])
    assert width == 1200
    assert height > 200


def test_nothing_worked() -> None:
    assert "not possible" in words(plot.bars([IMPOSSIBLE], "t", "svg"))
    assert plot.by_nodes([IMPOSSIBLE], "t", "png")
    assert plot.swept([Point(0, None, IMPOSSIBLE)], None, ["ram"], "t", "png")


def test_names_are_no_formulas() -> None:
    points = [Point(ram, 1, outcome("homes", 5.0)) for ram in (1, 2)]

    assert "1 B _a $\\x{$" in words(plot.swept(points, None, ["ram", "_a $\\x{$"], "$_^$", "svg"))


def test_more_policies_than_colours_are_told_apart() -> None:
    styles = [plot._style(number) for number in range(12)]

    assert len({(one["color"], one["linestyle"]) for one in styles}) == 12


def test_labels_of_many_nodes_do_not_overlap() -> None:
    kept = plot._thinned(list(range(1, 1025)))

    assert kept[0] == 1
    assert len(kept) <= 13
