"""A nopfs-umount that is interrupted while the mount is busy leaves a mount that works on as before."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from nopfsfs.errors import Exit
from tests.conftest import wait_until
from tests.mount.harness import COMMAND_S, content, module, mounted, write

pytestmark = pytest.mark.mount


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_changed_files_are_shown_all_the_same(number: signal.Signals, source: Path, tmp_path: Path) -> None:
    write(source, {"changes": content(1, 300_000)})
    with mounted(source, work=tmp_path) as m:
        write(source, {"changes": content(2, 310_000)})
        with (m.path / "a").open("rb"):  # busy
            command = [*module("umount"), str(m.path), "--timeout", "100"]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as umount:
                assert umount.stderr is not None
                assert "is in use by" in umount.stderr.readline()  # so the mount has been asked to be quiet
                umount.send_signal(number)
                umount.communicate(timeout=COMMAND_S)
            assert umount.returncode == (Exit.INTERRUPTED if number == signal.SIGINT else -signal.SIGKILL)

        def shown() -> bool:
            try:
                return (m.path / "changes").read_bytes() == content(2, 310_000)
            except OSError:  # ESTALE, until the change has settled
                return False

        assert m.is_mounted()
        assert wait_until(shown, 20)
        assert m.status()["state"] == "running"
