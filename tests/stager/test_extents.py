"""An extent is free once the server has answered a request that was sent after it was retired, and not before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.stager.extents import GracePeriods


@given(st.lists(st.sampled_from(["retire", "pass", "pass old"])))
def test_extents_are_freed_once_after_a_later_request_has_passed(steps: list[str]) -> None:
    retired_at: dict[int, int] = {}  # by request: how many extents were retired when it was sent
    freed: list[int] = []
    retired = 0

    def ask(number: int) -> bool:
        assert number == len(retired_at) + 1
        retired_at[number] = retired
        return False

    grace = GracePeriods(ask, freed.append)
    for step in [*steps, "pass", "pass", "pass"]:
        number = len(retired_at)
        if step == "retire":
            retired += 1
            grace.retire(retired - 1)
        elif step == "pass":
            grace.passed(number)
            assert all(extent < retired_at[number] for extent in freed)
        else:
            before = list(freed)
            grace.passed(number - 1)
            assert freed == before
    assert freed == list(range(retired))


def test_a_request_is_not_repeated_while_one_is_under_way() -> None:
    asked: list[int] = []
    freed: list[int] = []
    grace = GracePeriods(lambda number: bool(asked.append(number)), freed.append)
    for extent in (10, 11, 12):
        grace.retire(extent)
    assert asked == [1]
    grace.passed(1)
    assert (freed, asked) == ([10], [1, 2])
    grace.passed(1)  # an answer that came twice
    assert freed == [10]
    grace.passed(2)
    assert freed == [10, 11, 12]
