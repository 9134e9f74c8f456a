"""Jobs that are resumed in the middle of an epoch, over mounts that did not see them begin."""

from __future__ import annotations

import pytest

from tests.conftest import slow
from tests.frameworks.training import SAID_MIDDLE, UNSAID, Bar, Training, needs

pytestmark = needs("torch", "torchvision", "torchdata", "transformers", "lightning")

SEED = 42
STOP = 150  # steps


@pytest.mark.parametrize(("kind", "workers", "bar"), [slow("trainer", 2, SAID_MIDDLE), ("lightning", 0, UNSAID)])
def test_resumed(training: Training, kind: str, workers: int, bar: Bar) -> None:
    told = {"kind": kind, "workers": workers, "seed": SEED, "output": str(training.work)}
    training.before("torch_users_job", stop=STOP, **told)
    # Lightning begins another epoch: its loader has no state
    training.found("torch_users_job", "--seed", str(SEED), bar=bar, resume=True, epochs=3, **told)


@pytest.mark.parametrize(
    ("workers", "dealt"),
    [slow(0, {}), slow(2, {}), (2, {"world": 2, "rank": 1})],
)
def test_stateful_loader(training: Training, workers: int, dealt: dict[str, int]) -> None:
    told = {"kind": "stateful", "workers": workers, "seed": SEED, "state": str(training.work / "state"), **dealt}
    training.before("torch_job", stop=STOP, **told)
    training.found("torch_job", "--seed", str(SEED), bar=SAID_MIDDLE, epochs=5 if dealt else 3, **told)
