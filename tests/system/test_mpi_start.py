"""What the environments of launchers say, and what --peers makes of it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from nopfsfs.cli.mount_config import parse_mount
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.system.mpi_start import Launched, launched

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "PMIX_RANK": "2",
}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}

CASES = {
    "nothing": ({}, None),
    "Open MPI": (OPENMPI, Launched(2, 4, 0)),
    "MPICH's and Intel's hydra": (HYDRA, Launched(3, 4, 1)),
    "hydra in a job of Slurm": ({**SLURM, **HYDRA}, Launched(3, 4, 1)),
    "srun --mpi=pmi2": ({**SLURM, "PMI_RANK": "1", "PMI_SIZE": "4"}, Launched(1, 4, 1)),
    "srun --mpi=pmix": ({**SLURM, "PMIX_RANK": "1"}, Launched(1, 4, 1)),
    "srun --mpi=pmix, only the job's size": ({"SLURM_NTASKS": "2", "PMIX_RANK": "1"}, Launched(1, 2, 0)),
    "srun without a plugin": (SLURM, None),
    "PMIx without a size": ({"PMIX_RANK": "1"}, None),
    "one process": ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None),
    "torchrun": ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, None),
    "contradiction": ({"PMI_RANK": "4", "PMI_SIZE": "4"}, None),
    "garbage": ({"PMI_RANK": "x", "PMI_SIZE": "-4", "OMPI_COMM_WORLD_RANK": ""}, None),
}


@pytest.mark.parametrize(("env", "expected"), CASES.values(), ids=CASES.keys())
def test_what_launchers_say(env: dict[str, str], expected: Launched | None) -> None:
    assert launched(env) == expected


def test_with_peers_each_rank_has_its_own_paths() -> None:
    config = parse_mount(
        ["/src", "/mnt/{rank}-{local_rank}", "--disk", "/d/{rank}:1G", "--log-file", "/l/{rank}"], HYDRA, 0
    ).config

    assert (config.peers, config.nodes, config.node) == (True, 4, 3)
    assert (config.mountpoint, config.disks[0].path, config.log_file) == ("/mnt/3-1", "/d/3", "/l/3")
    assert (config.placement, config.epochs) == ("homes", 16)


@pytest.mark.parametrize("env", [{}, SLURM, {**HYDRA, "PMI_SIZE": "1", "PMI_RANK": "0"}])
def test_alone_paths_are_what_they_say(env: dict[str, str]) -> None:
    call = parse_mount(["/src", "/mnt/{rank}", "--disk", "/d/{rank}"], env, 0)

    assert not call.config.peers
    assert (call.config.mountpoint, call.config.disks[0].path) == ("/mnt/{rank}", "/d/{rank}")
    assert (call.config.nodes, call.config.node, call.warning) == (1, 0, "")


def test_off_is_alone() -> None:
    call = parse_mount(["/src", "/mnt/{rank}", "--peers", "off"], HYDRA, 0)

    assert (call.config.peers, call.config.mountpoint, call.warning) == (False, "/mnt/{rank}", "")


def test_on_without_mpi_is_refused() -> None:
    with pytest.raises(NopfsError, match="no MPI started this process") as raised:
        parse_mount(["/src", "/mnt", "--peers", "on"], SLURM, 0)

    assert raised.value.exit_code is Exit.USAGE


def test_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    first, second = (parse_mount(["/src", "/mnt"], {**HYDRA, "PMI_RANK": rank}, 0) for rank in "01")
    with pytest.raises(NopfsError, match=r"pip install nopfsfs\[mpich\]") as raised:
        parse_mount(["/src", "/mnt", "--peers", "on"], HYDRA, 0)

    assert not first.config.peers
    assert "mpi4py is missing" in first.warning
    assert second.warning == ""  # one says it for all
    assert raised.value.exit_code is Exit.USAGE


def test_placement_and_epochs_are_said() -> None:
    config = parse_mount(["/src", "/mnt", "--placement", "nopfs", "-o", "epochs=90,peers=off"], HYDRA, 0).config

    assert (config.placement, config.epochs, config.peers) == ("nopfs", 90, False)


def test_an_ordinary_mount_imports_nothing_of_mpi(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from nopfsfs.cli.mount import main\n"
        "import nopfsfs.supervisor.process, nopfsfs.server.process, nopfsfs.stager.process\n"
        f"assert main([{str(tmp_path / 'none')!r}, {str(tmp_path)!r}]) == 3\n"
        "assert not [name for name in sys.modules if name.startswith(('mpi4py', 'nopfsfs.peer.mpi'))]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.DEVNULL)
