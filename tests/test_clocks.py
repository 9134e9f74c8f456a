"""Nothing is decided by the wall clock, which jumps: waits, limits and ages go by the monotonic one."""

from __future__ import annotations

import ast
import os
import time
from pathlib import Path

import pytest

from nopfsfs.dataset.index_cache import open_or_scan
from nopfsfs.dataset.tree_scan import scan
from nopfsfs.system.atomic_file import TEMPORARY

PACKAGE = Path(__file__).parents[1] / "nopfsfs"
WALL = {("time", "time"), ("time", "time_ns"), ("time", "ctime"), ("time", "localtime"), ("datetime", "now"),
        ("datetime", "utcnow"), ("date", "today")}  # fmt: skip
# Who compares with the times of files has no other clock; a date in a text decides nothing.
KNOWN = {
    "dataset/index_cache.py": "leftovers of killed scans, after a day",
    "dataset/tree_scan.py": "directories that changed just now are listed again",
    "peer/shared_scan.py": "the same",
    "cli/calibrate.py": "the date in a note",
    "cli/status_text.py": "how long ago something was, for people",
    "stager/changed_files.py": "whether an ACL may change again within one tick of the source's clock",
    "stager/rights_recheck.py": "when a cycle ended, for people",
    "stager/young_files.py": "whether a file was written just now, by the source's clock: a jump costs a comparison",
    "server/young_reads.py": "the same",
    "cli/cache.py": "how long ago something was, for people",
    "tiers/kept_upkeep.py": "which copies were not used for long, for people who prune",
    "tiers/kept_disk.py": "which copies were used last, over mounts and boots: a jump costs copies",
    "system/outages.py": "since when something is off, for people",
    "supervisor/source_tuning.py": "all mounts hold back on the full minute; one whose clock is wrong takes no part",
    "supervisor/site_policy.py": "the hours of a site's rules",
    "supervisor/observing/observer.py": "when rows of the history began, for people",
    "supervisor/observing/figures.py": "the time of an answer",
    "supervisor/observing/access_log.py": "when files were opened, for people",
    "monitor/access_lines.py": "the same",
    "monitor/report_page.py": "dates in a page",
    "cli/report.py": "the same",
    "cli/tune.py": "when decisions were made, for people",
    "doctor/archive.py": "the times of files in an archive",
    "doctor/node_parts.py": "the state of the wall clock itself",
    "doctor/rules_of_record.py": "how long ago something was, for people",
}


def uses(path: Path) -> bool:
    """Whether a module names a wall clock."""
    found = ast.walk(ast.parse(path.read_text()))
    return any(
        isinstance(node, ast.Attribute)
        and (getattr(node.value, "attr", getattr(node.value, "id", "")), node.attr) in WALL
        for node in found
    )


def test_only_those_that_are_known_look_at_the_wall_clock() -> None:
    assert {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if uses(path)} == set(KNOWN)


@pytest.mark.parametrize("jump_s", [-400 * 86400, 400 * 86400])
def test_a_scan_is_right_whatever_the_clock_says(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    """Also where another mount's new index goes as a leftover, and where all looks as if it had just changed."""
    index_dir = tmp_path / "index"
    index_dir.mkdir()
    (index_dir / f"{TEMPORARY[0]}other{TEMPORARY[1]}").write_bytes(b"under way")
    now, now_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: now() + jump_s)
    monkeypatch.setitem(scan.__kwdefaults__, "clock_ns", lambda: now_ns() + jump_s * 10**9)
    names = []
    for number in range(3):
        opened = open_or_scan(str(source), str(index_dir))
        names.append([opened.index.path(row) for row in range(opened.index.n)])
        os.close(opened.fd)
        (source / f"n{number}").write_bytes(b"n")
        os.utime(source, ns=(now_ns(), now_ns() + number))

    assert names == [[b"", b"a"], [b"", b"a", b"n0"], [b"", b"a", b"n0", b"n1"]]
