"""Real jobs of a real Slurm: each ends with idle nodes, nothing left, and a report in the job's directory."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mpirun import environment
from slow_source import SlowSource

from nopfsfs.control.process_list import Process, start_time
from nopfsfs.stager.young_files import LOCAL_S
from tests.mount.harness import fill
from tests.peer.mounts import by_choice
from tests.site.node_files import ALICE, STAGE, make_machine, processes_of_mounts, sh
from tests.site.slurm_cluster import SCRIPTS, SITE, SlurmCluster, munge, slurm
from tests.waiting import wait_until

pytestmark = [pytest.mark.site, pytest.mark.mount, pytest.mark.timeout(300)]

FILES = 60
SOURCE = STAGE / "pfs"
# Reads all files, and says how many bytes and from where.
READ = """srun --mpi=none sh -c 'cat "$NOPFS_DATA"/*/*.jpg | wc -c; echo from "$NOPFS_DATA"'"""
READ_ON = """srun --mpi=none sh -c 'echo began; while :; do cat "$NOPFS_DATA"/*/*.jpg >/dev/null || exit; done'"""


@pytest.fixture(scope="module")
def machine() -> Iterator[int]:
    """The machine with a source; the bytes of the source."""
    make_machine()
    made = fill(SOURCE, FILES, 50_000)
    with munge():
        yield sum(len(data) for data in made.values())


class Clusters:
    """One cluster at a time, which goes on until another is wanted: both have the same ports."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self._found: tuple[str, SlurmCluster] | None = None

    def get(self, proctrack: str) -> SlurmCluster:
        if self._found is None or self._found[0] != proctrack:
            self.close()
            self._found = (proctrack, self._running.enter_context(slurm(proctrack, STAGE / proctrack)))
        return self._found[1]

    def close(self) -> None:
        self._running.close()


@pytest.fixture(scope="module")
def clusters(machine: int) -> Iterator[Clusters]:
    made = Clusters()
    yield made
    made.close()


@pytest.fixture(params=["cgroup", "linuxproc"])
def each(request: pytest.FixtureRequest, clusters: Clusters) -> SlurmCluster:
    """A cluster of either kind of following a job's processes."""
    if request.param == "cgroup" and not os.access("/sys/fs/cgroup/freezer", os.W_OK):
        pytest.skip("needs the freezer of cgroups, version 1")
    return clusters.get(request.param)


@pytest.fixture
def cluster(clusters: Clusters) -> SlurmCluster:
    return clusters.get("linuxproc")


@pytest.fixture
def slow(machine: int) -> Iterator[SlowSource]:
    """A source whose requests can be held up."""
    (STAGE / "slow").mkdir(exist_ok=True)
    with SlowSource(SOURCE, STAGE / "slow") as source:
        yield source


def reports(cluster: SlurmCluster, job: int, count: int = 2) -> list[dict[str, Any]]:
    """The reports of a job, one for each node, of user alice."""
    found = cluster.reports(job)
    assert len(found) == count, (os.listdir(cluster.job_dir), cluster.logs())
    assert {file.stat().st_uid for file in found} == {ALICE}
    return [json.loads(file.read_text()) for file in found]


def test_prolog_job_epilog(each: SlurmCluster, machine: int) -> None:
    job = each.submit(READ, f"--comment=nopfs={SOURCE} seed=42")
    each.wait_state(job, "COMPLETED")

    each.check_nothing_left(job)

    assert sorted(each.out(job).splitlines()) == sorted([str(machine), f"from /run/nopfs-jobs/{job}/data"] * 2)
    found = reports(each, job)
    assert [(one["final"], one["opens"]["total"], one["source"]) for one in found] == [(True, FILES, str(SOURCE))] * 2
    assert [one["policy"]["job_nodes"] for one in found] == [2, 2]


def test_scancel_while_readers_read(each: SlurmCluster) -> None:
    job = each.submit(READ_ON, f"--comment=nopfs={SOURCE}")
    each.wait_said(job, "began\nbegan")

    each.run(f"scancel {job}")
    each.wait_state(job, "CANCELLED")

    each.check_nothing_left(job)
    assert [one["final"] for one in reports(each, job)] == [True, True]


def test_a_job_that_mounts_by_itself(each: SlurmCluster, machine: int) -> None:
    job = each.submit_file(
        SCRIPTS / "job_without_root.sh", str(SOURCE), "sh", "-c", 'cat "$NOPFS_DATA"/*/*.jpg | wc -c; echo $NOPFS_DATA'
    )
    each.wait_state(job, "COMPLETED")

    each.check_nothing_left(job)

    assert sorted(each.out(job).split()).count(f"/run/nopfs-jobs/{job}/user") == 2, each.out(job)
    found = reports(each, job)
    assert [(one["final"], one["opens"]["total"]) for one in found] == [(True, FILES)] * 2
    assert [one["policy"]["job_nodes"] for one in found] == [2, 2]


def test_scancel_of_a_job_that_mounts_by_itself(each: SlurmCluster) -> None:
    job = each.submit_file(
        SCRIPTS / "job_without_root.sh", str(SOURCE), "sh", "-c",
        'echo began; while :; do cat "$NOPFS_DATA"/*/*.jpg >/dev/null || exit; done',
    )  # fmt: skip
    each.wait_said(job, "began\nbegan")

    each.run(f"scancel {job}")
    each.wait_state(job, "CANCELLED")

    each.check_nothing_left(job)
    assert len(reports(each, job)) == 2


def test_a_job_whose_mounts_fail_reads_the_source(cluster: SlurmCluster) -> None:
    job = cluster.submit_file(SCRIPTS / "job_without_root.sh", "/none/such", "sh", "-c", 'echo "reads $NOPFS_DATA"')
    cluster.wait_state(job, "COMPLETED")

    cluster.check_nothing_left(job)

    assert cluster.out(job).count("reads /none/such") == 2
    assert "nopfs: no mount, reading /none/such" in cluster.out(job)


@pytest.mark.mpi
def test_one_cache_for_all_nodes(cluster: SlurmCluster) -> None:
    """Each file has its home on one of the nodes."""
    if "pmix" not in cluster.run("srun --mpi=list 2>&1"):
        pytest.skip("this Slurm has no PMIx: apt-get install libpmix-dev")
    mpi = environment("openmpi")
    mpi |= {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo", "PATH": f"{mpi['PATH']}:/usr/bin:/bin"}
    mpi["NOPFS_MPI"] = "pmix"
    job = cluster.submit_file(
        SCRIPTS / "job_without_root.sh", str(SOURCE), "sh", "-c", 'cat "$NOPFS_DATA"/*/*.jpg | wc -c; sleep 2', env=mpi
    )
    cluster.wait_state(job, "COMPLETED")

    cluster.check_nothing_left(job)

    found = reports(cluster, job)
    assert [one["peers"]["nodes"] for one in found] == [2, 2], cluster.out(job)
    assert sum(one["peers"]["homes_here"] for one in found) == FILES


def kill(role: str) -> None:
    """Kill these processes of all mounts."""
    for line in processes_of_mounts():
        if role in line:
            pid = int(line.partition(":")[0])
            process = Process(role, pid, start_time(pid) or 0)
            process.signal(signal.SIGKILL)


@pytest.mark.parametrize("role", ["nopfsfs.stager", "nopfsfs.server", "nopfsfs.supervisor", "nopfsfs."])
def test_processes_of_the_mount_are_killed(cluster: SlurmCluster, role: str) -> None:
    """All of them at last: readers fail, and the node stays."""
    job = cluster.submit(READ_ON.replace("|| exit", "|| sleep 1"), f"--comment=nopfs={SOURCE}")
    cluster.wait_said(job, "began\nbegan")
    kill(role)
    cluster.run(f"scancel {job}")
    cluster.wait_state(job, "CANCELLED")

    cluster.check_nothing_left(job)

    lasting = role in ("nopfsfs.stager", "nopfsfs.server")
    assert [one["final"] for one in reports(cluster, job)] == [lasting] * 2


@pytest.mark.slow
def test_a_requeue(cluster: SlurmCluster) -> None:
    job = cluster.submit(READ_ON, f"--comment=nopfs={SOURCE}", "--requeue")
    cluster.wait_said(job, "began\nbegan")
    cluster.run(f"scontrol requeue {job}")
    assert wait_until(lambda: cluster.state(job) == "PENDING", 30), cluster.logs()
    cluster.check_nothing_left(job)
    assert len(reports(cluster, job)) == 2

    # Slurm waits two minutes, for as long as nodes remember the job: before, they would run no Prolog for it.
    cluster.wait_state(job, "RUNNING", limit_s=200)
    cluster.wait_said(job, "began\nbegan")
    cluster.run(f"scancel {job}")

    cluster.check_nothing_left(job)
    assert [file.stem for file in cluster.reports(job)] == [
        f"nopfs-{job}-{node}{again}" for node in ("n1", "n2") for again in ("-restart1", "")
    ]


def test_a_source_that_does_not_answer_in_the_epilog(cluster: SlurmCluster, slow: SlowSource) -> None:
    """Readers sleep in the kernel until their reads of the source fail, by --io-timeout."""
    slow.stall("read")
    job = cluster.submit(READ_ON, f"--comment=nopfs={STAGE}/slow")
    cluster.wait_said(job, "began\nbegan")
    slow.wait_stalled()  # of one node: the other waits for the same page
    slow.stall("any")
    cluster.run(f"scancel {job}")
    cluster.wait_state(job, "CANCELLED")

    try:
        cluster.check_nothing_left(job)
        assert len(reports(cluster, job)) == 2
    finally:
        slow.release()


def test_a_source_that_is_not_there_costs_the_job_nothing(cluster: SlurmCluster) -> None:
    job = cluster.submit("srun --mpi=none sh -c 'echo from $NOPFS_DATA'", "--comment=nopfs=/none/such")
    cluster.wait_state(job, "COMPLETED")

    cluster.check_nothing_left(job)

    assert cluster.out(job).count("from /none/such") == 2
    assert "nopfs: no mount, reading /none/such: nopfs-mount: the source /none/such does not exist" in cluster.out(job)
    assert cluster.reports(job) == []


@contextmanager
def settings(more: str) -> Iterator[None]:
    """The site's file with further lines."""
    file = Path("/etc/nopfs/slurm.conf")
    file.write_text(SITE + more)
    try:
        yield
    finally:
        file.write_text(SITE)


@pytest.mark.parametrize("fault", ["OPTIONS=(--ram 64G", "exit 0", "exit 3", "${NONE?}"])
def test_a_fault_in_the_settings_costs_the_job_its_mount_and_no_more(cluster: SlurmCluster, fault: str) -> None:
    with settings(f"{fault}\n"):
        job = cluster.submit("srun --mpi=none sh -c 'echo from $NOPFS_DATA'", f"--comment=nopfs={SOURCE}")
        cluster.wait_state(job, "COMPLETED")

        cluster.check_nothing_left(job)
        other = cluster.submit("srun --mpi=none sh -c 'echo from $NOPFS_DATA'")
        cluster.wait_state(other, "COMPLETED")
        cluster.check_nothing_left(other)

    assert "nopfs: no mount: /etc/nopfs/slurm.conf is not taken" in cluster.out(other), "as it may name a source"
    assert cluster.out(job).count(f"from {SOURCE}\n") == 2, cluster.out(job)
    assert f"nopfs: no mount, reading {SOURCE}: /etc/nopfs/slurm.conf is not taken" in cluster.out(job)


def test_the_next_job_of_a_user_starts_warm(cluster: SlurmCluster) -> None:
    newest = max(path.stat().st_ctime for path in SOURCE.rglob("*.jpg"))
    assert wait_until(lambda: time.time() - newest > LOCAL_S, LOCAL_S + 10), "a data set is older"
    scratch = STAGE / "scratch"
    sh(f"mkdir {scratch}; chmod 1777 {scratch}")
    kept = f"{scratch}/nopfs-cache-{ALICE}/v1/sources/*/??/*-*"
    read = "cat $NOPFS_DATA/*/*.jpg >/dev/null; sleep 0.2"
    until = f"until [ $(ls -d {kept} | grep -cv [.]) -ge {FILES} ]; do {read}; done"
    with settings(f'AS_USER=yes\nOPTIONS="--ram 64M --disk {scratch}:100M"\n'):
        for script in f"srun --mpi=none timeout 60 sh -c '{until}'", READ:
            job = cluster.submit(script, f"--comment=nopfs={SOURCE} seed=42")
            cluster.wait_state(job, "COMPLETED")
            cluster.check_nothing_left(job)
    found = reports(cluster, job)
    assert [(one["final"], one["opens"]["total"]) for one in found] == [(True, FILES)] * 2
    assert all(one["stager"]["source_opens"] <= by_choice([one]) for one in found), found
    assert [one["direct_reads"] for one in found] == [0] * 2


@pytest.mark.parametrize("comment", ["nopfs=relative", "nopfs=/pfs;touch${IFS}/srv/home/bad", "nopfs=$(id)", ""])
def test_a_comment_reaches_no_shell_of_root(cluster: SlurmCluster, comment: str) -> None:
    job = cluster.submit("true", f"--comment={comment}")
    cluster.wait_state(job, "COMPLETED")

    cluster.check_nothing_left(job)
    assert not (Path("/srv/home") / "bad").exists()


@pytest.mark.slow
def test_a_job_at_its_time_limit(cluster: SlurmCluster) -> None:
    job = cluster.submit(READ_ON, f"--comment=nopfs={SOURCE}", "--time=1")
    cluster.wait_state(job, "TIMEOUT", limit_s=150)

    cluster.check_nothing_left(job)
    assert [one["final"] for one in reports(cluster, job)] == [True, True]


def test_twenty_jobs_one_after_the_other(cluster: SlurmCluster, machine: int) -> None:
    for _ in range(20):
        job = cluster.submit(READ, f"--comment=nopfs={SOURCE} seed=42")
        cluster.wait_state(job, "COMPLETED")
        assert cluster.out(job).split().count(str(machine)) == 2, cluster.out(job)
        assert len(reports(cluster, job)) == 2
    cluster.check_nothing_left(job)


def test_the_epilog_may_run_twice_and_where_no_prolog_ran(cluster: SlurmCluster) -> None:
    for _ in range(2):
        assert sh(f"SLURM_JOB_ID=999 {SCRIPTS}/epilog.sh; echo $?") == "0\n"
    assert sh(f"SLURM_JOB_ID=../x {SCRIPTS}/epilog.sh; echo $?") == "0\n"
