"""Facts of a site's policy as a mount sees it: its files, why one is refused, what is in force.

No link of another user is followed. What is returned has some kilobytes at most, whatever the files and the daemon say.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from nopfsfs.control import policy_look
from nopfsfs.errors import NopfsError
from nopfsfs.policy.site_rules import SiteRule, parse_rules
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.trusted_path import open_trusted, trusted_parent
from nopfsfs.text.printable import printable

RULES_MOST = 32  # of a file, that are described
TEXT_MOST = 500  # characters of a text
ITEMS_MOST = 32  # of a list
_KINDS = ((stat.S_ISREG, "file"), (stat.S_ISLNK, "link"), (stat.S_ISDIR, "directory"), (stat.S_ISFIFO, "pipe"))
_SAID = ("files", "errors", "weight", "concurrency", "bandwidth", "share", "user", "job", "text")


def look_at_policy(source: str, file: object) -> dict[str, Any]:
    """Describe the policy files of a mount of `source`, in the order in which a mount looks for them. The site's file
    comes first, or else the one at the root of the source's file system. Then comes `file`, which the mount's options
    name, if that is a path."""
    found = _described(policy_look.SITE)
    if found is None:
        try:
            with closing_fd(open_trusted(source)) as fd:
                real = os.readlink(f"/proc/self/fd/{fd}")
            found = _described(policy_look.at_root(real))
        except OSError as error:
            found = {"path": _cut(source), "trusted": False, "why": _cut(error.strerror)}
    files = [found] if found is not None else []
    if isinstance(file, str) and file.startswith("/"):
        files.append(_described(file) or {"path": _cut(file), "trusted": False, "why": "there is no such file"})
    return {"files": files}


def _described(path: str) -> dict[str, Any] | None:
    """A policy file: owner, mode, size, and `trusted`, or `why` not. None: there is none."""
    found: dict[str, Any] = {"path": _cut(path), "trusted": False}
    try:
        with trusted_parent(path) as (directory, name):
            about = os.stat(name, dir_fd=directory, follow_symlinks=False)
            found |= {
                "kind": next((kind for test, kind in _KINDS if test(about.st_mode)), "other"), "owner": about.st_uid,
                "mode": f"{stat.S_IMODE(about.st_mode):04o}", "bytes": about.st_size, "modified": int(about.st_mtime),
                "owner_of_directory": os.fstat(directory).st_uid,
            }  # fmt: skip
            rules = parse_rules(policy_look.read_trusted_in(directory, name), path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return found | {"why": _cut(error.strerror)}
    except (NopfsError, ValueError) as error:
        return found | {"why": _cut(error)}
    described = [_rule(number, rule) for number, rule in enumerate(rules.rules[:RULES_MOST], 1)]
    return found | {
        "trusted": True, "default": rules.limits_of_nobody().text(), "count_of_rules": len(rules.rules),
        "rules": described,
    }  # fmt: skip


def _rule(number: int, rule: SiteRule) -> dict[str, Any]:
    """Values that a rule sets, and its hours. Whom it is for is left out: patterns name other users."""
    sets = {"weight": rule.weight, "concurrency": rule.concurrency, "bandwidth": rule.bandwidth,
            "share": rule.share.value if rule.share is not None else None}  # fmt: skip
    known = {key: value for key, value in sets.items() if value is not None}
    return {"number": number, "hours": list(rule.hours) if rule.hours is not None else None, **known}


def in_force(tune: Any) -> dict[str, Any] | None:
    """Return what the supervisor's answer to `tune` says of the policy in force, bounded; None: it says nothing."""
    policy = tune.get("policy") if isinstance(tune, Mapping) else None
    if not isinstance(policy, Mapping):
        return None
    return {key: _bounded(policy.get(key)) for key in _SAID}


def _bounded(value: Any, deep: int = 3) -> Any:
    if isinstance(value, Mapping) and deep:
        return {_cut(key): _bounded(one, deep - 1) for key, one in list(value.items())[:ITEMS_MOST]}
    if isinstance(value, list) and deep:
        return [_bounded(one, deep - 1) for one in value[:ITEMS_MOST]]
    return value if isinstance(value, bool | float | None) or _is_small(value) else _cut(value)


def _is_small(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 1 << 63


def _cut(text: object) -> str:
    """A text of a bounded length that can be printed."""
    return printable(str(text))[:TEXT_MOST]
