"""Processes of two versions of nopfsfs in one mount."""

from __future__ import annotations

import pytest

from nopfsfs.protocol.columns import LAYOUT, OTHER_VERSION, check_layout


def test_a_process_of_another_version_ends_before_it_touches_anything(caplog: pytest.LogCaptureFixture) -> None:
    check_layout({"layout": LAYOUT})
    with pytest.raises(SystemExit) as ended:
        check_layout({"layout": LAYOUT + 1})
    assert ended.value.code == OTHER_VERSION
    assert "mount anew" in caplog.text
