"""Each rule of a diagnosis finds what it is for, and nothing where all is well or where facts make no sense."""

from __future__ import annotations

import copy
import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.doctor import rules_of_record as record
from nopfsfs.doctor import rules_of_state as state
from nopfsfs.doctor.diagnosis import RULES, judge
from nopfsfs.doctor.findings import Facts, Rule, Weight

LIMITS = "Limit              Soft Limit   Hard Limit   Units\nMax open files     1024         4096         files"


def process(role: str, pid: int, **more: Any) -> dict[str, Any]:
    return {"role": role, "pid": pid, "alive": True, "stopped": False, "asleep": [], "limits": LIMITS,
            "descriptors": 30, **more}  # fmt: skip


def gone(role: str, pid: int) -> dict[str, Any]:
    return {"role": role, "pid": pid, "alive": False}


ALIVE = [process("supervisor", 10), process("server-0", 11), process("stager", 12)]
EPOCH = {"ended": True, "files": 1000, "second_reads": 0, "seconds": 60.0, "stall_seconds": 1.0,
         "served": {"source": 0.0, "ram": 1.0}}  # fmt: skip
WELL: dict[str, Any] = {
    "mount": {"path": "/mnt/fast", "owner": 0, "in_place": True},
    "options": {"ram": 1 << 30, "fast_path": True, "uid": None, "disks": []},
    "disk_paths": {"disk-0": "/scratch"},
    "disk-0": {"errno": 0, "free_inodes": 7, "total_bytes": 1 << 40},
    "processes": ALIVE,
    "answers": {"errno": 0},
    "source": {"errno": 0},
    "status": {
        "state": "running", "off": [], "epochs": [EPOCH, EPOCH], "budget": {"total": 1 << 30}, "read_errors": 0,
        "plan": {"state": "locked"}, "opens": {"total": 5000, "predicted": 4990, "unobserved": 0},
        "page_cache": {"measured": True, "resident_share": 0.99, "looked_at": 5000},
        "stager": {"stuck_reads": 0, "disks_bypassed": 0, "corrupt_copies": 0, "source_errors": 0, "changed_files": 0},
        "modes": {"resend": True, "redelivery": "kernel", "fast_path": True},
    },
    "metrics": {"info": {"version": "1"}, "processes": {"server": {"restarts": 0}, "stager": {"restarts": 1}}},
    "tune": {"mode": "auto", "disciplined": True},
    "policy": {"files": [{"path": "/etc/nopfs/policy.toml", "trusted": True}], "in_force": {"errors": []}},
    "plan": {"explanation": {"text": "Known after 8 opens."}},
    "cgroup": {"groups": [{"group": "/", "files": {"memory.events": "low 0\noom 0\noom_kill 0"}}]},
    "kernel": {"release": "6.12.0", "missing": [], "without": {}, "dev_fuse": True, "may_mount": True},
    "versions": {"nopfsfs": "1", "fusermount3": "fusermount3 version: 3.14"},
    "clock": {"disciplined": True},
    "mounts": [{"mountpoint": "/mnt/fast", "living": ["supervisor", "server-0"], "listed": ["supervisor", "server-0"]}],
}  # fmt: skip
NO_ANSWER = {"error": "the daemon of this mount did not answer within 5 s"}
FOREIGN = {"error": "only root and the user who mounted can talk to the daemon of this mount"}
AGAIN = {**EPOCH, "second_reads": 300}
WAITING = {**EPOCH, "stall_seconds": 30.0, "served": {"source": 0.4}}

Change = dict[str, Any]  # by `part` or `part.key.key`, what is other than WELL
CASES: list[tuple[Rule, Change, str]] = [
    (state.all_processes_are_gone, {"processes": [gone("supervisor", 10), gone("server-0", 11)]},
     "nopfs-umount /mnt/fast"),
    (state.processes_cannot_be_seen, {"processes": [gone("supervisor", 10), gone("server-0", 11)],
                                      "mount.held": True}, "where the mount was made: nopfs doctor /mnt/fast"),
    (state.processes_cannot_be_seen, {"processes": [], "mount.held": True}, "where the mount was made"),
    (state.mount_without_processes, {"processes": [], "status": NO_ANSWER}, "loginctl enable-linger"),
    (state.mount_without_processes, {"processes": [], "answers": {"errno": errno.ENOTCONN}}, "nopfs-umount /mnt/fast"),
    (state.supervisor_is_gone, {"processes": [gone("supervisor", 10), *ALIVE[1:]], "status": NO_ANSWER},
     ": nopfs adopt /mnt/fast"),
    (state.supervisor_is_gone, {"processes": [gone("supervisor", 10), *ALIVE[1:]], "status": NO_ANSWER,
                                "mount.owner": 1000, "mount.owner_name": "alice", "node": {"user": 0}},
     ": runuser -u alice -- nopfs adopt /mnt/fast"),
    (state.no_server_lives, {"processes": [ALIVE[0], gone("server-0", 11)]}, "the log:"),
    (state.a_process_is_stopped, {"processes": [ALIVE[0], process("server-0", 11, stopped=True)]}, "kill -CONT 11"),
    (state.a_process_is_stopped, {"processes": [*ALIVE[:2], process("stager", 12, stopped=True)]}, "kill -CONT 12"),
    (state.supervisor_does_not_answer, {"status": NO_ANSWER}, "kill -KILL 10; nopfs adopt /mnt/fast"),
    (state.mount_is_another_users, {"status": FOREIGN}, "as that user"),
    (state.mount_does_not_answer, {"answers": {"error": "nothing within 3 s"}}, "nopfs-umount /mnt/fast"),
    (state.mount_answers_with_an_error, {"answers": {"errno": errno.EIO}}, "the log:"),
    (state.another_mount_lies_above, {"mount.in_place": False}, "findmnt /mnt/fast"),
    (state.source_does_not_answer, {"source": {"error": "nothing within 10 s"}}, "file system of the source"),
    (state.source_does_not_answer, {"status.stager.stuck_reads": 3}, "file system of the source"),
    (state.source_answers_with_an_error, {"source": {"errno": errno.ESTALE}}, "file system of the source"),
    (state.source_answers_with_an_error, {"source": {"errno": errno.EACCES}}, "--user"),
    (state.a_process_sleeps_in_the_kernel, {"processes": [*ALIVE[:2], process("stager", 12, asleep=[12, 13])]},
     "kernel stacks"),
    (state.an_old_process_is_left, {"processes": [*ALIVE, process("stager-asleep-9", 9)]}, "They end when"),
    (state.memory_was_short, {"cgroup": {"groups": [{"files": {"memory.events": "oom 1\noom_kill 2"}}]}}, "--ram"),
    (state.descriptors_are_short, {"processes": [*ALIVE[:2], process("stager", 12, descriptors=1000)]}, "ulimit -n"),
    (state.processes_die_often, {"metrics.processes.stager.restarts": 9}, "--ram"),
    (state.a_disk_is_sick, {"disk-0": {"errno": errno.EIO}}, "that disk"),
    (state.a_disk_is_sick, {"disk-0": {"error": "nothing within 5 s"}}, "that disk"),
    (state.a_disk_is_sick, {"disk-0": {"errno": 0, "free_inodes": 0, "total_bytes": 9}}, "that disk"),
    (state.fuse_is_missing, {"kernel.dev_fuse": False}, "modprobe fuse"),
    (state.fusermount_is_missing, {"versions.fusermount3": None, "kernel.may_mount": False}, "fuse3"),
    (state.a_mount_of_the_node_is_dead, {"mounts": [{"mountpoint": "/mnt/b", "living": [], "listed": ["server-0"]}]},
     "nopfs-umount /mnt/b"),
    (state.a_mount_of_the_node_is_dead, {"mount_paths": {"mount-0": "/mnt/b"}, "mount-0": {"errno": errno.ENOTCONN}},
     "nopfs-umount /mnt/b"),
    (state.a_mount_of_the_node_hangs, {"mount_paths": {"mount-0": "/mnt/b"}, "mount-0": {"error": "nothing"}},
     "nopfs doctor /mnt/b"),
    (state.a_mount_of_the_node_has_no_supervisor,
     {"mounts": [{"mountpoint": "/mnt/b", "living": ["server-0"], "listed": ["supervisor", "server-0"]}]},
     "nopfs adopt /mnt/b"),
    (record.a_part_is_off, {"status.off": [{"what": "disk tier /scratch", "since": 1.7e9, "why": "cannot be opened"}]},
     "Look at the disk"),
    (record.a_part_is_off, {"status.off": [{"what": "stager", "since": 1.7e9, "why": "it hangs"}]}, "the log:"),
    (record.disks_are_bypassed, {"status.stager.disks_bypassed": 1}, "these disks"),
    (record.copies_on_disk_rot, {"status.stager.corrupt_copies": 1}, "smartctl"),
    (record.source_gives_errors, {"status.read_errors": 1}, "file system of the source"),
    (record.source_gives_errors, {"status.stager.source_errors": 500}, "file system of the source"),
    (record.peers_are_lost, {"status.peers": {"state": "lost"}}, "mount all nodes anew"),
    (record.peers_are_lost, {"status.peers": {"state": "running", "resting": [3]}}, "mount all nodes anew"),
    (record.plan_does_not_match, {"status.plan.state": "mismatch"}, "nopfs plan /mnt/fast"),
    (record.plan_is_not_found, {"status.plan.state": "watching"}, "--seed"),
    (record.plan_foresees_little, {"status.opens.predicted": 100}, "nopfs accesslog /mnt/fast --profile"),
    (record.memory_is_too_small, {"status.epochs": [EPOCH, AGAIN, {**EPOCH, "ended": False}]}, "More --ram"),
    (record.memory_was_cut, {"status.budget.total": 1 << 28}, "Leave more memory"),
    (record.pages_are_taken, {"status.page_cache.resident_share": 0.5}, "--page-cache"),
    (record.source_is_the_bottleneck, {"status.epochs": [EPOCH, WAITING]}, "nopfs stats /mnt/fast"),
    (record.fast_path_is_off, {"status.modes.fast_path": False}, "wmem_max"),
    (record.files_change, {"status.stager.changed_files": 2}, "who writes"),
    (record.clock_is_not_disciplined, {"tune.disciplined": False, "clock.disciplined": False}, "chrony"),
    (record.events_were_lost, {"status.opens.unobserved": 7}, "a processor"),
    (record.no_redelivery, {"status.modes.redelivery": "none"}, "with the fast path"),
    (record.calls_are_missing, {"status.kernel": [{"what": "cachestat", "effect": "less is known"}]}, "may forbid"),
    (record.calls_are_missing, {"kernel.without": {"openat2": "more steps"}}, "may forbid"),
    (record.versions_differ, {"metrics.info.version": "0.9"}, "nopfs upgrade /mnt/fast"),
    (record.versions_differ, {"metrics.info.version": "0.9", "options.foreground": True}, "mounted anew"),
    (record.policy_file_is_refused, {"policy.files": [{"path": "/p.toml", "why": "of user 5"}]}, "nopfs policy check"),
    (record.policy_file_is_refused, {"policy.in_force.errors": ["/p.toml: it has vanished"]}, "nopfs policy check"),
]  # fmt: skip


def changed(change: Change) -> Facts:
    parts = copy.deepcopy(WELL)
    for path, value in change.items():
        *above, last = path.split(".")
        where = parts
        for key in above:
            where = where[key]
        where[last] = value
    return Facts(parts)


def test_nothing_is_found_where_all_is_well() -> None:
    assert list(judge(Facts(WELL))) == []


NAMES = [f"{rule.__name__}-{number}" for number, (rule, *_) in enumerate(CASES)]


@pytest.mark.parametrize(("rule", "change", "do"), CASES, ids=NAMES)
def test_each_rule_finds_what_it_is_for(rule: Rule, change: Change, do: str) -> None:
    finding = rule(changed(change))
    assert finding is not None
    assert do in finding.do
    assert finding.says.endswith(".")
    assert finding in judge(changed(change))


def test_every_rule_has_a_case() -> None:
    assert {rule for rule, *_ in CASES} == set(RULES)
    assert len(set(RULES)) == len(RULES)


def test_of_a_mount_whose_processes_are_gone_only_that_is_said() -> None:
    dead = {"processes": [gone("supervisor", 1), gone("server-0", 2)], "status": NO_ANSWER, "metrics": NO_ANSWER,
            "tune": NO_ANSWER, "answers": {"errno": errno.ENOTCONN}}  # fmt: skip
    (finding,) = judge(changed(dead))
    assert finding == state.all_processes_are_gone(changed(dead))


def test_why_no_order_was_found_is_said() -> None:
    finding = record.plan_is_not_found(changed({"status.plan.state": "unknown"}))
    assert finding is not None
    assert finding.says.startswith("After 5,000 opens the mount has found no order")
    assert finding.says.endswith("Known after 8 opens.")
    assert record.plan_is_not_found(changed({"status.plan.state": "watching", "status.opens.total": 100})) is None


def test_the_worst_comes_first() -> None:
    found = judge(changed({"clock.disciplined": False, "tune.disciplined": False, "status.read_errors": 5,
                           "status.plan.state": "mismatch", "status.off": [{"what": "stager"}]}))  # fmt: skip
    assert [finding.weight for finding in found] == [Weight.BROKEN, Weight.DEGRADED, Weight.SLOW, Weight.NOTE]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 65), 1 << 65) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "alive", "error", "files"]), inner)
    ),
    max_leaves=6,
)
KEYS = sorted({f"{part}.{key}" for part, value in WELL.items() if isinstance(value, dict) for key in value} | set(WELL))


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4))
def test_whatever_was_collected_is_judged(change: Change) -> None:
    """A daemon of another release, or of another user, may say anything."""
    parts = copy.deepcopy(WELL)
    for path, value in change.items():
        part, _, key = path.partition(".")
        if not key:
            parts[part] = value
        elif isinstance(parts[part], dict):
            parts[part][key] = value
    for finding in judge(Facts(parts)):
        assert finding.says
        assert finding.do


@pytest.mark.parametrize("part", sorted(WELL))
def test_a_part_that_is_missing_hides_no_other(part: str) -> None:
    parts = {name: value for name, value in copy.deepcopy(WELL).items() if name != part}
    parts["status"] = {**WELL["status"], "read_errors": 5} if part != "status" else NO_ANSWER
    assert len(judge(Facts(parts))) == 1 or part in ("mount", "processes")
