"""Plan files: [[plan]] tables in TOML (docs/plan-files.md). Every error names the file, the line and the key.

`registration/plan_tables.py` checks the tables. This module reads the file, and finds the line of each error.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nopfsfs.config import MountConfig, PlanSpec
from nopfsfs.dataset import order_files
from nopfsfs.dataset.file_orders import ORDERS
from nopfsfs.dataset.index import Index
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.registration.plan_tables import PlanError, parse_plans
from nopfsfs.text.toml_table import TomlTable, usage

SIZE_MOST = 1 << 20  # bytes: sixteen tables have a few thousand
_HEADER = re.compile(r"""\s*\[\[\s*["']?plan["']?\s*\]\]""")


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A checked plan file: its plans, and the tables that a `register` request sends, with absolute paths."""

    plans: tuple[PlanSpec, ...]
    tables: list[dict[str, Any]]


def read_plan_file(path: str) -> PlanFile:
    """Read and check a plan file. Raises NopfsError with Exit.USAGE and a text of one line, which names the file and,
    where the error has them, line and key."""
    text = _read(path)
    table = TomlTable.parse(text, path).values
    for key in table:
        if key != "plan":
            line_number = _line_of(text.splitlines(), (key,), 0)
            raise usage(path, line_number, f"{key}: no such key; plans are tables that begin with [[plan]]")
    tables = table.get("plan", [])
    if not isinstance(tables, list):
        line_number = _line_of(text.splitlines(), ("plan",), 0)
        raise usage(path, line_number, "plan: write [[plan]], with two brackets on each side")
    tables = [_beside(path, plan) for plan in tables]
    try:
        plans = parse_plans(tables)
    except PlanError as error:
        said = f"{error.key}: {error.reason}" if error.key else error.reason
        raise usage(path, _place(text, error.plan, error.key), said) from error
    except ValueError as error:
        raise usage(path, None, f"{error}; a plan begins with [[plan]]") from error
    for number, plan in enumerate(plans):
        for order in plan.order:
            if not os.path.isfile(order) or not os.access(order, os.R_OK):
                raise usage(path, _place(text, number, "order"), f"order: {order} is no file that can be read")
    return PlanFile(plans, tables)


def _read(path: str) -> str:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise usage(path, None, "not a regular file; name a plan file")
        with open(path, "rb") as file:
            raw = file.read(SIZE_MOST + 1)
    except OSError as error:
        raise usage(path, None, f"{error.strerror}; name a readable plan file") from error
    if len(raw) > SIZE_MOST:
        raise usage(path, None, f"larger than {SIZE_MOST >> 20} MiB; name a plan file")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise usage(path, raw.count(b"\n", 0, error.start) + 1, "not UTF-8 text; name a plan file") from error


def _beside(path: str, table: Any) -> Any:
    """The table with absolute paths of its order: relative ones start from the directory of the plan file."""
    if not isinstance(table, dict):
        return table
    order = table.get("order")
    above = os.path.dirname(os.path.abspath(path))
    if isinstance(order, str) and order:
        return {**table, "order": [os.path.join(above, order)]}
    if isinstance(order, list) and all(isinstance(file, str) and file for file in order):
        return {**table, "order": [os.path.join(above, file) for file in order]}
    return table


def _place(text: str, plan: int, key: str) -> int | None:
    """The line, from 1, of a key ("options.drop_last") of the plan with number `plan`, from 0. Where the key is not
    found, the line of the plan's header; None without a header."""
    lines = text.splitlines()
    headers = [i for i, line in enumerate(lines) if _HEADER.match(line)]
    if plan >= len(headers):
        return None
    start = headers[plan]
    end = headers[plan + 1] if plan + 1 < len(headers) else len(lines)
    found = _line_of(lines[start + 1 : end], tuple(key.split(".")), 0) if key else None
    return start + 1 if found is None else start + 1 + found


def _line_of(lines: Sequence[str], keys: tuple[str, ...], start: int) -> int | None:
    """The line, from 1, of the last of the keys, each searched from the line of the key before it. Where one is
    missing, the line of the last key that is found; None without any."""
    found = None
    for key in keys:
        word = re.compile(rf"""(?:^|[\s{{,.\["'])["']?{re.escape(key)}["']?\s*[=.\]]""")
        at = next((i for i in range(start, len(lines)) if word.search(_code(lines[i]))), None)
        if at is None:
            break
        found, start = at + 1, at
    return found


def _code(line: str) -> str:
    """A line without its comment, as far as a single line shows where that begins."""
    return re.sub(r"""("(?:[^"\\]|\\.)*"|'[^']*')|#.*""", lambda m: m[1] or "", line)


def check_against(plans: Sequence[PlanSpec], index: Index, config: MountConfig) -> None:
    """Check that the source has what the plans name: their roots and orders. Raises NopfsError with Exit.USAGE."""
    for number, plan in enumerate(plans):
        try:
            root = order_files.directory(index, plan.root or "")
        except ValueError as error:
            raise NopfsError(Exit.USAGE, f"--plan, plan {number + 1}: root: {error}") from error
        if plan.order:
            explicit_order(plan, index, root, config.source, config.mountpoint, f"--plan, plan {number + 1}: ")


def explicit_order(
    plan: PlanSpec, index: Index, root: int, source: str, mountpoint: str, origin: str = ""
) -> order_files.ExplicitOrder:
    """The order that a plan names. Raises NopfsError with Exit.USAGE; its text begins with `origin`."""
    files = ORDERS[plan.files or "image_folder"]
    try:
        return order_files.read_order(
            plan.order, index, order_files.Places(root, source, mountpoint),
            lambda: files(index, root, None), repeats=plan.repeats,
        )  # fmt: skip
    except ValueError as error:
        raise NopfsError(Exit.USAGE, f"{origin}order: {error}") from error
