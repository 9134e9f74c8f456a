"""The policy files of a site, looked for by a process of its own (`policy_look`): the source's file system may hang."""

from __future__ import annotations

import json
import sys

from nopfsfs.control import policy_look
from nopfsfs.control.policy_look import Found
from nopfsfs.system.bounded_run import run_bounded

LIMIT_S = 10.0


def find_policies(source: str, file: str | None, limit_s: float = LIMIT_S) -> Found | None:
    """Return (path, text, error) of each file that there is, one of both None; None when the file system does not
    answer within `limit_s`. Blocks for as long. Raises OSError, ValueError."""
    words = [source, *([] if file is None else [file])]
    done = run_bounded([sys.executable, "-I", "-S", policy_look.__file__, *words], limit_s, cwd="/")
    if done is None or done.code:
        return None
    return [(str(path), text, error) for path, text, error in json.loads(done.out)]
