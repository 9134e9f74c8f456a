"""Messages arrive as they were sent; garbage is a ValueError and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.protocol import server_stager
from nopfsfs.protocol.server_stager import Answer, Demand, YoungRead

i64 = st.integers(-(2**63), 2**63 - 1)
u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)


@given(u64, u64, i64, u32)
def test_demands_arrive(number: int, row: int, offset: int, length: int) -> None:
    demand = Demand(number, row, offset, length)
    assert server_stager.unpack_demand(server_stager.pack_demand(demand)) == demand


@given(st.lists(st.builds(YoungRead, u64, u64, i64, u64, u64), min_size=1, max_size=server_stager.YOUNG_PER_MESSAGE))
def test_young_reads_arrive_and_are_no_demand(reads: list[YoungRead]) -> None:
    message = server_stager.pack_young(reads)
    assert len(message) <= server_stager.DEMAND_MAX
    assert server_stager.has_young(message)
    assert server_stager.is_news(message)
    assert server_stager.unpack_young(message) == reads
    demand = server_stager.pack_demand(Demand(1, 2, 3, 4))
    assert not server_stager.has_young(demand)
    assert not server_stager.is_news(demand)
    assert server_stager.is_news(server_stager.pack_demand(server_stager.PING))


@given(u64, st.integers(-(2**31), 2**31 - 1), i64, u32, u32)
def test_answers_arrive(number: int, errno: int, arena: int, length: int, origin: int) -> None:
    answer = Answer(number, errno, arena, length, origin)
    assert server_stager.unpack_answer(server_stager.pack_answer(answer)) == answer


@pytest.mark.parametrize(
    "unpack",
    [
        server_stager.unpack_demand,
        server_stager.unpack_answer,
        server_stager.unpack_young,
    ],
)
@given(message=st.binary(max_size=80))
def test_garbage_is_refused_or_means_something(unpack: Callable[[bytes], object], message: bytes) -> None:
    try:
        assert unpack(message) is not None
    except ValueError:
        pass
