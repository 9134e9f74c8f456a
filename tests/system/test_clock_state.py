"""Whether a wall clock may be believed to agree with those of other nodes."""

from __future__ import annotations

import pytest

from nopfsfs.system import clock_state
from nopfsfs.system.clock_state import trusted


@pytest.mark.parametrize(
    ("state", "status", "error_us", "expected"),
    [
        (0, 0x2001, 300, True),
        (1, 0x2011, 300, True),  # a leap second is to come
        (0, 0x2001, 99_000, True),
        (0, 0x2001, 101_000, False),
        (0, 0x2041, 300, False),  # not synchronised
        (5, 0x0040, 16_000_000, False),
        (-1, 0, 0, False),  # the call is not permitted
    ],
)
def test_a_clock_is_disciplined_when_it_is_synchronised_and_its_error_is_small(
    state: int, status: int, error_us: int, expected: bool
) -> None:
    assert trusted(state, status, error_us) is expected


def test_the_kernel_is_asked_and_nothing_is_set() -> None:
    assert clock_state.disciplined() in (True, False)


def test_where_the_call_does_not_exist_the_clock_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_state.ctypes, "CDLL", lambda name: object())
    assert clock_state.disciplined() is False
