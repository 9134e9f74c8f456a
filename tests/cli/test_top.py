"""`nopfs top` before there is a screen: what is refused, in one line."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from nopfsfs.cli import nopfs
from nopfsfs.errors import Exit

Output = pytest.CaptureFixture[str]


def test_without_textual(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert nopfs.main(["top", "/mnt/fast"]) == Exit.USAGE
    said = "nopfs: nopfs top needs textual; install it: pip install 'nopfsfs[top]'; or use nopfs stats /mnt/fast\n"
    assert capsys.readouterr() == ("", said)


def test_without_a_terminal(capsys: Output) -> None:
    assert nopfs.main(["top"]) == Exit.USAGE
    assert capsys.readouterr().err == "nopfs: nopfs top needs a terminal; nopfs stats prints lines\n"


def test_where_nothing_is_mounted(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in sys.stdin, sys.stdout:
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    assert nopfs.main(["top", str(tmp_path)]) == Exit.NOT_MOUNTED
    assert capsys.readouterr().err.count("\n") == 1
