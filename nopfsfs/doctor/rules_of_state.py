"""Rules of a diagnosis about what lives and answers: processes, mount, source, node. Pure functions of the facts."""

from __future__ import annotations

import errno
import os

from nopfsfs.doctor.findings import LOOK_AT_THE_LOG, Facts, Finding, Rule, Weight

DESCRIPTORS_LEAST = 32  # below this, little can be opened
RESTARTS_MANY = 3


def all_processes_are_gone(facts: Facts) -> Finding | None:
    if not facts.is_dead:
        return None
    return Finding(
        Weight.BROKEN,
        "All processes of the mount are gone; readers get 'Transport endpoint is not connected'. They were killed, "
        "often for want of memory: see the end of the mount's log and the kernel's log (journalctl -t nopfs; "
        "journalctl -k).",
        f"Clear the mount, and mount again: nopfs-umount {facts.path}",
    )


def processes_cannot_be_seen(facts: Facts) -> Finding | None:
    if not facts.is_unseen:
        return None
    return Finding(
        Weight.NOTE,
        "The processes of the mount live, and cannot be seen from here: this is another pid namespace, as in a "
        "container. So nothing is said of them.",
        f"Run this command where the mount was made: nopfs doctor {facts.path}",
    )


def mount_without_processes(facts: Facts) -> Finding | None:
    if not facts.path or facts.failure("processes") or facts.rows("processes") or facts.is_unseen:
        return None
    if facts.get("answers", "errno") == errno.ENOTCONN:
        return Finding(
            Weight.BROKEN,
            "All processes of the mount are gone, and so is its state directory; readers get 'Transport endpoint is "
            "not connected'.",
            f"Clear the mount, and mount again: nopfs-umount {facts.path}",
        )
    return Finding(
        Weight.DEGRADED,
        "The state directory of the mount cannot be found, so that no command reaches its processes. Where it lay in "
        "/run/user, systemd removed it at the end of the user's last session; or the mount is another user's.",
        "Run the command as the user who mounted, or as root. Next time mount with loginctl enable-linger, or with "
        "XDG_RUNTIME_DIR unset.",
    )


def supervisor_is_gone(facts: Facts) -> Finding | None:
    if not facts.processes("server") or facts.processes("supervisor"):
        return None
    return Finding(
        Weight.DEGRADED,
        "The supervisor of the mount is gone; its servers serve on, without prefetching.",
        f"Start another one: {facts.adopt}",
    )


def no_server_lives(facts: Facts) -> Finding | None:
    if facts.processes("server") or not facts.processes("supervisor"):
        return None
    return Finding(
        Weight.BROKEN,
        "No server of the mount lives: reads wait until the supervisor has started one.",
        f"{LOOK_AT_THE_LOG} If none can be started for want of memory, processes or descriptors, give "
        "the mount more of these.",
    )


def a_process_is_stopped(facts: Facts) -> Finding | None:
    stopped = [one for one in facts.processes() if one.get("stopped")]
    if not stopped:
        return None
    names = ", ".join(f"{one['role']} (pid {one['pid']})" for one in stopped)
    pids = " ".join(str(one["pid"]) for one in stopped)
    heavy = any(str(one["role"]).startswith("server") for one in stopped)
    return Finding(
        Weight.BROKEN if heavy else Weight.DEGRADED,
        f"A signal or a debugger has stopped processes of the mount: {names}. "
        + ("Readers may wait until a stopped server is replaced." if heavy else "Reads go on without them."),
        f"Let them go on: kill -CONT {pids}",
    )


def supervisor_does_not_answer(facts: Facts) -> Finding | None:
    why = facts.failure("status")
    supervisors = facts.processes("supervisor")
    if why is None or not supervisors or any(one.get("stopped") for one in supervisors):
        return None
    if "only root and the user who mounted" in why:
        return None
    return Finding(
        Weight.DEGRADED,
        f"The supervisor lives (pid {supervisors[0]['pid']}) and does not answer ({why}).",
        "If it stays so, end it, and start another one, while readers go on: "
        f"kill -KILL {supervisors[0]['pid']}; {facts.adopt}",
    )


def mount_is_another_users(facts: Facts) -> Finding | None:
    if "only root and the user who mounted" not in (facts.failure("status") or ""):
        return None
    return Finding(
        Weight.NOTE,
        "The mount is another user's, so that its record and its log could not be read.",
        "Run nopfs doctor as that user, or as root.",
    )


def mount_does_not_answer(facts: Facts) -> Finding | None:
    if facts.failure("answers") is None or facts.is_dead:
        return None
    return Finding(
        Weight.BROKEN,
        "The mount does not answer a question that its servers answer from memory: readers hang.",
        "If it stays so, end the mount, which wakes them with an error: "
        f"nopfs-umount {facts.path}. For root, the archive shows where the processes wait in the kernel.",
    )


def mount_answers_with_an_error(facts: Facts) -> Finding | None:
    number = int(facts.number("answers", "errno"))
    if number in (0, errno.ENOTCONN) or facts.is_dead:
        return None
    return Finding(
        Weight.BROKEN,
        f"The mount answers with an error: {os.strerror(number)}.",
        LOOK_AT_THE_LOG,
    )


def another_mount_lies_above(facts: Facts) -> Finding | None:
    if facts.get("mount", "in_place", default=True):
        return None
    return Finding(
        Weight.DEGRADED,
        "Something else is mounted above the mount, so that readers do not see it.",
        f"See findmnt {facts.path}, and unmount what lies above.",
    )


def source_does_not_answer(facts: Facts) -> Finding | None:
    stuck = int(facts.number("status", "stager", "stuck_reads"))
    why = facts.failure("source")
    if why is None and not stuck:
        return None
    found = f"the source gave {why}" if why is not None else ""
    counted = f"{stuck:,} reads of the mount wait for an answer" if stuck else ""
    return Finding(
        Weight.BROKEN,
        f"The source does not answer: {' and '.join(one for one in (found, counted) if one)}. Files that the mount "
        "holds are served; others wait until --io-timeout.",
        "Look at the file system of the source and its servers. The mount tries again by itself.",
    )


def source_answers_with_an_error(facts: Facts) -> Finding | None:
    number = int(facts.number("source", "errno"))
    if not number:
        return None
    if number in (errno.EACCES, errno.EPERM):
        return Finding(
            Weight.NOTE,
            "The user who runs this command may not read the source, so that it was not examined.",
            "Where root is refused (root_squash), run nopfs doctor as the user of --user.",
        )
    return Finding(
        Weight.BROKEN,
        f"The source answers with an error: {os.strerror(number)}. Files that the mount holds are served.",
        "Look at the file system of the source: is it mounted, and are its servers well?",
    )


def a_process_sleeps_in_the_kernel(facts: Facts) -> Finding | None:
    asleep = [one for one in facts.processes() if one.get("asleep")]
    if not asleep:
        return None
    names = ", ".join(f"{len(one['asleep'])} threads of {one['role']} (pid {one['pid']})" for one in asleep)
    return Finding(
        Weight.DEGRADED,
        f"The kernel holds {names} in a place where no signal reaches them: mostly a file system or a disk that does "
        "not answer.",
        "The kernel stacks in the archive say where. Look at the file system of the source, and at the disks.",
    )


def an_old_process_is_left(facts: Facts) -> Finding | None:
    left = [one for one in facts.rows("processes") if "-asleep-" in str(one.get("role")) and one.get("alive")]
    if not left:
        return None
    return Finding(
        Weight.DEGRADED,
        f"{len(left)} processes that were replaced are still held by the kernel, with their memory.",
        "They end when the file system or the disk that they wait for answers.",
    )


def memory_was_short(facts: Facts) -> Finding | None:
    kills = 0
    for group in facts.rows("cgroup", "groups"):
        events = str((group.get("files") or {}).get("memory.events") or "")
        counts = dict(line.split(None, 1) for line in events.splitlines() if " " in line)
        kills = max(kills, int(counts.get("oom_kill", 0)))
    if not kills:
        return None
    return Finding(
        Weight.DEGRADED,
        f"The kernel has killed {kills:,} processes of the mount's cgroup because it was out of memory.",
        "Raise the memory limit of the cgroup, or mount with a smaller --ram.",
    )


def descriptors_are_short(facts: Facts) -> Finding | None:
    for one in facts.processes():
        line = next((line for line in str(one.get("limits") or "").splitlines() if "Max open files" in line), "")
        words = line.split()
        used = one.get("descriptors")
        if len(words) > 3 and words[3].isdecimal() and used is not None and int(words[3]) - used < DESCRIPTORS_LEAST:
            return Finding(
                Weight.DEGRADED,
                f"The {one['role']} has {used:,} of {words[3]} descriptors open.",
                "Raise the limit of open files (ulimit -n) before the mount.",
            )
    return None


def processes_die_often(facts: Facts) -> Finding | None:
    found = facts.get("metrics", "processes", default={})
    restarts = {role: int(facts.number("metrics", "processes", role, "restarts")) for role in found}
    many = {role: count for role, count in restarts.items() if count > RESTARTS_MANY}
    if not many:
        return None
    names = ", ".join(f"{role} {count:,} times" for role, count in many.items())
    return Finding(
        Weight.DEGRADED,
        f"Processes of the mount died and were replaced: {names}.",
        "The log says how they ended. Often the node or the cgroup has too little memory: a smaller --ram.",
    )


def a_disk_is_sick(facts: Facts) -> Finding | None:
    bad = []
    for part, path in facts.get("disk_paths", default={}).items():
        number = int(facts.number(part, "errno"))
        if why := facts.failure(part):
            bad.append(f"{path} gave {why}")
        elif number:
            bad.append(f"{path}: {os.strerror(number)}")
        elif facts.get(part, "free_inodes") == 0 and facts.number(part, "total_bytes"):
            bad.append(f"{path} has no inode left")
    if not bad:
        return None
    return Finding(
        Weight.DEGRADED,
        f"A disk tier does not work: {'; '.join(bad)}.",
        "Look at that disk. The mount goes on without it, and tries again by itself.",
    )


def fuse_is_missing(facts: Facts) -> Finding | None:
    if facts.get("kernel", "dev_fuse", default=True):
        return None
    return Finding(
        Weight.BROKEN,
        "This node has no /dev/fuse, so that nothing can be mounted.",
        "Load the module (modprobe fuse), or give the container the device.",
    )


def fusermount_is_missing(facts: Facts) -> Finding | None:
    if facts.failure("versions") or facts.get("versions", "fusermount3") or facts.get("kernel", "may_mount"):
        return None
    return Finding(
        Weight.NOTE,
        "There is no fusermount3, which users other than root need to mount and to unmount.",
        "Install the package fuse3.",
    )


def a_mount_of_the_node_is_dead(facts: Facts) -> Finding | None:
    dead = [
        str(one["mountpoint"])
        for one in facts.rows("mounts")
        if one.get("listed") and not one.get("living") and not one.get("held")
    ]
    asked = facts.get("mount_paths", default={})
    dead += [path for part, path in asked.items() if facts.number(part, "errno") == errno.ENOTCONN]
    others = [path for path in dict.fromkeys(dead) if path != facts.path]
    if not others:
        return None
    return Finding(
        Weight.NOTE if facts.path else Weight.BROKEN,
        f"All processes of these mounts are gone: {', '.join(others)}.",
        f"Clear them: nopfs-umount {others[0]}",
    )


def a_mount_of_the_node_hangs(facts: Facts) -> Finding | None:
    found = [path for part, path in facts.get("mount_paths", default={}).items() if facts.failure(part)]
    if not found:
        return None
    return Finding(
        Weight.BROKEN,
        f"These mounts do not answer, so that readers hang: {', '.join(found)}.",
        f"Find out more: nopfs doctor {found[0]}",
    )


def a_mount_of_the_node_has_no_supervisor(facts: Facts) -> Finding | None:
    found = [
        str(one["mountpoint"])
        for one in facts.rows("mounts")
        if any(str(role).startswith("server") for role in one.get("living") or ())
        and "supervisor" not in one["living"]
        and one["mountpoint"] != facts.path
    ]
    if not found:
        return None
    return Finding(
        Weight.NOTE if facts.path else Weight.DEGRADED,
        f"The supervisors of these mounts are gone: {', '.join(found)}. Readers go on without prefetching.",
        f"Start others, each as the user who mounted: nopfs adopt {found[0]}",
    )


RULES_OF_STATE: tuple[Rule, ...] = (
    all_processes_are_gone, processes_cannot_be_seen, mount_without_processes, no_server_lives, mount_does_not_answer,
    mount_answers_with_an_error, a_process_is_stopped, source_does_not_answer, source_answers_with_an_error,
    supervisor_is_gone, supervisor_does_not_answer, mount_is_another_users, another_mount_lies_above,
    a_process_sleeps_in_the_kernel, an_old_process_is_left, memory_was_short, descriptors_are_short,
    processes_die_often, a_disk_is_sick, fuse_is_missing, fusermount_is_missing, a_mount_of_the_node_is_dead,
    a_mount_of_the_node_hangs, a_mount_of_the_node_has_no_supervisor,
)  # fmt: skip
