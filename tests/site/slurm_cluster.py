"""A Slurm cluster of two nodes on this machine: daemons, jobs of user alice, and what a job may leave nowhere.

Each node has a mount namespace of its own, with /run/nopfs, /run/nopfs-jobs and /tmp of its own, as two machines have.
"""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nopfsfs.fuse.mount_table import parse_mountinfo
from tests.site.node_files import ALICE, ROOT, STAGE, processes_of_mounts, sh
from tests.waiting import wait_until

SCRIPTS = ROOT / "scripts/site/slurm"
IDLE_S = 60.0  # after the end of a job: its nodes are idle again
# Directories that each node has for itself.
OWN = ("/run/nopfs", "/run/nopfs-jobs", f"/tmp/nopfs-{ALICE}", "/var/cache/nopfsfs")
NODES = ("n1", "n2")
AS_ALICE = ("setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", "--clear-groups", "env", "HOME=/srv/home")
UNKILLABLE_S, EPILOG_S = 20, 45

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool/%n
TmpFS={at}/tmpfs/%n
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/%n.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/%n.log
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
UnkillableStepTimeout={unkillable}
PrologFlags=Alloc
PrologEpilogTimeout={epilog}
Prolog={scripts}/prolog.sh
Epilog={scripts}/epilog.sh
TaskProlog={scripts}/task_prolog.sh
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port=17001 CPUs=4 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port=17002 CPUs=4 RealMemory=1000
PartitionName=main Nodes=n1,n2 Default=YES State=UP MaxTime=10 OverSubscribe=NO
"""
CGROUP = "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n"
SITE = f"BIN={STAGE}/bin\nOPTIONS='--ram 64M'\nIO_TIMEOUT=10s\nMOUNT_S=40\nUMOUNT_S=40\n"


class SlurmCluster:
    """The cluster; `job_dir` is where jobs are submitted, and their reports must be."""

    def __init__(self, at: Path) -> None:
        self.at, self.job_dir = at, STAGE / "home"
        self.env = {"SLURM_CONF": str(at / "slurm.conf"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

    def run(self, command: str, limit_s: float = 30.0) -> str:
        """Run a command of Slurm's, as root. Raises AssertionError."""
        return sh(command, limit_s, env=self.env, cwd=self.job_dir)

    def submit(self, script: str, *flags: str) -> int:
        """Submit a job of alice's on both nodes, one task on each; return its number."""
        file = self.job_dir / "job.sh"
        file.write_text(f"#!/bin/sh\n{script}\n")
        words = ["sbatch", "--parsable", "-N2", "--ntasks-per-node=1", "-o", "out-%j", *flags, str(file)]
        return int(self.run(shlex.join([*AS_ALICE, *words])))

    def submit_file(self, file: Path, *words: str, env: Mapping[str, str] | None = None) -> int:
        """Submit one of the job scripts of the site; `env` is added to the environment of the job."""
        more = [f"{name}={value}" for name, value in (env or {}).items()]
        command = ["sbatch", "--parsable", "-N2", "-o", "out-%j", str(file), *words]
        return int(self.run(shlex.join([*AS_ALICE, f"NOPFS_BIN={STAGE}/bin", *more, *command])))

    def state(self, job: int) -> str:
        return self.run(f"scontrol -o show job {job}").partition("JobState=")[2].partition(" ")[0]

    def wait_state(self, job: int, *states: str, limit_s: float = 60.0) -> None:
        assert wait_until(lambda: self.state(job) in states, limit_s), (self.state(job), self.out(job), self.logs())

    def wait_said(self, job: int, what: str, limit_s: float = 60.0) -> None:
        assert wait_until(lambda: what in self.out(job), limit_s), (what, self.out(job), self.logs())

    def out(self, job: int) -> str:
        with suppress(FileNotFoundError):
            return (self.job_dir / f"out-{job}").read_text()
        return ""

    def logs(self) -> str:
        """The ends of all logs, for the message of a failure."""
        return "\n".join(f"{log.name}:\n{log.read_text()[-1500:]}" for log in self.at.glob("*.log"))

    def node_states(self) -> list[str]:
        return self.run("sinfo -h -N -o %T").split()

    def is_idle(self) -> bool:
        """Whether both nodes are idle, and no Epilog runs any more."""
        return self.node_states() == ["idle", "idle"] and not self.run("squeue -h -t running,completing,configuring")

    def pid(self, node: str) -> int:
        return int((self.at / f"{node}.pid").read_text())

    def in_node(self, node: str, command: str) -> str:
        """Run a shell command where the mounts of a node are seen."""
        return sh(f"nsenter --mount --target {self.pid(node)} sh -c {shlex.quote(command)}")

    def mounts(self) -> list[str]:
        """All nopfs mounts of the nodes."""
        text = [Path(f"/proc/{self.pid(node)}/mountinfo").read_text() for node in NODES]
        return [mount.mountpoint for one in text for mount in parse_mountinfo(one) if mount.is_nopfs]

    def check_nothing_left(self, job: int) -> None:
        """Assert that the nodes are idle again in time and were never drained, and that nothing is left of a job."""
        assert wait_until(self.is_idle, IDLE_S), (self.node_states(), self.logs())
        assert "drain" not in (self.at / "slurmctld.log").read_text().lower(), self.logs()
        assert self.mounts() == []
        assert processes_of_mounts() == []  # and so no memory: all of a mount's is of its processes
        for node in NODES:
            left = self.in_node(node, f"ls -A {' '.join(OWN[:3])}")
            assert left.split() == [f"{one}:" for one in OWN[:3]], (job, left)
        assert not list(Path("/dev/shm").glob("*nopfs*"))

    def reports(self, job: int) -> list[Path]:
        return sorted(self.job_dir.glob(f"nopfs-{job}-*.json"))


@contextmanager
def slurm(proctrack: str, at: Path) -> Iterator[SlurmCluster]:
    """Start a cluster; end it."""
    cluster = SlurmCluster(at)
    host = socket.gethostname().partition(".")[0]
    made = " ".join(f"{at}/{name}" for name in ("state", "spool/n1", "spool/n2", "tmpfs/n1", "tmpfs/n2"))
    sh(f"mkdir -p {made}; chmod 1777 {at}/tmpfs/*; rm -rf {at}/*.log")
    sh(f"rm -f {cluster.job_dir}/out-* {cluster.job_dir}/nopfs-*.json")  # each cluster has a job 1
    (at / "slurm.conf").write_text(
        CONF.format(host=host, at=at, proctrack=proctrack, scripts=SCRIPTS, unkillable=UNKILLABLE_S, epilog=EPILOG_S)
    )
    (at / "cgroup.conf").write_text(CGROUP)
    Path("/etc/nopfs/slurm.conf").write_text(SITE)
    own = "; ".join(f"mkdir -p {one}; mount -t tmpfs -o mode=755 tmpfs {one}" for one in OWN)
    own += f"; chown {ALICE} /tmp/nopfs-{ALICE}; chmod 700 /tmp/nopfs-{ALICE}"
    try:
        cluster.run("slurmctld -c")
        for node in NODES:
            cluster.run(f"unshare --mount --propagation slave sh -ec {shlex.quote(f'{own}; exec slurmd -N {node}')}")
        assert wait_until(lambda: cluster.node_states() == ["idle", "idle"], 20), cluster.logs()
        yield cluster
    finally:
        for name in (*NODES, "slurmctld"):
            with suppress(OSError, AssertionError, subprocess.TimeoutExpired):
                pid = int((at / f"{name}.pid").read_text())
                sh(f"kill {pid}; for i in $(seq 150); do kill -0 {pid} 2>/dev/null || exit 0; sleep 0.1; done")
        sh("find /sys/fs/cgroup/freezer -depth -type d -path '*/slurm_n[12]*' -exec rmdir {} + 2>/dev/null || :")


@contextmanager
def munge() -> Iterator[None]:
    """Run munged, whose files are the test's own."""
    if shutil.which("munged") is None:
        pytest.fail("Slurm needs munge, which is missing: apt-get install munge, or scripts/system_deps.sh --site")
    sh("""install -d -o munge -g munge -m 755 /run/munge
    setpriv --reuid munge --regid munge --clear-groups munged --force --num-threads=2 \
        --log-file=/run/munge/log --seed-file=/run/munge/seed""")
    said = subprocess.run(["munge", "-n"], capture_output=True, text=True, timeout=20, check=False)
    if said.returncode:
        pytest.fail(f"munged does not answer, so that no job of Slurm starts; /run/munge/log says why: {said.stderr}")
    yield
    sh("kill $(cat /run/munge/munged.pid)")
