"""What is awaited, against a model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.policy.pending_reads import PASSED_BY, PendingReads

steps = st.lists(
    st.tuples(st.sampled_from(["expect", "met", "passed", "clear"]), st.integers(0, 5), st.integers(0, 3000))
)


@given(steps)
def test_rows_are_awaited_until_met_or_passed(steps: list[tuple[str, int, int]]) -> None:
    awaited, model, position = PendingReads(), dict[int, int](), 0
    front = 0  # readings are expected in the order of the stream
    for what, row, value in steps:
        if what == "expect":
            front += value
            awaited.expect(row, front)
            model[row] = front + PASSED_BY
        elif what == "met":
            awaited.read_done(row)
            model.pop(row, None)
        elif what == "passed":
            position += value
            gone = {r for r, limit in model.items() if limit < position}
            assert set(awaited.passed(position)) == gone
            model = {r: limit for r, limit in model.items() if r not in gone}
        else:
            assert set(awaited.clear()) == set(model)
            model.clear()
        assert {r for r in range(6) if r in awaited} == set(model)
        assert len(awaited) == len(model)
