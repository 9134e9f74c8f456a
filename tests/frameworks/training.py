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
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mount.harness import Mounted

TRAIN, VAL = 6000, 400  # images
EPOCHS = 3
SHARE = 0.99  # of the opens are predicted, those by which the plan is found included
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


@dataclass(frozen=True)
class Training:
    """Runs jobs over mounts of `source`. `work` is the test's own directory."""

    source: Path
    work: Path
    mounting: Callable[..., AbstractContextManager[Mounted]]

    def run(self, job: str, *flags: str, plan: str = "", source: Path | None = None, **settings: Any) -> dict[str, Any]:
        """Mounts with `flags` and the text of a plan file, runs the job, unmounts; the final record. Asserts that it
        counts what the job read.

        `settings`: what the job is told.
        """
        if plan:
            file = self.work / "plan.toml"
            file.write_text(plan)
            flags = (*flags, "--plan", str(file))
        source = source or self.source
        own = {"source": str(source), "epochs": EPOCHS, "count": str(self.work / "count")}
        with self.mounting(source, *flags) as m:
            said = self._run_job(job, {"mount": str(m.path), **own, **settings})
        opens = m.report["opens"]
        assert said["wrong"] == 0
        assert opens["total"] == said["read"] if said["exact"] else opens["total"] >= said["read"]
        assert opens["unobserved"] == 0
        assert m.report["read_errors"] == 0
        return m.report

    def foreseen(self, job: str, *flags: str, share: float = SHARE, **settings: Any) -> dict[str, Any]:
        """`run`; asserts that nearly all opens were predicted, `share` of them at least."""
        record = self.run(job, *flags, **settings)
        opens, plan = record["opens"], record["plan"]
        assert plan["state"] == "locked", (opens, plan)
        assert opens["predicted"] >= share * opens["total"], (opens, plan)
        return record

    def _run_job(self, job: str, settings: dict[str, Any]) -> dict[str, Any]:
        """What the job says last. Its processes form a group, of which nothing is left."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "scripts"))),
            "HF_HOME": str(self.work / "hf"),
            "HF_HUB_OFFLINE": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_ENABLE_ONEDNN_OPTS": "0",
            "OMP_NUM_THREADS": "1",
        }
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [sys.executable, str(JOBS / f"{job}.py"), json.dumps(settings)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=self.work,
                env=environment, start_new_session=True,
            )  # fmt: skip
            try:
                out, _ = process.communicate(timeout=JOB_S)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            errors.seek(0)
            assert process.returncode == 0, (process.returncode, out[-2000:], errors.read()[-6000:])
        said: dict[str, Any] = json.loads(out.splitlines()[-1])
        return said
