"""A source for the answers of a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.rig import COUNT, SIZE
from tests.stager.rig import open_files_below, write_files


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "source"
    write_files(path, [SIZE] * COUNT)
    yield path
    assert open_files_below(path) == []
