"""The stager under random sequences of everything that can happen to it, and under real threads.

The rig compares every answer with what the file held; here is checked what must hold between the steps: budgets, one
open for one staging, everything answered, nothing left over.
"""

from __future__ import annotations

import errno
import random
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from nopfsfs.protocol.columns import Metric
from nopfsfs.protocol.server_stager import Answer, AskGrace, Demand
from tests.examples import examples
from tests.stager.random_steps import BUDGET, SIZES, Player, Step, steps_of
from tests.stager.rig import PAGE, Rig, content, open_files_below, rig, write_files
from tests.waiting import wait_until

QUIET = ("demand", "demand", "demand", "fetch", "evict", "cancel", "budget", "work", "work", "take", "pin")
LOUD = (*QUIET, "overwrite", "shrink", "vanish", "refresh", "fail")


def play(steps: list[Step], check: Callable[[Rig], None] = lambda r: None, **options: object) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        write_files(root, SIZES)
        with rig(root, budget=BUDGET, whole_limit=13 * PAGE, range_budget=6 * PAGE, **options) as r:
            player = Player(r)
            used = 0
            for step in steps:
                player.play(step)
                assert r.arena.used <= max(r.arena.budget, used), "grew above the budget"
                assert r.metric(Metric.ARENA_USED) == r.arena.used
                used = r.arena.used
            player.end()
            check(r)
            r.state.set_budget(BUDGET, 13 * PAGE, 6 * PAGE)
            r.state.evict(r.files)
            r.state.set_budget(BUDGET, 0, 0)
            r.run()
            assert set(r.results) == set(r.asked), "not answered"
            assert r.arena.taken == 0, "a leak"
            assert len(open_files_below(root)) <= 16, "only files read by ranges may stay open"
    finally:
        shutil.rmtree(root)


options = settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])


@options
@given(steps_of(*QUIET))
def test_answers_budgets_and_ends_hold_in_any_order(steps: list[Step]) -> None:
    def check(r: Rig) -> None:
        errors = {result.errno for result in r.results.values()}
        assert errors <= {0, errno.ENOSPC}, "nothing failed at the source"

    play(steps, check)


@options
@given(steps_of(*LOUD))
def test_so_they_do_over_a_source_that_changes_and_fails(steps: list[Step]) -> None:
    play(steps)


@settings(options, max_examples=examples(60))
@given(steps_of("demand", "fetch", "work", "take"))
def test_a_file_is_opened_once_for_all_its_demands_and_fetches(steps: list[Step]) -> None:
    """As long as there is room and nothing is evicted."""
    root = Path(tempfile.mkdtemp())
    try:
        write_files(root, SIZES)
        with rig(root, budget=1 << 20) as r:
            player = Player(r)
            for step in steps:
                player.play(step)
            player.end()
            assert set(r.source.opens.values()) <= {1}
            assert r.metric(Metric.SOURCE_OPENS) == len(r.source.opens)
            assert r.metric(Metric.SOURCE_READ_BYTES) == sum(r.source.size(row) for row in r.source.opens)
            r.check_at_rest()
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("seed", range(3))
def test_real_threads_leave_nothing_unanswered(tmp_path: Path, seed: int) -> None:
    """Workers, a server that answers graces, and a supervisor that fetches, evicts and resizes, all at once."""
    write_files(tmp_path, SIZES)
    before = set(threading.enumerate())
    with rig(tmp_path, budget=BUDGET, whole_limit=13 * PAGE, range_budget=6 * PAGE) as r:
        r.workers.start(3, 1)
        workers = set(threading.enumerate()) - before
        chance = random.Random(seed)
        waiting: set[int] = set()
        number = 0

        def take(answer: Answer | AskGrace) -> None:
            if isinstance(answer, AskGrace):
                r.state.grace_passed(answer.number)
                return
            row, offset, length = asked[answer.id]
            data = bytes(r.arena.view[answer.arena : answer.arena + answer.length])
            assert answer.errno in (0, errno.ENOSPC)
            expected = content(r.files.index(row) + 1, r.source.size(row))[offset : offset + length]
            assert expected.startswith(data)
            waiting.remove(answer.id)

        asked: dict[int, tuple[int, int, int]] = {}
        for _ in range(1500):
            row = chance.choice(r.files)
            what = chance.random()
            if what < 0.6:
                number += 1
                asked[number] = (row, chance.randrange(max(1, r.source.size(row))), chance.randrange(1, 2 * PAGE))
                waiting.add(number)
                r.state.demand(Demand(number, *asked[number]))
            elif what < 0.8:
                r.state.fetch([row])
            elif what < 0.97:
                r.state.evict([row])
            else:
                pages = chance.randrange(BUDGET // PAGE)
                r.state.set_budget(pages * PAGE, pages * PAGE // 2, pages * PAGE // 4)
            while r.messages and chance.random() < 0.8:
                take(r.messages.popleft())
        give_up = threading.Event()
        for _ in range(500):
            while r.messages:
                take(r.messages.popleft())
            if not waiting:
                break
            give_up.wait(0.02)
        assert not waiting, "not answered"
        r.state.stop()
        for worker in workers:
            worker.join(10)
            assert not worker.is_alive()
        r.state.evict(r.files)
        while r.messages:
            take(r.messages.popleft())
    # Not their number: a thread that an earlier test left idle (trio keeps its workers for 10 s) may end meanwhile.
    assert wait_until(lambda: set(threading.enumerate()) <= before)
