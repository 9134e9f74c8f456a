"""Status records as text for people. Pure. Fields that a record lacks are left out of the text."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from nopfsfs.text.printable import printable
from nopfsfs.text.units import format_duration, format_rate, format_size

PLACES = {"page_cache": "page cache", "ram": "RAM", "disk": "disk", "peer": "peers", "source": "source"}
EPOCHS_SHOWN = 3  # of the last; all are in the record
MODES = {"fast_path": "fast path", "resend": "resend", "passthrough": "passthrough"}

Record = Mapping[str, Any]


def in_words(text: Callable[[], str]) -> str:
    """Return what `text` makes of a record; a message for a record that `text` fails on, as of another release."""
    try:
        return text()
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
        return "the daemon's record is not understood; it may be of another release: nopfs status --json shows it"


def print_record(record: Record, text: Callable[[], str], *, as_json: bool) -> None:
    """Print a record as JSON, or else what `text` makes of it."""
    print(json.dumps(record, indent=2) if as_json else printable(in_words(text)), flush=True)


def final_table(record: Record) -> str:
    """Return the table that `nopfs-umount` prints: where reads were served from, how many opens were predicted, how
    long readers waited, and fetches from other nodes.
    """
    return "\n".join([*_served_lines(record), *_opens_lines(record), *_wait_lines(record), *_peers_lines(record)])


def status_text(record: Record, source: str, mountpoint: str) -> str:
    """Return the text that `nopfs status` prints."""
    lines = [f"{source} on {mountpoint}: {record.get('state', 'unknown')}", f"plan       {_plan(record)}"]
    lines += [*_served_lines(record), *_opens_lines(record), *_wait_lines(record), *_budget_lines(record)]
    lines += [*_kept_lines(record), *_tuning_lines(record), *_stuck_lines(record), *_peers_lines(record)]
    lines += _epoch_lines(record)
    processes = [f"{p.get('role', '?')} {p.get('pid', '?')}" for p in record.get("processes", ())]
    lines += _recheck_lines(record, time.time())
    lines += [f"processes  {', '.join(processes) or 'none'}", *_modes_lines(record), *_kernel_lines(record)]
    lines += _off_lines(record)
    return "\n".join(lines)


def _kernel_lines(record: Record) -> list[str]:
    """A line for each call that the kernel lacks, or a container forbids."""
    return [f"kernel     no {one['what']}: {one['effect']}" for one in record.get("kernel") or ()]


def _off_lines(record: Record) -> list[str]:
    """Lines for the parts of the mount that are switched off after a failure, until they are tried again."""
    return [f"off        {one['what']} since {_time(one['since'])}: {one['why']}" for one in record.get("off") or ()]


def _time(seconds: float) -> str:
    """A local time of this node, from seconds since 1970."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _plan(record: Record) -> str:
    plan = record.get("plan") or {}
    words = [str(plan.get("state", "none"))]
    if plan.get("sampler"):
        words.append(str(plan["sampler"]))
    words += [f"{name} {plan[name]}" for name in ("seed", "epoch") if plan.get(name) is not None]
    if plan.get("position") is not None and plan.get("length"):
        words.append(f"at {plan['position']:,} of {plan['length']:,}")
    return ", ".join(words)


def _served_lines(record: Record) -> list[str]:
    served = record.get("served") or {}
    total = sum(served.get(place, {}).get("files", 0) for place in PLACES)
    lines = [f"{'served by':<11}{'files':>12}{'share':>8}{'bytes':>12}"]
    for place, name in PLACES.items():
        files, size = (int(served.get(place, {}).get(key, 0)) for key in ("files", "bytes"))
        share = f"{100 * files / total:.1f}%" if total else "-"
        lines.append(f"  {name:<9}{files:>12,}{share:>8}{format_size(size):>12}")
    return lines


def _opens_lines(record: Record) -> list[str]:
    opens = record.get("opens") or {}
    total, predicted = int(opens.get("total", 0)), int(opens.get("predicted", 0))
    share = f" ({100 * predicted / total:.1f}%)" if total else ""
    among = f", among the next {opens['k']}" if opens.get("k") else ""
    return [f"opens      {total:,}, predicted {predicted:,}{share}{among}"]


def _wait_lines(record: Record) -> list[str]:
    return [f"waited     readers waited {format_duration(float(record.get('wait_seconds', 0.0)))} in all"]


def _budget_lines(record: Record) -> list[str]:
    budget, used = record.get("budget") or {}, record.get("used") or {}
    tiers = [
        f"{PLACES.get(tier, tier)} {format_size(int(used.get(tier, 0)))} of {format_size(int(size))}"
        for tier, size in budget.items()
        if size
    ]
    return [f"used       {', '.join(tiers)}"] if tiers else []


def _kept_lines(record: Record) -> list[str]:
    """Lines for what was kept: of earlier mounts on disk, and by the kernel in the page cache."""
    before = (record.get("stager") or {}).get("kept_files")
    lines = [] if not before else [f"disk       copies of {before:,} files were there from earlier mounts"]
    kept = record.get("page_cache") or {}
    share = kept.get("resident_share")
    if not kept.get("measured") or share is None:
        return lines
    found = f"{100 * share:.1f}% of what was looked at in the page cache was there"
    return [*lines, f"kept       {found}; {kept.get('evicted', 0):,} files were found evicted"]


def _tuning_lines(record: Record) -> list[str]:
    """A line for the requests at the source, and for who decides how many there may be."""
    tuning = record.get("tuning")
    return [f"source     {tuning_text(tuning)}"] if tuning else []


def tuning_text(tuning: Record) -> str:
    """Return the part `tuning` of a record as one line."""
    words = [
        f"{tuning.get('under_way', 0):,} of at most {tuning.get('limit', 0):,} requests under way",
        f"readers wait for {tuning['demands']:,}" if tuning.get("demands") else "",
        f"at most {format_rate(tuning['bandwidth'])}" if tuning.get("bandwidth") else "",
        f"slowdown {tuning['slowdown']:.2f}" if tuning.get("slowdown") is not None else "",
        f"last change: {tuning['reason']}" if tuning.get("reason") else "",
        "" if tuning.get("mode") == "auto" else "not tuned, as a command asked" if tuning.get("asked") else "not tuned",
    ]
    return ", ".join(word for word in words if word)


def _stuck_lines(record: Record) -> list[str]:
    """A line for the reads and disks that do not answer now."""
    stager = record.get("stager") or {}
    words = {
        "stuck_reads": "reads of the source get no answer", "left_alone": "files are not prefetched for a while",
        "disks_bypassed": "disk tiers do not answer and are bypassed for a while",
    }  # fmt: skip
    found = [f"{int(stager[key]):,} {text}" for key, text in words.items() if stager.get(key)]
    return [f"stuck      {', '.join(found)}"] if found else []


def _peers_lines(record: Record) -> list[str]:
    peers, stager = record.get("peers"), record.get("stager") or {}
    if not peers:
        return []
    place = f"node {peers.get('node', '?')} of {peers.get('nodes', '?')}"
    share = 100 * float(peers.get("distinct_share", 0.0))
    homes = f"{share:.1f}% of the files have a home, {peers.get('homes_here', 0):,} here"
    missing = [
        *(f"node {node} {why}" for node, why in sorted((peers.get("over") or {}).items())),
        *(f"node {node} does not answer" for node in peers.get("resting") or ()),
    ]
    lines = [f"peers      {peers.get('state', '?')}, {place}; {homes}"]
    lines += [f"           {', '.join(missing)}"] if missing else []
    fetched, lent = int(stager.get("peer_fetches", 0)), int(stager.get("lent_files", 0))
    failed = [f"{stager[f'peer_{key}']:,} {key}" for key in ("refused", "late", "corrupt") if stager.get(f"peer_{key}")]
    of_these = f" ({', '.join(failed)} besides)" if failed else ""
    return [*lines, f"           {fetched:,} files fetched from peers{of_these}, {lent:,} lent to them"]


def _recheck_lines(record: Record, now_s: float) -> list[str]:
    recheck = record.get("recheck")
    if not recheck:
        return []
    files, found = int(recheck.get("files", 0)), int(recheck.get("found", 0))
    if recheck.get("period_seconds"):
        takes = format_duration(float(recheck.get("round_seconds", 0.0)))
        head = f"all files within {takes}, {recheck.get('position', 0):,} of {files:,} in this round; "
        ended = recheck.get("ended")
        head += f"the last ended {format_duration(max(0.0, now_s - ended))} ago" if ended else "none has ended yet"
    else:
        head = "off (--recheck no): who was kept out at the source since may read on here; see nopfs recheck"
    counted = f"{recheck.get('looked', 0):,} looks, {found:,} found a change, {recheck.get('failed', 0):,} failed"
    lines = [f"rights     {head}", f"           {counted}"]
    if recheck.get("period_seconds", 0) and recheck.get("late"):
        lines.append("           more files than can be looked at within --recheck: those that are held are")
    if recheck.get("waiting"):
        lines.append(f"           the source does not answer {recheck['waiting']} looks")
    if recheck.get("shut"):
        lines.append("           a directory above the source is closed: others are kept out of the mount, too")
    return lines


def _epoch_lines(record: Record) -> list[str]:
    """Lines for the last epochs: how long each took, what its readers waited for, and where its files came from."""
    lines = []
    for one in (record.get("epochs") or ())[-EPOCHS_SHOWN:]:
        name = "?" if one.get("epoch") is None else f"{one['epoch']:,}"
        about = "about " if one.get("counts") == "estimated" else ""
        done = "in" if one.get("ended") else "so far, in"
        files = f"{about}{one['files']:,} files {done} {format_duration(float(one['seconds']))}"
        waited = f"readers waited {format_duration(float(one['stall_seconds']))}"
        served = one.get("served") or {}
        shares = [f"{tier} {100 * served[place]:.1f}%" for place, tier in PLACES.items() if served.get(place)]
        head = f"epoch {name}"
        lines.append(f"{head:<11}{files}, {waited}; {', '.join(shares) or 'nothing was served'}")
    return lines


def _modes_lines(record: Record) -> list[str]:
    modes = record.get("modes")
    if not modes:
        return []
    words = [name if modes.get(key) else f"no {name}" for key, name in MODES.items()]
    if modes.get("redelivery") == "records":
        words[list(MODES).index("resend")] = "redelivery by records"
    words += [f"signal {modes.get('signal', '?')}", "mount(2)" if modes.get("privileged") else "fusermount3"]
    lines = [f"modes      {', '.join(words)}"]
    if modes.get("signal_because"):
        lines.append(f"           opens are answered one by one: {modes['signal_because']}")
    return lines
