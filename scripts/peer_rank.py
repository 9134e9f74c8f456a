#!/usr/bin/env python3
"""A rank of the benchmark of peers: bench_peer.py starts two of them under mpirun. In turn, so many times, a plain
ping-pong between the two, and fetches through the product's own peer process, which this process is meanwhile; what
stands for the mount is a process of its own (peer_mount.py). Rank 0 prints a JSON list, one object for each time.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peer_mount import Asked, under_way

from nopfsfs.config import MountConfig
from nopfsfs.peer import mpi
from nopfsfs.peer.mpi import MPI
from nopfsfs.peer.process import serve
from nopfsfs.system.mpi_start import launched

MOUNT = Path(__file__).with_name("peer_mount.py")
JOB = 7  # any number that both ranks have


def ping_pong(comm: MPI.Intracomm, size: int, buffers: int, times: int) -> dict[str, float]:
    """Seconds one way, and processor seconds of both, blocking, of so many buffers in turn."""
    several = [bytearray(size) for _ in range(buffers)]
    other = 1 - comm.Get_rank()

    def run(times: int) -> None:
        for ours in itertools.islice(itertools.cycle(several), times):
            if other:
                comm.Send([ours, MPI.BYTE], other)
                comm.Recv([ours, MPI.BYTE], other)
            else:
                comm.Recv([ours, MPI.BYTE], other)
                comm.Send([ours, MPI.BYTE], other)

    run(1 + times // 10)
    comm.Barrier()
    cpu, began = time.process_time(), time.perf_counter()
    run(times)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"seconds": took / 2 / times, "cpu_s": sum(comm.allgather(cpu)) / 2 / times}


def fetches(comm: MPI.Intracomm, asked: Asked) -> dict[str, Any]:
    """What rank 0's mount says of it; {} on the other."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, str(MOUNT), str(theirs.fileno()), str(comm.Get_rank()), json.dumps(asdict(asked))]
    mount = subprocess.Popen(
        words, pass_fds=[theirs.fileno()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    theirs.close()
    assert mount.stdin is not None
    mount.stdin.write(json.dumps(comm.allgather({"peer": os.getpid(), "mount": mount.pid})) + "\n")
    mount.stdin.flush()
    with tempfile.TemporaryDirectory() as directory:
        config = MountConfig(source="/", mountpoint="/", foreground=True, log_file=f"{directory}/log")
        serve(comm.Dup(), ours, config, JOB, lambda: None)
        ours.close()
        said, _ = mount.communicate(timeout=10)
        log = Path(config.log_file or "").read_text()
    if mount.returncode:
        raise SystemExit(f"the mount of rank {comm.Get_rank()} failed with exit {mount.returncode}; {log}")
    return json.loads(said) if said else {}


def main() -> None:
    asked = Asked(**json.loads(sys.argv[1]))
    found = launched(os.environ)
    assert found is not None
    comm = mpi.begin(found)
    done = []
    for _ in range(asked.rounds):
        times = max(20, asked.fetches // 2)
        one, many = (ping_pong(comm, asked.size, buffers, times) for buffers in (1, under_way(asked.size)))
        done.append({"pong": many, "pong_of_one": one, "fetch": fetches(comm, asked)})
        comm.Barrier()
    if comm.Get_rank() == 0:
        print(json.dumps(done), flush=True)
    mpi.finalize()


if __name__ == "__main__":
    main()
