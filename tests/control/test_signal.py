"""When a mount goes over to tripwires by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from nopfsfs.control.signals import Signal
from nopfsfs.tiers.columns import Gauge
from nopfsfs.tiers.tripwires import Tripwires

N = 400


class Conductor:
    def __init__(self, *, has_room_for_all: bool) -> None:
        self.has_room_for_all = has_room_for_all
        self.sees_closes = True

    def without_closes(self) -> None:
        self.sees_closes = False


@pytest.mark.parametrize(
    ("how", "steady", "shares", "room", "turns"),
    [
        ("auto", True, False, False, True),
        ("auto", False, False, True, False),
        ("auto", True, True, True, True),
        ("auto", True, True, False, False),  # what stays is replaced, and that takes closes
        ("open", True, False, True, False),
    ],
)
def test_auto_turns_when_the_plan_holds_and_no_close_is_needed(
    how: str, steady: bool, shares: bool, room: bool, turns: bool
) -> None:
    gauge = memoryview(np.zeros(len(Gauge), np.int64))
    signal = Signal(how, Tripwires(1, N), np.full(N, 10), gauge)
    follower = SimpleNamespace(steady=steady, shares=shares, show_only=lambda showing: None)
    conductor = Conductor(has_room_for_all=room)

    signal.turn(cast(Any, follower), cast(Any, conductor))

    assert signal.refusing == turns
    assert conductor.sees_closes != turns
