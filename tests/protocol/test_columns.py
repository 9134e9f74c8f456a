"""Processes of two versions of nopfsfs in one mount."""

from __future__ import annotations

import pytest

from nopfsfs.protocol.columns import LAYOUT, check_layout


def test_a_process_of_another_version_ends_before_it_touches_anything() -> None:
    check_layout({"layout": LAYOUT})
    with pytest.raises(SystemExit, match="mount anew"):
        check_layout({"layout": LAYOUT + 1})
