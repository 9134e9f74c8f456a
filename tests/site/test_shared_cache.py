"""Two mounts that share a directory of kept copies, for ten minutes of random load: no wrong byte, whatever happens to
the copies and to the processes meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nopfsfs.control.process_list import read_pids
from nopfsfs.stager.young_files import LOCAL_S
from tests.mount.harness import Mounted, fill, module, mounted, run
from tests.mount.reading import comparing
from tests.tiers.kept import copies

pytestmark = [pytest.mark.site, pytest.mark.mount, pytest.mark.timeout(900)]

LOAD_S, PAUSE_S = 600.0, 0.25  # of load; between two events, in the mean
FILES, SIZE = 300, 40_000
MEMORY = ("--ram", "4M", "--page-cache", "2M")
# How often each event comes for one kill, and one stop, of a stager.
OFTEN = {"removed": 8, "cut": 8, "changed": 8, "directory": 4, "verified": 2, "pruned": 2, "dropped": 2}


def test_ten_minutes_of_random_load(tmp_path: Path) -> None:
    """Memory and the first mount's disk hold a part of the files. Copies are cut, changed and removed, directories
    vanish, stagers are killed and stopped, commands verify, prune and drop."""
    source, disk, chance = tmp_path / "source", tmp_path / "disk", random.Random(19)
    fill(source, FILES, SIZE)
    disk.mkdir()
    time.sleep(LOCAL_S + 1)  # bytes of younger files are not sure, and are not kept

    def mount(name: str, size: str) -> contextlib.AbstractContextManager[Mounted]:
        work = tmp_path / name
        work.mkdir()
        return mounted(source, "--disk", f"{disk}:{size}", *MEMORY, work=work, hangs_s=LOAD_S + 120)

    with mount("a", "5M") as first, mount("b", "100M") as second:
        first.errors_expected = second.errors_expected = True
        happens = events(disk, (first, second), chance)
        counts = dict.fromkeys(happens, 0)
        with comparing(first, 2, "all", 0.01, 60), comparing(second, 2, "all", 0.01, 60):
            ends = time.monotonic() + LOAD_S
            while time.monotonic() < ends or min(counts.values()) < LOAD_S / 60:
                what = chance.choices(list(happens), [OFTEN.get(one, 1) for one in happens])[0]
                counts[what] += 1
                happens[what]()
                time.sleep(chance.uniform(0, 2 * PAUSE_S))
        statuses = [m.status() for m in (first, second)]
    assert [one["read_errors"] for one in statuses] == [0, 0]
    assert sum(one["stager"]["corrupt_copies"] for one in statuses) > 0, "copies that were spoiled were met"
    assert not list(disk.rglob("*.part"))


def events(disk: Path, mounts: tuple[Mounted, Mounted], chance: random.Random) -> dict[str, Callable[[], object]]:
    """What happens to the copies in the directory, and to the processes of the mounts."""

    def copy() -> Path | None:
        there = copies(disk)
        return chance.choice(there) if there else None

    def spoil(how: Callable[[Path], object]) -> None:
        path = copy()
        if path is not None:
            with contextlib.suppress(FileNotFoundError):
                how(path)

    def change(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(chance.randrange(max(1, path.stat().st_size)))
            file.write(b"\xff\x00")

    def send(*signals: signal.Signals) -> None:
        """Signals to a stager, where there is one: one that has died often comes back after a while only."""
        for process in [one for one in read_pids(chance.choice(mounts).state_dir) if one.role == "stager"]:
            for one in signals:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, one)
                time.sleep(PAUSE_S)

    def command(*words: str) -> None:
        done = run([*module("nopfs"), *words])
        assert done.returncode in (0, 1), done.stderr

    return {
        "removed": lambda: spoil(Path.unlink),
        "cut": lambda: spoil(lambda path: os.truncate(path, chance.randrange(path.stat().st_size + 1))),
        "changed": lambda: spoil(change),
        "directory": lambda: spoil(lambda path: [one.unlink(missing_ok=True) for one in path.parent.iterdir()]),
        "killed": lambda: send(signal.SIGKILL),
        "stopped": lambda: send(signal.SIGSTOP, signal.SIGCONT),
        "verified": lambda: command("cache", "verify", str(disk)),
        "pruned": lambda: command("cache", "prune", str(disk), "--to", "3M"),
        "dropped": lambda: command("drop", str(chance.choice(mounts).path)),
    }
