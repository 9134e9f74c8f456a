"""Which ranks a mount plans for, from the environments that launchers really make."""

from __future__ import annotations

import pytest

from nopfsfs.config import World
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.system.launcher import MAX_WORLDS, candidate_worlds, resolve_worlds

ALONE = World(1, (0,))


def ranks(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


CASES = {
    "nothing": ({}, [ALONE]),
    "garbage": ({"SLURM_NTASKS": "x", "WORLD_SIZE": "-3", "OMPI_COMM_WORLD_SIZE": ""}, [ALONE]),
    "contradiction": ({"WORLD_SIZE": "2", "RANK": "7", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, [ALONE]),
    "torchrun, second node of two with four": (
        {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
        [World(8, ranks(4, 7)), World(8, (1, 3, 5, 7)), ALONE],
    ),
    "only WORLD_SIZE": ({"WORLD_SIZE": "4"}, [World(4, ranks(0, 3)), ALONE]),
    "mpirun, two local ranks": (
        {
            "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_RANK": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        },
        [World(4, (2, 3)), World(4, (0, 2)), ALONE],
    ),
    "MPICH without local ranks": ({"PMI_SIZE": "3", "PMI_RANK": "1"}, [World(3, (1,)), ALONE]),
    "Slurm batch script, four tasks on two nodes": (
        {
            "SLURM_NTASKS": "4",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_TASKS_PER_NODE": "2(x2)",
            "SLURM_NODEID": "0",
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
        },
        [World(4, (0, 1)), World(4, (0, 2)), ALONE],
    ),
    "Slurm step, uneven nodes, the last": (
        {"SLURM_NTASKS": "7", "SLURM_NNODES": "4", "SLURM_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"},
        [World(7, (6,)), World(7, (3,)), ALONE],
    ),
    "Slurm, cyclic": (
        {
            "SLURM_NTASKS": "4",
            "SLURM_NNODES": "2",
            "SLURM_NTASKS_PER_NODE": "2",
            "SLURM_NODEID": "1",
            "SLURM_DISTRIBUTION": "cyclic:block",
        },
        [World(4, (1, 3)), World(4, (2, 3)), ALONE],
    ),
    "Slurm, one task a node, GPUs known: torchrun is likeliest": (
        {"SLURM_NTASKS": "2", "SLURM_NNODES": "2", "SLURM_NODEID": "1", "SLURM_GPUS_ON_NODE": "4"},
        [World(8, ranks(4, 7)), World(2, (1,)), ALONE],
    ),
    "Slurm, one task a node, nothing known": (
        {"SLURM_NTASKS": "2", "SLURM_NNODES": "2", "SLURM_NODEID": "1"},
        [World(2, (1,)), World(16, ranks(8, 15)), World(8, ranks(4, 7)), World(4, (2, 3)), ALONE],
    ),
    "Slurm, one task on one node": (
        {"SLURM_NTASKS": "1", "SLURM_NNODES": "1", "SLURM_NODEID": "0"},
        [ALONE, World(8, ranks(0, 7)), World(4, ranks(0, 3)), World(2, (0, 1))],
    ),
    "GPUs alone": ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, [ALONE, World(3, (0, 1, 2))]),
}


@pytest.mark.parametrize(("env", "expected"), CASES.values(), ids=CASES.keys())
def test_candidates(env: dict[str, str], expected: list[World]) -> None:
    assert list(candidate_worlds(env)) == expected


@pytest.mark.parametrize("env", [case[0] for case in CASES.values()])
def test_candidates_are_sound_and_few(env: dict[str, str]) -> None:
    found = candidate_worlds(env)

    assert ALONE in found
    assert len(found) == len(set(found)) <= MAX_WORLDS
    assert all(0 <= rank < world.size for world in found for rank in world.ranks)


@pytest.mark.parametrize(
    ("size", "given", "env", "expected"),
    [
        (8, None, {}, World(8, ranks(0, 7))),
        (8, (2, 3), {}, World(8, (2, 3))),
        (None, (2, 3), {}, World(4, (2, 3))),
        (None, (2, 3), {"WORLD_SIZE": "16"}, World(16, (2, 3))),
        (4, None, CASES["mpirun, two local ranks"][0], World(4, (2, 3))),
    ],
)
def test_what_the_user_says_is_the_only_world(
    size: int | None, given: tuple[int, ...] | None, env: dict[str, str], expected: World
) -> None:
    assert resolve_worlds(size, given, env) == (expected,)


def test_ranks_outside_the_world_are_an_error() -> None:
    with pytest.raises(NopfsError, match=r"4,7 outside the world of 4 \(0-3\)") as raised:
        resolve_worlds(4, (3, 4, 7), {})

    assert raised.value.exit_code is Exit.USAGE
