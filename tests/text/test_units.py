"""Sizes, rates, durations and rank lists."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.text.units import (
    MAX_DURATION_S,
    MAX_RATE,
    MAX_SIZE,
    exact_duration,
    exact_size,
    format_duration,
    format_ranks,
    format_rate,
    format_size,
    parse_duration,
    parse_ranks,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("117", 117),
        ("117B", 117),
        ("4G", 4 << 30),
        ("4g", 4 << 30),
        ("512MiB", 512 << 20),
        ("512 MiB", 512 << 20),
        ("1.5T", 3 << 39),
        (".5K", 512),
        ("1kB", 1000),
        ("2GB", 2 * 10**9),
        ("1P", 1 << 50),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "4X", "-1", "1e9", "4GG", "4 G B", "0x10", "nan", "٣", "9999999P"])
def test_what_is_not_a_size_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size|more than any"):
        parse_size(text)


@given(st.integers(0, MAX_SIZE))
def test_an_exact_size_comes_back(size: int) -> None:
    assert parse_size(exact_size(size)) == size


@given(st.integers(0, 1 << 60))
def test_a_formatted_size_comes_back_nearly(size: int) -> None:
    text = format_size(size)

    assert parse_size(text) == pytest.approx(size, rel=0.05)
    assert len(text) <= 9


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 << 20, "1.5 GiB"), (120 << 20, "120 MiB")],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("146 MB/s", 146e6),
        ("146MB/s", 146e6),
        ("146 mb / s", 146e6),
        ("1.5G/s", 1.5 * 2**30),
        ("1/s", 1.0),
        ("1.5 B/S", 1.5),
        (".5KiB/s", 512.0),
    ],
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text",
    ["", "/s", "146 MB", "146", "146 MB/m", "-1 MB/s", "1e6/s", "inf/s", "nan/s", "0/s", "0.5 B/s",
     "999P/s", "9" * 999 + "/s"],
)
def test_what_is_not_a_rate_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a rate: write .* such as 146 MB/s"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(146e6, "146 MB/s"), (21.164e9, "21164 MB/s"), (1500, "1.5 KB/s"), (1, "1 B/s"), (1234567.25, "1.23456725 MB/s")],
)
def test_rates_in_text(rate: float, text: str) -> None:
    assert format_rate(rate) == text


@given(st.floats(1, MAX_RATE))
def test_a_formatted_rate_comes_back_exactly(rate: float) -> None:
    assert parse_rate(format_rate(rate)) == rate


@pytest.mark.parametrize("rate", [0.0, 0.5, -1.0, math.nan, math.inf, 1e300])
def test_what_is_no_rate_has_no_text(rate: float) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        format_rate(rate)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("300", 300), ("5s", 5), ("1.5m", 90), ("2h", 7200), ("500ms", 0.5), ("1d", 86400), ("0", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@given(st.floats(0, MAX_DURATION_S))
def test_an_exact_duration_comes_back(seconds: float) -> None:
    assert parse_duration(exact_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "s", "-5", "inf", "nan", "5 weeks", "999999d"])
def test_what_is_not_a_duration_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time|more than a year"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.012, "12 ms"),
        (3.42, "3.4 s"),
        (59.97, "1 min 0 s"),
        (125, "2 min 5 s"),
        (3661, "1 h 1 min"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", (0,)), ("0-3,6", (0, 1, 2, 3, 6)), ("6, 0-1", (0, 1, 6)), ("2-2,1-2", (1, 2))]
)
def test_ranks(text: str, ranks: tuple[int, ...]) -> None:
    assert parse_ranks(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1-", "1,,2", "0-99999999", ",".join(["0-1048575"] * 2)])
def test_what_is_not_a_list_of_ranks_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="ranks"):
        parse_ranks(text)


@given(st.sets(st.integers(0, 5000), min_size=1))
def test_ranks_come_back(ranks: set[int]) -> None:
    assert parse_ranks(format_ranks(ranks)) == tuple(sorted(ranks))
