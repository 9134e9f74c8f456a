"""What tests of the plan share: searches are limited by their steps, so that they come as far on every machine."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from nopfsfs.plan.following import identifier, missed_epochs, search_budget
from nopfsfs.plan.search import matching

# Seconds of a core that a call of `Search.run` takes at most, about.
STEP_S = 0.05


@pytest.fixture(autouse=True)
def counted_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends its calls by the places that it computes, and each call counts as so many seconds."""
    monkeypatch.setattr(matching, "time", SimpleNamespace(thread_time=lambda: 0.0))
    looks = itertools.count()  # at the beginning and at the end of each call
    monkeypatch.setattr(identifier, "time", SimpleNamespace(thread_time=lambda: STEP_S * next(looks)))
    monkeypatch.setattr(missed_epochs, "time", SimpleNamespace(thread_time=lambda: 0.0))


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that find nothing may take 3 s instead of 20: for tests that go on without a plan."""
    monkeypatch.setattr(search_budget, "_BUDGET_S", 3.0)


@pytest.fixture
def whole_budget(small_budget: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's own all the same: for what takes more than 3 s to find."""
    monkeypatch.setattr(search_budget, "_BUDGET_S", 20.0)
