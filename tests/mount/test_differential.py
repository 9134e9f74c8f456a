"""A mount and its source side by side (`differing.py`): a short run of random steps on mounts of some kinds, and that
the oracle sees what it is there for. Long runs: `scripts/differential.py`."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.examples import examples
from tests.mount import rights
from tests.mount.acting import Hangs, Outcome, User
from tests.mount.differing import (
    GROUP,
    KINDS,
    OTHER,
    OWNER,
    STEPS,
    USERS,
    Difference,
    Kind,
    Machine,
    machine,
    make_tree,
)
from tests.mount.history import READ, History

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be several users"),
]

STEPS_A_RUN = 35
HANGS_S = 100.0
# Steps that are left out while a fault that they show is being mended.
WITHOUT: frozenset[str] = frozenset()


CHOSEN = [name for name in STEPS if name not in WITHOUT]


class SideBySide(RuleBasedStateMachine):
    """One mount. All that is drawn is a step and a number, from which the step takes the rest."""

    work: Path
    kind: Kind

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()

    @initialize()
    def mount(self) -> None:
        self.made = self.stack.enter_context(machine(self.work, self.kind, HANGS_S))

    @rule(name=st.sampled_from(CHOSEN), random=st.randoms(use_true_random=False))
    def step(self, name: str, random: Any) -> None:
        self.made.step(name, random)

    def teardown(self) -> None:
        self.stack.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3], KINDS[-1]], ids=lambda kind: kind.name)
def test_the_mount_is_what_the_source_was(open_to_all: Path, kind: Kind) -> None:
    runs: list[SideBySide] = []

    class Here(SideBySide):
        def __init__(self) -> None:
            super().__init__()
            runs.append(self)
            self.work, self.kind = open_to_all / f"run{len(runs)}", kind
            self.work.mkdir()
            self.work.chmod(0o755)

    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=examples(1), stateful_step_count=STEPS_A_RUN, deadline=None, derandomize=True, database=None,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip

    assert sum(run.made.checked for run in runs) > 10 * STEPS_A_RUN


# ---- the oracle -----------------------------------------------------------------------------------------------


@pytest.fixture
def side(open_to_all: Path) -> Machine:
    """A machine without a mount: what users see is what a test says."""
    tree = open_to_all / "tree"
    make_tree(tree)
    users = {name: cast(User, type("", (), {"name": name, "uid": u, "groups": g})) for name, (u, g) in USERS.items()}
    return Machine(cast(Any, None), tree, KINDS[0], users, None, None, History(tree))


def refused(side: Machine, user: str, path: str, data: bytes, code: int = 0) -> bool:
    """Whether the oracle refuses that the user reads this."""
    try:
        side._check(side.users[user], path, "read", Outcome(data, code))
    except Difference:
        return True
    return False


def changed(side: Machine, change: Callable[[Path], Any], path: str = "a/f2") -> bytes:
    """What it is then."""
    change(side.at(path))
    side.history.look()
    return side.at(path).read_bytes() if side.at(path).is_file() else b""


def test_bytes_are_of_one_version_whole(side: Machine) -> None:
    old = side.at("a/f2").read_bytes()
    assert not refused(side, "root", "a/f2", old)
    new = bytes(reversed(old))
    assert refused(side, "root", "a/f2", new)
    changed(side, lambda path: path.write_bytes(new))
    assert not refused(side, "root", "a/f2", old)
    assert not refused(side, "root", "a/f2", new)
    for wrong in (old[:100] + new[100:], old[:-1], old + b"\0", b"", side.at("a/f3").read_bytes()):
        assert refused(side, "root", "a/f2", wrong)
    assert not refused(side, "root", "a/f2", old[:100], errno.ESTALE)
    assert refused(side, "root", "a/f2", b"x", errno.ESTALE)


def test_errors_are_explained_or_refused(side: Machine) -> None:
    for code in (errno.ESTALE, errno.EIO, errno.ENOENT, errno.EACCES, errno.ENOTCONN):
        assert refused(side, "root", "a/f2", b"", code)
    changed(side, os.unlink)
    assert not refused(side, "root", "a/f2", b"", errno.ESTALE)
    assert refused(side, "root", "a/f2", b"", errno.ENOENT)
    side.excused_until = float("inf")
    assert not refused(side, "root", "a/f3", b"", errno.EIO)


def test_rights_are_those_since_the_last_look(side: Machine) -> None:
    data = changed(side, lambda path: path.chmod(0o600))
    side.history.looked()
    assert refused(side, "other", "a/f2", data)
    assert not refused(side, "other", "a/f2", b"", errno.EACCES)
    assert not refused(side, "owner", "a/f2", data)
    assert refused(side, "owner", "a/f2", b"", errno.EACCES)
    changed(side, lambda path: path.chmod(0o644))
    assert not refused(side, "other", "a/f2", data)
    assert not refused(side, "other", "a/f2", b"", errno.EACCES)
    side.history.looked()
    assert refused(side, "other", "a/f2", b"", errno.EACCES)
    changed(side, lambda path: path.chmod(0o700), "a")
    assert not refused(side, "other", "a/f2", data)
    side.history.looked()
    assert refused(side, "other", "a/f2", data)


def test_what_a_link_leads_to_was_never_in_its_place(side: Machine) -> None:
    old = side.at("a/d/f4").read_bytes()
    (side.tree / "a/d").rename(side.tree / "aside")
    os.symlink(side.secret, side.tree / "a/d")
    side.history.look()
    assert refused(side, "root", "a/d/f4", (side.secret / "f4").read_bytes())
    assert not refused(side, "root", "a/d/f4", old)
    assert not refused(side, "root", "a/d/f4", b"", errno.ESTALE)


def test_hard_links_are_one_file(side: Machine) -> None:
    assert side.history.entries["b/again"] is side.history.entries["a/f3"]
    assert "b/again" not in side.history.present(stat.S_IFREG)


def test_rights_by_mode_and_acl_are_the_kernels(open_to_all: Path) -> None:
    with ExitStack() as stack:
        users = [stack.enter_context(User(name, *USERS[name])) for name in ("owner", "group", "other")]
        for bits in range(8):
            for tag in (rights.USER, rights.GROUP, 0):
                what = with_rights(open_to_all / "file", bits, tag)
                for user in users:
                    outcome = user.one("read", str(open_to_all / "file"))
                    assert (outcome.errno == 0) == rights.may(user.uid, user.groups, what, READ), (user.name, what)


def with_rights(path: Path, bits: int, tag: int) -> rights.Granted:
    """A new file with these rights in one place or other."""
    path.unlink(missing_ok=True)
    path.write_bytes(b"x")
    os.chown(path, OWNER, GROUP)
    path.chmod(bits << 6 | (7 - bits) << 3 | (bits ^ 5))
    if tag:
        who = OTHER if tag == rights.USER else GROUP
        os.setxattr(path, rights.ACL, rights.acl(
            (rights.USER_OBJ, 6, rights.NO_ID), *([(tag, bits, who)] if tag == rights.USER else []),
            (rights.GROUP_OBJ, 0, rights.NO_ID), *([(tag, bits, who)] if tag == rights.GROUP else []),
            (rights.MASK, 4 if bits & 1 else 7, rights.NO_ID), (rights.OTHER, bits ^ 4, rights.NO_ID),
        ))  # fmt: skip
    return rights.granted(str(path), path.stat())


def test_a_user_who_does_not_answer_is_noticed(open_to_all: Path) -> None:
    os.mkfifo(open_to_all / "fifo")
    with User("one", 0) as user, pytest.raises(Hangs):
        user.one("read", str(open_to_all / "fifo"), limit_s=0.3)
