"""Rules of a diagnosis about what the supervisor says of its work, and about the kernel. Pure functions of the facts.
"""

from __future__ import annotations

import time

from nopfsfs.doctor.findings import LOOK_AT_THE_LOG, Facts, Finding, Rule, Weight
from nopfsfs.text.units import format_duration, format_size

PLAN_OPENS = 2000  # after which an order that is known would have been found
PREDICTED_LEAST = 0.9  # of the opens, while a plan is certain
SECOND_READS_MOST = 0.02  # of the files of an epoch
RESIDENT_LEAST, LOOKED_AT_LEAST = 0.9, 100
STALL_MOST = 0.1  # of the time of an epoch, all readers together
ERRORS_MANY = 10


def a_part_is_off(facts: Facts) -> Finding | None:
    off = facts.rows("status", "off")
    if not off:
        return None
    parts = "; ".join(f"{one.get('what')} since {_clock(one.get('since'))} ({one.get('why')})" for one in off)
    disk = any("disk" in str(one.get("what")) for one in off)
    return Finding(
        Weight.DEGRADED,
        f"Parts of the mount are switched off after a failure: {parts}.",
        "They are tried again by themselves. "
        + ("Look at the disk: is it full, read-only, or gone?" if disk else LOOK_AT_THE_LOG),
    )


def disks_are_bypassed(facts: Facts) -> Finding | None:
    return _counted(
        facts, ("stager", "disks_bypassed"), Weight.DEGRADED,
        "{:,} disk tiers do not answer in time, and are passed by for a while.",
        "Look at these disks: another program may keep them busy, or they fail.",
    )  # fmt: skip


def copies_on_disk_rot(facts: Facts) -> Finding | None:
    return _counted(
        facts, ("stager", "corrupt_copies"), Weight.DEGRADED,
        "{:,} copies in a disk tier had wrong bytes. Readers got right ones, from the source.",
        "Check that disk and its cables (smartctl, dmesg); replace it if it goes on.",
    )  # fmt: skip


def plan_does_not_match(facts: Facts) -> Finding | None:
    if facts.get("status", "plan", "state") != "mismatch":
        return None
    return Finding(
        Weight.SLOW,
        f"The job reads otherwise than the plan says. {_explanation(facts)}".strip(),
        f"Compare the job's seed, sampler and world size with the mount's: nopfs plan {facts.path}. Or state the order "
        "(nopfsfs.register, a plan file).",
    )


def plan_is_not_found(facts: Facts) -> Finding | None:
    opens = int(facts.number("status", "opens", "total"))
    state = facts.get("status", "plan", "state")
    if state not in ("watching", "unknown", "none") or opens < PLAN_OPENS:
        return None
    return Finding(
        Weight.SLOW,
        f"After {opens:,} opens the mount has found no order that explains them, so it stages files that were not read "
        f"yet, in no order. {_explanation(facts)}".strip(),
        "Say the seed (--seed), or state the order: nopfsfs.register in the training script, or a plan file.",
    )


def plan_foresees_little(facts: Facts) -> Finding | None:
    opens, predicted = facts.number("status", "opens", "total"), facts.number("status", "opens", "predicted")
    if facts.get("status", "plan", "state") != "locked" or opens < PLAN_OPENS or predicted >= PREDICTED_LEAST * opens:
        return None
    return Finding(
        Weight.SLOW,
        f"The plan is certain, but only {100 * predicted / opens:.0f}% of {opens:,.0f} opens were foreseen: other "
        "programs read as well, or the plan was found late.",
        f"nopfs accesslog {facts.path} --profile shows who opens what.",
    )


def memory_is_too_small(facts: Facts) -> Finding | None:
    for epoch in reversed(facts.rows("status", "epochs")):
        files, again = epoch.get("files") or 0, epoch.get("second_reads") or 0
        if epoch.get("ended") and files:
            break
    else:
        return None
    if again <= SECOND_READS_MOST * files:
        return None
    ram = format_size(int(facts.number("status", "budget", "total")))
    return Finding(
        Weight.SLOW,
        f"Memory and disks are too small for the data: {again:,} files of the last epoch's {files:,} were read from "
        f"the source again. The mount has {ram} of memory.",
        f"More --ram, a --disk, or more nodes: nopfs simulate --from-mount {facts.path} says how much would do.",
    )


def memory_was_cut(facts: Facts) -> Finding | None:
    wanted, given = facts.number("options", "ram"), facts.number("status", "budget", "total")
    if not wanted or not given or given >= 0.95 * wanted:
        return None
    return Finding(
        Weight.SLOW,
        f"The node or the cgroup has too little memory: the mount uses {format_size(int(given))} of the "
        f"{format_size(int(wanted))} that --ram asks for.",
        "Leave more memory to the mount, or ask for less.",
    )


def pages_are_taken(facts: Facts) -> Finding | None:
    share = facts.number("status", "page_cache", "resident_share")
    looked_at = facts.number("status", "page_cache", "looked_at")
    if not facts.get("status", "page_cache", "measured") or looked_at < LOOKED_AT_LEAST or share >= RESIDENT_LEAST:
        return None
    return Finding(
        Weight.SLOW,
        f"The kernel has taken pages of the mount back: only {100 * share:.0f}% of what was looked at was still there.",
        "Other programs want the memory: fewer of them, or a smaller --page-cache and so more room for staged files.",
    )


def source_gives_errors(facts: Facts) -> Finding | None:
    failed, errors = facts.number("status", "read_errors"), facts.number("status", "stager", "source_errors")
    if not failed and errors < ERRORS_MANY:
        return None
    return Finding(
        Weight.BROKEN if failed else Weight.DEGRADED,
        f"Reads of the source failed {errors:,.0f} times; readers got {failed:,.0f} errors.",
        f"{LOOK_AT_THE_LOG} It names files and errors. Look at the file system of the source, too.",
    )


def files_change(facts: Facts) -> Finding | None:
    return _counted(
        facts, ("stager", "changed_files"), Weight.NOTE,
        "{:,} files of the source changed while the mount had them. Open files of an old version give ESTALE.",
        "Find out who writes there while the job reads.",
    )  # fmt: skip


def clock_is_not_disciplined(facts: Facts) -> Finding | None:
    tuned = facts.get("tune", "mode") == "auto"
    said = facts.get("tune", "disciplined") if tuned else facts.get("clock", "disciplined")
    if said is not False or facts.get("clock", "disciplined") or (facts.path and not tuned):
        return None
    return Finding(
        Weight.NOTE,
        "The clock of this node is not synchronised, so that its mounts take no part in the minute's drains. At a "
        "source that no earlier mount has measured, they have at most 64 requests under way.",
        "Start chrony or ntpd.",
    )


def source_is_the_bottleneck(facts: Facts) -> Finding | None:
    ended = [one for one in facts.rows("status", "epochs") if one.get("ended") and one.get("files")]
    if len(ended) < 2:  # in the first epoch all comes from the source
        return None
    last = ended[-1]
    share = float((last.get("served") or {}).get("source") or 0.0)
    seconds = float(last.get("seconds") or 0.0)
    if share < SECOND_READS_MOST or float(last.get("stall_seconds") or 0.0) < STALL_MOST * seconds:
        return None
    return Finding(
        Weight.SLOW,
        f"Readers waited {format_duration(float(last['stall_seconds']))} in the last epoch of "
        f"{format_duration(seconds)}, and {100 * share:.0f}% of its files came from the source while they waited.",
        f"nopfs stats {facts.path} shows what they wait for; see the findings on plan and memory.",
    )


def events_were_lost(facts: Facts) -> Finding | None:
    return _counted(
        facts, ("opens", "unobserved"), Weight.NOTE,
        "The supervisor missed {:,} opens: it had too little of a processor.",
        "Leave a processor to the mount beside the job.",
    )  # fmt: skip


def peers_are_lost(facts: Facts) -> Finding | None:
    state, resting = facts.get("status", "peers", "state"), facts.get("status", "peers", "resting", default=[])
    if state is None or (state == "running" and not resting):
        return None
    says = "MPI has ended, so that the mount goes on by itself" if state != "running" else (
        f"these nodes do not answer: {', '.join(map(str, resting))}"
    )  # fmt: skip
    return Finding(
        Weight.DEGRADED,
        f"Other nodes cannot be reached: {says}. What lives there is read from the source.",
        "Look at these nodes. To form one cache again, mount all nodes anew.",
    )


def no_redelivery(facts: Facts) -> Finding | None:
    if facts.get("status", "modes", "redelivery") != "none":
        return None
    return Finding(
        Weight.NOTE,
        "This mount cannot give the requests of a dead server to another one: a server that dies ends the mount, and "
        "nopfs adopt does not work.",
        "Mount with the fast path. Nothing needs to be done for reads to be right.",
    )


def calls_are_missing(facts: Facts) -> Finding | None:
    found = [(one.get("what"), one.get("effect")) for one in facts.rows("status", "kernel")]
    found = found or list(facts.get("kernel", "without", default={}).items())
    if not found:
        return None
    return Finding(
        Weight.NOTE,
        f"This node lacks calls of newer kernels: {'; '.join(f'{name} ({effect})' for name, effect in found)}.",
        "Nothing needs to be done for reads to be right. A newer kernel has them; a container may forbid them.",
    )


def fast_path_is_off(facts: Facts) -> Finding | None:
    if facts.get("status", "modes", "fast_path") is not False or facts.get("options", "fast_path") is False:
        return None
    return Finding(
        Weight.SLOW,
        "The fast path is off, because this system allows no messages as long as a listing takes: hits are slower.",
        "Raise net.core.wmem_max (sysctl), and mount anew.",
    )


def versions_differ(facts: Facts) -> Finding | None:
    mount, here = facts.get("metrics", "info", "version"), facts.get("versions", "nopfsfs")
    if not mount or not here or mount == here:
        return None
    return Finding(
        Weight.NOTE,
        f"The mount runs nopfsfs {mount}, and this command is of {here}.",
        "This mount has to be unmounted and mounted anew for that: it runs in the foreground, or has peers."
        if facts.get("options", "foreground") or facts.get("options", "peers")
        else f"To replace the mount's processes while files are read: nopfs upgrade {facts.path}",
    )


def policy_file_is_refused(facts: Facts) -> Finding | None:
    bad = [f"{one['path']}: {one['why']}" for one in facts.rows("policy", "files") if one.get("why")]
    said = facts.get("policy", "in_force", "errors", default=())
    found = bad or [str(one) for one in said]
    if not found:
        return None
    return Finding(
        Weight.NOTE,
        f"Rules of the site are refused, so that the last good ones, or none, are in force: {'; '.join(found)}.",
        "Tell the administrators of the site; nopfs policy check FILE says whether a file is right.",
    )


def _counted(facts: Facts, key: tuple[str, str], weight: Weight, what: str, todo: str) -> Finding | None:
    """A finding where a count of the status is not 0. The count stands in `what`."""
    count = int(facts.number("status", *key))
    return Finding(weight, what.format(count), todo) if count else None


def _explanation(facts: Facts) -> str:
    return " ".join(str(facts.get("plan", "explanation", "text", default="")).split())


def _clock(since: object) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since)) if isinstance(since, int | float) else "?"


RULES_OF_RECORD: tuple[Rule, ...] = (
    a_part_is_off, disks_are_bypassed, copies_on_disk_rot, source_gives_errors, peers_are_lost, plan_does_not_match,
    plan_is_not_found, plan_foresees_little, memory_is_too_small, memory_was_cut, pages_are_taken,
    source_is_the_bottleneck, fast_path_is_off, files_change, clock_is_not_disciplined, events_were_lost,
    no_redelivery, calls_are_missing, versions_differ, policy_file_is_refused,
)  # fmt: skip
