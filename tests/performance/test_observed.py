"""Whether copies on disk pay: from a calibration, then from what is seen."""

from __future__ import annotations

import pytest

from nopfsfs.performance.model import Cluster, Curve, SourceModel, StorageClass
from nopfsfs.performance.observed import PRIOR, Observed, ObservedService

MEAN = 1e5


def cluster(source: float, disk: float) -> Cluster:
    """Bytes per second of one reading of each."""
    ram = StorageClass("ram", (1,), 1, Curve.flat(1e10), Curve.flat(1e10))
    ssd = StorageClass("/ssd", (1,), 4, Curve.flat(4 * disk), Curve.flat(4 * disk))
    return Cluster("here", 1, 1e9, 1e9, SourceModel(Curve.flat(2 * source), at_once=2), ram, (ram, ssd))


def test_what_was_seen_long_ago_counts_less() -> None:
    service = ObservedService()
    assert (service.per_file, service.per_byte, service.per_second) == (None, None, None)
    service.see(10, 10 * MEAN, 1.0)
    assert service.per_file == pytest.approx(0.1)
    service.see(0, 0, 7.0)
    assert service.per_file == pytest.approx(0.1), "nothing was fetched"
    service.see(5000, 5000 * MEAN, 50.0)
    assert service.per_file == pytest.approx(0.01, rel=0.01)
    assert service.per_second == pytest.approx(MEAN / 0.01, rel=0.01)
    assert service.per_byte == pytest.approx(0.01 / MEAN, rel=0.01)


def test_without_anything_known_copies_are_made() -> None:
    assert Observed(None, MEAN).decide()
    assert Observed(cluster(1e9, 1e6), 0).decide(), "there are no bytes"


@pytest.mark.parametrize(("source", "disk", "pays"), [(1e7, 1e9, True), (1e9, 1e7, False), (1e9, 0.9e9, True)])
def test_a_calibration_says_so_from_the_first(source: float, disk: float, pays: bool) -> None:
    assert Observed(cluster(source, disk), MEAN).decide() == pays


def test_a_disk_that_has_become_slow_stops_to_pay_and_pays_again_when_it_is_fast() -> None:
    seen = Observed(cluster(1e7, 1e9), MEAN)
    decided = []
    for per_second in (1e9, 1e5, 1e9):
        for _ in range(100):
            seen.source.see(100, 100 * MEAN, 100 * MEAN / 1e7)
            seen.disk.see(100, 100 * MEAN, 100 * MEAN / per_second)
        decided.append(seen.decide())
    assert decided == [True, False, True]


@pytest.mark.parametrize(("fetches", "pays"), [(20, True), (63, True), (64, False)])
def test_a_disk_is_not_judged_by_a_few_fetches(fetches: int, pays: bool) -> None:
    seen = Observed(None, MEAN)
    seen.source.see(1000, 1000 * MEAN, 0.8)
    seen.disk.see(fetches, fetches * MEAN, fetches * 1.5e-3)
    assert seen.decide() == pays


def test_larger_files_do_not_make_a_disk_slow() -> None:
    seen = Observed(None, MEAN)
    seen.source.see(PRIOR, PRIOR * 1e4, PRIOR * 1e-3)
    seen.disk.see(PRIOR, PRIOR * 1e6, PRIOR * 1e-2)
    assert seen.decide(), "a hundred times the bytes in ten times the time"
