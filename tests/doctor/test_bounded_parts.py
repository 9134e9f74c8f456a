"""Parts of a diagnosis are collected at once, and none holds the command up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nopfsfs.doctor import bounded_parts
from nopfsfs.doctor.bounded_parts import PartToCollect, collect_all, failed
from nopfsfs.errors import Exit, NopfsError

LIMIT_S = 10.0


def fails() -> Any:
    raise OSError(5, "Input/output error", "/x")


def refused() -> Any:
    raise NopfsError(Exit.NO_RIGHT, "only the owner may")


def dies() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs() -> Any:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(3600)


def test_each_part_has_its_result_or_its_reason() -> None:
    began = time.monotonic()
    found = collect_all(
        [
            PartToCollect("hangs", hangs, 0.3),
            PartToCollect("a value", lambda: {"a": [1, "\udcff"]}, LIMIT_S),
            PartToCollect("nothing", lambda: None, LIMIT_S),
            PartToCollect("fails", fails, LIMIT_S),
            PartToCollect("refused", refused, LIMIT_S),
            PartToCollect("dies", dies, LIMIT_S),
            PartToCollect("no JSON", lambda: {1j}, LIMIT_S),
            PartToCollect("much", lambda: "x" * (1 << 22), LIMIT_S),
        ]
    )
    assert time.monotonic() - began < LIMIT_S
    assert list(found) == ["hangs", "a value", "nothing", "fails", "refused", "dies", "no JSON", "much"]
    assert found["a value"] == {"a": [1, "\udcff"]}
    assert found["nothing"] is None
    assert len(found["much"]) == 1 << 22
    reasons = {name: failed(part) for name, part in found.items()}
    assert reasons["hangs"] == "nothing within 0.3 s"
    assert reasons["fails"] == "OSError: [Errno 5] Input/output error: '/x'"
    assert reasons["refused"] == "only the owner may"
    assert reasons["dies"] == reasons["no JSON"] == "the process that collects it died"
    assert reasons["a value"] is reasons["nothing"] is reasons["much"] is None


def test_more_than_fits_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_parts, "BYTES_MOST", 1 << 20)
    much = PartToCollect("much", lambda: "x" * (1 << 22), LIMIT_S)
    found = collect_all([much, PartToCollect("b", lambda: 1, LIMIT_S)])
    assert failed(found["much"]) == "more than 1048576 bytes"
    assert found["b"] == 1


def children() -> set[str]:
    """The children of this process, those included that have ended."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_no_child_is_left() -> None:
    before = children()
    collect_all([PartToCollect("hangs", hangs, 0.1)])
    assert children() <= before


def test_without_processes_each_part_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    before = len(os.listdir("/proc/self/fd"))
    found = collect_all([PartToCollect("a", lambda: 1, LIMIT_S)])
    assert failed(found["a"]) == "no process is to be had: Resource temporarily unavailable"
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_child_that_cannot_be_ended_does_not_hold_the_output(tmp_path: object) -> None:
    """Whoever reads the command's output to its end waits for the command alone."""
    program = """if True:
        import os, signal, sys, time
        from nopfsfs.doctor import bounded_parts
        bounded_parts.os.kill = lambda pid, number: print(pid, flush=True)  # as if the kernel held the child
        bounded_parts.REAP_S = 0.1
        bounded_parts.collect_all([bounded_parts.PartToCollect("hangs", lambda: time.sleep(60), 0.1)])
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True)
    os.kill(int(done.stdout), signal.SIGKILL)
