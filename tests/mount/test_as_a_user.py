"""The tests that run in every mode, run once more by a user who is not root: the mounts go through fusermount3. With
them the test of the site's limits, which bind such a user.

In namespaces of its own, where that user may open /dev/fuse and reach what this interpreter needs, as is usual; and
where no process outlives the first one.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nopfsfs.fuse.mounting import DEV_FUSE, helper
from tests.mount.harness import run

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="who is not root runs them anyway"),
    pytest.mark.timeout(300),
    pytest.mark.slow,
]

NOBODY = "65534"
REPOSITORY = Path(__file__).parents[2]
POLICY = "tests/mount/test_tuning.py::test_a_policy_file_bounds_a_mount"
IN_EVERY_MODE = ("test_semantics", "test_reads", "test_tree", "test_bytes", "test_changes", "test_faults")
APART = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"]
LIMIT_S = 240.0


def closed_ancestor(path: Path) -> Path | None:
    """The topmost directory on the way to `path` that others may not enter."""
    return next((p for p in reversed((path, *path.parents)) if not p.stat().st_mode & stat.S_IXOTH), None)


def namespace(stage: Path) -> str:
    """A shell script that sets the namespace up, and runs what it is given as arguments."""
    lines = ["set -e", f"mount -t tmpfs -o mode=755 tmpfs '{stage}'"]
    device = os.stat(DEV_FUSE).st_rdev
    lines += [
        f"mknod -m 666 '{stage}/fuse' c {os.major(device)} {os.minor(device)}",
        f"mount --bind '{stage}/fuse' {DEV_FUSE}",
    ]
    needed = {Path(p).resolve() for p in (sys.base_prefix, sys.prefix, REPOSITORY)}
    closed = {path: top for path in needed if (top := closed_ancestor(path)) is not None}
    for number, path in enumerate(closed):
        lines.append(f"mkdir '{stage}/{number}'; mount --bind '{path}' '{stage}/{number}'")
    lines += [f"mount -t tmpfs -o mode=755 tmpfs '{top}'" for top in set(closed.values())]
    for number, path in enumerate(closed):
        lines.append(f"mkdir -p '{path}'; mount --bind '{stage}/{number}' '{path}'")
    return "\n".join([*lines, f"cd '{REPOSITORY}'", '"$@" || exit'])  # not exec: it reaps


def test_the_suite_of_every_mode(open_to_all: Path) -> None:
    stage, home = open_to_all / "stage", open_to_all / "home"
    stage.mkdir()
    home.mkdir()
    os.chown(home, int(NOBODY), int(NOBODY))
    program = helper()
    if program is None or not os.stat(program).st_mode & stat.S_ISUID:
        pytest.skip("needs fusermount3, setuid root")
    inside = [*APART, "sh", "-c", namespace(stage), "sh", *AS_NOBODY, sys.executable]
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    probe = run([*inside, "-c", "import pytest, nopfsfs.fuse.mounting; open('/dev/fuse', 'r+b', 0)"], env=environment)
    if probe.returncode != 0:
        pytest.skip(f"this system does not let another user mount: {probe.stderr.strip().splitlines()[-1:]}")

    files = [*(f"tests/mount/{name}.py" for name in IN_EVERY_MODE), POLICY]
    done = subprocess.run(
        [*inside, "-m", "pytest", "-q", "-m", "mount", f"--basetemp={home}/tests", *files],
        env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 120, done.stdout
