"""Files on disk that the kernel reads by itself: right bytes, and never a failed open, whoever dies and whatever
changes meanwhile."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from nopfsfs.control.client import call
from nopfsfs.control.process_list import living, read_pids
from nopfsfs.fuse.connection import PASSES_FROM
from tests.conftest import place_for_all, slow
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, Reader, content, module, mounted, read_all, run, write
from tests.mount.readers import digest
from tests.mount.reading import are_reading, comparing
from tests.waiting import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.timeout(260)]

COUNT = 40
SIZE = 300_000
HANGS_S = 240.0
GONE = ("--disk-keep", "no")  # copies end with their mount
ON = ("--passthrough", "on", "--ram", "4M")
SAYS_SO = "are passed through to disk"


def name(number: int) -> str:
    return f"class{number % 4}/{number:05}.npy"


@pytest.fixture(scope="module", autouse=True)
def _possible(tmp_path_factory: pytest.TempPathFactory) -> None:
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release < (6, 9) or os.geteuid() != 0:
        pytest.skip("needs Linux 6.9, and root")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 MB, of which 4 MB of memory hold a part."""
    root = place_for_all(tmp_path_factory, "data") / "source"
    write(root, {name(number): content(number + 1, SIZE + 4096 * number + number) for number in range(COUNT)})
    return root


@pytest.fixture
def mounting(tmp_path: Path) -> Mounting:
    """With time for many deaths."""
    return partial(mounted, work=tmp_path, hangs_s=HANGS_S)


@pytest.fixture(params=["real", slow("tmpfs")])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    if request.param == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(path)], check=True)
    yield path
    if request.param == "tmpfs":
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def real_disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk"
    path.mkdir()
    return path


def on_disk(m: Mounted) -> list[int]:
    return [n for n in range(COUNT) if b"disk" in os.getxattr(m.path / name(n), "user.nopfs.tiers").split(b",")]


def settle(m: Mounted, passing: int | None = None) -> list[int]:
    """Read all until what has its home on disk is there, and `passing` of it (all) are passed through; the numbers of
    the files that are there. One that the page cache holds may come there later, when it is dropped."""
    found: list[int] = []

    def settled() -> bool:
        count = passed(m, lambda: read_all(m, readers=1))
        before, found[:] = list(found), on_disk(m)
        return bool(found) and before == found and count >= (len(found) if passing is None else passing)

    assert wait_until(settled, 60)
    return found


def passed(m: Mounted, action: Callable[[], object]) -> int:
    """How many opens were served from disk while `action` ran."""
    before = m.status()["served"]["disk"]["files"]
    action()
    return int(m.status()["served"]["disk"]["files"] - before)


def test_files_on_disk_are_read_there_by_the_kernel(mounting: Mounting, data: Path, disk: Path) -> None:
    with mounting(data, *ON, "--disk", f"{disk}:100M", *GONE, disks=[disk]) as m:
        assert len(settle(m)) > COUNT // 2

        def all_are_passed() -> bool:
            there = on_disk(m)
            count = passed(m, lambda: read_all(m, readers=4, rounds=2))
            return on_disk(m) == there and count == 4 * 2 * len(there)

        assert wait_until(all_are_passed, 60)
        there, after = on_disk(m), m.status()
        assert sum(tier["files"] for tier in after["served"].values()) == after["opens"]["total"]
        copies = [copy for copy in disk.glob(".nopfs-tier-*/copies/*/*") if copy.name.isdigit()]
        assert len(copies) == len(there)
        for copy in copies:
            copy.unlink()  # the kernel holds them
        read_all(m)
        assert SAYS_SO in m.log.read_text()


@pytest.mark.long
def test_of_files_in_memory_nothing_changes(mounting: Mounting, data: Path, real_disk: Path) -> None:
    with mounting(data, "--passthrough", "on", "--disk", f"{real_disk}:100M", *GONE, disks=[real_disk]) as m:
        read_all(m, rounds=3)
        assert m.status()["served"]["disk"]["files"] == 0


@pytest.mark.long
def test_by_itself_only_large_files_are_passed_through(mounting: Mounting, tmp_path: Path, real_disk: Path) -> None:
    files = {name(n): content(n + 1, PASSES_FROM + (n if n % 2 else -1 - n)) for n in range(COUNT)}
    write(tmp_path / "source", files)
    with mounting(tmp_path / "source", "--ram", "16M", "--disk", f"{real_disk}:200M", *GONE, disks=[real_disk]) as m:
        there = settle(m, 1)
        copies = {copy.stat().st_size for copy in real_disk.glob(".nopfs-tier-*/copies/*/*")}
        large = [n for n in there if n % 2]
        assert large
        assert len(copies) == len(there)

        def read_large() -> None:
            for n in large:
                assert (m.path / name(n)).read_bytes() == files[name(n)]

        assert wait_until(lambda: passed(m, read_large) == len(large), 60)  # each is registered when it is written out
        for copy in real_disk.glob(".nopfs-tier-*/copies/*/*"):
            copy.unlink()
        assert passed(m, read_large) == len(large), "the others are not there any more"
        read_all(m)


@pytest.mark.long
@pytest.mark.parametrize("flags", [
    slow(["--passthrough", "off"]), ["--passthrough", "on", "--no-fast-path"], ["--passthrough", "on", "NOPFS_WITHOUT"],
])  # fmt: skip
def test_without(
    mounting: Mounting, data: Path, real_disk: Path, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if flags[-1] == "NOPFS_WITHOUT":
        monkeypatch.setenv(flags.pop(), "passthrough")
    with mounting(data, *flags, "--ram", "4M", "--disk", f"{real_disk}:100M", *GONE, disks=[real_disk]) as m:
        read_all(m, rounds=3)
        assert m.status()["read_errors"] == 0
        assert SAYS_SO not in (m.log.read_text() if m.log.exists() else "")


@pytest.mark.long
def test_on_a_stacked_file_system_it_is_off(mounting: Mounting, data: Path, tmp_path: Path) -> None:
    parts = {part: tmp_path / "overlay" / part for part in ("lower", "upper", "work", "disk")}
    for part in parts.values():
        part.mkdir(parents=True)
    tmpfs = ["mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "overlay")]
    subprocess.run(tmpfs, check=True)
    try:
        for part in parts.values():
            part.mkdir(parents=True)
        options = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
        mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(parts["disk"])]
        if subprocess.run(mount, check=False).returncode:
            pytest.skip("no overlayfs here")
        try:
            with mounting(data, *ON, "--disk", f"{parts['disk']}:100M", *GONE, disks=[parts["disk"]]) as m:
                settle(m, 0)
                read_all(m, rounds=2)
                assert m.log.read_text().count("passthrough is off for disk tier") == 1
        finally:
            subprocess.run(["umount", str(parts["disk"])], check=True)
    finally:
        subprocess.run(["umount", str(tmp_path / "overlay")], check=True)


@pytest.mark.long
def test_as_another_user_the_right_is_kept_for_this_alone(
    mounting: Mounting, open_to_all: Path, data: Path, real_disk: Path
) -> None:
    source = open_to_all / "source"
    subprocess.run(["cp", "-r", str(data), str(source)], check=True)
    subprocess.run(["chmod", "-R", "a+rX", str(source)], check=True)
    with mounting(source, *ON, "--user", "nobody", "--disk", f"{real_disk}:100M", *GONE, disks=[real_disk]) as m:
        there = settle(m)
        assert passed(m, lambda: read_all(m, readers=1)) >= len(there), "others may have been registered meanwhile"
        effective = {}
        for task in Path(f"/proc/{m.pid('stager')}/task").iterdir():
            fields = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            assert fields["Uid"].split() == ["65534"] * 4
            effective[fields["Name"].strip(), task.name] = {int(fields[key], 16) for key in ("CapEff", "CapPrm")}
        rights = [right for right in effective.values() if right != {0}]
        assert rights == [{1 << 21}]


@pytest.mark.slow
def test_without_the_right_it_is_off(mounting: Mounting, data: Path, real_disk: Path, tmp_path: Path) -> None:
    """The stager of a mount that was taken over by a supervisor that has fewer rights."""
    with mounting(data, *ON, "--disk", f"{real_disk}:100M", *GONE, disks=[real_disk]) as m:
        m.errors_expected = True
        settle(m)
        m.kill("supervisor")
        assert wait_until(lambda: "supervisor" not in {p.role for p in living(read_pids(m.state_dir))})
        weak = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]
        done = run([*weak, *module("nopfs"), "adopt", str(m.path)], env={**os.environ, "NOPFS_TEST_ID": m.test_id})
        if done.returncode:
            pytest.skip(f"not to be tried here: {done.stderr}")
        stager = m.kill("stager")
        assert wait_until(lambda: any(p.role == "stager" and p.pid != stager for p in m.children()))
        settle(m, 0)  # copies are on disk again, and are read by the servers
        assert m.log.read_text().count("passthrough is off: the right") == 1
        assert m.status()["read_errors"] == 0
        assert run([*module("nopfs"), "upgrade", str(m.path)]).returncode == 0
        read_all(m)


@pytest.mark.long
def test_one_that_is_open_stays_in_its_mode(mounting: Mounting, data: Path, real_disk: Path) -> None:
    with mounting(data, *ON, "--disk", f"{real_disk}:100M", *GONE, disks=[real_disk]) as m:
        there = settle(m)
        n = there[0]
        path, right = m.path / name(n), digest((data / name(n)).read_bytes())
        with Reader("hold", path) as held:
            assert held.line() == 4096
            os.posix_fadvise(direct := os.open(path, os.O_RDONLY), 0, 0, os.POSIX_FADV_WILLNEED)  # READs all the same
            os.close(direct)
            direct = os.open(path, os.O_RDONLY | os.O_DIRECT)  # passed through, as the one that is open
            buffer = mmap.mmap(-1, 1 << 20)
            assert os.readv(direct, [buffer]) == right[0]
            assert digest(buffer[: right[0]]) == right
            os.close(direct)
            held.go()
            assert held.line() == right
        assert wait_until(lambda: passed(m, lambda: os.close(os.open(path, os.O_RDONLY))) == 1)

        direct = os.open(path, os.O_RDONLY | os.O_DIRECT)  # by the daemon
        with path.open("rb") as file:
            assert passed(m, lambda: digest(file.read())) <= 1
        assert passed(m, lambda: digest(path.read_bytes())) == 0
        assert digest(path.read_bytes()) == right
        os.close(direct)
        assert wait_until(lambda: passed(m, lambda: path.read_bytes()) == 1)


@pytest.mark.long
def test_a_mapping_outlives_its_handle(mounting: Mounting, data: Path, real_disk: Path) -> None:
    libc = ctypes.CDLL(None)
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
    with mounting(data, *ON, "--disk", f"{real_disk}:100M", *GONE, disks=[real_disk]) as m:
        for n in settle(m):
            path, right = m.path / name(n), (data / name(n)).read_bytes()
            with path.open("rb") as file:  # Python's own would keep the handle, too
                mapped = libc.mmap(None, len(right), mmap.PROT_READ, mmap.MAP_PRIVATE, file.fileno(), 0)
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
                assert path.read_bytes() == right == ctypes.string_at(mapped, len(right))
            finally:
                libc.munmap(mapped, len(right))


@pytest.mark.long
@pytest.mark.parametrize(("servers", "kills"), [("1", 8), slow("1", 20), slow("3", 20)])
def test_deaths(mounting: Mounting, data: Path, disk: Path, servers: str, kills: int) -> None:
    rng = random.Random(17)
    killed = 0
    flags = ["--servers", servers, "--seed", "42", "--disk", f"{disk}:100M", *GONE]
    with mounting(data, *ON, *flags, disks=[disk]) as m:
        m.errors_expected = True
        with comparing(m, readers=3, rounds="all", pause=0.002, limit_s=HANGS_S) as readers:
            while are_reading(readers) and killed < kills:
                processes = call(m.state_dir, "status")["processes"]
                if len(processes) == 2 + int(servers) and all(process["running"] for process in processes):
                    time.sleep(rng.uniform(0.0, 0.5))
                    living_now = m.children()  # none, when those were killed that there were a moment ago
                    killed += bool(living_now) and rng.choice(living_now).signal(signal.SIGKILL)
                time.sleep(0.02)
            assert are_reading(readers)
        assert killed == kills
        assert m.status()["read_errors"] == 0
        assert m.status()["served"]["disk"]["files"] > COUNT
        there = settle(m, 1)
        read_all(m)
        print(f"passed through in the end: {passed(m, lambda: read_all(m, readers=1))} of {len(there)}")


@pytest.mark.slow
def test_a_stager_that_dies_takes_its_copies_with_it_and_readers_go_on(
    mounting: Mounting, data: Path, real_disk: Path
) -> None:
    with mounting(data, *ON, "--disk", f"{real_disk}:100M", *GONE, disks=[real_disk]) as m:
        m.errors_expected = True
        there = settle(m)
        path, right = m.path / name(there[0]), digest((data / name(there[0])).read_bytes())
        with Reader("hold", path) as held:
            assert held.line() == 4096
            for _ in range(3):
                m.kill("stager")
                assert wait_until(lambda: all(p["running"] for p in m.status()["processes"]))
                assert digest(path.read_bytes()) == right, "as the one that is open"
                held.go("more")
                assert held.line() == right
                settle(m, 1)
            held.go("end")
            assert held.line() == "ended"
        settle(m, COUNT // 2)
        read_all(m)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["adopt", "upgrade"])
def test_a_mount_that_is_taken_over(mounting: Mounting, data: Path, real_disk: Path, how: str) -> None:
    with mounting(data, *ON, "--servers", "2", "--disk", f"{real_disk}:100M", *GONE, disks=[real_disk]) as m:
        m.errors_expected = True
        path = m.path / name(settle(m)[0])
        with Reader("hold", path) as held:
            assert held.line() == 4096
            with comparing(m, readers=2, rounds="all", pause=0.002) as readers:
                for _ in range(3):
                    if how == "adopt":
                        m.kill("supervisor")
                        assert wait_until(lambda: "supervisor" not in {p.role for p in living(read_pids(m.state_dir))})
                    done = run([*module("nopfs"), how, str(m.path)])
                    assert done.returncode == 0, done.stderr
                    time.sleep(1)
                assert are_reading(readers)
            held.go()
            assert held.line() == digest((data / path.relative_to(m.path)).read_bytes())
        settle(m, COUNT // 2)
        assert m.status()["read_errors"] == 0


@pytest.mark.long
def test_a_file_that_changed_is_read_anew_and_whoever_has_it_open_goes_on(
    mounting: Mounting, tmp_path: Path, data: Path, real_disk: Path
) -> None:
    source = tmp_path / "source"
    subprocess.run(["cp", "-a", str(data), str(source)], check=True)
    with mounting(source, *ON, "--disk", f"{real_disk}:100M", *GONE, disks=[real_disk]) as m:
        m.errors_expected = True
        n = settle(m)[0]
        path, old, new = m.path / name(n), (data / name(n)).read_bytes(), content(1000, SIZE + 77)
        with Reader("hold", path) as held:
            assert held.line() == 4096
            (source / name(n)).write_bytes(new)
            m.kill("stager")  # else nobody would look at the source
            assert wait_until(lambda: all(p["running"] for p in m.status()["processes"]))

            def outcome(data: bytes | None = None) -> bytes | int | None:
                try:
                    return path.read_bytes()
                except OSError as e:
                    return e.errno

            seen = {outcome() for _ in range(20)}
            assert seen <= {old, new, errno.ESTALE}
            held.go("more")
            assert held.line() == digest(old)
            held.go("end")
            assert held.line() == "ended"
        assert wait_until(lambda: outcome() == new)
        for _ in range(3):
            read_all(m)
        assert os.getxattr(path, "user.nopfs.version") == b"1"


@pytest.mark.long
def test_killed_readers_leave_no_count(mounting: Mounting, data: Path, real_disk: Path) -> None:
    with mounting(data, *ON, "--servers", "2", "--disk", f"{real_disk}:100M", *GONE, disks=[real_disk]) as m:
        there = settle(m)
        for _ in range(30):
            readers = [Reader("loop", m.path) for _ in range(3)]
            time.sleep(random.uniform(0.05, 0.2))
            for reader in readers:
                reader.process.kill()
                reader.process.wait()
                reader.__exit__()
        read_all(m)
        assert passed(m, lambda: read_all(m, readers=1)) >= len(there), "others may have been registered meanwhile"
