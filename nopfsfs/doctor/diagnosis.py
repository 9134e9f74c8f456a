"""A diagnosis: facts of a mount and its node, and what is likely wrong by them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from nopfsfs.control.find_mount import Located
from nopfsfs.control.options_file import read_options_of
from nopfsfs.control.process_list import read_pids
from nopfsfs.doctor import mount_parts, node_parts, policy_part, process_parts
from nopfsfs.doctor.bounded_parts import PartToCollect, collect_all, failed
from nopfsfs.doctor.findings import Facts, Finding
from nopfsfs.doctor.rules_of_record import RULES_OF_RECORD
from nopfsfs.doctor.rules_of_state import RULES_OF_STATE

FILE_S = 5.0  # for small files
PROCESSES_S = 8.0
ANSWER_S = 7.0  # for an answer of the supervisor; each of its steps has mount_parts.CALL_S
MOUNT_S = 3.0  # a living mount answers from memory
MOUNTS_MOST = 64  # of the node, which are asked whether they live
SOURCE_S = 10.0  # a parallel file system that is busy takes seconds
DISKS_MOST = 8
RULES = RULES_OF_STATE + RULES_OF_RECORD


def collect_node(env: Mapping[str, str]) -> dict[str, Any]:
    """Collect the facts of the node alone, and whether its mounts live."""
    found = collect_all([*_node_parts(env), PartToCollect("cgroup", partial(node_parts.cgroup_of, "self"), FILE_S)])
    mounts = {f"mount-{number}": one for number, one in enumerate(Facts(found).rows("mounts")[:MOUNTS_MOST])}
    asked = [
        PartToCollect(name, partial(mount_parts.look_at, one["mountpoint"]), MOUNT_S, one["owner"])
        for name, one in mounts.items()
    ]
    return {**found, "mount_paths": {name: one["mountpoint"] for name, one in mounts.items()}, **collect_all(asked)}


def collect_mount(located: Located, env: Mapping[str, str]) -> dict[str, Any]:
    """Collect the facts of a mount and its node. Takes SOURCE_S and some seconds at most, whatever hangs."""
    state_dir, owner = located.state_dir, located.owner
    first = collect_all([PartToCollect("options", partial(read_options_of, state_dir), FILE_S, owner)])
    options = first["options"] if isinstance(first["options"], dict) and not failed(first["options"]) else None
    disks = _disk_paths(options)
    parts = [
        PartToCollect("mount", partial(mount_parts.describe_mount, located), FILE_S),
        PartToCollect("processes", partial(_processes, located), PROCESSES_S),
        PartToCollect("cgroup", partial(_cgroup, located), FILE_S),
        PartToCollect("answers", partial(mount_parts.look_at, located.path), MOUNT_S, owner),
        PartToCollect(
            "source", partial(mount_parts.look_at_source, located.mount.source), SOURCE_S, _reader(options, owner)
        ),
        PartToCollect(
            "policy", partial(policy_part.look_at_policy, located.mount.source, (options or {}).get("policy")),
            SOURCE_S, owner,
        ),
        PartToCollect("log", partial(mount_parts.log_tail, options, state_dir), FILE_S, owner),
        PartToCollect("status", partial(mount_parts.ask, located, "status"), ANSWER_S),
        PartToCollect("metrics", partial(mount_parts.ask, located, "metrics"), ANSWER_S),
        PartToCollect("tune", partial(mount_parts.ask, located, "tune"), ANSWER_S),
        PartToCollect("plan", partial(mount_parts.ask, located, "plan"), ANSWER_S),
        PartToCollect("stacks", partial(mount_parts.ask, located, "stacks"), ANSWER_S),
        PartToCollect("history", partial(mount_parts.ask, located, "history", step=10), ANSWER_S),
        *(PartToCollect(name, partial(mount_parts.look_at, path), FILE_S, owner) for name, path in disks.items()),
    ]
    found = collect_all([*parts, *_node_parts(env)])
    if failed(found["policy"]) is None:
        found["policy"]["in_force"] = policy_part.in_force(found["tune"])
    return {**first, "disk_paths": disks, **found}


def judge(facts: Facts) -> Sequence[Finding]:
    """Return what is likely wrong, the worst first. A rule that does not understand a fact, as one of another release,
    finds nothing."""
    found: list[Finding] = []
    for rule in RULES:
        with suppress(TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
            finding = rule(facts)
            if finding is not None:
                found.append(finding)
    return sorted(found, key=lambda finding: finding.weight)


def _node_parts(env: Mapping[str, str]) -> list[PartToCollect]:
    return [
        PartToCollect("versions", node_parts.versions, FILE_S),
        PartToCollect("kernel", node_parts.kernel, FILE_S),
        PartToCollect("clock", node_parts.clock, FILE_S),
        PartToCollect("node", node_parts.node, FILE_S),
        PartToCollect("mounts", partial(node_parts.own_nopfs_mounts, env), FILE_S),
    ]


def _processes(located: Located) -> list[dict[str, Any]]:
    return process_parts.describe_processes(read_pids(located.state_dir, owner=located.owner))


def _cgroup(located: Located) -> dict[str, Any]:
    """The cgroup of the mount's processes; of this one where none lives. Raises LookupError where they cannot be seen.
    """
    processes = read_pids(located.state_dir, owner=located.owner)
    living = [process.pid for process in processes if process.alive()]
    if not living and mount_parts.is_held(located):
        raise LookupError("the processes are in another pid namespace")
    return node_parts.cgroup_of(living[0] if living else "self")


def _reader(options: Mapping[str, Any] | None, owner: int) -> int:
    """The user who reads the source: only root's own options may name another than the owner."""
    user = (options or {}).get("uid")
    return user if owner == 0 == os.geteuid() and isinstance(user, int) and user >= 0 else owner


def _disk_paths(options: Mapping[str, Any] | None) -> dict[str, str]:
    """The directories of the disk tiers, by the names of their parts."""
    disks = (options or {}).get("disks")
    found = [one.get("path") for one in disks if isinstance(one, dict)] if isinstance(disks, list) else []
    paths = [path for path in found if isinstance(path, str) and path.startswith("/")][:DISKS_MOST]
    return {f"disk-{number}": path for number, path in enumerate(paths)}
