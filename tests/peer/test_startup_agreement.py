"""What ranks must agree upon: all learn of every error, and one says it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nopfsfs.cli.error_exit import run
from nopfsfs.config import MountConfig, PlanSpec
from nopfsfs.errors import AlreadyReported, Exit, NopfsError
from nopfsfs.peer.startup_agreement import RankHost, asked, check_asked, place, together
from tests.peer.threads import Rank, on_ranks

CONFIG = MountConfig(source="/pfs/data", mountpoint="/mnt/fast", seed=42, index_dir="/i", state_dir="/s")


def test_all_have_what_all_made() -> None:
    results = on_ranks(4, lambda rank: together(rank, "x", lambda: b"%d" % rank.rank * rank.rank))

    assert [[bytes(part) for part in result] for result in results] == [[b"", b"1", b"22", b"333"]] * 4


def test_where_one_fails_all_do_and_one_says_why() -> None:
    def work(rank: Rank) -> object:
        def step() -> bytes:
            if rank.rank == 2:
                raise NopfsError(Exit.DISK, "the disk is full; make room")
            return b""

        return together(rank, "looking", step)

    results = on_ranks(4, work)

    assert [type(error) for error in results] == [AlreadyReported, AlreadyReported, NopfsError, AlreadyReported]
    assert {error.exit_code for error in results} == {Exit.DISK}
    assert {error.message for error in results} == {"rank 2: the disk is full; make room"}


def test_where_two_fail_each_says_its_own() -> None:
    def work(rank: Rank) -> object:
        def step() -> bytes:
            raise NopfsError([Exit.DISK, Exit.NO_FUSE][rank.rank], f"no {rank.rank}")

        return together(rank, "looking", step)

    results = on_ranks(2, work)

    assert [(error.exit_code, error.message) for error in results] == [
        (Exit.DISK, "rank 0: no 0"),
        (Exit.NO_FUSE, "rank 1: no 1"),
    ]
    assert not any(isinstance(error, AlreadyReported) for error in results)


def test_a_bug_on_one_rank_ends_all() -> None:
    def work(rank: Rank) -> object:
        return together(rank, "looking", lambda: b"" if rank.rank else bytes(1 // 0))

    first, second = on_ranks(2, work)

    assert first.exit_code == second.exit_code == Exit.INTERNAL
    assert "ZeroDivisionError" in second.message
    assert isinstance(first.__cause__, ZeroDivisionError)


def test_a_rank_that_is_told_to_end_ends_all() -> None:
    def work(rank: Rank) -> object:
        def step() -> bytes:
            if rank.rank == 1:
                raise SystemExit(128 + signal.SIGTERM)  # by `ending_at_signals`
            return b""

        return together(rank, "looking", step)

    results = on_ranks(3, work)

    assert [type(error) for error in results] == [AlreadyReported, NopfsError, AlreadyReported]
    assert {error.exit_code for error in results} == {Exit.TERMINATED}
    assert {error.message for error in results} == {"rank 1: told to end before all mounts answered"}


def test_what_was_said_is_not_said_again(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> int:
        raise AlreadyReported(Exit.SOURCE, "rank 1: gone")

    assert run("nopfs-mount", body) == Exit.SOURCE
    assert capsys.readouterr().err == ""


def agree(
    *configs: MountConfig, where: Callable[[int], RankHost] = lambda rank: RankHost(f"n{rank}", f"{rank}")
) -> list[Any]:
    def work(rank: Rank) -> bool:
        return check_asked(rank, together(rank, "asking", lambda: asked(configs[rank.rank], where(rank.rank))))

    return on_ranks(len(configs), work)


PLAN = PlanSpec(sampler="distributed", seed=1, world_size=2, ranks=(0,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 43}, "rank 1 (n1) has --seed 43, rank 0 (n0) has --seed 42; give all ranks the same"),
        ({"seed": None}, "rank 1 (n1) has --seed none, rank 0 (n0) has --seed 42"),
        ({"source": "/pfs/other"}, "rank 1 (n1) has the source /pfs/other, rank 0 (n0) has the source /pfs/data"),
        ({"sampler": "random"}, "rank 1 (n1) has --sampler random, rank 0 (n0) has --sampler auto"),
        ({"plans": (PLAN,)}, "rank 1 (n1) has the plan 1 (distributed), rank 0 (n0) has the plan none"),
        ({"placement": "nopfs"}, "has --placement nopfs"),
        ({"epochs": 3}, "has --epochs 3, rank 0 (n0) has --epochs 16"),
        ({"follow_symlinks": True}, "has --follow-symlinks on, rank 0 (n0) has --follow-symlinks off"),
    ],
)
def test_a_difference_is_named(change: dict[str, Any], message: str) -> None:
    results = agree(CONFIG, replace(CONFIG, **change), CONFIG)

    assert [type(error) for error in results] == [NopfsError, AlreadyReported, AlreadyReported]
    assert message in results[0].message
    assert results[0].exit_code is Exit.USAGE


def test_plans_that_differ_within_are_told_apart() -> None:
    first, second = replace(CONFIG, plans=(PLAN,)), replace(CONFIG, plans=(replace(PLAN, seed=2),))

    results = agree(first, second)

    assert "rank 1 (n1) has the plan's seed 2, rank 0 (n0) has the plan's seed 1" in results[0].message


def test_each_rank_has_its_own_place_and_budget() -> None:
    second = replace(CONFIG, mountpoint="/mnt/1", ram=1 << 30, plans=())

    assert agree(CONFIG, second, replace(CONFIG, index_dir="/j")) == [False, False, False]
    assert agree(replace(CONFIG, plans=(PLAN,)), replace(CONFIG, plans=(replace(PLAN, ranks=(1,)),))) == [False, False]


def test_one_who_wants_a_new_scan_is_enough() -> None:
    assert agree(CONFIG, replace(CONFIG, rescan=True)) == [True, True]


def test_two_ranks_at_one_place() -> None:
    results = agree(CONFIG, CONFIG, where=lambda rank: RankHost("n0", "same"))

    assert "ranks 0 and 1 both run on n0 and would mount at /mnt/fast; put {rank} into" in results[0].message


def test_a_process_has_a_place() -> None:
    assert place() == place()
    assert "mnt:[" in place().machine
