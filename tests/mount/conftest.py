"""Fixtures of the tests with real mounts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from nopfsfs.fuse.mounting import may_mount
from tests.mount.harness import Mounted, mounted
from tests.mount.modes import MODES, Mode, case, why_not

Mounting = Callable[..., AbstractContextManager[Mounted]]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Function) -> None:
    """Before any fixture: those of a module mount."""
    reason = why_not()
    if reason is None and "mode" not in item.fixturenames and not may_mount():
        reason = "needs the right to call mount(2)"
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """An empty directory for a disk tier."""
    made = tmp_path / "disk"
    made.mkdir()
    return made


@pytest.fixture(
    scope="module", params=[case(mode, mode) for mode in MODES], ids=[mode.name for mode in MODES]
)
def mode(request: pytest.FixtureRequest) -> Mode:
    """Each of the ways in which a mount can work."""
    made: Mode = request.param
    return made


@pytest.fixture
def mounting(tmp_path: Path) -> Mounting:
    """`mounted`, in the test's own directory."""
    return partial(mounted, work=tmp_path)
