"""What memory there is, from /proc and cgroup trees of all kinds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nopfsfs.system.node_memory import Memory, give_back, measure

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine of 16 GiB with 8 GiB available, in no cgroup."""
    path = tmp_path / "proc"
    (path / "self").mkdir(parents=True)
    (path / "meminfo").write_text(
        f"MemTotal:       {16 * GIB // 1024} kB\nMemFree:  1 kB\n"
        f"MemAvailable:   {8 * GIB // 1024} kB\nHugePages_Total:  0\n"
    )
    (path / "self" / "cgroup").write_text("")
    return path


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    path = tmp_path / "cgroup"
    path.mkdir()
    return path


def v2(group: Path, limit: str, used: int, inactive: int = 0) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(limit + "\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\nmalformed\n")


def v1(group: Path, limit: int, used: int, inactive: int = 0) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (group / "memory.usage_in_bytes").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {inactive}\n")


def test_without_cgroups_it_is_the_machine_s(proc: Path, groups: Path) -> None:
    assert measure(proc, groups) == Memory(16 * GIB, 8 * GIB)


def test_without_a_cgroup_file_it_is_the_machine_s(proc: Path, groups: Path) -> None:
    (proc / "self" / "cgroup").unlink()
    assert measure(proc, groups) == Memory(16 * GIB, 8 * GIB)


def test_v2_the_limit_less_what_is_used_and_not_reclaimable(proc: Path, groups: Path) -> None:
    (groups / "cgroup.controllers").write_text("memory\n")
    (proc / "self" / "cgroup").write_text("0::/job/step\n")
    v2(groups / "job" / "step", str(4 * GIB), 3 * GIB, inactive=1 * GIB)
    assert measure(proc, groups) == Memory(4 * GIB, 2 * GIB)


def test_v2_the_tightest_group_above_counts(proc: Path, groups: Path) -> None:
    (groups / "cgroup.controllers").write_text("memory\n")
    (proc / "self" / "cgroup").write_text("0::/job/step/task\n")
    v2(groups / "job", str(2 * GIB), 1 * GIB)
    v2(groups / "job" / "step", "max", 1 * GIB)
    v2(groups / "job" / "step" / "task", str(4 * GIB), 10 * MIB)
    assert measure(proc, groups) == Memory(2 * GIB, 1 * GIB)


def test_v2_a_group_that_is_over_its_limit_has_nothing(proc: Path, groups: Path) -> None:
    (groups / "cgroup.controllers").write_text("memory\n")
    (proc / "self" / "cgroup").write_text("0::/\n")
    v2(groups, str(1 * GIB), 2 * GIB)
    assert measure(proc, groups) == Memory(1 * GIB, 0)


def test_v1_the_memory_controller_s_limit(proc: Path, groups: Path) -> None:
    (proc / "self" / "cgroup").write_text("9:cpu,cpuacct:/x\n5:memory:/slurm/job\n1:name=systemd:/x\n")
    v1(groups / "memory" / "slurm" / "job", 4 * GIB, 1 * GIB, inactive=512 * MIB)
    assert measure(proc, groups) == Memory(4 * GIB, 3 * GIB + 512 * MIB)


def test_v1_no_limit_is_a_huge_number(proc: Path, groups: Path) -> None:
    (proc / "self" / "cgroup").write_text("5:memory:/\n")
    v1(groups / "memory", 0x7FFFFFFFFFFFF000, 1 * GIB)
    assert measure(proc, groups) == Memory(16 * GIB, 8 * GIB)


def test_hybrid_hierarchies_are_looked_at_both(proc: Path, groups: Path) -> None:
    (proc / "self" / "cgroup").write_text("5:memory:/job\n0::/job\n")
    v1(groups / "memory" / "job", 6 * GIB, 0)
    v2(groups / "unified" / "job", str(3 * GIB), 0)
    assert measure(proc, groups) == Memory(3 * GIB, 3 * GIB)


@pytest.mark.parametrize("text", ["nonsense\n", "0:/\n", "::\n", "0::/gone\n"])
def test_what_cannot_be_understood_does_not_limit(proc: Path, groups: Path, text: str) -> None:
    (proc / "self" / "cgroup").write_text(text)
    assert measure(proc, groups) == Memory(16 * GIB, 8 * GIB)


def test_files_that_cannot_be_understood_do_not_limit(proc: Path, groups: Path) -> None:
    (groups / "cgroup.controllers").write_text("memory\n")
    (proc / "self" / "cgroup").write_text("0::/job\n")
    v2(groups / "job", "plenty", 5)
    assert measure(proc, groups) == Memory(16 * GIB, 8 * GIB)


def test_this_machine_has_some() -> None:
    found = measure()
    assert 0 <= found.available <= found.total
    assert found.total > 0


def test_memory_that_was_freed_is_given_back() -> None:
    """Small pieces, of which the last is kept: the C library would keep them all."""
    pieces = [bytes(5000) for _ in range(20_000)]
    del pieces[:-1]
    before = resident()
    give_back()
    assert resident() < before - 10_000
    assert pieces == [bytes(5000)]


def resident() -> int:
    """Pages."""
    return int(Path("/proc/self/statm").read_text().split()[1])


_THREADS = """
import ctypes, sys, threading
from nopfsfs.system.node_memory import share_heap
if sys.argv[1] == "shared":
    share_heap()
libc, barrier = ctypes.CDLL(None), threading.Barrier(8)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
def allocate():
    barrier.wait()
    for _ in range(20):
        libc.malloc(50_000)
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
file = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.parametrize("kind", ["shared", "apart"])
def test_threads_share_a_heap(kind: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", _THREADS, kind], capture_output=True, text=True, check=True, timeout=30
    )
    heaps = told.stdout.count("<heap nr=")
    assert heaps == 1 if kind == "shared" else heaps > 1
