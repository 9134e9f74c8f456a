"""What is off is tried again, and said."""

from __future__ import annotations

from nopfsfs.system.outages import FIRST_S, MOST_S, Backoff, Outages


def test_pauses_double_up_to_a_minute_and_stay_there() -> None:
    backoff = Backoff()
    pauses = [backoff.failed() for _ in range(2000)]
    assert pauses[:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert set(pauses[9:]) == {MOST_S}
    backoff.succeeded()
    assert backoff.failed() == FIRST_S


def test_some_failures_may_cost_nothing() -> None:
    backoff = Backoff(free=2)
    assert [backoff.failed() for _ in range(4)] == [0.0, 0.0, FIRST_S, 2 * FIRST_S]
    backoff.succeeded()
    assert [backoff.failed() for _ in range(3)] == [0.0, 0.0, FIRST_S]


def test_an_outage_keeps_its_beginning_and_tells_the_last_reason() -> None:
    now = [1000.0]
    outages = Outages(lambda: now[0])
    outages.began("a", "first")
    now[0] = 1005.0
    outages.began("b", "other")
    outages.began("a", "second")
    assert outages.all() == [
        {"what": "a", "since": 1000.0, "why": "second"},
        {"what": "b", "since": 1005.0, "why": "other"},
    ]
    outages.ended("a")
    outages.ended("never")
    assert [one["what"] for one in outages.all()] == ["b"]
