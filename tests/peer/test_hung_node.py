"""A node that stops to answer while a cluster of mounts is read: its link is cut, and none of its processes ends. Ranks
of MPICH in network namespaces, which talk over TCP alone."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nopfsfs.dataset import index_file
from nopfsfs.plan.samplers.registry import order
from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.protocol.columns import HOME_HERE, Columns
from tests.conftest import slow
from tests.mount.harness import Reader, fill
from tests.mount.modes import why_not
from tests.peer.mounts import LIMIT_S, SEED, Mounts, by_choice, mounts, room
from tests.peer.wires import ENVIRONMENT, Wires, why_no_wires, wires
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.mount,
    pytest.mark.mpi,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

CUT_S = 10.0  # for which the link is cut
AGAIN_S = 2.5  # from one SIGTERM to the next: MPI would have killed the ranks by then, so somebody asks again
PAUSE_S = 0.02  # of a reader, after each file
# Of what the hung node holds, beyond what readers wait in the same seconds for what does not come from it, which is
# what a busy machine costs. The bar is 0.1 s; without hedging it is two seconds and more, for long files ten.
P99_MOST_S, LONG_P99_MOST_S, LONGEST_S = 0.4, 1.0, 1.5
# Files, bytes of each. A node says at once that it sends a long one: so each of three whose bytes do not come costs
# half a second, and not many long files are read.
SMALL, LONG = (360, 20_000), (60, 2_000_000)


@pytest.fixture(scope="module", autouse=True)
def may_wire() -> None:
    """Skip where there can be no links to cut."""
    reason = why_no_wires()
    if reason is not None:
        pytest.skip(reason)


@contextmanager
def timed(m: Mounts, node: int, path: Path) -> Iterator[Reader]:
    """A reader of its rank's files of many epochs."""
    world, names = len(m.paths), sorted(str(file.relative_to(m.tree)) for file in m.tree.rglob("*.jpg"))
    epochs = [order(Spec("distributed", SEED), len(names), epoch)[node::world].tolist() for epoch in range(100)]
    path.write_text(json.dumps({"names": names, "epochs": epochs}))
    with Reader("timed", m.paths[node], m.tree, path, str(PAUSE_S)) as reader:
        assert reader.line() == "ready"
        yield reader


def homes(m: Mounts, node: int) -> list[int]:
    """By file, in the order of the names, the node where it lives, as a node knows it."""
    fds = f"/proc/{m.process(node, 'stager').pid}/fd"
    found = {os.readlink(f"{fds}/{name}").split(" ")[0]: f"{fds}/{name}" for name in os.listdir(fds)}
    with open(found["/memfd:nopfs-index"], "rb") as file, open(found["/memfd:nopfs-columns"], "rb") as shared:
        index = index_file.load_fd(file.fileno())
        holder = Columns(shared.fileno(), index.n, writable=False).holder
        rows = sorted(range(index.n_dirs, index.n), key=lambda row: os.fsdecode(index.path(row)))
        return [node if holder[row] == HOME_HERE else int(holder[row]) - 1 for row in rows]


def waits(reader: Reader, at: list[int], lost: set[int], since: float, until: float) -> tuple[list[float], list[float]]:
    """End a reader, which has seen no error and the right bytes; the seconds, sorted, that it waited for each file that
    lives at these nodes, and for each other file."""
    reader.go()
    said = reader.result(LIMIT_S)
    assert said["wrong"] == []
    times = [(at[file] in lost, s) for file, began, s in said["times"] if since < began + s and began < until]
    return sorted(s for is_lost, s in times if is_lost), sorted(s for is_lost, s in times if not is_lost)


def p99(seconds: list[float]) -> float:
    return seconds[int(0.99 * len(seconds))]


def fetched(m: Mounts, nodes: range) -> list[int]:
    return [m.stager(node, "peer_fetches") for node in nodes]


def grown(m: Mounts, before: list[int], count: int) -> bool:
    """Whether each node has got so many more files from others."""
    after = fetched(m, range(len(before)))
    return all(now >= then + count for then, now in zip(before, after, strict=True))


@pytest.mark.parametrize(("nodes", "files"), [(3, SMALL), slow(2, LONG)])
def test_readers_do_not_wait_for_a_node_whose_link_is_cut(tmp_path: Path, nodes: int, files: tuple[int, int]) -> None:
    tree, hung = tmp_path / "tree", 1
    fill(tree, *files)
    with ExitStack() as stack:
        link: Wires = stack.enter_context(wires(nodes))
        m = stack.enter_context(
            mounts(
                tree, tree, tmp_path / "at", nodes, *room(tree, 1.2 / nodes), implementation="mpich",
                first=link.enter, env=ENVIRONMENT,
            )
        )  # fmt: skip
        m.wait_placed()
        readers = [stack.enter_context(timed(m, node, tmp_path / f"{node}.json")) for node in range(nodes)]
        # In the first epoch, the node where a file lives may still have to read it, and says so to whoever asks. If
        # that node then hangs, a reader waits for the file for half a second (docs/policy.md). From the second epoch
        # on, all nodes hold their files.
        m.wait_opened(range(nodes), 1.1 * files[0] / nodes)
        assert wait_until(lambda: grown(m, [0] * nodes, files[0] // 10), LIMIT_S), m.why_again()

        since = time.monotonic()
        link.cut(hung)
        time.sleep(CUT_S)
        until = time.monotonic()
        reports = [m.status(node) for node in range(nodes)]
        assert any(one["stager"]["peer_late"] or one["stager"]["fetches_hedged"] for one in reports), "nobody asked"
        rerouted = sum(m.metrics(node)["nopfs_fetches_rerouted_total"] for node in range(nodes))
        assert rerouted >= by_choice(reports) > 0
        link.mend(hung)

        before = fetched(m, range(nodes))
        assert wait_until(lambda: grown(m, before, files[0] // 10), LIMIT_S), "a node that answers again is not used"
        for node, reader in enumerate(readers):
            lost = {hung} if node != hung else set(range(nodes)) - {hung}
            far, near = waits(reader, homes(m, node), lost, since, until)
            print(node, *(f"{len(one)}: p99 {p99(one):.3f} s, most {one[-1]:.3f} s" for one in (far, near)), sep="; ")
            assert len(far) >= files[0] // 20
            assert p99(far) <= p99(near) + (P99_MOST_S if files == SMALL else LONG_P99_MOST_S)
            assert far[-1] <= near[-1] + LONGEST_S
        for node in range(nodes):
            assert m.status(node)["state"] == "running"
            assert m.status(node)["read_errors"] == 0
        m.umount(*range(nodes))
        assert m.code() == 0


@pytest.mark.parametrize("again", [slow(True), False])
def test_mounts_end_while_a_link_is_cut(tmp_path: Path, again: bool) -> None:
    """`again`: the link is mended; else mpirun is told to end, and told so again, as where somebody waits in vain."""
    tree = tmp_path / "tree"
    fill(tree, *SMALL)
    with (
        wires(2) as link,
        mounts(
            tree, tree, tmp_path / "at", 2, *room(tree, 0.6), implementation="mpich", first=link.enter, env=ENVIRONMENT
        ) as m,
    ):
        m.wait_placed()
        link.cut(1)

        m.umount(0, 1)

        assert m.made.process.poll() is None, "each waits for the other's last word"
        if again:
            link.mend(1)
            assert m.code() == 0
        else:
            m.made.process.send_signal(signal.SIGTERM)
            # Both ranks have taken it, and say that the other does not answer: the next signal is late enough for both.
            assert wait_until(lambda: m.said().count("is dead or hangs") == 2, LIMIT_S), m.said()
            time.sleep(AGAIN_S)
            m.made.process.send_signal(signal.SIGTERM)
            assert m.code() != 0
