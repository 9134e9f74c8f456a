"""The record of the last job on a source, as it is written and read."""

from __future__ import annotations

import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.config import MountConfig
from nopfsfs.plan.following.recorded import PLANS_MOST, RecordedPlan
from nopfsfs.supervisor import last_job
from nopfsfs.supervisor.last_job import FILE, WRITE_PAUSE_S, LastJob, decode, encode, path_of, read, write

PLAN = RecordedPlan(
    "train", "image_folder", "hf_trainer", 42, 37, 8, (4, 5, 6, 7), (("batch", 32), ("rate", 0.5), ("word", "ä")),
    ("random_split", 7, (("lengths", "0.8,0.2"),)), 272, 1234,
)  # fmt: skip
PLANS = (PLAN, RecordedPlan("val", "sorted_files", "sequential", 0, 0))
CONFIG = MountConfig(source="/pfs/data", mountpoint="/mnt/fast", index_dir="/cache")

names = st.text(max_size=20)
values = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names
options = st.lists(st.tuples(names, values), max_size=3).map(tuple)
recorded = st.builds(
    RecordedPlan, names, names, names, st.integers(), st.integers(), st.integers(),
    st.lists(st.integers(), max_size=9).map(tuple), options, st.none() | st.tuples(names, st.integers(), options),
    st.none() | st.integers(), st.integers(),
)  # fmt: skip


def signed(body: bytes) -> bytes:
    """A record that is not damaged, whatever it says."""
    return b"nopfs-plans %d %016x\n" % (FILE.version, xxhash.xxh3_64_intdigest(body)) + body


@given(st.lists(recorded, max_size=PLANS_MOST))
def test_what_is_written_is_read(plans: list[RecordedPlan]) -> None:
    assert decode(encode(plans)) == tuple(plans)


@given(st.binary() | st.binary().map(signed))
def test_garbage_is_refused_in_one_way(data: bytes) -> None:
    try:
        assert decode(data) == ()
    except ValueError:
        pass


@given(st.integers(0, len(encode(PLANS)) - 1), st.integers(1, 255))
def test_no_damage_goes_unseen(at: int, difference: int) -> None:
    data = bytearray(encode(PLANS))
    data[at] ^= difference
    with pytest.raises(ValueError, match="damaged"):
        decode(bytes(data))
    with pytest.raises(ValueError, match="damaged"):
        decode(encode(PLANS)[:at])


@pytest.mark.parametrize(
    "body",
    [
        b"{}", b"[1]", b"[{}]", b"7", b"null", b"[" * 20_000, b"[NaN]", b'"x"',
        *(encode([PLAN]).partition(b"\n")[2].replace(before, after, 1) for before, after in (
            (b'"seed": 42', b'"seed": "42"'), (b'"seed": 42', b'"seed": true'), (b'"epoch": 37', b'"epoch": 1.5'),
            (b'"world": 8', b'"world": [8]'), (b'"dataset": "train"', b'"dataset": null'), (b"0.5", b"Infinity"),
            (b"272", b'{"a": 1}'), (b'"sampler"', b'"place"'),
            (b'7,\n   [\n    [\n     "lengths",\n     "0.8,0.2"\n    ]\n   ]', b"7"),
        )),
    ],
)  # fmt: skip
def test_what_is_of_another_kind_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(signed(body))


def test_a_record_is_never_too_long() -> None:
    long = replace(PLAN, options=(("state", "x" * 20_000),))
    assert decode(encode([long, PLAN, long])) == (long, PLAN)
    assert decode(encode([replace(PLAN, dataset="ä" * FILE.most)])) == ()
    with pytest.raises(ValueError, match="too long"):
        decode(signed(b" " * FILE.most + b"[]"))


def test_a_file_of_this_user_alone_that_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "plans.json"
    assert read(str(path)) == ()
    write(str(path), PLANS)
    assert read(str(path)) == PLANS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    newer = replace(PLAN, epoch=38, position=0)
    write(str(path), [newer])
    assert read(str(path)) == (newer, PLANS[1])
    assert os.listdir(path.parent) == ["plans.json"]


def test_no_link_is_followed(tmp_path: Path) -> None:
    other, path = tmp_path / "other", tmp_path / "plans.json"
    other.write_bytes(encode(PLANS))
    path.symlink_to(other)
    assert read(str(path)) == ()
    write(str(path), [PLAN])
    assert not path.is_symlink()
    assert other.read_bytes() == encode(PLANS)


def test_what_is_no_file_of_this_user_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plans.json"
    os.mkfifo(path)
    assert read(str(path)) == ()  # at once
    path.unlink()
    path.mkdir()
    assert read(str(path)) == ()
    path.rmdir()
    path.write_bytes(encode(PLANS))
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert read(str(path)) == ()


def test_a_file_for_each_source_reader_and_node(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/pfs/data")
    configs = [CONFIG, replace(CONFIG, source="/pfs/other"), replace(CONFIG, uid=os.geteuid() + 1),
               replace(CONFIG, peers=True, node=1)]  # fmt: skip
    assert len({path_of(config) for config in configs}) == len(configs)
    same = (replace(CONFIG, source=str(tmp_path / "link")), replace(CONFIG, mountpoint="/elsewhere", seed=7))
    assert {path_of(config) for config in same} == {path_of(CONFIG)}


class Follower:
    """What is followed, as it changes: by second, the plans."""

    def __init__(self, plans: dict[float, list[RecordedPlan]]) -> None:
        self._plans = plans

    def to_record(self) -> list[RecordedPlan]:
        now = trio.current_time()
        return next(plans for since, plans in reversed(self._plans.items()) if since <= now)


def kept(config: MountConfig, plans: dict[float, list[RecordedPlan]], seconds: float) -> list[tuple[float, Any]]:
    """(second, plans) of each write."""
    writes: list[tuple[float, Any]] = []
    job = LastJob(config)
    assert trio.run(job.read) == ()

    async def main() -> None:
        base = trio.current_time()

        async def write(found: Any) -> None:
            writes.append((round(trio.current_time() - base), list(found)))
            job._written = list(found)

        job.write = write  # type: ignore[method-assign]
        with trio.move_on_after(seconds):
            await job.keep(cast(Any, Follower({base + since: found for since, found in plans.items()})))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.001))
    return writes


def test_it_is_written_once_certain_and_as_epochs_go_by_at_most_once_a_minute(tmp_path: Path) -> None:
    config = replace(CONFIG, index_dir=str(tmp_path))
    later, moved = replace(PLAN, epoch=38), replace(PLAN, position=2000)
    writes = kept(config, {0: [], 10: [PLAN], 12: [moved], 20: [later], 100: [replace(later, position=9)]}, 200)
    assert [(second, plans) for second, plans in writes] == [(10, [PLAN]), (11 + WRITE_PAUSE_S, [later])]


@pytest.mark.parametrize("config", [replace(CONFIG, remember=False), replace(CONFIG, index_dir="")])
def test_it_is_neither_read_nor_written_where_nothing_is_kept(config: MountConfig) -> None:
    assert kept(config, {0: [PLAN]}, 600) == []


def test_a_directory_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def main() -> None:
        job = LastJob(replace(CONFIG, index_dir=str(tmp_path / "file")))
        assert await job.read() == ()
        await job.write(PLANS)

    trio.run(main)


def test_a_file_system_that_hangs_keeps_one_thread_and_none_of_those_that_others_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Servers are started, and the mount is watched and unmounted, in trio's own threads, of which there are 40."""
    hang, begun = threading.Event(), []

    def write(path: str, plans: object) -> None:
        begun.append(path)
        hang.wait(20)

    monkeypatch.setattr(last_job, "LIMIT_S", 20)
    monkeypatch.setattr(last_job, "path_of", lambda config: "/cache/plans")
    monkeypatch.setattr(last_job, "write", write)

    async def main() -> None:
        job = LastJob(CONFIG)
        await job.read()
        monkeypatch.setattr(last_job, "LIMIT_S", 0.05)
        while not begun:  # a thread may need longer than that
            await job.write(PLANS)
        for _ in range(3):
            await job.write(PLANS)
        assert await job.read() == (), "and the plan is made without the record"
        assert begun == ["/cache/plans"]
        assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        hang.set()
        monkeypatch.setattr(last_job, "LIMIT_S", 20)
        await job.write(PLANS)
        assert len(begun) == 2

    trio.run(main)
