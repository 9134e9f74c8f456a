"""The table of what is foreseen: its cells, the opens of their jobs, the bars, the virtual clock."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import identify_table
import numpy as np
import pytest
from identifying import bars, cells, mounts, opens, results, virtual
from identifying.cells import Cell
from identifying.opens import Opens
from identifying.results import Result

from nopfsfs.plan.following.follower_output import BackgroundJob, PlanStatus
from nopfsfs.plan.samplers.registry import order
from nopfsfs.plan.samplers.sampler import Spec

CELL = Cell(4000, 8, "two", (2, 3), 0, "start", "seed", 42, 7, all_said=True)


# -- cells --


def test_a_group_for_each_combination_that_exists() -> None:
    groups = list(cells.groups(4000))
    of_world = {world: {one.local for one in groups if one.world == world} for world in cells.WORLDS}

    assert of_world[1] == {"last"}
    assert of_world[2] == {"last", "other", "two"}
    assert of_world[3] == {"last", "other", "two", "second"}
    assert all(of_world[world] == set(cells.LOCALS) for world in cells.WORLDS if world > 3)
    assert len(groups) == (1 + 3 + 4 + 5 * 9) * len(cells.WORKERS) * len(cells.BEGINS)
    assert len({one.name for one in groups}) == len(groups)
    assert groups == list(cells.groups(4000))


def test_ranks_and_seeds_are_in_their_bounds() -> None:
    for one in cells.groups(60_000):
        assert all(0 <= rank < one.world for rank in one.ranks)
        if one.local == "second":
            assert one.ranks in (tuple(range(0, one.world, 2)), tuple(range(1, one.world, 2)))
        else:
            assert len(one.ranks) == {"two": 2, "four": 4}.get(one.local, 1)
            assert one.ranks[-1] - one.ranks[0] == len(one.ranks) - 1
        assert one.seed != one.wrong
        assert max(one.seed, one.wrong) < cells.SEEDS_BELOW


@pytest.mark.parametrize(
    ("said", "seed", "environment"),
    [
        ("nothing", None, {}),
        ("seed", 42, {}),
        ("wrong", 7, {}),
        ("world", 42, {"WORLD_SIZE": "8", "RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}),
    ],
)
def test_what_is_said(said: str, seed: int | None, environment: dict[str, str]) -> None:
    cell = replace(CELL, said=said)
    assert (cell.seed_said, cell.environment) == (seed, environment)


def test_whole_groups_are_drawn_and_patterns_choose_single_cells() -> None:
    drawn = cells.chosen((4000, 60_000), (), {60_000: 10}, 1)

    assert len(drawn) == 1908 + 12
    assert len({one.group for one in drawn if one.files == 60_000}) == 3
    assert drawn == cells.chosen((4000, 60_000), (), {60_000: 10}, 1)
    assert drawn != cells.chosen((4000, 60_000), (), {60_000: 10}, 2)
    assert {one.said for one in cells.chosen((4000,), ["*/w16/*/wrong"], {4000: 5}, 1)} == {"wrong"}
    assert len(cells.chosen((4000,), ["*/w16/*/wrong"], {4000: 5}, 1)) == 5


# -- opens --


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("begin", cells.BEGINS)
def test_each_rank_opens_its_part_of_the_sampler_s_order(workers: int, begin: str) -> None:
    cell = replace(CELL, workers=workers, begin=begin)
    there = opens.opens(cell, 2 * (2 * cell.each - cell.skipped) + 500)
    files = opens.rows_of(cell.files)

    for lane, rank in enumerate(cell.ranks):
        for epoch in range(2):
            samples = order(Spec("distributed", 42), 4000, cell.first_epoch + epoch, 8, rank)
            expected = files[samples[cell.skipped if epoch == 0 else 0 :]]
            which = (there.lanes == lane) & (there.epochs == epoch)
            opened = there.rows[which]
            if workers == 0:
                assert opened.tolist() == expected.tolist()
            else:
                assert sorted(opened.tolist()) == sorted(expected.tolist())
            assert len(set(there.readers[which].tolist())) == max(workers, 1)
    # workers are new in each epoch, and no two ranks have the same
    assert len(set(there.readers.tolist())) == (2 if workers == 0 else 2 * workers * len(set(there.epochs.tolist())))


def test_a_worker_opens_every_second_batch_in_a_row() -> None:
    cell = replace(CELL, workers=2)
    there = opens.opens(cell, 900)
    samples = order(Spec("distributed", 42), 4000, 0, 8, 2)
    of_first = there.rows[there.readers == there.readers[there.lanes == 0].min()]
    expected = [row for at in range(0, 500, 2 * cell.batch) for row in samples[at : at + cell.batch]]

    assert cell.batch == 31
    assert of_first.tolist()[:200] == opens.rows_of(4000)[expected[:200]].tolist()


def test_ranks_go_on_together_and_the_said_changes_nothing() -> None:
    there = opens.opens(CELL, 900)
    other = opens.opens(replace(CELL, said="nothing"), 500)

    assert abs(int((there.lanes == 0).sum()) - 450) < 30
    assert there.rows[:500].tolist() == other.rows.tolist()
    assert there.nth[there.lanes == 1].tolist() == list(range(int((there.lanes == 1).sum())))


# -- bars --


@pytest.mark.parametrize(
    ("said", "begin", "expected"),
    [
        ("nothing", "start", (256, 2.0)),
        ("nothing", "middle", (256, 10.0)),
        ("wrong", "middle", (256, 2.0)),
        ("seed", "epoch37", (64, 0.5)),
        ("world", "start", (64, 0.5)),
        ("world", "middle", (64, 2.0)),
    ],
)
def test_from_when_on_a_rank_is_judged(said: str, begin: str, expected: tuple[int, float]) -> None:
    cell = replace(CELL, said=said, begin=begin)
    assert (bars.from_open(cell), bars.seconds(cell)) == expected


def alternating(lanes: Sequence[int], each: int) -> Opens:
    """Opens of ranks in this order, each with so many files an epoch."""
    of = np.array(lanes, np.int64)
    nth = np.array([lanes[:at].count(lane) for at, lane in enumerate(lanes)], np.int64)
    return Opens(np.arange(len(of)), of + 1, of, nth // each, nth, np.arange(len(of)))


def test_the_later_of_open_64_and_the_seconds_counts() -> None:
    alone = replace(CELL, world=1, ranks=(0,))
    judged = bars.judge(alone, alternating([0] * 1200, 4000))
    assert np.flatnonzero(judged)[0] == 1000  # 0.5 s

    many = replace(CELL, world=2, ranks=(0, 1))
    there = alternating([0] * 100 + [1] * 1500, 2000)
    judged = bars.judge(many, there)
    assert not judged[: 100 + 1000].any()  # the second rank begins late
    assert judged[100 + 1000 :].all()


def test_a_short_rank_is_judged_from_its_second_epoch_on() -> None:
    short = replace(CELL, files=100, world=2, ranks=(1,))
    judged = bars.judge(short, alternating([0] * 1100, 50))
    assert np.flatnonzero(judged)[0] == 1000
    slow = replace(CELL, files=8 * 63)
    assert slow.each == 63
    there = alternating([0] * 2000, 63)
    assert not bars.judge(slow, there)[there.epochs == 0].any()


def test_where_a_case_ends() -> None:
    alone = replace(CELL, world=1, ranks=(0,))
    case = bars.case(alone, beyond=False)
    assert (len(case.opens), int(case.judged.sum())) == (2000, 1000)

    unsaid = replace(CELL, said="nothing")  # 4,000 opens wait, two epochs are 2,000
    case = bars.case(unsaid, beyond=False)
    assert (len(case.opens), int(case.judged.sum())) == (2000, 0)

    case = bars.case(unsaid, beyond=True)
    assert 4000 + 1000 <= len(case.opens) <= 4002 + 1000
    assert int(case.judged.sum()) in range(1000, 1003)

    tiny = replace(CELL, world=1024, ranks=(1023,))
    case = bars.case(tiny, beyond=True)
    assert (len(case.opens), int(case.judged.sum())) == (1000 + 8, 8)


def test_the_share_of_all_and_of_the_worst_rank() -> None:
    there = alternating([0, 1] * 100, 4000)
    foreseen = np.ones(200, np.uint8)
    foreseen[1:100:2] = 0
    everything = np.ones(200, bool)

    assert bars.share(foreseen, everything) == 0.75
    assert bars.worst_rank(foreseen, there, everything) == 0.5
    assert bars.share(foreseen, ~everything) is None
    assert bars.worst_rank(foreseen, there, ~everything) is None


# -- the virtual clock --


class Clock:
    """Processor time that goes on when a job says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Following:
    """A follower that foresees everything once its job was delivered. `jobs`: seconds of each, first to last."""

    def __init__(
        self, clock: Clock, jobs: Sequence[float] = (), apart: Sequence[float] = (), from_open: int = 1
    ) -> None:
        self._clock, self._jobs, self._apart, self._from = clock, list(jobs), list(apart), from_open
        self.opens = 0
        self.position = 0
        self.hurries = False
        self.calls: list[int] = []
        self.begun: list[int] = []
        self.delivered: list[int] = []
        self._wanted = len(self._jobs) + len(self._apart)

    def observe(self, rows: Any, readers: Any = None) -> Any:
        assert len(rows) == len(readers)
        self._clock.now += 0.001
        self.opens += len(rows)
        self.calls.append(len(rows))
        return np.full(len(rows), self._wanted == len(self.delivered), np.uint8)

    def _next(self, waiting: list[float]) -> BackgroundJob | None:
        if self.opens < self._from or not waiting:
            return None
        seconds = waiting.pop(0)
        self.begun.append(self.opens)

        def compute() -> None:
            self._clock.now += seconds

        return BackgroundJob(compute, lambda _: self.delivered.append(self.opens))

    def work(self) -> BackgroundJob | None:
        return self._next(self._jobs)

    def work_apart(self) -> BackgroundJob | None:
        return self._next(self._apart)

    def finish(self, job: BackgroundJob) -> None:
        job.deliver()

    def status(self) -> PlanStatus:
        return PlanStatus("locked" if self._wanted == len(self.delivered) else "watching")

    def upcoming(self, start: int, count: int) -> Any:
        return np.zeros(0, np.int64)


def played(follower: Following, clock: Clock, count: int = 2000) -> virtual.Played:
    return virtual.play(follower, alternating([0] * count, 4000), clock)


def test_a_job_is_delivered_when_its_time_is_over() -> None:
    clock = Clock()
    follower = Following(clock, [0.25])
    done = played(follower, clock)

    assert set(follower.calls[1:-1]) == {10}  # what came between two looks
    (begun,), (delivered,) = follower.begun, follower.delivered
    assert begun <= 61  # the pause between looks for work
    assert 500 <= delivered - begun <= 520  # half a millisecond each
    assert int(done.foreseen.sum()) == 2000 - delivered
    assert done.locked == delivered + 10
    assert done.costs.jobs == pytest.approx(0.25)
    assert done.costs.longest_observe == pytest.approx(0.001)
    assert done.costs.supervisor == pytest.approx(0.001 * len(follower.calls))


def test_work_is_asked_for_at_once_when_the_follower_hurries() -> None:
    clock = Clock()
    follower = Following(clock, [0.1, 0.1], from_open=21)
    follower.hurries = True
    played(follower, clock)

    assert follower.begun[0] == 21


def test_jobs_come_one_after_the_other_and_those_apart_beside_them() -> None:
    clock = Clock()
    follower = Following(clock, [0.1, 0.1], [0.2])
    done = played(follower, clock)

    first, apart, second = follower.begun
    assert second - first in range(200, 221)
    assert apart < second
    assert follower.delivered[-1] - apart >= 400 + virtual.APART_START_S / bars.OPEN_S
    assert (done.costs.jobs, done.costs.apart) == (pytest.approx(0.2), pytest.approx(0.2))


def test_work_that_is_there_before_the_first_open_is_begun_before_it() -> None:
    clock = Clock()
    follower = Following(clock, [virtual.BEFORE_S - 0.1], from_open=0)
    done = played(follower, clock)

    assert follower.delivered == [0]
    assert int(done.foreseen.sum()) == 2000


def test_a_job_that_outlasts_the_case_is_not_waited_for() -> None:
    clock = Clock()
    follower = Following(clock, [60.0])
    done = played(follower, clock)
    assert not done.foreseen.any()
    assert follower.delivered == []
    assert done.costs.jobs <= 1.0  # the case's own time


def test_a_job_that_outlasts_the_case_is_ended() -> None:
    class Endless(Following):
        def work(self) -> BackgroundJob | None:
            job = super().work()
            return job and BackgroundJob(forever, lambda _: self.delivered.append(1))

    def forever() -> None:
        while True:
            time.process_time()

    follower = Endless(Clock(), [1.0], [1.0])
    done = virtual.play(follower, alternating([0] * 200, 4000))
    assert follower.delivered == []
    assert 0 < done.costs.jobs <= 0.1
    assert done.costs.apart == 0  # the case is over before its process has begun


# -- results --


def result(said: str, foreseen: float, count: int = 1000, share: float | None = 1.0) -> Result:
    seen = (np.arange(count) < foreseen * count).astype(np.uint8)
    return Result(replace(CELL, said=said), count, count, share, share, share, 20, "locked", foreseen=seen)


def test_saying_more_is_compared_over_the_opens_that_both_saw() -> None:
    better = [result("nothing", 0.9), result("seed", 1.0), result("world", 1.0), result("wrong", 0.9)]
    assert not list(results.less_for_more(better))
    assert not list(results.less_for_false(better))

    worse = [result("nothing", 0.9), result("seed", 0.8, 500), result("wrong", 0.1)]
    assert [pair.foreseen() for pair in results.less_for_more(worse)] == [([500], [400])]
    assert [pair.foreseen() for pair in results.less_for_false(worse)] == [([900], [100])]
    nearly = [result("nothing", 0.9), result("seed", 0.898)]
    assert not list(results.less_for_more(nearly))


def test_of_cells_that_run_again_the_median_counts_unless_one_fell_short() -> None:
    once = [result("nothing", 0.9), result("seed", 0.8), result("world", 0.95)]
    assert [cell.said for cell in results.doubted(once)] == ["nothing", "seed"]
    again = [result("nothing", 0.9), result("seed", 1.0), result("nothing", 0.9), result("seed", 0.92)]
    found = results.together([once, again])
    assert [int(one.foreseen.sum()) for one in found] == [900, 920, 950]
    assert not list(results.less_for_more(found))
    # what ran again has a higher median now: the world, which ran once, is doubted
    first = [result("nothing", 0.96), result("seed", 0.96), result("world", 0.95)]
    more = [result(said, 1.0) for said in ("nothing", "seed") for _ in range(4)]
    assert [cell.said for cell in results.doubted(results.together([first, more]))] == ["world"]
    [short] = results.together([[result("seed", 1.0)], [result("seed", 1.0), result("seed", 0.5, share=0.5)]])
    assert short.short


def test_saying_more_foresees_less_only_where_no_run_says_otherwise() -> None:
    runs = [[result("nothing", 0.9), result("seed", 0.8)], [result("nothing", 0.9), result("seed", 0.85)]]
    runs.append([result("nothing", 0.87), result("seed", 0.8)])
    assert [pair.foreseen() for pair in results.less_for_more(results.together(runs))] == [
        ([900, 900, 870], [800, 800, 850])
    ]
    runs.append([result("nothing", 0.9), result("seed", 0.88)])
    assert not list(results.less_for_more(results.together(runs)))


def test_a_world_that_the_environment_names_wrongly_is_something_wrong() -> None:
    ranks = replace(CELL, world=8, ranks=(1, 3, 5, 7), all_said=True)
    assert not ranks.world_is_true
    assert replace(ranks, all_said=False).world_is_true
    assert replace(ranks, ranks=(3, 4, 5)).world_is_true
    found = [
        replace(result(said, share), cell=replace(ranks, said=said)) for said, share in (("seed", 0.9), ("world", 0.5))
    ]
    assert not list(results.less_for_more(found))
    assert [pair.more.cell.said for pair in results.less_for_false(found)] == ["world"]


def test_what_falls_short() -> None:
    assert not result("seed", 1.0, share=0.99).short
    assert result("seed", 1.0, share=0.9899).short
    assert not result("seed", 1.0, share=None).short
    failed = Result(CELL, error="Traceback\nValueError: no\n")
    assert failed.short
    assert results.line(failed) == "4000/w8/two/workers0/start/seed: FAILED: ValueError: no"
    lines = list(results.summary([failed, result("nothing", 0.9, share=None), result("world", 1.0)]))
    assert lines[0] == "1 of 2 judged cells foresee 99%; 1 fall short"
    assert lines[1].startswith("1 cells end before their bar")
    assert '"short": true' in json.dumps(failed.record())


def test_a_cell_with_the_real_follower() -> None:
    done = results.run(replace(CELL, said="world"), beyond=False)
    assert done.error == ""
    assert done.share is not None
    assert done.opens == len(done.foreseen) > 1000


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "table.json"
    only = "4000/w1/last/workers0/start/world"
    status = identify_table.main(["--files", "4000", "--only", only, "--jobs", "1", "--json", str(there)])

    said = capsys.readouterr().out
    assert "of 1 judged cells" in said
    assert "longest observe" in said
    assert status in (0, 1)
    assert only in there.read_text()


# -- real mounts --


def test_drawn_mounts_are_small_and_judged() -> None:
    drawn = mounts.drawn(10, 16)
    assert len({one.name for one in drawn}) == 10
    assert drawn == mounts.drawn(10, 16)
    for one in drawn[:2]:
        case = mounts.case_of(one)
        assert case.judged.sum() >= 400
        assert len(set(case.opens.readers.tolist())) <= 128


@pytest.mark.long
def test_a_job_of_processes_opens_each_file_in_time(tmp_path: Path) -> None:
    cell = replace(CELL, world=1, ranks=(0,), workers=2)
    root = tmp_path / "root"
    mounts.fill(root)
    began: list[float] = []

    def status() -> dict[str, Any]:
        # a mount that has seen what was to be opened by now
        began.append(time.monotonic())
        total = min(2000, int((began[-1] - began[0]) / bars.OPEN_S))
        plan = {"state": "locked", "sampler": "distributed", "seed": 42, "epoch": 0}
        return {"opens": {"total": total, "predicted": max(0, total - 1900)}, "plan": plan}

    done = mounts.measure(cell, root, tmp_path, status)
    assert (done.opens, done.short) == (1000, True)
    assert done.missed == 900
    assert done.late > 0
    assert "short" in str(done)
    (tmp_path / "root" / "train").rename(tmp_path / "gone")
    with pytest.raises(RuntimeError, match="the job failed"):
        mounts.measure(cell, root, tmp_path, status)


@pytest.mark.slow
def test_many_ranks_of_which_not_all_were_seen_lately_stay_in_the_deal() -> None:
    """Of 512 ranks some have made a step or two in the last 1,024 opens."""
    ranks = tuple(range(1, 1024, 2))
    done = results.run(Cell(60_000, 1024, "second", ranks, 0, "start", "seed", 6273, 7, all_said=False), beyond=False)
    assert done.share is not None
    assert done.share > 0.99
    assert float(np.mean(done.foreseen[200:30_000])) > 0.99, "the first epoch"
