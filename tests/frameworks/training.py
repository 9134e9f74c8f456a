"""A training job over a real mount: started as a user starts it, in processes of its own, and held against the mount's
report.

The jobs lie in `jobs`; they say how much they have read, and compare it with the source.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from identifying import bars

from tests.mount.harness import END_S, Mounted

TRAIN, VAL = 6000, 400  # images
EPOCHS = 3
SHARE = bars.SHARE  # of the opens are predicted, those by which the plan is found included
FOUND_EPOCHS = 2  # of a job whose plan must be found, and that decodes: past any bar, and a change of epochs
ESTIMATED = 0.05  # of an epoch, which opens may be off once the kernel opens files by itself (docs/commands.md)
LOOK_S = 0.05  # a look takes the supervisor a millisecond
LOOKS = 4  # right after the bar: the supervisor is some opens behind
COURSE = 60  # looks of which it is printed how many opens were missed by then
JOB_S = 100.0
HANGS_S = 130.0  # of a mount: more than a job takes
ROOT = Path(__file__).parents[2]
JOBS = Path(__file__).parent / "jobs"


def needs(*packages: str) -> list[pytest.MarkDecorator]:
    """The marks of a module whose jobs import these; nothing is imported here, as that takes seconds."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return [
        pytest.mark.framework,
        pytest.mark.mount,
        pytest.mark.timeout(HANGS_S + 20),
        pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
    ]


def has_counted(record: Mapping[str, Any], read: int) -> bool:
    """Whether a record has that many opens; about as many, where not all could be seen."""
    opens = record["opens"]
    off = abs(int(opens["total"]) - read)
    print("counted", opens, "read", read)
    return off <= (ESTIMATED * TRAIN if opens["estimated"] else 0)


@dataclass(frozen=True)
class Bar:
    """From which open of a rank on a job must be foreseen, or from how many seconds after its first open, if that is
    later. They are of a machine that does nothing else: as many half milliseconds are as many opens at least."""

    opens: int
    seconds: float


SAID = Bar(bars.FROM_OPEN, bars.T_SAID_S)
SAID_MIDDLE = Bar(bars.FROM_OPEN, bars.T_S)
# Also: something wrong is said, or not how much of torch's global generator a model has drawn, or tf.data's buffer.
UNSAID = Bar(bars.FROM_OPEN_UNSAID, bars.T_S)
UNSAID_MIDDLE = Bar(bars.FROM_OPEN_UNSAID, bars.T_UNSAID_MIDDLE_S)


@dataclass(frozen=True)
class Look:
    """At the counters of a mount."""

    at: float
    opens: int
    predicted: int


@dataclass(frozen=True)
class Training:
    """Runs jobs over mounts of `source`. `work` is the test's own directory."""

    source: Path
    work: Path
    mounting: Callable[..., AbstractContextManager[Mounted]]

    def run(
        self,
        job: str,
        *flags: str,
        plan: str = "",
        source: Path | None = None,
        environment: Mapping[str, str] | None = None,
        processes: int = 0,
        looks: list[Look] | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Mounts with `flags`, the text of a plan file and this environment, runs the job, unmounts; the final record.
        Asserts that it counts what the job read.

        `processes`: that torchrun starts, where it starts the job. `looks` at the counters while it runs are added.
        `settings`: what the job is told.
        """
        if plan:
            file = self.work / "plan.toml"
            file.write_text(plan)
            flags = (*flags, "--plan", str(file))
        source = source or self.source
        count = self.work / "count"
        own = {"source": str(source), "epochs": EPOCHS, "count": str(count)}
        with ExitStack() as stack:
            with mock.patch.dict(os.environ, environment or {}):
                m = stack.enter_context(self.mounting(source, *flags))

            def look() -> None:
                if looks is not None:
                    opens = m.status()["opens"]
                    looks.append(Look(time.monotonic(), opens["total"], opens["predicted"]))

            said = self._run_job(job, {"mount": str(m.path), **own, **settings}, processes, look)
        opens, read = m.report["opens"], count.stat().st_size
        assert said["wrong"] == 0
        assert has_counted(m.report, read) if said["exact"] else opens["total"] >= read - ESTIMATED * TRAIN
        assert opens["unobserved"] == 0
        assert m.report["read_errors"] == 0
        return m.report

    def before(self, job: str, **settings: Any) -> None:
        """Runs a job over the source itself, as one that is resumed later over a mount."""
        own = {"mount": str(self.source), "source": str(self.source), "epochs": FOUND_EPOCHS, "count": os.devnull}
        self._run_job(job, {**own, **settings}, settings.get("processes", 0), lambda: None)

    def foreseen(self, job: str, *flags: str, share: float = SHARE, **settings: Any) -> dict[str, Any]:
        """`run` of a job of which enough is said; asserts that nearly all opens were predicted, `share` of them at
        least."""
        record = self.run(job, *flags, **settings)
        opens, plan = record["opens"], record["plan"]
        assert plan["state"] == "locked", (opens, plan)
        assert opens["predicted"] >= share * opens["total"], (opens, plan)
        return record

    def found(self, job: str, *flags: str, bar: Bar = SAID, lanes: int = 1, **settings: Any) -> dict[str, Any]:
        """`run` of a job that decodes, and waits for nothing; asserts that nearly all opens after the bar were
        predicted. `lanes`: ranks that read through the mount."""
        looks: list[Look] = []
        record = self.run(job, *flags, looks=looks, decodes=True, **{"epochs": FOUND_EPOCHS, **settings})
        opens, plan = record["opens"], record["plan"]
        first = next(look.at for look in looks if look.opens)
        from_open = max(bar.opens * (bars.DRIFT * lanes if lanes > 1 else 1), bar.seconds / bars.OPEN_S)
        after = [look for look in looks if look.opens >= from_open and look.at - first >= bar.seconds]
        assert after, "the job is too short to tell"
        judged = opens["total"] - after[0].opens
        before = min(look.opens - look.predicted for look in after[:LOOKS])
        missed = opens["total"] - opens["predicted"] - before
        seen = {"bar": after[0].opens, "missed before": before, "judged": judged, "missed": missed}
        course = [f"{look.opens}:{look.opens - look.predicted}" for look in looks]
        print(job, *flags, seen, plan, "missed by then", " ".join(course[:: max(1, len(course) // COURSE)]))
        assert judged >= bars.AFTER_BAR, "the job is too short to tell"
        assert missed <= (1 - SHARE) * judged, (seen, opens, plan)
        return record

    def _run_job(
        self, job: str, settings: Mapping[str, Any], processes: int, look: Callable[[], None]
    ) -> dict[str, Any]:
        """What the job says last; it is looked at meanwhile. Its processes form a group, of which nothing is left."""
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "scripts"))),
            "HF_HOME": str(self.work / "hf"),
            "HF_HUB_OFFLINE": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_ENABLE_ONEDNN_OPTS": "0",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        started = [sys.executable, *(torchrun(processes) if processes else [])]
        with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen(
                [*started, str(JOBS / f"{job}.py"), json.dumps(settings)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=errors, cwd=self.work, env=environment,
                start_new_session=True,
            )  # fmt: skip
            try:
                deadline = time.monotonic() + JOB_S
                while process.poll() is None and time.monotonic() < deadline:
                    look()
                    time.sleep(LOOK_S)
            finally:
                if processes:  # torchrun's are in groups of their own; it ends them
                    process.terminate()
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(END_S)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for file in (out, errors):
                file.seek(0)
            lines = out.read()
            assert process.returncode == 0, (process.returncode, lines[-2000:], errors.read()[-6000:])
        said: dict[str, Any] = json.loads(lines.splitlines()[-1])
        return said


def torchrun(processes: int) -> list[str]:
    """The words after `python` that start a job in so many processes, which talk over the loopback alone."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    return [*words, "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
