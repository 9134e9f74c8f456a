"""Results of a simulation, as text for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from nopfsfs.performance.model import Cluster
from nopfsfs.sim.run import Outcome
from nopfsfs.sim.sweep import NEAR, Point
from nopfsfs.sim.training import SimDataSet, Training
from nopfsfs.text.units import format_duration, format_size

NONE = "-"
GAP = "  "


def header(
    cluster: Cluster, dataset: SimDataSet, total_bytes: int, training: Training, *, as_thesis: bool, bound: float | None
) -> str:
    """Say in one line what was simulated."""
    words = [
        f"{cluster.name}, {layout(cluster)}",
        f"{dataset.name}, {counted(dataset.samples, 'sample')}, {format_size(total_bytes)}",
        f"{counted(training.epochs, 'epoch')}, batch {training.batch:,}",
        f"{'thesis' if as_thesis else 'physical'} mode",
        f"bound {NONE if bound is None else format_duration(bound)}",
    ]
    return "; ".join(words)


def layout(cluster: Cluster) -> str:
    """The layout of a cluster, as in `4 nodes x 1 rank`."""
    return f"{counted(cluster.nodes, 'node')} x {counted(cluster.ranks, 'rank')}"


def policies(outcomes: Sequence[Outcome]) -> str:
    """Format a row for each policy; a policy that does not work there has its reason."""
    places = list(dict.fromkeys(place for one in outcomes for place in one.served))
    head = ["policy", "time", "stall", "over bound"]
    if places:
        head += [*(f"from {place}" for place in places), "reads epoch 1", "reads later", "distinct"]
    rows = [_row(one, places) for one in outcomes if one.seconds is not None]
    width = max(map(len, (head[0], *(one.policy for one in outcomes))))
    lines = iter(aligned([head, *rows], width))
    text = [next(lines)]
    text += [
        next(lines) if one.seconds is not None else f"{one.policy:<{width}}{GAP}{NONE}: {one.reason}"
        for one in outcomes
    ]
    return "\n".join(text)


def _row(one: Outcome, places: Sequence[str]) -> list[str]:
    assert one.seconds is not None
    ratio = f"{one.seconds / one.bound_seconds:.2f}" if one.bound_seconds else NONE
    row = [one.policy, format_duration(one.seconds), format_duration(max(0.0, one.stall_seconds or 0.0)), ratio]
    if not places:
        return row
    reads = one.source_reads_per_epoch
    later = f"{sum(reads[1:]) / (len(reads) - 1):,.0f}" if len(reads) > 1 else NONE
    row += [_share(one.served.get(place, 0.0)) for place in places]
    return [*row, f"{reads[0]:,}" if reads else NONE, later, _share(one.distinct_share)]


def grid(points: Sequence[Point], best: Point | None, policy: str, classes: Sequence[str]) -> str:
    """Format times by the capacity of the first class (down) and the last (across), and the cheapest point."""
    rams = list(dict.fromkeys(point.ram for point in points))
    disks = list(dict.fromkeys(point.disk for point in points))
    cells = {(point.ram, point.disk): _cell(point, point is best) for point in points}
    names = (classes[0], classes[-1])
    head = [policy, *(_capacity(names[1], disk) for disk in disks)]
    rows = [[_capacity(names[0], ram), *(cells[ram, disk] for disk in disks)] for ram in rams]
    text = aligned([head, *rows])
    reasons = list(dict.fromkeys(point.outcome.reason for point in points if point.outcome.reason))
    text += [f"{NONE}: {reason}" for reason in reasons]
    if best is not None and best.outcome.seconds is not None:
        bought = zip(names, (best.ram, best.disk), strict=True)
        sizes = [_capacity(name, size) for name, size in bought if size is not None]
        text.append(
            f"* cheapest within {NEAR:.0%} of the best: {', '.join(sizes)} on each node, "
            f"{format_duration(best.outcome.seconds)}"
        )
    return "\n".join(text)


def _cell(point: Point, best: bool) -> str:
    seconds = point.outcome.seconds
    return (NONE if seconds is None else format_duration(seconds)) + ("*" if best else " ")


def _capacity(name: str, size: int | None) -> str:
    return f"{name} as it is" if size is None else f"{name} {format_size(size)}"


def _share(share: float) -> str:
    return f"{100 * share:.1f}%" if share else NONE


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def aligned(rows: Sequence[Sequence[str]], first: int = 0) -> list[str]:
    """Align the first column, at least `first` wide, to the left, and the others to the right."""
    left, *others = zip(*rows, strict=True)
    width = max(first, *map(len, left))
    columns = [[cell.ljust(width) for cell in left]]
    columns += [[cell.rjust(max(map(len, column))) for cell in column] for column in others]
    return [GAP.join(row).rstrip() for row in zip(*columns, strict=True)]
