"""The fuzzer: that it finds what is planted, gives it again by its numbers, and finds nothing else in a few seconds."""

from __future__ import annotations

import logging
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import fuzz as script
import pytest
from fuzzing import core
from fuzzing.core import Input, fuzz
from fuzzing.index_input import IndexInput
from fuzzing.mutate import mutated
from fuzzing.peers_input import PeersInput

from nopfsfs.dataset import index_file
from nopfsfs.protocol import between_peers
from tests.conftest import long

SCRIPT = Path(__file__).parents[2] / "scripts/fuzz.py"
SEED = 11
BRIEFLY_S = 4


class Planted(Input):
    """One case in ten does what `bad` says."""

    name = "planted"
    bad = "raise"

    def play(self, rng: Random) -> None:
        self.tell("sent")
        if rng.random() < 0.1:
            getattr(self, f"_{self.bad}")()

    def _raise(self) -> None:
        raise KeyError("planted")

    def _hang(self) -> None:
        time.sleep(30)

    def _log(self) -> None:
        try:
            self._raise()
        except KeyError:
            logging.getLogger("nopfsfs.x").exception("swallowed")

    def _thread(self) -> None:
        thread = threading.Thread(target=self._raise)
        thread.start()
        thread.join()


@pytest.mark.parametrize(
    ("bad", "what"),
    [("raise", "KeyError: 'planted'"), long("hang", "TooLong: after 0.3 s in _hang"), long("log", "logged: swallowed"),
     long("thread", "a thread ended: KeyError('planted')")],
)  # fmt: skip
def test_what_is_planted_is_found_and_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str, what: str
) -> None:
    monkeypatch.setattr(Planted, "bad", bad)
    if bad == "hang":  # else a busy machine may make any case too long
        monkeypatch.setattr(Planted, "limit_s", 0.3)

    (found,) = fuzz(Planted, tmp_path, SEED, 10, most=30).findings
    (again,) = fuzz(Planted, tmp_path, SEED, 10, only=found.case).findings
    other = fuzz(Planted, tmp_path, SEED, 10, only=next(n for n in range(30) if Random(f"{SEED} {n}").random() >= 0.1))

    assert found.what == again.what == what
    assert "test_fuzz.py" in found.trace
    assert (other.findings, other.sent, other.outcomes) == ([], 1, {"sent": 1})


def test_memory_that_grows_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "GROWTH_MOST", 8 << 20)
    kept: list[bytearray] = []

    class Greedy(Planted):
        def play(self, rng: Random) -> None:
            kept.append(bytearray(b"x") * (1 << 20))

    (found,) = fuzz(Greedy, tmp_path, SEED, 30, most=40).findings

    assert found.what.startswith("memory grew by ")


@pytest.mark.long
def test_a_parser_that_forgets_a_check_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would come about: not by an input that was made for it."""
    monkeypatch.setattr(index_file, "check", lambda columns: None)
    report = fuzz(IndexInput, tmp_path, SEED, 20, most=60)

    assert {"IndexError", "Wrong"} & {finding.what.partition(":")[0] for finding in report.findings}


def test_a_message_of_wrong_length_that_is_taken_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = between_peers.decode

    def careless(message: bytes, job: int) -> object:
        struct.unpack_from("<I", message)
        return whole(message, job)

    monkeypatch.setattr(between_peers, "decode", careless)
    report = fuzz(PeersInput, tmp_path, SEED, 20, most=60)

    assert [finding.what for finding in report.findings if finding.what.startswith("error: unpack_from requires")]


def test_edits_are_those_of_the_seed_and_change_something() -> None:
    data = bytes(range(100))
    edited = [mutated(Random(seed), data, (b"word",)) for seed in range(200)]

    assert edited == [mutated(Random(seed), data, (b"word",)) for seed in range(200)]
    assert sum(one != data for one in edited) > 180
    assert min(map(len, edited)) < 50 < 150 < max(map(len, edited))


def test_a_process_that_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(script, "START_S", -59.9)  # it is killed after 0.1 s, long before it would end

    assert script.main(["--only", "index", "--seconds", "60", "--seed", "3"]) == 1
    assert "the process ended with status -9" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", list(script.INPUTS))
def test_nothing_is_found(name: str) -> None:
    argv = [sys.executable, str(SCRIPT), "--only", name, "--seconds", str(BRIEFLY_S), "--seed", str(SEED)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: " in done.stdout
    assert f"seed {SEED}" in done.stdout
    assert "0 findings" in done.stdout
