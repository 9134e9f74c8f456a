"""The unit and the lines for fstab under a real systemd, as the docs give them: from boot to shutdown."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.mount.harness import fill
from tests.site.booted_debian import JOURNAL, BootedDebian
from tests.site.node_files import ROOT, STAGE, processes_of_mounts, sh
from tests.waiting import wait_until

pytestmark = [pytest.mark.site, pytest.mark.mount, pytest.mark.timeout(240)]

TREE = ROOT / "build/debian-systemd.tar"
PAGES = ("README.md", "docs/operations.md")
SERVICE, MOUNT = "nopfs@mnt-fast.service", "mnt-fast.mount"
PFS = "/srv/server /pfs none bind,_netdev 0 0\n"  # stands for the parallel file system
RESTART_LIMIT_S = 60.0  # 5 s until the unit starts again, and a start on a busy machine
SHUTDOWN_LIMIT_S = 90.0

UNITS = {
    # What stands for the network says at its end whether a mount is still there.
    "network.service": """
        [Unit]
        Before=network.target network-online.target
        Wants=network.target
        [Service]
        Type=oneshot
        RemainAfterExit=yes
        ExecStart=/bin/true
        ExecStop=/bin/sh -c 'cat /proc/mounts /proc/[0-9]*/cmdline >/network-ends'
        [Install]
        WantedBy=multi-user.target
        """,
    # What stands for Slurm is ordered as Slurm's own unit. No job of it may ever miss the mount.
    "slurmd.service": """
        [Unit]
        After=network-online.target remote-fs.target
        [Service]
        ExecStart=/bin/sh -c 'while cat /mnt/fast/*/* >/job-reads; do echo >>/job-epochs; done; echo >/job-failed'
        [Install]
        WantedBy=multi-user.target
        """,
    # Somebody who has a file open and does not end when asked to; systemd does not know that it is in the mount.
    "stubborn.service": """
        [Service]
        ExecStart=/bin/sh -c 'trap "" TERM; exec 3</mnt/fast/class3/00003.jpg; echo >/stubborn-reads; exec sleep 999'
        TimeoutStopSec=15s
        """,
}  # fmt: skip
LEFT_BY_UNITS = ("network-ends", "job-reads", "job-epochs", "job-failed", "stubborn-reads")


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """A Debian tree with the package and the units, that has not booted yet."""
    packages = list((ROOT / "build").glob("nopfsfs_*.deb"))
    if not TREE.exists() or not packages:
        pytest.skip("needs build/debian-systemd.tar and the package: make test-site makes both")
    sh(f"mount -t tmpfs -o mode=755 tmpfs {STAGE}")
    root = STAGE / "debian"
    sh(f"mkdir {root}; tar -C {root} --exclude=./dev/* -xf {TREE}; cp {packages[0]} {root}/package.deb", 120)
    sh(f"chroot {root} dpkg -i /package.deb; mkdir -p {root}/pfs {root}/mnt/fast {root}{JOURNAL}", 120)
    (root / "etc/machine-id").write_text("6e6f7066736673000000000000000001\n")
    for name, text in UNITS.items():
        (root / "etc/systemd/system" / name).write_text(re.sub("^ +", "", text, flags=re.MULTILINE))
    # What would look for updates.
    sh(f"chroot {root} systemctl mask timers.target; chroot {root} systemctl enable network.service")
    yield root
    sh(f"umount {STAGE}/cgroups || :; umount {STAGE}")


@pytest.fixture
def files(tree: Path) -> Iterator[dict[str, bytes]]:
    """The files of the source, which is /pfs/imagenet once /pfs is mounted."""
    yield fill(tree / "srv/server/imagenet", 30, 20_000)
    sh(f"rm -rf {tree}/srv/server/imagenet")


Boot = Callable[..., BootedDebian]


@pytest.fixture
def boot(tree: Path, files: dict[str, bytes]) -> Iterator[Boot]:
    """A function that boots the tree with these lines in fstab and these units enabled. At the end nothing may be left
    of a mount."""
    booted: list[BootedDebian] = []

    def start(fstab: str, enabled: Sequence[str] = ()) -> BootedDebian:
        sh(f"cd {tree}; rm -rf .{JOURNAL}/* {' '.join(LEFT_BY_UNITS)} etc/nopfs/mounts/*")
        (tree / "etc/fstab").write_text(fstab)
        sh(f"rm -f {tree}/etc/systemd/system/*.wants/nopfs@*; chroot {tree} systemctl disable slurmd")
        for unit in enabled:
            sh(f"chroot {tree} systemctl enable {unit}")
        if SERVICE in enabled:
            (tree / "etc/nopfs/mounts/mnt-fast.conf").write_text("SOURCE=/pfs/imagenet\nOPTIONS=--ram 64M\n")
        booted.append(BootedDebian(tree))
        return booted[0]

    yield start
    for machine in booted:
        machine.end()
    assert processes_of_mounts() == []


def documented(page: str, pattern: str) -> str:
    """What a page says, for a node with less memory."""
    found = re.search(pattern, (ROOT / page).read_text(), re.MULTILINE)
    assert found is not None
    return found[0].replace("64G", "64M")


def fstab_of(page: str) -> str:
    return documented(page, r"^/pfs/imagenet +/mnt/fast +fuse\.nopfs .*\n")


def check_all(machine: BootedDebian) -> None:
    machine.run("diff -r /srv/server/imagenet /mnt/fast")


def reads_soon(machine: BootedDebian) -> bool:
    """Return whether the mount can be read. Fails where neither bytes nor an error come."""
    code, _ = machine.try_to("timeout 30 diff -r /srv/server/imagenet /mnt/fast")
    assert code in (0, 1, 2), "a read hangs"
    return code == 0


def is_gone(machine: BootedDebian) -> bool:
    return "nopfs" not in machine.run("cat /proc/mounts") and not processes_of_mounts()


def numbers() -> set[int]:
    return {int(line.split(":")[0]) for line in processes_of_mounts()}


def in_order(journal: str, *messages: str) -> bool:
    """Return whether systemd said all this, in this order."""
    at = [journal.find(f"systemd[1]: {message}") for message in messages]
    return -1 not in at and at == sorted(at)


def test_a_service_is_started_and_stopped(boot: Boot) -> None:
    machine = boot(PFS)
    commands = documented("docs/operations.md", r"^printf 'SOURCE=(.*\n)+?systemctl enable --now nopfs@.*$")

    machine.run(f"{commands}\ndiff -r /srv/server/imagenet /mnt/fast")  # all bytes are there at once

    assert machine.run(f"systemctl is-active {SERVICE}").strip() == "active"
    assert '"state": "running"' in machine.run("nopfs status /mnt/fast --json")
    assert machine.show(SERVICE, "StatusText") == "the mount answers"
    assert machine.show(SERVICE, "OOMPolicy") == "continue"
    assert wait_until(lambda: not numbers() - {*machine.processes_of(SERVICE)})  # no process is outside the service
    machine.run(f"systemctl stop {SERVICE}")
    assert machine.show(SERVICE, "ActiveState") == "inactive"
    assert wait_until(lambda: is_gone(machine))


@pytest.mark.parametrize("who", ["all", "supervisor", "nopfs-mount"])
def test_a_service_that_is_killed_comes_back(boot: Boot, who: str) -> None:
    machine = boot(PFS, [SERVICE])
    machine.run(f"systemctl start {SERVICE}")
    first = machine.processes_of(SERVICE)

    if who == "all":
        machine.kill_all(SERVICE)
    else:
        os.kill(min(pid for pid, command in first.items() if who in command), signal.SIGKILL)

    assert wait_until(lambda: reads_soon(machine) and machine.show(SERVICE, "NRestarts") == "1", RESTART_LIMIT_S)
    assert wait_until(lambda: machine.show(SERVICE, "ActiveState") == "active", RESTART_LIMIT_S)
    assert not set(first) & set(machine.processes_of(SERVICE))
    assert machine.run("grep -c nopfs /proc/mounts").strip() == "1"


@pytest.mark.parametrize("command", ["umount /mnt/fast", "nopfs-umount /mnt/fast"])
def test_a_service_that_is_unmounted_by_hand_stays_so(boot: Boot, command: str) -> None:
    machine = boot(PFS, [SERVICE])
    machine.run(f"systemctl start {SERVICE}")

    machine.run(command)

    assert wait_until(lambda: machine.show(SERVICE, "ActiveState") != "active")
    assert wait_until(lambda: machine.show(SERVICE, "ActiveState") != "deactivating")
    assert (machine.show(SERVICE, "ActiveState"), machine.show(SERVICE, "Result")) == ("inactive", "success")
    assert wait_until(lambda: is_gone(machine))


def test_a_service_waits_for_a_source_that_is_not_there(boot: Boot) -> None:
    machine = boot("", [SERVICE])  # the boot goes on
    assert machine.show("multi-user.target", "ActiveState") == "active"
    assert "the source /pfs/imagenet does not exist" in machine.journal()

    machine.run("mount --bind /srv/server /pfs")

    assert wait_until(lambda: machine.show(SERVICE, "ActiveState") == "active", RESTART_LIMIT_S)
    check_all(machine)


def test_fstab(boot: Boot) -> None:
    machine = boot(fstab_of("docs/operations.md") + PFS)
    check_all(machine)
    assert machine.show(MOUNT, "TimeoutUSec") == "15min"

    machine.run(f"systemctl stop {MOUNT}")
    assert wait_until(lambda: is_gone(machine))
    machine.run(f"systemctl start {MOUNT}; diff -r /srv/server/imagenet /mnt/fast")

    machine.kill_all(MOUNT)

    assert not reads_soon(machine)
    assert machine.show(MOUNT, "ActiveState") == "active"  # systemd sees nothing of it
    machine.run(f"systemctl restart {MOUNT}; diff -r /srv/server/imagenet /mnt/fast")


def test_a_node_boots_when_the_source_of_fstab_is_not_there(boot: Boot) -> None:
    machine = boot(fstab_of("docs/operations.md"))
    assert machine.show("multi-user.target", "ActiveState") == "active"
    assert machine.show(MOUNT, "ActiveState") == "failed"
    assert "the source /pfs/imagenet does not exist" in machine.journal()

    machine.run(f"mount --bind /srv/server /pfs; systemctl start {MOUNT}; diff -r /srv/server/imagenet /mnt/fast")


def test_an_automount_is_refused(boot: Boot) -> None:
    """Who looks at the mountpoint gets an error, and does not wait."""
    line = fstab_of("docs/operations.md").replace("_netdev", "_netdev,noauto,x-systemd.automount")
    machine = boot(PFS + line)
    if machine.show("mnt-fast.automount", "ActiveState") != "active":
        pytest.skip("no automounts here")

    assert machine.try_to("ls /mnt/fast/class0", limit_s=30)[0] == 2

    assert machine.show(MOUNT, "ActiveState") == "failed"
    assert "leave x-systemd.automount out" in machine.journal()


@pytest.mark.parametrize("how", [SERVICE, *PAGES])
def test_from_boot_to_shutdown(boot: Boot, how: str) -> None:
    """Slurm finds the mount, reads when the shutdown begins, and ends before the mount; then source and network end."""
    unit = SERVICE if how == SERVICE else MOUNT
    machine = boot(PFS, [SERVICE, "slurmd"]) if how == SERVICE else boot(fstab_of(how) + PFS, ["slurmd"])
    check_all(machine)
    before, after = (machine.show(unit, name).split() for name in ("Before", "After"))
    if how == SERVICE:
        assert {"network-online.target", "remote-fs.target"} <= {*after}
        assert "slurmd.service" in before
    else:
        assert {"network-online.target", "remote-fs-pre.target", "pfs.mount"} <= {*after}
        assert "remote-fs.target" in before
    assert wait_until(lambda: (machine.root / "job-epochs").exists())

    machine.power_off(SHUTDOWN_LIMIT_S)

    assert wait_until(lambda: not processes_of_mounts())
    assert not (machine.root / "job-failed").exists()
    ends = (machine.root / "network-ends").read_bytes()
    # systemd waits for the processes of a service; those of fstab may need a moment longer than the mount.
    assert b"tmpfs" in ends
    assert (b"nopfs" if how == SERVICE else b"fuse.nopfs") not in ends
    begun, ended = ("Started", "Stopped") if how == SERVICE else ("Mounted", "Unmounted")
    assert in_order(
        machine.journal(), "Mounted pfs.mount", f"{begun} {unit}", "Started slurmd.service", "Stopped slurmd.service",
        f"{ended} {unit}", "Unmounted pfs.mount", "Stopped network.service",
    ), machine.journal()  # fmt: skip


@pytest.mark.parametrize("how", [SERVICE, MOUNT, "RequiresMountsFor"])
def test_a_shutdown_ends_while_somebody_keeps_a_file_open(boot: Boot, how: str) -> None:
    """The service is unmounted all the same, while the source and the network are there. So is a mount of fstab where
    systemd knows who uses it; else it is there longer."""
    machine = boot(PFS, [SERVICE]) if how == SERVICE else boot(fstab_of("docs/operations.md") + PFS)
    if how == "RequiresMountsFor":
        place = "/run/systemd/system/stubborn.service.d"
        machine.run(f"mkdir {place}; printf '[Unit]\\n{how}=/mnt/fast\\n' >{place}/mount.conf; systemctl daemon-reload")
    machine.run(f"systemctl start {SERVICE if how == SERVICE else MOUNT} stubborn")
    assert wait_until(lambda: (machine.root / "stubborn-reads").exists())

    machine.power_off(SHUTDOWN_LIMIT_S)

    assert wait_until(lambda: not processes_of_mounts())
    ends = (machine.root / "network-ends").read_bytes()
    assert ((b"nopfs" if how == SERVICE else b"fuse.nopfs") in ends) == (how == MOUNT)
    if how == SERVICE:
        journal = machine.journal()
        assert in_order(
            journal, f"Stopped {SERVICE}", "Stopped target remote-fs.target", "Unmounted pfs.mount",
            "Stopped network.service",
        ), journal  # fmt: skip
        assert f"{SERVICE}: Failed" not in journal


def test_a_purge_ends_services_and_their_links(boot: Boot) -> None:
    machine = boot(PFS, [SERVICE, "nopfs@mnt-other.service"])  # the other has no settings, and is tried for ever
    machine.run(f"systemctl start {SERVICE}")

    machine.run("dpkg --purge nopfsfs")
    try:
        assert wait_until(lambda: is_gone(machine))
        assert machine.run("systemctl list-units --no-legend --plain --all 'nopfs@*'") == ""
        assert machine.run("find /etc/systemd /usr/lib/systemd /etc/nopfs -name '*nopfs*'").split() == ["/etc/nopfs"]
    finally:
        machine.run("dpkg -i /package.deb")
