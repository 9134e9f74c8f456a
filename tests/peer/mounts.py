"""A cluster of mounts for a test: read on all nodes, asked, and ended; nothing of it may be left."""

from __future__ import annotations

import json
import os
import signal
import threading
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cluster import Cluster, cluster
from mpirun import ranks_of
from slow_source import SlowSource

import nopfsfs
from nopfsfs.control.client import call
from nopfsfs.control.process_list import Process, living, read_pids
from nopfsfs.fuse.mount_table import abort_connection, find_mount
from nopfsfs.fuse.mounting import unmount
from nopfsfs.plan.samplers.registry import order
from nopfsfs.plan.samplers.sampler import Spec
from tests.conftest import remove_state, state_dir_at, state_dirs_at
from tests.mount.harness import TEST_ID, Reader, module, run
from tests.mount.rooms import charges, memory_for
from tests.waiting import wait_until

SEED = 42
LIMIT_S = 60.0  # no step of a test takes this long
PAUSE_S = 0.003  # of a reader, after each file
CHECKED_BYTES = 1024  # as train_loop.py


class Mounts:
    """The mounts of a job, by node. `tree`: what they show, read directly."""

    def __init__(self, made: Cluster, tree: Path, mark: str) -> None:
        self.made, self.tree, self.mark = made, tree, mark
        self.paths = made.mountpoints

    # ---- what they say ------------------------------------------------------------------------------------

    def status(self, node: int) -> dict[str, Any]:
        return dict(call(state_dir_at(self.paths[node]), "status"))

    def peers(self, node: int) -> dict[str, Any]:
        found: dict[str, Any] = self.status(node)["peers"]
        return found

    def wait_peers(self, node: int, **expected: Any) -> None:
        """Until the status says so of the peers."""

        def holds() -> bool:
            said = self.peers(node)
            return all(said.get(key) == value for key, value in expected.items())

        assert wait_until(holds, LIMIT_S), self.peers(node)

    def stager(self, node: int, *figures: str) -> int:
        """The sum of what the stager has done."""
        did = self.status(node)["stager"]
        return sum(int(did[figure]) for figure in figures)

    def metrics(self, node: int) -> dict[str, float]:
        """Of each metric without durations the sum over its labels."""
        found: dict[str, float] = {}
        for one in nopfsfs.Mount(self.paths[node]).metrics():
            if isinstance(one.value, int | float):
                found[one.name] = found.get(one.name, 0.0) + one.value
        return found

    def why_again(self) -> list[dict[str, int]]:
        """Of each node, what makes it read a file that another has read: to be shown by a test that fails."""
        figures = ("source_opens", "peer_refused", "peer_late", "peer_corrupt", "no_room")
        said = [self.status(node) for node in range(len(self.paths))]
        own = [{"direct": one["direct_reads"], "by_choice": by_choice([one])} for one in said]
        return [{key: one["stager"][key] for key in figures} | more for one, more in zip(said, own, strict=True)]

    def processes(self, node: int) -> list[Process]:
        """The processes of a mount, its supervisor first."""
        found = living(read_pids(state_dir_at(self.paths[node])))
        return sorted(found, key=lambda process: process.role != "supervisor")

    def process(self, node: int, role: str) -> Process:
        return next(process for process in self.processes(node) if process.role == role)

    def wait_restarted(self, node: int, died: Process) -> None:
        """Until another process has the role of `died`. Right after a death no process has it."""

        def restarted() -> bool:
            return any(process.role == died.role and process.pid != died.pid for process in self.processes(node))

        assert wait_until(restarted, LIMIT_S), self.log()

    def peer(self, node: int) -> int:
        """The pid of a node's peer process."""
        return ranks_of(self.mark)[node]

    def marked(self) -> list[int]:
        """The pids of all processes of the job, its mounts' among them."""
        found = []
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError):
                if self.mark.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    found.append(int(entry))
        return found

    def log(self) -> str:
        return self.made.log.read_text() if self.made.log.exists() else ""

    def said(self) -> str:
        """What mpirun and nopfs-mount said."""
        return self.made.log.with_name("mpirun.log").read_text()

    # ---- readers ------------------------------------------------------------------------------------------

    @contextmanager
    def readers(self, epochs: int) -> Iterator[Followers]:
        """A reader on each mount, as the ranks of a job read the data set: they wait for each other after each
        epoch."""
        with Followers(self, epochs) as made:
            yield made

    def wait_placed(self) -> None:
        """Until all know where each file lives."""
        for node in range(len(self.paths)):
            self.wait_peers(node, number=1)

    def wait_opened(self, nodes: Sequence[int], files: float) -> None:
        """Until the readers of each of these nodes have opened so many files."""

        def opened() -> list[int]:
            return [self.status(node)["opens"]["total"] for node in nodes]

        assert wait_until(lambda: min(opened()) >= files, LIMIT_S), opened()

    # ---- the end ------------------------------------------------------------------------------------------

    def umount(self, *nodes: int) -> None:
        for node in nodes:
            done = run([*module("umount"), str(self.paths[node])])
            assert done.returncode == 0, (done.stderr, self.log())

    def code(self) -> int:
        """With which mpirun ended."""
        return self.made.process.wait(LIMIT_S)

    def assert_gone(self) -> None:
        """Nothing is left."""
        assert [path for path in self.paths if find_mount(str(path)) is not None] == []
        assert wait_until(lambda: not self.marked(), LIMIT_S), self.marked()
        assert [state for path in self.paths for state in state_dirs_at(path)] == []

    def clear(self) -> None:
        """Leave nothing, whatever the test did."""
        if self.made.process.poll() is None:
            self.made.process.kill()
        self.made.process.wait(LIMIT_S)
        for path in self.paths:
            found = find_mount(str(path))
            if found is not None:
                abort_connection(found.minor)
                with suppress(Exception):
                    unmount(found, lazy=True)
        for pid in self.marked():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for path in self.paths:
            remove_state(path)


class Followers:
    """See `Mounts.readers`. What a reader cannot do within the time limit ends it."""

    def __init__(self, mounts: Mounts, epochs: int) -> None:
        world = len(mounts.paths)
        names = sorted(str(path.relative_to(mounts.tree)) for path in mounts.tree.rglob("*.jpg"))
        self.files = len(names) // world  # of each, in each epoch
        assert self.files * world == len(names)
        orders = [order(Spec("distributed", SEED), len(names), epoch) for epoch in range(epochs)]
        self.names = names
        self.orders = [[one[rank::world].tolist() for one in orders] for rank in range(world)]
        self._readers: dict[int, Reader] = {}  # by rank
        self._gone: list[Reader] = []
        stops = [str(epoch) for epoch in range(1, epochs + 1)]
        for rank, own in enumerate(self.orders):
            listed = mounts.made.log.with_name(f"rank{rank}.json")
            listed.write_text(json.dumps({"names": names, "epochs": own}))
            self._readers[rank] = Reader("follow", mounts.paths[rank], mounts.tree, listed, str(PAUSE_S), *stops)
        self._watchdog = threading.Timer(3 * LIMIT_S, self._kill)
        self._watchdog.start()

    def __enter__(self) -> Followers:
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        for reader in (*self._readers.values(), *self._gone):
            reader.__exit__()

    def _kill(self) -> None:
        for reader in (*self._readers.values(), *self._gone):
            reader.process.kill()

    def leave(self, rank: int) -> Reader:
        """That reader is waited for no more."""
        self._gone.append(self._readers.pop(rank))
        return self._gone[-1]

    def epoch(self, number: int) -> None:
        """Wait until all have read that epoch. They have not begun the next."""
        for rank, reader in self._readers.items():
            assert reader.line() == number, rank

    def go(self) -> None:
        for reader in self._readers.values():
            reader.go()

    def end(self) -> None:
        """Read on, to the end: no error, and the right bytes."""
        self.go()
        for rank, reader in self._readers.items():
            assert reader.result(LIMIT_S) == {"wrong": []}, rank


@contextmanager
def mounts(
    source: Path, tree: Path, base: Path, nodes: int, *options: object, implementation: str,
    own: Sequence[Sequence[object]] = (), first: Sequence[Sequence[str]] = (), env: Mapping[str, str] | None = None,
) -> Iterator[Mounts]:  # fmt: skip
    """Mount `source`, which shows `tree`, on so many nodes. A test ends the mounts by itself; then nothing may be
    left. `own`, `first`, `env`: as for `cluster`."""
    mark = uuid.uuid4().hex
    words = ["--seed", SEED, "--index-dir", base / "index", *options]
    made: Mounts | None = None
    try:
        environment = {**(env or {}), TEST_ID: mark}
        with cluster(
            source, base, nodes, *words, implementation=implementation, own=own, first=first, env=environment
        ) as c:
            made = Mounts(c, tree, mark)
            try:
                yield made
            except BaseException:
                made.clear()
                raise
            made.assert_gone()
    finally:
        if made is not None:
            made.clear()


def room(tree: Path, share: float, pages: float = 0.01) -> list[str]:
    """Options with which a node has room for that share of the data, and for `pages` of it in the page cache."""
    data = int(charges(tree).sum())
    window = int(pages * data)
    return ["--ram", str(memory_for(int(share * data), data, window)), "--page-cache", str(window)]


def checksum(tree: Path) -> int:
    """What one epoch's checksums of all ranks of train_loop.py sum up to."""
    total = 0
    for label, directory in enumerate(sorted(path for path in tree.iterdir() if path.is_dir())):
        for path in sorted(directory.rglob("*.jpg")):
            data = path.read_bytes()
            total += zlib.crc32(data[-CHECKED_BYTES:], zlib.crc32(data[:CHECKED_BYTES], label))
    return total


def opens_at_rest(source: SlowSource) -> int:
    """Opens of the source when nothing more is fetched ahead."""
    found = [-1, -1]

    def rests() -> bool:
        found.append(source.counters(files=False).opens)
        return found[-1] == found[-2] == found[-3]

    assert wait_until(rests, 30)
    return found[-1]


def by_choice(statuses: Sequence[dict[str, Any]]) -> int:
    """Fetches of these mounts that went to the source since another node or a disk took longer, or did not answer: on a
    busy machine there are some (docs/policy.md, where to fetch from)."""
    reasons = ("rerouted_slow", "rerouted_down", "fetches_hedged")
    return sum(int(one["stager"][reason]) for one in statuses for reason in reasons)


def opens_of_files(source: SlowSource) -> list[int]:
    """How often each file was opened, of those that were."""
    return [counters.opens for path, counters in source.counters().files.items() if path.endswith(".jpg")]
