"""A nopfs-umount that is interrupted while the mount is busy leaves a mount that works on as before."""

from __future__ import annotations

import itertools
import signal
import subprocess
from pathlib import Path

import pytest

from nopfsfs.errors import Exit
from nopfsfs.plan.samplers.registry import order
from nopfsfs.plan.samplers.sampler import Spec
from tests.mount.harness import COMMAND_S, Mounted, content, fill, module, mounted, run
from tests.waiting import wait_until

pytestmark = pytest.mark.mount
COUNT = 200


def interrupt(m: Mounted, number: signal.Signals, stager: bool) -> None:
    """Begin an unmount of the busy mount, and end the command. `stager`: the stager is replaced meanwhile."""
    with (m.path / "class0" / "00000.jpg").open("rb"):  # busy
        command = [*module("umount"), str(m.path), "--timeout", "100"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as umount:
            assert umount.stderr is not None
            assert "is in use by" in umount.stderr.readline()  # so the mount has been asked to be quiet
            if stager:
                pid = m.kill("stager")
                assert wait_until(lambda: m.pid("stager") != pid)
            umount.send_signal(number)
            umount.communicate(timeout=COMMAND_S)
        assert umount.returncode == (Exit.INTERRUPTED if number == signal.SIGINT else -signal.SIGKILL)
    assert m.is_mounted()


@pytest.mark.long
@pytest.mark.parametrize(("number", "stager"), [(signal.SIGINT, False), (signal.SIGKILL, True)])
def test_files_are_pushed_and_changes_shown_all_the_same(
    number: signal.Signals, stager: bool, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    fill(source, COUNT, 30_000)
    # a page cache for a sixth of the files: there is always something left to push
    with mounted(source, "--seed", "42", "--ram", "40M", "--page-cache", "1M", work=tmp_path) as m:
        m.errors_expected = stager
        m.wait_status(lambda s: s["plan"]["length"] == COUNT)
        interrupt(m, number, stager)

        files = sorted(m.path.rglob("*.jpg"))
        epochs = (order(Spec("distributed", 42), COUNT, epoch).tolist() for epoch in itertools.count())
        opens = itertools.chain.from_iterable(epochs)
        before = m.status()["stager"]["pushed_bytes"]

        def pushes() -> bool:
            files[next(opens)].read_bytes()
            return bool(m.status()["stager"]["pushed_bytes"] > before)

        assert wait_until(pushes, 40)  # the reader goes on: it may be past all of an epoch when the next stager begins

        changed = files[0].relative_to(m.path)
        (source / changed).write_bytes(content(1000, 40_000))
        assert run([*module("nopfs"), "recheck", str(m.path)]).returncode == 0  # it is staged: nobody reads the source

        def shown() -> bool:
            try:
                return (m.path / changed).read_bytes() == content(1000, 40_000)
            except OSError:  # ESTALE, until the change has settled
                return False

        assert wait_until(shown, 20)
