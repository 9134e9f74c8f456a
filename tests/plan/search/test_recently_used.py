"""Values that are kept for as long as somebody asks for them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nopfsfs.plan.search.recently_used import RecentlyUsed

MOST, EPOCHS = 10, 3
STEPS = st.lists(st.tuples(st.sampled_from(["get", "put", "epoch"]), st.integers(0, 5), st.integers(0, 6)), max_size=60)


@given(STEPS)
def test_the_last_that_were_asked_for_are_kept(steps: list[tuple[str, int, int]]) -> None:
    kept: RecentlyUsed[int, NDArray[np.uint8]] = RecentlyUsed(MOST, EPOCHS)
    model: dict[int, tuple[int, int]] = {}  # by key, what was asked for last at the end: bytes, epoch
    epoch = 0
    for what, key, size in steps:
        if what == "get":
            found = kept.get(key)
            assert (None if found is None else found.nbytes) == model.get(key, (None,))[0]
            if key in model:
                model[key] = (model.pop(key)[0], epoch)
        elif what == "put":
            kept.put(key, np.zeros(size, np.uint8))
            model.pop(key, None)
            model[key] = (size, epoch)
            while sum(size for size, _ in model.values()) > MOST:
                del model[next(iter(model))]
        else:
            kept.epoch_began()
            epoch += 1
            model = {key: value for key, value in model.items() if value[1] > epoch - EPOCHS}
        assert [key for key in range(6) if key in kept] == sorted(model)
        assert kept.nbytes == sum(size for size, _ in model.values()) <= MOST
        assert kept.has_room == (2 * kept.nbytes < MOST)


def test_what_is_looked_at_is_not_asked_for() -> None:
    kept: RecentlyUsed[str, NDArray[np.uint8]] = RecentlyUsed(MOST, EPOCHS)
    kept.put("here", np.zeros(1, np.uint8))
    for _ in range(EPOCHS):
        assert kept.peek("here") is not None
        kept.epoch_began()
    assert kept.peek("here") is None
    kept.put("here", np.zeros(1, np.uint8))
    kept.clear()
    assert (len(kept), kept.nbytes) == (0, 0)
