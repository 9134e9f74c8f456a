"""Commands arrive as they were sent; garbage is a ValueError and nothing else."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.protocol import supervisor_stager
from nopfsfs.protocol.supervisor_stager import StagerCommand


@given(
    st.sampled_from(list(StagerCommand)),
    st.integers(0, 3 * supervisor_stager.ROWS_PER_MESSAGE),
    st.integers(-(2**63), 2**63 - 1),
)
def test_commands_of_any_length_arrive_in_messages_that_fit(command: StagerCommand, count: int, value: int) -> None:
    rows = np.arange(count, dtype=np.int64)
    messages = supervisor_stager.pack_commands(command, rows, value)
    assert all(len(message) <= supervisor_stager.MESSAGE_MAX for message in messages)
    arrived = [supervisor_stager.unpack_command(message) for message in messages]
    assert {(kind, number) for kind, _, number in arrived} == {(command, value)}
    assert np.concatenate([part for _, part, _ in arrived]).tolist() == rows.tolist()


@given(message=st.binary(max_size=80))
def test_garbage_is_refused_or_means_something(message: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert supervisor_stager.unpack_command(message) is not None


@pytest.mark.parametrize("count", [1, 2**32 - 1])
def test_a_command_that_says_it_is_longer_than_it_is_is_refused(count: int) -> None:
    message = supervisor_stager.pack_commands(StagerCommand.FETCH, np.zeros(0, np.int64))[0]
    with pytest.raises(ValueError, match="length"):
        supervisor_stager.unpack_command(message[:4] + count.to_bytes(4, "little") + message[8:])
