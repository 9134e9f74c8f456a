"""Kill the processes of a mount one after the other while four readers compare, and say what came of it.

    kernel_case.py [--work DIR] [--kills N] [--slow FACTOR]

It runs anywhere; `scripts/old_kernel.sh` runs it under an older kernel, where it takes few processes and generous
limits (`--slow`). DIR: an empty directory, best in a tmpfs. One line for each step; the last is JSON: `kernel`,
`redelivery`, `kills` (of the only server), `failed` and `wrong` (reads), `missing` (calls), `left` (of the mount, after
its end) and `seconds`. Exit status 1 where something is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nopfsfs.control.client import Refused, call
from nopfsfs.control.process_list import living, read_pids
from nopfsfs.errors import NopfsError
from nopfsfs.fuse.mount_table import find_mount
from nopfsfs.system.state_dirs import default_run_dir, state_dir_for

ROOT = Path(__file__).resolve().parents[1]
FILES, SIZE, READERS = 60, 60_000, 4
COMMAND_S, STATE_S, LOOK_S = 30.0, 20.0, 0.05
PAUSE_S = 0.005  # of a reader after each file
# What the mount imports. A copy in memory: a guest of old_kernel.sh sees this machine's files slowly.
PACKAGES = ("nopfsfs", "trio", "numpy", "numpy.libs", "pyfuse3", "msgspec", "xxhash", "attr", "attrs", "outcome",
            "sniffio", "sortedcontainers", "idna")  # fmt: skip
NOT_COPIED = ("tests", "include", "f2py", "distutils", "*.pyi", "*.a", "*.lib")


class CaseError(Exception):
    """A step did not come to its end; the message says which."""


class Case:
    """A mount, and its readers. `slow`: by how much limits are longer than usual."""

    def __init__(self, work: Path, slow: float) -> None:
        self.work, self._slow, self._began = work, slow, time.monotonic()
        self.source, self.mnt, self.log = work / "source", work / "mnt", work / "log"
        self.environment = {**os.environ, "PYTHONPATH": f"{work / 'packages'}:{ROOT}"}
        self.readers: list[subprocess.Popen[str]] = []
        self.state_dir = ""

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {text}", flush=True)

    def run(self, name: str, *words: str) -> str:
        """Run a command of nopfsfs; its standard output. Raises CaseError."""
        argv = [sys.executable, "-P", "-m", f"nopfsfs.cli.{name}", *words]
        limit = COMMAND_S * self._slow
        done = subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=limit, check=False)
        if done.returncode:
            raise CaseError(f"{name} {words[0]}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def wait(self, what: str, condition: Callable[[], Any]) -> None:
        """Wait for a condition. Raises CaseError."""
        end = time.monotonic() + STATE_S * self._slow
        while not condition():
            if time.monotonic() > end:
                raise CaseError(f"{what} did not come")
            time.sleep(LOOK_S)

    def prepare(self) -> None:
        """Make the source and a copy of what is imported."""
        for path in (self.source, self.mnt):
            path.mkdir()
        for number in range(FILES):
            (self.source / f"{number:03}").write_bytes(os.urandom(SIZE // 2 + number * 7919 % SIZE))
        for package in PACKAGES:
            for place in (str(ROOT), *sys.path):
                if place and os.path.isdir(os.path.join(place, package)):
                    copied = self.work / "packages" / package
                    shutil.copytree(os.path.join(place, package), copied, ignore=shutil.ignore_patterns(*NOT_COPIED))
                    break

    def mount(self) -> None:
        """Mount, with one server and so little of the page cache that reads come to it."""
        own = ["--servers", "1", "--ram", "16M", "--page-cache", "1M", "--log-file", str(self.log)]
        self.run("mount", str(self.source), str(self.mnt), "--index-dir", str(self.work / "index"), *own)
        found = find_mount(str(self.mnt))
        if found is None:
            raise CaseError("nothing is mounted")
        self.state_dir = state_dir_for(str(self.mnt), found.minor, default_run_dir(os.geteuid(), os.environ))

    def status(self) -> dict[str, Any]:
        """The status record; empty where there is none at this moment."""
        try:
            return dict(call(self.state_dir, "status"))
        except (NopfsError, Refused, OSError):
            return {}

    def pid(self, role: str) -> int:
        """The process that has this role and has begun its work; 0: none has."""
        running = [p["pid"] for p in self.status().get("processes", ()) if p["role"] == role and p["running"]]
        return int(running[0]) if running else 0

    def kill(self, role: str) -> None:
        """Kill the process of a role, and wait for the next one."""
        before = self.pid(role)
        os.kill(before, signal.SIGKILL)
        self.wait(f"another {role}", lambda: self.pid(role) not in (0, before))

    def replace_supervisor(self) -> None:
        """Kill the supervisor, and have another take over."""
        os.kill(before := self.pid("supervisor"), signal.SIGKILL)
        self.wait("the end of the supervisor", lambda: before not in {p.pid for p in living(read_pids(self.state_dir))})
        self.run("nopfs", "adopt", str(self.mnt))

    def start_readers(self) -> None:
        program = str(ROOT / "tests" / "mount" / "readers.py")
        words = [sys.executable, "-I", program, "compare", str(self.mnt), str(self.source)]
        pause = str(PAUSE_S * self._slow)  # a slow processor is for the processes of the mount
        for seed in range(READERS):
            self.readers.append(
                subprocess.Popen(
                    [*words, str(seed), "all", pause], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )

    def end_readers(self) -> tuple[int, int]:
        """(reads that failed, reads with wrong bytes). Raises CaseError."""
        failed = wrong = 0
        for reader in self.readers:
            out, _ = reader.communicate("\n", timeout=COMMAND_S * self._slow)
            if reader.returncode:
                raise CaseError(f"a reader ended with {reader.returncode}")
            found = json.loads(out.splitlines()[-1])
            failed, wrong = failed + len(found["errors"]), wrong + len(found["wrong"])
        return failed, wrong

    def left(self) -> list[str]:
        """What is left of the mount after its end."""
        found = [f"{p.role} {p.pid}" for p in living(read_pids(self.state_dir))]
        found += [self.state_dir] if os.path.exists(self.state_dir) else []
        return found + ([str(self.mnt)] if find_mount(str(self.mnt)) is not None else [])


def play(case: Case, kills: int) -> dict[str, Any]:
    """Play the case; what came of it. Raises CaseError."""
    began = time.monotonic()
    case.prepare()
    case.say("prepared")
    case.mount()
    case.say("mounted")
    status = case.status()
    case.start_readers()
    for number in range(kills):
        case.kill("server")
        case.say(f"server {number + 1} of {kills} was killed, and replaced")
    case.kill("stager")
    case.say("the stager was killed, and replaced")
    case.replace_supervisor()
    case.say("the supervisor was killed, and replaced")
    case.wait("the processes", lambda: case.pid("server") and case.pid("stager"))
    failed, wrong = case.end_readers()
    case.say(f"readers compared: {failed} failed, {wrong} wrong")
    case.run("umount", str(case.mnt))
    case.wait("the end", lambda: not case.left())
    return {
        "kernel": os.uname().release, "redelivery": status["modes"]["redelivery"], "kills": kills, "failed": failed,
        "wrong": wrong, "missing": [one["what"] for one in status["kernel"]], "left": case.left(),
        "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("/mnt"))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--slow", type=float, default=1.0)
    asked = parser.parse_args()
    case = Case(asked.work, asked.slow)
    try:
        found = play(case, asked.kills)
    except (CaseError, subprocess.TimeoutExpired) as error:
        print(f"kernel_case.py: {error}\n{case.log.read_text() if case.log.exists() else ''}", flush=True)
        return 1
    finally:
        for reader in case.readers:
            reader.kill()
    print(json.dumps(found), flush=True)
    return int(bool(found["failed"] or found["wrong"] or found["left"]))


if __name__ == "__main__":
    sys.exit(main())
