"""Which bound of the source is in force, and who has set it."""

from __future__ import annotations

import pytest

from nopfsfs.config import MountConfig
from nopfsfs.policy.site_rules import SiteLimits
from nopfsfs.protocol.columns import METRICS, Metric
from nopfsfs.supervisor.source_caps import AUTO, NO_WEIGHT, UNBOUNDED, SourceCaps


@pytest.mark.parametrize(
    ("option", "asked", "site", "bound", "found"),
    [
        (None, 0, None, True, (0, None)),
        (800, 0, None, True, (400, "option")),
        (800, 300, None, True, (300, "command")),
        (800, UNBOUNDED, None, True, (0, None)),
        (None, 0, 600, True, (300, "site")),
        (800, 0, 600, True, (300, "site")),
        (400, 0, 600, True, (200, "option")),
        (800, UNBOUNDED, 600, True, (300, "site")),
        (800, 0, 600, False, (400, "option")),
        (None, 5000, 600, False, (5000, "command")),
        (None, 0, 600, False, (300, "site")),
    ],
)
def test_of_two_nodes(
    option: int | None, asked: int, site: int | None, bound: bool, found: tuple[int, str | None]
) -> None:
    """`option` and `site` are for both nodes, a command's number for this one."""
    own = memoryview(bytearray(8 * METRICS)).cast("q")
    own[Metric.BANDWIDTH_ASKED] = asked
    caps = SourceCaps(MountConfig(source="/s", mountpoint="/m", source_bandwidth=option, job_nodes=2), own, bound=bound)
    caps.site = SiteLimits(bandwidth=site)
    by = caps.bandwidth_by
    assert (caps.bandwidth, None if by is None else by.value) == found


@pytest.mark.parametrize(
    ("option", "asked", "bound", "found"),
    [
        (0, 0, True, None), (0, AUTO, True, None), (8, 0, True, 8), (8, 9, True, 9), (8, AUTO, True, None),
        (40, 0, True, 12), (0, 200, True, 12), (0, 200, False, 200), (40, 0, False, 40),
    ],
)  # fmt: skip
def test_a_number_of_requests_beside_a_site_that_allows_twelve(
    option: int, asked: int, bound: bool, found: int | None
) -> None:
    own = memoryview(bytearray(8 * METRICS)).cast("q")
    own[Metric.LIMIT_ASKED] = asked
    caps = SourceCaps(MountConfig(source="/s", mountpoint="/m", source_concurrency=option), own, bound=bound)
    caps.site = SiteLimits(concurrency=12)
    assert caps.fixed == found


@pytest.mark.parametrize(
    ("asked", "site", "bound", "found"),
    [
        (NO_WEIGHT, 1.0, True, 1.0),
        (NO_WEIGHT, 0.25, True, 0.25),
        (500, 1.0, True, 0.5),
        (500, 0.25, True, 0.25),
        (2000, 1.0, True, 1.0),
        (2000, 4.0, True, 2.0),
        (2000, 1.0, False, 2.0),
        (10, 0.25, False, 0.01),
    ],
)
def test_users_may_be_politer_than_the_site_asks_and_only_root_less(
    asked: int, site: float, bound: bool, found: float
) -> None:
    own = memoryview(bytearray(8 * METRICS)).cast("q")
    own[Metric.WEIGHT_ASKED] = asked
    caps = SourceCaps(MountConfig(source="/s", mountpoint="/m"), own, bound=bound)
    caps.site = SiteLimits(weight=site)
    assert caps.weight == found
