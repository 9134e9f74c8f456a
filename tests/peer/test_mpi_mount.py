"""Real ranks under both MPI implementations: one machine, a mount for each rank."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from mpirun import environment, mpirun, of_each_rank, ranks_of
from slow_source import SlowSource

from nopfsfs.dataset.tree_scan import scan
from nopfsfs.errors import Exit
from nopfsfs.fuse.mount_table import abort_connection, find_mount
from nopfsfs.fuse.mounting import unmount
from nopfsfs.peer.shared_scan import LOOKED_AT
from nopfsfs.system.proc import is_stopped
from tests.conftest import remove_state, slow, state_dirs_at
from tests.mount import harness
from tests.mount.modes import why_not
from tests.peer.implementations import BOTH
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.mount,
    pytest.mark.mpi,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

LIMIT_S = 40.0


@pytest.fixture(params=BOTH)
def implementation(request: pytest.FixtureRequest) -> str:
    """Each MPI implementation."""
    name: str = request.param
    return name


@dataclass
class Job:
    """An mpirun of nopfs-mount; ended, with its mounts, whatever the test did."""

    process: subprocess.Popen[str]
    mountpoints: list[Path]
    mark: str
    output: Path

    def wait(self) -> None:
        """Until all mounts answer, by the command itself; unless mpirun ends."""
        wait_until(lambda: self.process.poll() is not None or len(self.mounted()) == len(self.mountpoints), LIMIT_S)
        assert self.process.poll() is None, self.output.read_text()
        self.on_each("nopfs", "wait", after=["--timeout", str(LIMIT_S)])

    def umount(self) -> None:
        self.on_each("umount")

    def on_each(self, name: str, *words: str, after: Sequence[str] = ()) -> None:
        """Run a command on all mountpoints at once."""
        argv = [[*harness.module(name), *words, str(path), *after] for path in self.mountpoints]
        with ThreadPoolExecutor(len(argv)) as pool:
            for done in pool.map(lambda line: harness.run(line, 2 * LIMIT_S), argv):
                assert done.returncode == 0, (done.stderr, self.output.read_text())

    def mounted(self) -> list[Path]:
        return [path for path in self.mountpoints if find_mount(str(path)) is not None]

    def ranks(self) -> dict[int, int]:
        return ranks_of(self.mark)

    def status(self) -> int:
        """With which it ended."""
        return self.process.wait(LIMIT_S)

    def said(self) -> list[str]:
        """The lines of nopfs-mount, of all ranks."""
        return [line for line in self.output.read_text().splitlines() if line.startswith("nopfs-mount: ")]

    def assert_gone(self) -> None:
        """Nothing of it is left."""
        assert wait_until(lambda: not self.mounted(), LIMIT_S), self.mounted()
        assert wait_until(lambda: not marked(self.mark), LIMIT_S), marked(self.mark)
        assert [state for path in self.mountpoints for state in state_dirs_at(path)] == []


def marked(mark: str) -> list[int]:
    """The pids of all processes of a job, its mounts' among them."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if mark.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                found.append(int(entry))
    return found


def waits_for(pid: int, number: signal.Signals) -> bool:
    """Whether a signal was sent to a process that has not taken it; so it is with one that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(mask >> (number - 1) & 1 for mask in pending)


Jobs = Callable[..., Job]


@pytest.fixture
def job(implementation: str, tmp_path: Path) -> Iterator[Jobs]:
    """Return a function that starts ranks: with the same words; or each with words of its own at the end (`each`), or
    in front (`first`)."""
    made: list[Job] = []

    def start(
        n: int,
        source: Path | list[Path],
        *flags: str,
        each: list[list[str]] | None = None,
        first: list[list[str]] | None = None,
        mountpoint: Path = tmp_path / "mnt{rank}",
        env: dict[str, str] | None = None,
    ) -> Job:
        mountpoints = [tmp_path / f"mnt{rank}" for rank in range(n)]
        for path in mountpoints:
            path.mkdir(exist_ok=True)
        common = ["--index-dir", str(tmp_path / "index"), "--log-file", str(tmp_path / "log"), "--ram", "64M", *flags]
        sources = source if isinstance(source, list) else [source] * n
        lines = [
            [*before, *harness.module("mount"), str(path), str(mountpoint), *common, *own]
            for path, own, before in zip(sources, each or [[]] * n, first or [[]] * n, strict=True)
        ]
        argv = lines[0] if lines == [lines[0]] * n else of_each_rank(lines)
        mark = uuid.uuid4().hex
        output = tmp_path / f"output{len(made)}"
        given = {harness.TEST_ID: mark, **(env or {})}
        with output.open("w") as file:
            process = mpirun(implementation, n, argv, given, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        made.append(Job(process, mountpoints, mark, output))
        return made[-1]

    yield start
    for each in made:
        clear(each)


def clear(job: Job) -> None:
    if job.process.poll() is None:
        job.process.kill()
    job.process.wait(LIMIT_S)
    for path in job.mounted():
        found = find_mount(str(path))
        if found is not None:
            abort_connection(found.minor)
            with suppress(Exception):
                unmount(found, lazy=True)
    for pid in marked(job.mark):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for path in job.mountpoints:
        remove_state(path)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A data set of 40 files in 8 directories."""
    path = tmp_path / "source"
    for number, data in enumerate(contents()):
        file = path / f"class{number % 8}" / f"{number}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return path


def contents() -> list[bytes]:
    return [harness.content(number + 1, 1000 + number) for number in range(40)]


def read_all(path: Path) -> None:
    """Every byte, by another process, which may hang in the place of this one."""
    code = (
        "import pathlib, sys\n"
        "for n in range(40): print(pathlib.Path(sys.argv[1], f'class{n % 8}', f'{n}.bin').read_bytes().hex())"
    )
    done = harness.run([sys.executable, "-c", code, str(path)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [data.hex() for data in contents()]


@contextmanager
def counting(source: Path) -> Iterator[SlowSource]:
    with SlowSource(source) as counted:
        yield counted


def test_four_ranks_scan_once_mount_and_end_with_their_mounts(job: Jobs, source: Path) -> None:
    with counting(source) as counted:
        scan(str(counted.path))
        alone = counted.counters()
        counted.reset()

        started = job(4, counted.path, "--recheck", "no")  # with a seed, it would begin to fetch
        started.wait()

        seen = counted.counters()
        files = [f"class{number % 8}/{number}.bin" for number in range(40)]
        directories = ["", *(f"class{number}" for number in range(8))]
        assert all(seen.listings[path] == 1 for path in directories)
        # Looks at a file are those of one scan. A few more at directories: each rank compares up to 64, and checks its
        # source before.
        assert {path: seen.looks[path] for path in files} == {path: alone.looks[path] for path in files}
        more = sum(seen.looks.get(path, 0) - alone.looks.get(path, 0) for path in directories[1:])
        assert more <= 4 * 4 * min(LOOKED_AT, len(directories))

        for path in started.mountpoints:
            read_all(path)
        records = [harness.run([*harness.module("nopfs"), "status", str(p), "--json"]) for p in started.mountpoints]
        assert all(record.returncode == 0 for record in records)
        assert started.process.poll() is None  # it stays
        started.umount()
        assert started.status() == 0, started.output.read_text()
        assert started.output.read_text() == ""
        started.assert_gone()


@pytest.mark.slow
def test_a_second_time_with_the_index_that_was_kept(job: Jobs, source: Path) -> None:
    for path in (source, *source.iterdir()):
        os.utime(path, (1e9, 1e9))
    harness.run(["sleep", "3.1"])  # a directory that changed a moment ago is listed again
    for expected in (1, 0):
        with counting(source) as counted:  # at one path, or it is another source
            link = source.parent / "link"
            link.mkdir(exist_ok=True)
            subprocess.run(["mount", "--bind", counted.path, link], check=True)
            try:
                started = job(2, link)
                started.wait()
                listings = counted.counters().listings
                assert [listings.get(f"class{number}", 0) for number in range(8)] == [expected] * 8
                started.umount()
                assert started.status() == 0
            finally:
                subprocess.run(["umount", link], check=True)


def apart(script: str) -> list[str]:
    """Words that run what follows in a mount namespace of its own, after a script."""
    return ["unshare", "--mount", "sh", "-c", f'{script} && exec "$@"', "sh"]


in_a_namespace = pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to make mount namespaces")


def refused(started: Job, code: Exit, message: str) -> None:
    """It ends, with one line, and nothing is mounted."""
    assert started.status() != 0
    assert [line for line in started.said() if message in line] == started.said()
    assert len(started.said()) == 1, started.output.read_text()
    started.assert_gone()


def test_ranks_with_different_seeds_refuse(job: Jobs, source: Path) -> None:
    started = job(3, source, each=[["--seed", "42"], ["--seed", "43"], ["--seed", "42"]])

    refused(started, Exit.USAGE, "has --seed 43, rank 0 ")


def test_ranks_with_different_sources_refuse(job: Jobs, source: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()

    started = job(2, [source, tmp_path / "other"])

    refused(started, Exit.USAGE, f"has the source {tmp_path / 'other'}, rank 0 ")


@in_a_namespace
def test_a_rank_that_sees_another_tree_at_the_same_path(job: Jobs, source: Path, tmp_path: Path) -> None:
    """As where one node has another file system mounted there."""
    shutil.copytree(source, tmp_path / "other")

    started = job(3, source, first=[[], apart(f"mount --bind '{tmp_path}/other' '{source}'"), []])

    refused(started, Exit.SOURCE, " sees another tree than rank ")


def test_one_place_for_two_ranks(job: Jobs, source: Path, tmp_path: Path) -> None:
    started = job(2, source, mountpoint=tmp_path / "mnt0")

    refused(started, Exit.USAGE, "ranks 0 and 1 both run on ")


def test_a_busy_mountpoint_ends_all(job: Jobs, source: Path, tmp_path: Path) -> None:
    (tmp_path / "mnt1").mkdir()
    (tmp_path / "mnt1/file").touch()

    started = job(3, source)

    refused(started, Exit.MOUNTPOINT, "rank 1: the mountpoint ")
    assert started.process.returncode in (Exit.MOUNTPOINT, 1)


@pytest.mark.long
@in_a_namespace
def test_a_mount_that_does_not_start_ends_all(job: Jobs, source: Path) -> None:
    started = job(3, source, first=[[], [], apart("mount --bind /dev/null /dev/fuse")])

    refused(started, Exit.MOUNTPOINT, "rank 2: cannot mount at ")


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read as another user")
def test_a_source_that_only_another_user_may_read(job: Jobs, open_to_all: Path, source: Path) -> None:
    """Messages of a process that is another user for a while: large ones are read from its memory. Its threads stay
    that user while it tells the others that it scans."""
    for number in range(700):
        (source / "class1" / f"{number:0100}").touch()
        (source / "class2" / str(number)).mkdir()
    for path in (source, *source.rglob("*")):
        os.chown(path, 65534, 65534)
        path.chmod(0o700 if path.is_dir() else 0o600)
    with SlowSource(source, open_to_all / "squashed", root_squash=True) as squashed:
        started = job(3, squashed.path, "--user", "65534")
        started.wait()
        read_all(started.mountpoints[2])
        started.umount()
        assert started.status() == 0, started.output.read_text()
        assert "left out" not in started.output.read_text()
        started.assert_gone()


@pytest.mark.parametrize("implementation", ["mpich"])  # MPICH's library ends by itself, with its own words
def test_the_mpi_of_another_launcher(job: Jobs, source: Path) -> None:
    started = job(2, source, env={"MPI4PY_LIBMPI": environment("openmpi")["MPI4PY_LIBMPI"]})

    refused(started, Exit.START, "2 processes were started, but MPI (")


@pytest.mark.parametrize("implementation", ["mpich"])
def test_no_mpi_that_can_be_loaded(job: Jobs, source: Path) -> None:
    started = job(2, source, env={"MPI4PY_LIBMPI": "/nowhere/libmpi.so"})

    refused(started, Exit.START, "mpi4py cannot load MPI (cannot load MPI library); name the libmpi.so ")


def test_sigterm_to_mpirun_unmounts_all(job: Jobs, source: Path, implementation: str) -> None:
    started = job(3, source)
    started.wait()

    started.process.send_signal(signal.SIGTERM)

    # Now and then Open MPI's mpirun crashes when all has ended (open-mpi/ompi#13650).
    assert started.status() in {"mpich": (0,), "openmpi": (1, -signal.SIGSEGV)}[implementation]
    started.assert_gone()


@pytest.mark.parametrize("mounted", [1, slow(2), slow(3)])
def test_sigterm_to_mpirun_while_it_mounts_leaves_no_mount(job: Jobs, source: Path, mounted: int) -> None:
    started = job(3, source)
    assert wait_until(lambda: len(started.mounted()) >= mounted, LIMIT_S)

    started.process.send_signal(signal.SIGTERM)

    started.status()
    started.assert_gone()
    assert all("told to end" in line for line in started.said()), started.said()


def test_sigterm_to_mpirun_while_ranks_wait_for_another_leaves_nothing(job: Jobs, source: Path) -> None:
    """A rank that waits for a stopped one tells the others before it ends: else MPI would kill them in the midst."""
    started = job(3, source)
    assert wait_until(lambda: all(state_dirs_at(path) for path in started.mountpoints), LIMIT_S)
    stopped = started.ranks()[1]
    os.kill(stopped, signal.SIGSTOP)
    assert wait_until(lambda: is_stopped(stopped), LIMIT_S)

    started.process.send_signal(signal.SIGTERM)

    assert wait_until(lambda: waits_for(stopped, signal.SIGTERM), LIMIT_S)
    with suppress(ProcessLookupError):
        os.kill(stopped, signal.SIGCONT)  # Open MPI does that itself
    started.status()
    started.assert_gone()


@pytest.mark.long
def test_sigterm_to_a_rank_unmounts_its_own(job: Jobs, source: Path) -> None:
    started = job(3, source)
    started.wait()

    os.kill(started.ranks()[1], signal.SIGTERM)

    assert wait_until(lambda: len(started.mounted()) == 2, LIMIT_S)
    for rank in (0, 2):
        read_all(started.mountpoints[rank])
    started.mountpoints.pop(1)
    started.umount()
    assert started.status() == 0
    started.assert_gone()


@pytest.mark.long
@pytest.mark.parametrize("whom", ["a rank", slow("mpirun")])
def test_the_end_of_mpi_ends_no_mount(job: Jobs, source: Path, whom: str) -> None:
    started = job(3, source)
    started.wait()
    ranks = started.ranks()
    assert sorted(ranks) == [0, 1, 2]

    os.kill(started.process.pid if whom == "mpirun" else ranks[1], signal.SIGKILL)

    assert started.status() != 0
    assert wait_until(lambda: not (set(ranks.values()) & set(marked(started.mark))), LIMIT_S)
    for path in started.mountpoints:
        read_all(path)
    started.umount()
    started.assert_gone()


@pytest.mark.long
def test_the_mount_keeps_no_pipe_of_mpirun_open(job: Jobs, source: Path) -> None:
    started = job(2, source)
    started.wait()
    ours = {os.readlink(f"/proc/{pid}/fd/{n}") for pid in started.ranks().values() for n in (0, 1, 2)}

    for pid in set(marked(started.mark)) - set(started.ranks().values()) - {started.process.pid}:
        if b"nopfsfs.control" in Path(f"/proc/{pid}/cmdline").read_bytes():
            fds = {os.readlink(f"/proc/{pid}/fd/{n}") for n in (0, 1, 2)}
            assert fds == {os.devnull}
            assert not fds & (ours - {os.devnull})
            assert os.getsid(pid) == pid

    started.umount()
    assert started.status() == 0
