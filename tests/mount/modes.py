"""The ways in which a mount can work: chosen by option or found by probing, with the same semantics in all of them.

Tests that take the fixture `mode` run in each: as root in all that root can have, as a user through fusermount3.
`test_as_a_user.py` has root's run do that, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from nopfsfs.fuse.connection import WITHOUT
from nopfsfs.fuse.mounting import DEV_FUSE, helper, may_mount

CORES = max(1, min(4, len(os.sched_getaffinity(0)) // 4))  # servers where none are asked for

# Linux 6.9; older kernels pass nothing through, and say so.
PASSES = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 9) and os.geteuid() == 0


@dataclass(frozen=True)
class Mode:
    """`expected`: what of the record's `modes` differs from the usual."""

    name: str
    flags: tuple[str, ...] = ()
    disk: bool = False  # with a disk tier
    environment: Mapping[str, str] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    mark: str = ""  # of its tests, `slow` or `long`: where the mode differs little from another


DEFAULT = Mode("default")
NO_REDELIVERY = {"resend": False, "redelivery": "none"}
OF_ROOT = (
    DEFAULT,
    Mode("tripwire", ("--signal", "tripwire"), expected={"signal": "tripwire"}),
    Mode("no fast path", ("--no-fast-path",), expected=NO_REDELIVERY | {"fast_path": False, "servers": 1}),
    Mode("records", environment={WITHOUT: "resend"}, expected={"resend": False, "redelivery": "records"}, mark="long"),
    Mode("no redelivery", environment={WITHOUT: "resend,records"}, expected=NO_REDELIVERY, mark="slow"),
    Mode("passthrough", ("--passthrough", "on"), disk=True, expected={"passthrough": PASSES}),
    Mode("no passthrough", ("--passthrough", "on"), disk=True, environment={WITHOUT: "passthrough"}, mark="slow"),
    Mode("two servers", ("--servers", "2"), expected={"servers": 2}, mark="slow"),
)
MODES = OF_ROOT if may_mount() else (DEFAULT,)


def case(mode: Mode, value: object) -> Any:
    """A parameter of tests that run in this mode, with the mode's mark."""
    return pytest.param(value, marks=[getattr(pytest.mark, mode.mark)] if mode.mark else [])


def mostly(*names: str) -> pytest.MarkDecorator:
    """Have a test run in these modes, and in the others only in `make test-all`."""
    chosen = MODES if len(MODES) == 1 else [mode for mode in MODES if mode.name in names]
    cases = [pytest.param(mode, id=mode.name, marks=[] if mode in chosen else [pytest.mark.slow]) for mode in MODES]
    return pytest.mark.parametrize("mode", cases, indirect=True, scope="module")


def why_not() -> str | None:
    """Why this process cannot mount at all, or None."""
    if not os.access(DEV_FUSE, os.R_OK | os.W_OK):
        return f"needs {DEV_FUSE}"
    if not may_mount() and helper() is None:
        return "needs the right to call mount(2), or fusermount3"
    return None
