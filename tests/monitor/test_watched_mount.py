"""A mount is looked at once a second, and whatever it does is something that can be shown."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.control.client import SOCKET_NAME, Command, NoAnswer, Record
from nopfsfs.control.find_mount import Located
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse.mount_table import Mount
from nopfsfs.monitor import top_text, watched_mount
from nopfsfs.monitor.watched_mount import CURVES, KEPT_S, WatchedMount
from nopfsfs.protocol.durations import BUCKETS
from tests.monitor.figures import figures
from tests.monitor.runs import history


class Answers:
    """A daemon whose next answers are given."""

    def __init__(self, *answers: Any, past: Any = None) -> None:
        self.answers, self.past, self.asked = list(answers), past, list[tuple[str, Mapping[str, Any]]]()

    def __call__(self, command: Command, further: Mapping[str, Any]) -> Record:
        self.asked.append((command, further))
        if command == "history":
            if self.past is None:
                raise NoAnswer("no history")
            return dict(self.past)
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]


def seen(*answers: Any, past: Any = None) -> WatchedMount:
    watch = WatchedMount("/mnt/fast", Answers(*answers, past=past))
    for _ in answers:
        watch.look()
    return watch


LATER = figures(
    time=1002.0, opens=350, reader_waits={"seconds": 2.5, "buckets": [4, *[2] * (BUCKETS - 1)]},
    source={"opens": 80, "bytes": 6000 + 5_000_000, "second_reads": 0, "changed": 0, "stuck": 0},
    tuner={"limit": 16, "slowdown": 1.25},
)  # fmt: skip


def test_two_answers_make_the_figures_of_the_time_in_between() -> None:
    moment = seen(figures(), LATER).moment
    assert moment.line is not None
    assert (moment.line.opens, moment.waiting, moment.line.limit) == (100, 0.5, 16)
    assert (moment.plan, moment.sampler, moment.epoch, moment.share) == ("locked", "random", 3, 0.5)
    assert (moment.source, moment.errors, moment.trouble) == ("/pfs/data", 7, "")
    assert [moment.curves[name][-1] for name in CURVES] == [100, 0.5, 2_500_000, 16]
    assert {len(curve) for curve in moment.curves.values()} == {KEPT_S}


def test_curves_begin_with_what_the_mount_remembers() -> None:
    past = history(1, 30, opens=[float(n) for n in range(30)], limit=[None] * 30, source_bytes=2e6)
    curves = seen(figures(), past=past).moment.curves
    assert curves["opens"][-30:] == tuple(range(30))
    assert (curves["limit"][-1], curves["source_bytes"][-1], curves["opens"][0]) == (0.0, 2e6, 0.0)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (NoAnswer("the daemon of this mount did not answer within 1 s"), "did not answer within 1 s"),
        (NopfsError(Exit.NOT_MOUNTED, "nothing is mounted at /mnt/fast"), "not mounted"),
        (OSError(24, "Too many open files"), "Too many open files"),
        ({}, "are not understood"),
        (figures(time="now"), "are not understood"),
        (figures(plan=None), "are not understood"),
        (figures(opens=10**400), "are not understood"),
    ],
)
def test_a_mount_in_trouble_says_so_and_has_no_figures(trouble: Any, said: str) -> None:
    moment = seen(figures(), LATER, trouble).moment
    assert said in moment.trouble
    assert moment.line is None
    assert top_text.cells(moment)[1:] == ["-"] * 8


def test_after_trouble_figures_are_those_since_then() -> None:
    watch = seen(figures(), NoAnswer("gone"), figures(time=5000.0, opens=10_000), figures(time=5001.0, opens=10_040))
    assert watch.moment.line is not None
    assert watch.moment.line.opens == 40


def test_a_mount_that_hangs_is_waited_for_no_longer_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of 0.3 s in place of 1 s; this allows for a slow machine."""
    monkeypatch.setattr(watched_mount, "EACH_S", 0.3)
    mount = Mount(1, 0, 1, "/", "/mnt/fast", ("ro",), "fuse.nopfs", "/pfs", ("user_id=0",))
    monkeypatch.setattr(watched_mount, "locate", lambda path, env: Located(path, mount, str(tmp_path)))
    monkeypatch.setattr(Located, "owner", None)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / SOCKET_NAME))
        listener.listen()
        watch = WatchedMount("/mnt/fast")
        began = time.monotonic()
        watch.look()
        assert time.monotonic() - began < 20.0
    assert "did not answer" in watch.moment.trouble


texts = st.text(max_size=30)
strange = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.just([]) | st.just({})


@given(st.sampled_from(sorted(figures())), strange, st.sampled_from(["info", "plan", "tuner", "tiers"]), strange)
def test_whatever_a_daemon_says_can_be_shown(key: str, value: Any, group: str, inner: Any) -> None:
    first = figures()[group]
    inside = dict.fromkeys(first, inner) if isinstance(first, dict) else inner
    one = seen(figures(), {**figures(time=1001.0), key: value}).moment
    other = seen(figures(), {**figures(time=1001.0), group: inside}).moment
    for moment in one, other:
        shown = [*top_text.cells(moment), top_text.plan_text(moment), top_text.figures_text(moment)]
        shown += [top_text.curve_title(name, moment.curves[name]) for name in CURVES]
        shown += [text for _, text, _ in top_text.served_parts(moment.line, 70)]
        assert all(text.isprintable() for text in shown), shown
        assert all(count >= 0 for _, _, count in top_text.served_parts(moment.line, 70))
