"""Memory splits for tests of the policy."""

from __future__ import annotations

from nopfsfs.policy.budget import MemorySplit


def split(homes: int, stream: int, pages: int, page_homes: int = 0, whole_limit: int = 1 << 40) -> MemorySplit:
    return MemorySplit(
        arena=homes + 2 * stream, homes=homes, stream=stream, ranges=stream, pages=pages, page_homes=page_homes,
        whole_limit=whole_limit,
    )  # fmt: skip
