"""What a process is given at exec arrives, whatever a user wrote."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from nopfsfs.config import DiskSpec, MountConfig, PlanSpec, SubsetSpec, World
from nopfsfs.system import process_setup
from nopfsfs.system.process_setup import END_SIGNALS, Handoff, HeldSignals, end_signals_later, ending_at_signals

PLAN = PlanSpec(
    sampler="distributed", root=os.fsdecode(b"\xff"), seed=2**64 - 1, ranks=(1, 2),
    options=(("drop_last", True), ("share", 0.5), ("state", "1"), ("step", 3)),
    subset=SubsetSpec("random_split", 7, (("part", 1),)), order=("/orders/a.npy",),
)  # fmt: skip
CONFIG = MountConfig(
    source=os.fsdecode(b"/\xff\xfe"), mountpoint="/m", plans=(PLAN,), worlds=(World(4, (1,)),), disks=(DiskSpec("/d"),),
    groups=(1, 2), source_fs=(1, -2), mount_options=("noexec",),
)  # fmt: skip


def test_a_handoff_arrives() -> None:
    """Also paths that are no UTF-8, and a bool as a bool."""
    handoff = Handoff("super", CONFIG, {"index": 3}, {"layout": 7})
    fd = handoff.write()
    with os.fdopen(fd, "rb") as file:
        found = Handoff.decode(file.read())
    assert found == handoff
    assert found.config.plans[0].options[0] == ("drop_last", True)
    assert found.config.plans[0].options[0][1] is True


@pytest.mark.parametrize("data", [b"", b"?", b"[]", b"{}", b'{"role": "x", "config": "{}", "fds": [], "numbers": {}}'])
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        Handoff.decode(data)


def test_a_signal_to_end_comes_when_what_was_begun_is_known() -> None:
    begun = []

    def begin() -> None:
        with ending_at_signals(END_SIGNALS), end_signals_later():
            signal.raise_signal(signal.SIGTERM)
            begun.append("process")

    with pytest.raises(SystemExit) as ended:
        begin()
    assert begun == ["process"]
    assert ended.value.code == 128 + signal.SIGTERM


def test_a_signal_to_end_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with end_signals_later():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_to_end_is_held_back_until_the_next_part_that_may_end() -> None:
    held, done = HeldSignals(), []

    def steps() -> None:
        with held.may_end():
            done.append("first part")
        signal.raise_signal(signal.SIGTERM)
        done.append("between parts")
        with held.may_end():
            done.append("second part")

    with held.holding(), pytest.raises(SystemExit) as ended:
        steps()
    assert done == ["first part", "between parts"]
    assert ended.value.code == 128 + signal.SIGTERM


def test_a_signal_to_end_comes_at_once_where_it_may_and_once() -> None:
    held, done = HeldSignals(), []

    def steps() -> None:
        with held.may_end():
            try:
                signal.raise_signal(signal.SIGINT)
                done.append("after the signal")
            finally:
                signal.raise_signal(signal.SIGINT)
                done.append("cleared away")

    with held.holding(), pytest.raises(SystemExit) as ended:
        steps()
    assert done == ["cleared away"]
    assert ended.value.code == 128 + signal.SIGINT


def test_no_signal_is_held_back_that_is_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    held = HeldSignals()
    try:
        with held.holding():
            signal.raise_signal(signal.SIGHUP)
            with held.may_end():
                pass
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_process_that_imports_numpy_has_no_threads_for_algebra(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, numpy; print(len(os.listdir('/proc/self/task')))"
    monkeypatch.setattr(process_setup, "module_command", lambda module, handed: [sys.executable, "-c", program])
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")  # as the site may say for its jobs
    with process_setup.start("", Handoff("server", CONFIG, {}, {}), stdout=subprocess.PIPE) as process:
        assert process.communicate(timeout=60)[0] == b"1\n"
