"""Guesses of world size, local ranks and nodes, from the environment of batch systems and launchers. Pure.

The guesses are candidates, not facts. `nopfs-mount` usually runs once a node, before the job. Under torchrun one Slurm
task is eight ranks. With `srun --ntasks-per-node=1` the step that mounts is not the step that trains. The plan finds
out which candidate is true from the files that are opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from nopfsfs.config import World
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.text.units import format_ranks

Env = Mapping[str, str]

MAX_WORLDS = 8  # each is a set of orders to compute and compare
_GUESSED_RANKS_A_NODE = (8, 4, 2)  # accelerators of common nodes, where nothing says how many there are
_TASKS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?", re.ASCII)

# size, rank, local size, local rank: as torchrun, Open MPI, and MPICH's and Intel's hydra name them
_TORCHRUN = ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK")
MPIS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
)
SLURM_SIZES = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")


def resolve_worlds(size: int | None, ranks: tuple[int, ...] | None, env: Env) -> tuple[World, ...]:
    """Return the worlds to plan for, likeliest first: exactly one if the user named `size` or `ranks`.

    Raises NopfsError with Exit.USAGE for ranks outside the world.
    """
    if size is None and ranks is None:
        return candidate_worlds(env)
    guesses = tuple(_candidates(env))
    if ranks is None:
        same = (world.ranks for world in guesses if world.size == size)
        ranks = next(same, tuple(range(size or 1)))
    if size is None:
        fitting = (world.size for world in guesses if ranks[-1] < world.size)
        size = next(fitting, ranks[-1] + 1)
    outside = [rank for rank in ranks if rank >= size]
    if outside:
        where = f"{format_ranks(outside)} outside the world of {size} (0-{size - 1})"
        raise NopfsError(Exit.USAGE, f"--ranks {format_ranks(ranks)}: {where}; correct --ranks or --world-size")
    return (World(size, ranks),)


def job_nodes(env: Env) -> int:
    """Return on how many nodes Slurm's step runs: each starts a mount. 1 outside of a step."""
    return _number(env, "SLURM_STEP_NUM_NODES") or 1


def candidate_worlds(env: Env) -> tuple[World, ...]:
    """Return the guesses from `env`, likeliest first, each once, at most MAX_WORLDS; one rank alone is
    always among them.
    """
    alone = World()
    found = tuple(dict.fromkeys(_candidates(env)))
    first = tuple(islice((world for world in found if world != alone), MAX_WORLDS - 1))
    before = alone in found and found[0] == alone
    return (alone, *first) if before or not first else (*first, alone)


def _candidates(env: Env) -> Iterator[World]:
    for names in (_TORCHRUN, *MPIS):
        yield from _from_launcher(env, *names)
    yield from _from_slurm(env)
    gpus = _visible_devices(env)
    if gpus > 1:
        # No launcher has set its variables: a script that trains alone is likelier than one that will start torchrun.
        yield World()
        yield World(gpus, tuple(range(gpus)))


def _from_launcher(env: Env, size_name: str, rank_name: str, local_size: str, local_rank: str) -> Iterator[World]:
    size = _number(env, size_name)
    rank = _number(env, rank_name)
    if not size or (rank or 0) >= size:
        return
    here = _number(env, local_size)
    local = _number(env, local_rank)
    if rank is None or here is None or local is None:
        yield from _valid(size, [rank] if rank is not None else range(size))
        return
    yield from _valid(size, range(rank - local, rank - local + here))  # placed node after node
    if here and size % here == 0:
        nodes = size // here
        yield from _valid(size, range(rank % nodes, size, nodes))  # dealt out in turn
        if here == 1:
            yield from _several_a_task(env, nodes, rank)


def _from_slurm(env: Env) -> Iterator[World]:
    size = first_number(env, *SLURM_SIZES)
    nodes = first_number(env, "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    counts = _tasks_per_node(env, nodes)
    if size is None:
        size = sum(counts) or nodes
    if not size:
        return
    node = first_number(env, "SLURM_NODEID") or 0
    nodes = nodes or max(len(counts), 1)
    if size == nodes:  # one task a node: most likely a launcher, or only this mount
        likely = tuple(_several_a_task(env, nodes, node))
        known = _devices(env) > 0
        yield from likely if known else ()
        yield from _valid(size, [node])
        yield from () if known else likely
        return
    dealt = _valid(size, range(node, size, nodes))
    if env.get("SLURM_DISTRIBUTION", "").startswith("cyclic"):
        yield from dealt
    if node < len(counts) and sum(counts) == size:
        yield from _valid(size, range(sum(counts[:node]), sum(counts[: node + 1])))
    else:
        rank, local = _number(env, "SLURM_PROCID"), _number(env, "SLURM_LOCALID")
        here = -(-size // nodes)
        start = node * here if rank is None or local is None else rank - local
        yield from _valid(size, range(start, min(start + here, size)))
    yield from dealt


def _several_a_task(env: Env, nodes: int, node: int) -> Iterator[World]:
    """Yield the worlds in which each of `nodes` tasks starts a rank for every accelerator, as torchrun
    does.
    """
    devices = _devices(env)
    for here in (devices,) if devices else _GUESSED_RANKS_A_NODE:
        if here > 1:
            yield from _valid(nodes * here, range(node * here, (node + 1) * here))


def _devices(env: Env) -> int:
    return first_number(env, "SLURM_GPUS_ON_NODE") or _visible_devices(env)


def _visible_devices(env: Env) -> int:
    listed = env.get("CUDA_VISIBLE_DEVICES") or env.get("ROCR_VISIBLE_DEVICES") or ""
    return len([name for name in listed.split(",") if name.strip() not in ("", "-1", "NoDevFiles")])


def _tasks_per_node(env: Env, nodes: int | None) -> tuple[int, ...]:
    """Return the tasks of each node of the step, or else of the job: `2(x3),1` is (2, 2, 2, 1)."""
    text = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or ""
    matches = [_TASKS.fullmatch(part) for part in text.split(",")]
    counts = [count for m in matches if m for count in [int(m[1])] * int(m[2] or 1)]
    if text and all(matches):
        return tuple(counts)
    each = _number(env, "SLURM_NTASKS_PER_NODE")
    return (each,) * nodes if each and nodes else ()


def _valid(size: int, ranks: Iterable[int]) -> tuple[World, ...]:
    """Return the world as a candidate, or nothing where the environment contradicts itself."""
    kept = tuple(ranks)
    sound = bool(kept) and min(kept) >= 0 and max(kept) < size
    return (World(size, kept),) if sound else ()


def first_number(env: Env, *names: str) -> int | None:
    """Return the value of the first of these variables that is a whole number."""
    return next((n for n in (_number(env, name) for name in names) if n is not None), None)


def _number(env: Env, name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 7 else None
