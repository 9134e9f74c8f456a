"""What tests of the plan share."""

from __future__ import annotations

import pytest

from nopfsfs.plan.following import identifier


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that find nothing may take 3 s instead of 20: for tests that go on without a plan."""
    monkeypatch.setattr(identifier, "_BUDGET_S", 3.0)


@pytest.fixture
def whole_budget(small_budget: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's own all the same: for what takes more than 3 s to find on a slow machine."""
    monkeypatch.setattr(identifier, "_BUDGET_S", 20.0)
