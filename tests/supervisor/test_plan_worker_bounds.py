"""What users ask of a plan on the control socket is bounded before anything is computed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from nopfsfs.config import MountConfig
from nopfsfs.dataset.tree_scan import scan
from nopfsfs.supervisor import plan_worker as module
from nopfsfs.supervisor.control_socket import Caller
from nopfsfs.supervisor.plan_worker import PlanWorker, make_follower
from tests.asynchronous import in_trio
from tests.supervisor.talking import say, served

FILES = 20


@pytest.fixture
def plans(tmp_path: Path) -> PlanWorker:
    """Those of a mount of twenty files."""
    for number in range(FILES):
        (tmp_path / f"{number:02}.jpg").write_bytes(b"x")
    index, config = scan(tmp_path).index, MountConfig(source=str(tmp_path), mountpoint="/nowhere")
    follower = make_follower(index, config)
    made = PlanWorker(cast(Any, SimpleNamespace(follower=follower, outages=None)), index, config)
    made._made.set()
    return made


def request(**options: Any) -> dict[str, Any]:
    return {"command": "register", "plans": [{"sampler": "random", "seed": 1, "options": options}]}


@in_trio
async def test_an_epoch_of_more_samples_than_anybody_draws_is_refused(plans: PlanWorker) -> None:
    for number in (FILES * module.SAMPLES_MOST + 1, 10**9, 2**62):
        with pytest.raises(ValueError, match=rf"num_samples: {number} samples an epoch are more than 100 times the 20"):
            await plans.register(request(num_samples=number))
    assert await plans.register(request(num_samples=FILES * module.SAMPLES_MOST)) == {"registered": 1}


@in_trio
async def test_an_order_that_is_not_computed_in_time_takes_no_thread_of_others(
    plans: PlanWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_LIMIT_S", 0.1)
    go_on = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def build(hypothesis: Any, datasets: Any) -> None:
        trio.from_thread.run(go_on.wait, trio_token=token)

    monkeypatch.setattr(module, "build", build)
    before = trio.to_thread.current_default_thread_limiter().borrowed_tokens
    for _ in range(3 * module.COMPUTING_MOST):
        with pytest.raises(ValueError, match="could not be computed in time"):
            await plans.register(request())
    assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == before
    go_on.set()


@in_trio
async def test_an_answer_has_no_more_paths_than_the_commands_take(
    plans: PlanWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plans.register(request())
    found = await plans.describe({"command": "plan", "next": FILES})
    assert sorted(found["plans"][0]["next"]) == [f"{number:02}.jpg" for number in range(FILES)]
    monkeypatch.setattr(module, "NEXT_BYTES", 6 * FILES - 1)
    with pytest.raises(ValueError, match=f"next: the paths of {FILES} files have too many bytes; ask for less"):
        await plans.describe({"command": "plan", "next": FILES})


@in_trio
async def test_a_mount_says_why_it_believes_what_it_does(plans: PlanWorker, tmp_path: Path) -> None:
    async def answer(asked: dict[str, Any], caller: Caller) -> dict[str, Any]:
        return await plans.describe(asked)

    async with served(tmp_path, answer) as path:
        (before,) = await say(path, b'{"command": "plan"}')
        await plans.register(request())
        (after,) = await say(path, b'{"command": "plan"}')
    assert before["record"]["explanation"]["text"] == "Nothing was read yet."
    why = after["record"]["explanation"]
    said = {"what": "plan", "value": "random, seed 1, epoch 0", "origin": "said", "verdict": "open", "shows": None}
    assert why["said"] == [said]
    assert [(one["origin"], one["after"], one["plan"]["seed"]) for one in why["plans"]] == [("said", None, 1)]
    assert why["text"].endswith("You registered random, seed 1, epoch 0: the opens have not judged it yet.")
