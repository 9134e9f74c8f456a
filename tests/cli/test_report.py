"""Status records as text."""

from __future__ import annotations

import pytest

from nopfsfs.cli.report import status_text
from nopfsfs.control.record import modes

ALL = modes(fast_path=True, resend=True, passthrough=True, signal="tripwire", privileged=True, servers=2)
NONE = modes(fast_path=False, resend=False, passthrough=False, signal="open", privileged=False, servers=1)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (ALL, "modes      fast path, resend, passthrough, signal tripwire, mount(2)"),
        (NONE, "modes      no fast path, no resend, no passthrough, signal open, fusermount3"),
    ],
    ids=["all", "none"],
)
def test_the_modes_are_told(found: dict[str, object], line: str) -> None:
    assert line in status_text({"state": "running", "modes": found}, "/s", "/m").splitlines()


def test_a_record_without_modes_is_printed_without_them() -> None:
    assert "modes" not in status_text({"state": "running"}, "/s", "/m")
