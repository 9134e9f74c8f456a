"""A Debian tree whose process 1 is systemd: it boots and shuts down in namespaces and a cgroup of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.site.node_files import STAGE, sh
from tests.waiting import wait_until

BOOT_LIMIT_S = 60.0
CGROUPS = STAGE / "cgroups"
JOURNAL = "/var/log/journal"  # on the disk of the tree: it can be read when the machine is off
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

# What systemd asks of who starts it (systemd.io/CONTAINER_INTERFACE): /proc, /sys, /dev and /run are there. /sys and
# /proc/sys cannot be written, so that it sets nothing of the kernel that all share. It sees its own cgroup and those
# below. No terminal is there, so no getty starts; neither does udev, for want of the package.
_INIT = """
root=$1
mount --bind $root $root
cd $root
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/shm dev/pts
for device in 'null 1 3' 'zero 1 5' 'full 1 7' 'random 1 8' 'urandom 1 9' 'tty 5 0' 'fuse 10 229' 'autofs 10 235'; do
    set -- $device
    mknod -m 666 dev/$1 c $2 $3
done
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
pivot_root . mnt
umount --lazy /mnt
exec env -i container=nopfsfs PATH=$PATH /lib/systemd/systemd systemd.unit=multi-user.target
"""


class BootedDebian:
    """The tree below `root`, from its boot to the end of its process 1."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cgroup = _own_cgroup()
        # The cgroup first: a namespace of cgroups begins where its maker is.
        enter = f"echo $$ >{self.cgroup}/cgroup.procs; exec unshare --mount --uts --ipc --cgroup --pid --fork"
        script = f'{enter} --kill-child sh -euc "$0" sh "$1"'
        with (root / "console").open("wb") as console:
            self._outer = subprocess.Popen(
                ["sh", "-euc", script, _INIT, str(root)], env={"PATH": PATH}, stdin=subprocess.DEVNULL,
                stdout=console, stderr=subprocess.STDOUT,
            )  # fmt: skip
        assert wait_until(self._find_init), self.console()
        assert wait_until(self._has_booted, BOOT_LIMIT_S), self.console()

    def _find_init(self) -> bool:
        """Note the number of process 1, which is a child of unshare(1), once it is systemd."""
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        self.init = children[0] if children else ""
        return bool(children) and os.readlink(f"/proc/{self.init}/exe").endswith("/systemd")

    def _has_booted(self) -> bool:
        return self.try_to("systemctl is-system-running")[1].strip() in ("running", "degraded")

    def console(self) -> str:
        """The output of the start, for messages of failed tests."""
        return (self.root / "console").read_text()

    # ---- while it runs ------------------------------------------------------------------------------------

    def try_to(self, command: str, limit_s: float = 60.0) -> tuple[int, str]:
        """Run a command inside; return its exit code, and what it said."""
        words = ["nsenter", "-t", self.init, "-m", "-u", "-i", "-p", "-n", "-C", "-r", "-w", "sh", "-c", command]
        done = subprocess.run(
            words, env={"PATH": PATH, "LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def run(self, command: str, limit_s: float = 60.0) -> str:
        """Run a command inside that must succeed; return what it said."""
        code, said = self.try_to(command, limit_s)
        assert code == 0, f"{command}\nended with {code}\n{said}\n{self.journal()}"
        return said

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run(f"systemctl show --value -p {name} {shlex.quote(unit)}").strip()

    def cgroup_of(self, unit: str) -> Path:
        """The cgroup of a unit that runs."""
        return self.cgroup / self.show(unit, "ControlGroup").lstrip("/")

    def processes_of(self, unit: str) -> dict[int, str]:
        """The command lines of the processes of a unit, by their numbers outside."""
        found: dict[int, str] = {}
        for word in (self.cgroup_of(unit) / "cgroup.procs").read_text().split():
            with suppress(OSError):  # it has ended meanwhile
                found[int(word)] = Path(f"/proc/{word}/cmdline").read_text()
        return found

    def kill_all(self, unit: str) -> None:
        """Kill all processes of a unit at once, as by kill -9, with those that they start meanwhile."""
        (self.cgroup_of(unit) / "cgroup.kill").write_text("1")

    # ---- the end ------------------------------------------------------------------------------------------

    def power_off(self, limit_s: float) -> None:
        """Shut down, and wait for the end of process 1."""
        self.run("systemctl --no-wall poweroff")
        self._outer.wait(limit_s)

    @property
    def is_on(self) -> bool:
        return self._outer.poll() is None

    def end(self) -> None:
        """End what is left: all processes are children of process 1, and the mounts are of its namespace."""
        if self.is_on:
            self._outer.kill()  # unshare --kill-child kills process 1
            self._outer.wait(30)
        assert wait_until(self._remove_cgroups), f"in {self.cgroup} are processes yet"

    def _remove_cgroups(self) -> bool:
        """Remove the cgroup and those below it; return whether it is gone. A process may need a moment to leave it."""
        with suppress(OSError):
            for directory, _, _ in os.walk(self.cgroup, topdown=False):
                os.rmdir(directory)
        return not self.cgroup.exists()

    def journal(self) -> str:
        """All messages since the boot, one a line; also after the end."""
        return sh(f"chroot {self.root} journalctl -D {JOURNAL} -q --no-pager -o short-monotonic -b -0")


def _own_cgroup() -> Path:
    """A cgroup below that of the tests, of version 2: systemd then needs none of the older version."""
    if not CGROUPS.exists():
        CGROUPS.mkdir()
        sh(f"mount -t cgroup2 cgroup2 {CGROUPS}")
    [here] = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    return Path(tempfile.mkdtemp(prefix="nopfsfs-booted-", dir=CGROUPS / here.lstrip("/")))
