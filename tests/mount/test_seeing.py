"""What a mount shows of a job agrees with the job's own count, and with the counters of the source."""

from __future__ import annotations

import csv
import fcntl
import http.client
import io
import os
import random
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from slow_source import SlowSource

import nopfsfs
from nopfsfs.control.client import Connection, NoAnswer, Refused, call
from nopfsfs.monitor.metrics_server import TEXTFILE_EVERY_S
from nopfsfs.monitor.scrape import EACH_S
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.stager.load import BLOCK
from nopfsfs.supervisor.caller_budget import SHARE, STORE_S
from nopfsfs.system.proc import usage
from tests.mount.conftest import Mounting
from tests.mount.harness import Mounted, content, fill, module, run, write
from tests.mount.memory import own_processor_wait_s, processor_wait_s
from tests.mount.reading import following
from tests.waiting import wait_until

pytestmark = pytest.mark.mount

FILES, SEED, EPOCHS = 600, 42, 4
PAUSE_S = 0.0005  # of the job, after each file: epochs of a third of a second
OFF = 0.05  # of an epoch, at most
JOBS_MOST = 5  # in which all that is counted of small tiers moves
WAITS_AT = FILES * 3 // 4  # files of an epoch: the plan is certain by then
# Readers wait in the first epoch, which takes the source over three seconds, if nothing is staged before it begins.
SLOWLY = (
    "--seed", str(SEED), "--signal", "open", "--source-concurrency", "1", "--source-bandwidth", "2MB/s",
)  # fmt: skip
# Metrics that a job on a mount without peers and disk moves, by the sample that grows.
MOVED = (
    "nopfs_opens_total", "nopfs_opens_predicted_total", "nopfs_served_files_total", "nopfs_served_bytes_total",
    "nopfs_reader_wait_seconds_count", "nopfs_reader_wait_seconds_sum", "nopfs_fetch_seconds_count",
    "nopfs_fetch_seconds_sum", "nopfs_fetched_files_total", "nopfs_fetched_bytes_total", "nopfs_source_opens_total",
    "nopfs_source_read_bytes_total", "nopfs_source_requests_total", "nopfs_epoch", "nopfs_cached_bytes_ratio",
    "nopfs_tier_used_bytes", "nopfs_tier_files", "nopfs_pushes_total", "nopfs_pushed_bytes_total",
    "nopfs_process_cpu_seconds_total",
)  # fmt: skip


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowSource]:
    fill(tmp_path / "backing", FILES, 6000)
    with SlowSource(tmp_path / "backing", open_latency=0.002) as source:
        yield source


def job(
    m: Mounted, backing: Path, epochs: range, pause_s: float = PAUSE_S, begun: Callable[[], object] = lambda: None,
    *, each_seen: bool = False,
) -> None:  # fmt: skip
    """A job in a process of its own, which compares all bytes. `begun` is called while it begins. `each_seen`: late in
    each epoch the job waits until there is a record of that epoch. A mount that is late by more than an epoch sees the
    next but one only."""
    orders = [registry.order(Spec("distributed", SEED), FILES, epoch).tolist() for epoch in epochs]
    seen = epochs if each_seen else range(0)
    if seen:
        read = [at for order in orders for at in order]
        orders = [read[a:b] for a, b in pairwise([0, *range(WAITS_AT, len(read), FILES), len(read)])]
    with following(m, backing, orders, pause_s, *range(1, len(seen) + 1)) as reader:
        begun()
        for epoch in seen:
            reader.line()
            m.wait_status(lambda s, epoch=epoch: epoch in [one["epoch"] for one in s["epochs"]])
            reader.go()
        assert reader.result() == {"wrong": []}


def release_when_opened(m: Mounted, slow: SlowSource) -> None:
    """End the stall of the source when the job has opened a file. Without the stall, all of the first epoch may be
    staged before the job begins, on a busy machine."""
    m.wait_status(lambda s: s["opens"]["total"] > 0)
    slow.release()


def settled(m: Mounted, opens: int, off: float = 0.0) -> dict[str, Any]:
    """The record when all these opens are in its epochs."""
    return m.wait_status(lambda s: abs(sum(one["files"] for one in s["epochs"]) - opens) <= off)


def samples(text: str) -> dict[str, float]:
    """The sum of each sample over its labels, but for the tiers and buckets that need not move."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found[one.name] = found.get(one.name, 0.0) + one.value
    return found


def metrics(m: Mounted) -> dict[str, float]:
    done = run([*module("nopfs"), "metrics", str(m.path)])
    assert done.returncode == 0, done.stderr
    return samples(done.stdout)


@pytest.mark.long
def test_epochs_by_opens(mounting: Mounting, slow: SlowSource, tmp_path: Path) -> None:
    slow.stall("open")
    with mounting(slow.path, *SLOWLY) as m:
        began = time.time()
        job(m, tmp_path / "backing", range(EPOCHS), begun=lambda: release_when_opened(m, slow), each_seen=True)
        epochs = settled(m, EPOCHS * FILES)["epochs"]
        size = sum(path.stat().st_size for path in (tmp_path / "backing").rglob("*.jpg"))
        opens = slow.counters().opens

        assert [one["epoch"] for one in epochs] == list(range(EPOCHS))
        assert all(one["counts"] == "exact" for one in epochs)
        assert all(abs(one["files"] - FILES) <= OFF * FILES for one in epochs), epochs
        assert sum(one["bytes"] for one in epochs) == EPOCHS * size
        assert sum(one["source_reads"] for one in epochs) == opens == FILES
        assert sum(one["second_reads"] for one in epochs) == 0
        assert all(abs(sum(one["served"].values()) - 1) < 0.001 for one in epochs)
        assert epochs[0]["waits"] > 0
        assert 0 < epochs[0]["wait_p50_seconds"] <= epochs[0]["wait_p99_seconds"] <= epochs[0]["wait_most_seconds"]
        assert epochs[-1]["served"]["source"] == 0
        assert all(began - 1 <= one["begin"] <= time.time() for one in epochs)
        assert all(one["ended"] for one in epochs[:-1])
    ended = m.report["epochs"]
    assert [one["files"] for one in ended] == [one["files"] for one in epochs]
    assert all(one["ended"] for one in ended)
    assert [part["step"] for part in m.report["history"]] == [1, 10, 60]
    at = m.report["history"][0]["columns"].index("opens")
    # rows are means of whole seconds: of a job of some seconds they tell little
    assert sum(row[at] for row in m.report["history"][0]["rows"]) == pytest.approx(EPOCHS * FILES, rel=0.5)


@pytest.mark.long
@pytest.mark.parametrize("signal", [pytest.param("tripwire", marks=pytest.mark.slow), "auto"])
def test_epochs_that_are_estimated(signal: str, mounting: Mounting, slow: SlowSource, tmp_path: Path) -> None:
    with mounting(slow.path, "--seed", str(SEED), "--signal", signal) as m:
        job(m, tmp_path / "backing", range(EPOCHS + 2), each_seen=True)
        epochs = settled(m, (EPOCHS + 2) * FILES, OFF * FILES)["epochs"]
        counts = {one.name: one.value for one in nopfsfs.Mount(m.path).metrics()}
    assert [one["epoch"] for one in epochs] == list(range(EPOCHS + 2))
    assert all(abs(one["files"] - FILES) <= OFF * FILES for one in epochs), [one["files"] for one in epochs]
    assert epochs[-1]["counts"] == "estimated"
    assert counts["nopfs_counts_estimated"] == 1


def test_metrics_agree_with_the_source_and_move(mounting: Mounting, slow: SlowSource, tmp_path: Path) -> None:
    slow.stall("open")
    with mounting(slow.path, *SLOWLY) as m:
        before = metrics(m)
        job(m, tmp_path / "backing", range(2), begun=lambda: release_when_opened(m, slow))
        settled(m, 2 * FILES)
        after = before

        def stayed() -> list[str]:
            nonlocal after
            after = metrics(m)
            return [name for name in MOVED if not after[name] > before.get(name, 0.0)]

        assert wait_until(lambda: stayed() == []), stayed()  # what the tiers hold is counted less often
        source = slow.counters()
    assert after["nopfs_opens_total"] == after["nopfs_served_files_total"] == 2 * FILES
    assert after["nopfs_source_opens_total"] == source.opens == FILES
    assert after["nopfs_source_read_bytes_total"] == after["nopfs_fetched_bytes_total"] == source.bytes
    assert after["nopfs_source_requests_total"] == source.reads == FILES, "the kernel asks for a small file at once"
    assert after["nopfs_source_second_reads_total"] == after["nopfs_read_errors_total"] == 0
    assert (after["nopfs_up"], after["nopfs_epoch_length"]) == (1, FILES)


@pytest.mark.long
def test_metrics_of_tiers_that_have_too_little_room_move(mounting: Mounting, slow: SlowSource, tmp_path: Path) -> None:
    """Of a disk, of copies that make room, of the tuner."""
    (tmp_path / "disk").mkdir()
    room = ("--ram", "1M", "--page-cache", "256K", "--disk", f"{tmp_path / 'disk'}:2M", "--disk-keep", "no")
    moved = {
        ("nopfs_fetched_files_total", "disk"), ("nopfs_fetched_bytes_total", "disk"), ("nopfs_tier_files", "disk"),
        ("nopfs_tier_used_bytes", "disk"), ("nopfs_tier_budget_bytes", "disk"), ("nopfs_evictions_total", "ram"),
        ("nopfs_source_second_reads_total", ""), ("nopfs_tuner_decisions_total", "more"), ("nopfs_source_limit", ""),
        ("nopfs_source_aim", ""),
    }  # fmt: skip
    with mounting(slow.path, "--seed", str(SEED), "--signal", "open", *room) as m:

        def missing() -> set[tuple[str, str]]:
            job(m, tmp_path / "backing", range(EPOCHS))
            found = [one for one in nopfsfs.Mount(m.path).metrics() if isinstance(one.value, int | float)]
            return moved - {(one.name, "".join(one.labels.values())) for one in found if one.value > 0}

        assert any(not missing() for _ in range(JOBS_MOST)), missing()  # seconds each on a busy machine


@pytest.mark.long
def test_the_seconds_that_readers_waited_are_those_of_a_reader_s_own_clock(mounting: Mounting, tmp_path: Path) -> None:
    """In an order that nobody knows."""
    files = 16
    fill(tmp_path / "backing", files, 6000)
    names = [path.relative_to(tmp_path / "backing") for path in sorted((tmp_path / "backing").rglob("*.jpg"))]
    random.Random(7).shuffle(names)
    own = 0.0
    with (
        SlowSource(tmp_path / "backing", open_latency=0.25) as source,
        mounting(source.path, "--signal", "open") as m,
    ):

        def release() -> None:
            m.wait_status(lambda s: s["tuning"]["demands"] > 0)  # the reader waits from now on
            time.sleep(1.0)
            source.release()

        source.stall("open")
        threading.Thread(target=release).start()
        late = -processor_wait_s(m) - own_processor_wait_s()
        for name in names:
            began = time.monotonic()
            data = (m.path / name).read_bytes()
            own += time.monotonic() - began
            assert data == (tmp_path / "backing" / name).read_bytes()
        late += processor_wait_s(m) + own_processor_wait_s()
        found = settled(m, files)["epochs"]
    stalled = sum(one["stall_seconds"] for one in found)
    assert stalled > 1.0
    # Only the reader's clock has the time in which reader or server wait for a processor between two waits.
    assert 0.9 * own - late <= stalled <= 1.1 * own
    assert 1 <= sum(one["waits"] for one in found) <= files


@pytest.mark.long
def test_metrics_agree_with_the_source_where_no_plan_is_known_and_files_have_several_blocks(
    mounting: Mounting, tmp_path: Path
) -> None:
    """The files have up to three blocks. The kernel makes several READs of the source of each."""
    sizes = [0, 1, 4096, 70_000, 300_000, BLOCK, BLOCK + 1, 2 * BLOCK + 70_000]
    write(tmp_path / "backing", {f"{n % 3}/{n:02}.jpg": content(n, sizes[n % len(sizes)]) for n in range(40)})
    paths = sorted((tmp_path / "backing").rglob("*.jpg"))
    with (
        SlowSource(tmp_path / "backing", open_latency=0.001, read_latency=0.001) as source,
        mounting(source.path, "--ram", "256M", "--signal", "open") as m,
    ):

        def same(path: Path) -> bool:
            return (m.path / path.relative_to(tmp_path / "backing")).read_bytes() == path.read_bytes()

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(same, paths + paths[::-1]))
        assert wait_until(lambda: metrics(m)["nopfs_fetches_in_flight"] == 0)
        found, counted = metrics(m), source.counters()
    assert found["nopfs_source_opens_total"] == counted.opens == sum(bool(path.stat().st_size) for path in paths)
    assert found["nopfs_source_read_bytes_total"] == counted.bytes == sum(path.stat().st_size for path in paths)
    assert found["nopfs_direct_reads_total"] == found["nopfs_source_compared_opens_total"] == 0
    blocks = sum(-(-path.stat().st_size // BLOCK) for path in paths)
    assert found["nopfs_source_requests_total"] == blocks <= counted.reads


@pytest.mark.long
def test_stats(mounting: Mounting, slow: SlowSource, tmp_path: Path) -> None:
    words = [*module("nopfs"), "stats"]
    with mounting(slow.path, "--seed", str(SEED), "--signal", "open") as m:
        argv = [*words, str(m.path), "--interval", "250ms", "--csv"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            # The first row says when it ends, not when it began: nothing is opened in it.
            lines = [process.stdout.readline(), process.stdout.readline()]
            job(m, tmp_path / "backing", range(2), 0.0)
            ended = time.time()
            while float(lines[-1].partition(",")[0]) < ended + 0.1:
                lines.append(process.stdout.readline())  # the test's timeout bounds this
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
            assert (process.returncode, said) == (130, "nopfs: interrupted\n")
        rows = list(csv.DictReader(io.StringIO("".join(lines))))
        opened = sum(
            float(row["opens_per_second"]) * (float(row["time"]) - float(before["time"]))
            for before, row in pairwise(rows)
        )
        assert float(rows[0]["opens_per_second"]) == 0
        assert opened == pytest.approx(2 * FILES, rel=0.1)
        assert rows[-1]["counts"] == "exact"
        done = run([*words, str(m.path), "--count", "2", "--interval", "100ms"])
        assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 3, "")
        for flags, said in (
            (("--interval", "0"), "is not from 100ms"), (("--count", "0"), "is not a whole number from 1"),
            (("--interval", "x"), "is not a time"),
        ):  # fmt: skip
            done = run([*words, str(m.path), *flags])
            assert (done.returncode, done.stderr.count("\n"), said in done.stderr) == (2, 1, True), done.stderr
    done = run([*words, str(m.path)])
    assert (done.returncode, done.stderr.count("\n")) == (9, 1)


@contextmanager
def exporting(*flags: str) -> Iterator[subprocess.Popen[str]]:
    """A running exporter, whose first line was read; it must end by SIGTERM."""
    argv = [*module("nopfs"), "exporter", *flags]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=15)
            assert (process.returncode, said) == (0, "")
        finally:
            process.kill()


def scraped(port: int) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
    try:
        connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    return {
        f"{one.name} {one.labels['mountpoint']}": one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.labels.keys() == {"mountpoint"}
    }


@pytest.mark.long
def test_the_exporter_finds_mounts_and_a_supervisor_that_is_stopped_is_not_up(
    mounting: Mounting, slow: SlowSource, tmp_path: Path
) -> None:
    with mounting(slow.path) as m, exporting("--listen", "127.0.0.1:0") as exporter:
        assert exporter.stdout is not None
        port = int(exporter.stdout.readline().rpartition(":")[2].removesuffix("/metrics\n"))
        job(m, tmp_path / "backing", range(1), 0.0)
        assert wait_until(lambda: scraped(port).get(f"nopfs_opens_total {m.path}") == FILES)
        m.kill("supervisor", signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert wait_until(lambda: scraped(port)[f"nopfs_up {m.path}"] == 0)
            assert time.monotonic() - began < 10 * EACH_S  # a limit of a second; this allows for a slow machine
            in_use = run([*module("nopfs"), "exporter", "--listen", f"127.0.0.1:{port}"])
            assert (in_use.returncode, in_use.stderr.count("\n")) == (2, 1)
            assert "is in use already" in in_use.stderr
            page = tmp_path / "run.html"
            report = run([*module("nopfs"), "report", str(m.path), "--output", str(page)])
            assert (report.returncode, report.stderr.count("\n"), page.exists()) == (11, 1, False), report.stderr
        finally:
            m.kill("supervisor", signal.SIGCONT)
        assert wait_until(lambda: scraped(port)[f"nopfs_up {m.path}"] == 1)


@pytest.mark.long
def test_the_file_for_node_exporter_is_removed_at_the_end(mounting: Mounting, slow: SlowSource, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    file = tmp_path / "files" / "nopfs.prom"
    with mounting(slow.path) as m, exporting("--textfile", str(file.parent)):
        up = f'nopfs_up{{mountpoint="{m.path}"}} 1.0'
        # A mount that does not answer within EACH_S is not up in the first file; the next comes TEXTFILE_EVERY_S later.
        assert wait_until(lambda: file.exists() and up in file.read_text(), 10.0 + 2 * TEXTFILE_EVERY_S)
    assert not file.exists()


@pytest.mark.long
def test_history_from_python(mounting: Mounting, slow: SlowSource, tmp_path: Path) -> None:
    with mounting(slow.path, "--seed", str(SEED), "--signal", "open") as m:
        mount = nopfsfs.Mount(m.path)
        job(m, tmp_path / "backing", range(2), each_seen=True)
        settled(m, 2 * FILES)

        def opened() -> float:
            history = mount.history()
            return float(history["opens"].sum())

        assert wait_until(lambda: opened() == pytest.approx(2 * FILES, rel=1e-3)), opened()
        history = mount.history()
        assert abs(history.time[-1] - time.time()) < 5
        assert len(mount.history(since=history.time[-1])) >= 1
        assert history["source_reads"].sum() == pytest.approx(slow.counters(files=False).opens, rel=1e-3)
        assert [one.epoch for one in mount.epochs()] == [0, 1]
        assert mount.status().epochs[0].files == mount.epochs()[0].files


@pytest.mark.long
def test_the_report_of_a_mount_and_of_one_that_is_gone(mounting: Mounting, slow: SlowSource, tmp_path: Path) -> None:
    words, page = [*module("nopfs"), "report"], tmp_path / "run.html"
    slow.stall("open")
    with mounting(slow.path, "--seed", str(SEED), "--signal", "open", "--source-bandwidth", "1MB/s") as m:
        # an epoch has three rows of the history
        job(m, tmp_path / "backing", range(2), 10 * PAUSE_S, lambda: release_when_opened(m, slow))
        settled(m, 2 * FILES)
        done = run([*words, str(m.path), "--output", str(page)])
        assert (done.returncode, done.stderr) == (0, "")
        live = page.read_text()
    done = run([*words, str(m.log.with_suffix(".json")), "--output", str(page)])
    assert (done.returncode, done.stderr) == (0, "")
    for text, kind in (live, "a mount that runs"), (page.read_text(), "a mount that has ended"):
        assert f"nopfs report of {kind}" in text
        assert "1,200</b><span>files read" in text
        assert "distributed (torch.utils.data.DistributedSampler with set_epoch), seed 42" in text
        assert "bits of evidence" in text
        assert "expected of the source" in text
        assert "was the limit for" in text
        assert "set by --source-bandwidth" in text
        assert text.count("<tr>") == 3
        assert text.count("<svg") >= 5
    done = run([*words, str(m.path), "--output", str(page.with_suffix(".none"))])
    assert (done.returncode, done.stderr.count("\n"), page.with_suffix(".none").exists()) == (2, 1, False)


@pytest.mark.long
def test_top_on_a_terminal(mounting: Mounting, slow: SlowSource, tmp_path: Path) -> None:
    """The plan of the mount is seen on the screen, also of a supervisor that was stopped for a while; q ends it."""
    with mounting(slow.path, "--seed", str(SEED)) as m:
        job(m, tmp_path / "backing", range(1), 0.0)
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        argv = [*module("nopfs"), "top", str(m.path)]
        with (
            open(master, "r+b", buffering=0) as screen,
            subprocess.Popen(
                argv, stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm-256color"}
            ) as process,
        ):
            os.close(slave)
            drawn = bytearray()

            def draws(said: bytes) -> bool:
                with suppress(OSError):  # EIO: nobody has the other end open any more
                    while select.select([screen], [], [], 0.0)[0]:
                        drawn.extend(os.read(master, 1 << 16))
                return said in drawn

            try:
                assert wait_until(lambda: draws(b"locked"), 40), bytes(drawn)
                m.kill("supervisor", signal.SIGSTOP)
                try:
                    assert wait_until(lambda: draws(b"did not answer"), 20), bytes(drawn)
                finally:
                    m.kill("supervisor", signal.SIGCONT)
                drawn.clear()
                assert wait_until(lambda: draws(b"locked"), 20), bytes(drawn)
                screen.write(b"q")
                assert wait_until(lambda: draws(b"\0") or process.poll() is not None, 20), bytes(drawn)
                assert process.wait() == 0
            finally:
                process.kill()


@pytest.mark.long
def test_clients_that_ask_without_end_take_little_of_the_supervisor(mounting: Mounting, slow: SlowSource) -> None:
    """Six threads ask as fast as they are answered, each on one connection or on one for each request; others do not
    read what they are sent. A reader's files are right meanwhile, and a status is answered."""
    over = threading.Event()

    def ask(state_dir: str, *, anew: bool) -> None:
        while not over.is_set():
            with Connection(state_dir) as connection:
                while not over.is_set():
                    connection.send("status")
                    connection.receive(10.0)
                    if anew:
                        break

    with mounting(slow.path, "--signal", "open") as m:
        state_dir, supervisor = m.state_dir, m.pid("supervisor")
        deaf = [Connection(state_dir) for _ in range(8)]
        threads = [threading.Thread(target=ask, args=(state_dir,), kwargs={"anew": n % 2 == 0}) for n in range(6)]
        for connection in deaf:
            for _ in range(20):
                connection.send("history")
        before, began = usage(supervisor), time.monotonic()
        for thread in threads:
            thread.start()
        try:
            for path in sorted(m.path.rglob("*.jpg"))[:50]:
                assert path.read_bytes() == (m.source / path.relative_to(m.path)).read_bytes()
            assert call(state_dir, "status", 10.0)["state"] == "running"
            time.sleep(max(0.0, 3.0 - (time.monotonic() - began)))
            after, elapsed = usage(supervisor), time.monotonic() - began
        finally:
            over.set()
            for thread in threads:
                thread.join(20)
            for connection in deaf:
                connection.__exit__(None, None, None)
    assert before is not None
    assert after is not None
    # the supervisor's other work, and what the estimate for a connection leaves out, within as much again
    assert after.cpu_seconds - before.cpu_seconds <= STORE_S + 3 * SHARE * elapsed + 0.5


def test_a_client_of_another_release_is_told(mounting: Mounting, slow: SlowSource) -> None:
    with mounting(slow.path) as m:
        with pytest.raises(Refused, match="version 2 of the messages is not known; this daemon knows 1"):
            call(m.state_dir, "status", version=2)
        with pytest.raises(Refused, match="step: 1, 10 or 60 is expected"):
            call(m.state_dir, "history", step=7)
        with pytest.raises(Refused, match="since: a number"):
            call(m.state_dir, "history", since="now")
        assert call(m.state_dir, "status", key_of_tomorrow=1)["state"] == "running"


def test_where_nothing_is_mounted(tmp_path: Path) -> None:
    for command in ("stats", "metrics"):
        done = run([*module("nopfs"), command, str(tmp_path)])
        assert (done.returncode, done.stderr.count("\n"), done.stdout) == (9, 1, ""), command
    with pytest.raises(NoAnswer):
        call(str(tmp_path), "metrics")
    assert os.listdir(tmp_path) == []
