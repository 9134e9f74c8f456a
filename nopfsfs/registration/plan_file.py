"""Plan files: [[plan]] tables in TOML (docs/plan-files.md). Every error names the file, the line and the key.

`registration/plan_tables.py` checks the tables. This module reads the file, and names the line of each error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nopfsfs.config import MountConfig, PlanSpec
from nopfsfs.dataset import order_files
from nopfsfs.dataset.file_orders import ORDERS
from nopfsfs.dataset.index import Index
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.registration.plan_tables import PlanError, parse_plans
from nopfsfs.text.toml_lines import line_of
from nopfsfs.text.toml_table import TomlTable, read_text, usage

SIZE_MOST = 1 << 20  # bytes: sixteen tables have a few thousand


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A checked plan file: its plans, and the tables that a `register` request sends, with absolute paths."""

    plans: tuple[PlanSpec, ...]
    tables: list[dict[str, Any]]


def read_plan_file(path: str) -> PlanFile:
    """Read and check a plan file. Raises NopfsError with Exit.USAGE and a text of one line, which names the file and,
    where the error has them, line and key."""
    text = read_text(path, "a plan file", most=SIZE_MOST)
    top = TomlTable.parse(text, path)
    for key in top.values:
        if key != "plan":
            raise top.error(key, "no such key; plans are tables that begin with [[plan]]")
    tables = [_beside(path, table.values) for table in top.tables("plan")]

    def wrong(plan: int, key: str, reason: str) -> NopfsError:
        line = line_of(text, ("plan", plan, *key.split(".")))
        return usage(path, line, f"{key}: {reason}")

    try:
        plans = parse_plans(tables)
    except PlanError as error:
        raise wrong(error.plan, error.key, error.reason) from error
    except ValueError as error:
        raise usage(path, None, f"{error}; a plan begins with [[plan]]") from error
    for number, plan in enumerate(plans):
        for order in plan.order:
            if not os.path.isfile(order) or not os.access(order, os.R_OK):
                raise wrong(number, "order", f"{order} is no file that can be read")
    return PlanFile(plans, tables)


def _beside(path: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with absolute paths of its order: relative ones start from the directory of the plan file."""
    order = table.get("order")
    above = os.path.dirname(os.path.abspath(path))
    if isinstance(order, str) and order:
        return {**table, "order": [os.path.join(above, order)]}
    if isinstance(order, list) and all(isinstance(file, str) and file for file in order):
        return {**table, "order": [os.path.join(above, file) for file in order]}
    return dict(table)


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
