"""Opens of the access log become lines, and sums."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.monitor import access_lines
from nopfsfs.monitor.access_lines import LoggedOpen, OpensRecord, Profile, json_lines, text_lines

OPENS = [
    LoggedOpen(1_700_000_000.25, 7, True, "train/a.jpg"),
    LoggedOpen(1_700_000_000.5, 7, False, "train/b.jpg"),
    LoggedOpen(1_700_000_001.0, 8, None, "top\nline"),
]


def test_a_record_is_read_as_it_was_sent() -> None:
    sent = {
        "times": [1.5, 2], "readers": [3, 4], "foreseen": [True, None], "paths": ["a", "b/c"], "stand_for": 1.0,
        "dropped": 2, "lost": 0, "counts": "exact",
    }  # fmt: skip
    read = OpensRecord.read(sent)
    assert read == OpensRecord([LoggedOpen(1.5, 3, True, "a"), LoggedOpen(2.0, 4, None, "b/c")], 1.0, 2, 0)
    assert read.until(1.9).opens == read.opens[:1]


@pytest.mark.parametrize("wrong", [{"times": [1]}, {"stand_for": None}, {"readers": ["x", 1]}, {"paths": 5}])
def test_what_is_no_record_is_refused(wrong: dict[str, object]) -> None:
    sent = {"times": [1, 2], "readers": [3, 4], "foreseen": [1, 0], "paths": ["a", "b"], "stand_for": 1, "dropped": 0}
    with pytest.raises((KeyError, TypeError, ValueError)):
        OpensRecord.read({**sent, "lost": 0, **wrong})


def test_each_open_is_one_line() -> None:
    lines = list(text_lines(OpensRecord(OPENS, 1.0, 0, 0), sample=False))
    assert [line.split(None, 1)[1] for line in lines] == [
        "7  foreseen    train/a.jpg",
        "7  unforeseen  train/b.jpg",
        "8  -           top\\nline",
    ]
    assert [line.split()[0].partition(".")[2] for line in lines] == ["250000", "500000", "000000"]
    assert [json.loads(line)["path"] for line in json_lines(OpensRecord(OPENS, 1.0, 0, 0))] == [o.path for o in OPENS]


def test_a_sample_and_what_is_left_out_are_said() -> None:
    begun = list(text_lines(OpensRecord(OPENS, 37.25, 5, 6), sample=False))
    assert begun[0] == (
        "# a sample: the kernel opens files by itself now, and each line stands for about 37.2 opens"
    )
    assert begun[1].startswith("# left out here: 5 opens, which came faster than")
    assert len(list(text_lines(OpensRecord(OPENS, 37.25, 0, 0), sample=True))) == len(OPENS)
    assert next(iter(text_lines(OpensRecord(OPENS, 1.0, 0, 0), sample=True))) == "# all opens are seen again"
    assert json.loads(next(json_lines(OpensRecord([], 1.0, 5, 6)))) == {"dropped": 5, "lost": 6}


SOME_OPENS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([True, False, None]), st.sampled_from(["a", "b/c", "d/e"]))
)


@given(st.lists(st.tuples(SOME_OPENS, st.integers(0, 9))))
def test_sums_are_those_of_all_records(records: list[tuple[list[tuple[int, bool | None, str]], int]]) -> None:
    profile, all_opens = Profile(seconds=2.0), [one for opens, _ in records for one in opens]
    for opens, dropped in records:
        profile.add(OpensRecord([LoggedOpen(1.0, *one) for one in opens], 1.0, dropped, 0))
    found = profile.figures()
    assert (found["opens"], found["dropped"]) == (len(all_opens), sum(dropped for _, dropped in records))
    assert found["foreseen"] == sum(foreseen is True for _, foreseen, _ in all_opens)
    assert found["judged"] == sum(foreseen is not None for _, foreseen, _ in all_opens)
    assert {one["name"]: one["opens"] for one in found["files"]} == Counter(path for *_, path in all_opens)
    assert {one["name"]: one["opens"] for one in found["readers"]} == Counter(reader for reader, *_ in all_opens)
    assert f"{len(all_opens):,} opens in 2.0 s" in profile.text(str)


def test_a_profile_of_a_sample_counts_what_each_open_stands_for() -> None:
    profile = Profile(seconds=1.0)
    profile.add(OpensRecord(OPENS, 10.0, 0, 0))
    assert profile.figures()["opens"] == 30
    assert profile.figures()["counts"] == "estimated"
    text = profile.text(lambda pid: "python")
    assert text.startswith("about 30 opens in 1.0 s (30/s), 50.0% of them foreseen")
    assert "          20   66.7%  7 python" in text


def test_a_profile_of_very_many_files_has_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_lines, "NAMES_MOST", 2)
    profile = Profile(seconds=1.0)
    profile.add(OpensRecord([LoggedOpen(1.0, 1, True, name) for name in "aabbcd"], 1.0, 0, 0))
    assert (len(profile.files), profile.opens, profile.others) == (2, 6, 2)
    assert "2 opens are of further files" in profile.text(str)


def test_nothing_was_opened() -> None:
    assert Profile(seconds=1.0).text(str) == "0 opens in 1.0 s (0/s)\n0 different files by 0 readers"
