"""Which bound of the source is in force, and who has set it."""

from __future__ import annotations

import pytest

from nopfsfs.config import MountConfig
from nopfsfs.policy.site_rules import SiteLimits
from nopfsfs.protocol.columns import GAUGES, Metric
from nopfsfs.supervisor.source_caps import UNBOUNDED, SourceCaps


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
    own = memoryview(bytearray(8 * GAUGES)).cast("q")
    own[Metric.BANDWIDTH_ASKED] = asked
    caps = SourceCaps(MountConfig(source="/s", mountpoint="/m", source_bandwidth=option, nodes=2), own, bound=bound)
    caps.site = SiteLimits(bandwidth=site)
    by = caps.bandwidth_by
    assert (caps.bandwidth, None if by is None else by.value) == found
