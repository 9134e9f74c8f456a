"""`nopfs policy`: checks the policy file of a site, and shows which of its rules apply to a mount."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from nopfsfs.cli.error_exit import Commands, printable
from nopfsfs.cli.status_text import print_record
from nopfsfs.control.find_mount import locate_living
from nopfsfs.errors import Exit
from nopfsfs.policy.site_rules import parse_rules
from nopfsfs.text import toml_table


def add_policy(commands: Commands) -> None:
    """Add `nopfs policy`."""
    parser = commands.add_parser(
        "policy",
        help="how much of a source the site lets mounts take",
        description="Check a policy file of a site, or show which rules apply to a mount, and what they come to.",
        usage="nopfs policy check FILE | show MOUNTPOINT [--json]",
    )
    parser.add_argument("action", choices=("check", "show"), metavar="check|show")
    parser.add_argument("path", metavar="FILE|MOUNTPOINT")
    parser.add_argument("--json", action="store_true", help="print the record of a mount as JSON")
    parser.set_defaults(handler=policy)


def policy(options: argparse.Namespace) -> int:
    """Check a file, or show the policy of a mount; return the exit code. Raises NopfsError."""
    if options.action == "check":
        rules = parse_rules(toml_table.read_text(options.path, "a policy file"), options.path)
        print(printable(f"{options.path}: rules: {len(rules.rules)}; without any: {rules.limits_of_nobody().text()}"))
        return Exit.OK
    record = locate_living(options.path, os.environ).call("tune").get("policy") or {}
    print_record(record, lambda: policy_text(record), as_json=options.json)
    return Exit.OK


def policy_text(record: Mapping[str, Any]) -> str:
    """Return the text that `nopfs policy show` prints."""
    job = f", job {record['job']}" if record.get("job") else ""
    nodes = f", one of the job's {record['job_nodes']} nodes" if record.get("job_nodes", 1) > 1 else ""
    lines = [f"limits   {record['text']}", f"mount    user {record['user']}{job}{nodes}"]
    for one in record.get("files") or ():
        numbers = ", ".join(map(str, one["rules"]))
        lines.append(f"file     {one['path']}: {f'rules {numbers} apply' if numbers else 'only the default applies'}")
    if not record.get("files"):
        lines.append("file     none: the site sets no limits")
    lines += [f"wrong    {error}" for error in record.get("errors") or ()]
    return "\n".join(lines)
