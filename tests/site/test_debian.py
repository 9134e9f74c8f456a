"""The Debian package in a clean Debian tree: installed, used through mount(8) and by hand, purged; nothing is left."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nopfsfs.fuse.mount_table import read_mounts
from tests.mount.harness import fill
from tests.site.node_files import ROOT, STAGE, processes_of_mounts, sh
from tests.waiting import wait_until

pytestmark = [pytest.mark.site, pytest.mark.mount, pytest.mark.timeout(300)]

TREE = ROOT / "build/debian.tar"
# Of dpkg itself, which remembers what was installed.
NOT_OURS = ("./var/lib/dpkg", "./var/log/dpkg.log", "./var/log/alternatives.log", "./proc", "./package.deb", "./srv")


class Debian:
    """A Debian tree below a directory; commands run in it by chroot(1)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, command: str, limit_s: float = 120.0) -> str:
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        return sh(f"chroot {self.root} sh -ec {shlex.quote(command)}", limit_s, env=env)

    def files(self) -> set[str]:
        """All paths but those of dpkg."""
        found = sh(f"cd {self.root}; find . -xdev", 60).splitlines()
        return {path for path in found if not path.startswith(NOT_OURS)}


@pytest.fixture(scope="module")
def debian() -> Iterator[Debian]:
    packages = list((ROOT / "build").glob("nopfsfs_*.deb"))
    if not TREE.exists() or not packages:
        pytest.skip("needs build/debian.tar and the package: make test-site makes both")
    root = STAGE / "debian"
    sh(f"mount -t tmpfs -o mode=755 tmpfs {STAGE}; mkdir {root}")
    sh(f"tar -C {root} --exclude=./dev/* -xf {TREE}; cp {packages[0]} {root}/package.deb", 120)
    sh(f"""mount --bind {root} {root}; mount -t proc proc {root}/proc
    mknod -m 666 {root}/dev/null c 1 3; mknod -m 666 {root}/dev/fuse c 10 229; mknod -m 666 {root}/dev/urandom c 1 9
    mount -t tmpfs -o mode=755 tmpfs {root}/run""")
    yield Debian(root)
    sh(f"umount {root}/run {root}/proc {root}")


def test_install_mount_read_umount_purge(debian: Debian) -> None:
    files = fill(debian.root / "srv/source", 30, 20_000)
    before = debian.files()

    debian.run("dpkg -i /package.deb")
    assert debian.run("nopfs --version").startswith("nopfsfs ")
    for path in ("share/man/man1/nopfs-mount.1.gz", "share/man/man1/nopfs-status.1.gz", "bin/nopfs-umount",
                 "share/bash-completion/completions/nopfs-mount", "share/zsh/vendor-completions/_nopfs",
                 "lib/systemd/system/nopfs@.service"):  # fmt: skip
        assert (debian.root / "usr" / path).lstat()
    assert os.access(debian.root / "opt/nopfsfs/site/slurm/prolog.sh", os.X_OK)

    debian.run("mount -t fuse.nopfs /srv/source /mnt -o seed=42,ram=64M")
    assert {name: (debian.root / "mnt" / name).read_bytes() for name in files} == files
    assert '"state": "running"' in debian.run("nopfs status /mnt --json")
    assert "good     source " in debian.run("nopfs doctor /srv/source")
    debian.run("umount /mnt")
    assert wait_until(lambda: not processes_of_mounts()), processes_of_mounts()

    debian.run("nopfs-mount /srv/source /mnt --ram 64M")
    debian.run("dpkg --purge nopfsfs")  # with a mount that is still there

    assert [mount for mount in read_mounts() if mount.is_nopfs] == []
    assert wait_until(lambda: not processes_of_mounts()), processes_of_mounts()
    assert debian.files() == before


def test_a_mount_is_seen_from_other_mount_namespaces(debian: Debian) -> None:
    """As from a container that is started while it is there, and not by one that was started before."""
    debian.run("dpkg -i /package.deb")
    files = fill(debian.root / "srv/source", 30, 20_000)
    name = next(iter(files))
    script = f"read line; [ -e {debian.root}/mnt/{name} ]"
    early = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdin=subprocess.PIPE)
    assert wait_until(lambda: os.readlink(f"/proc/{early.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"))

    debian.run("nopfs-mount /srv/source /mnt --ram 64M")
    seen = sh(f"unshare --mount sh -c 'cat {debian.root}/mnt/{name}' | wc -c")
    early.communicate(b"\n", timeout=20)
    debian.run("nopfs-umount /mnt")
    debian.run("dpkg --purge nopfsfs")

    assert (int(seen), early.returncode) == (len(files[name]), 1)
    assert wait_until(lambda: not processes_of_mounts()), processes_of_mounts()
