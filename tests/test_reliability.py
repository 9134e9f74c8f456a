"""The pages that say what is promised name tests that are there, and the first says which of them are slow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"(tests/[\w/]+\.py)?(?:::(\w+))?(?:::(\w+))?")
NEXT = re.compile(r", (?=::|tests/|`)")  # where the next test of a row begins
SLOW = "pytest.mark.slow"


def rows(page: str = "reliability") -> list[str]:
    return [line for line in (ROOT / f"docs/{page}.md").read_text().splitlines() if line.startswith("| ")]


def named_in(row: str) -> Iterator[tuple[str, str, str]]:
    """(file, name, text up to the next test) of each test that a row names."""
    cell, file = row.rpartition(" | ")[2], ""
    for match in NAME.finditer(cell):
        if match[0]:
            file = match[1] or file
            yield file, match[3] or match[2] or "", NEXT.split(cell[match.end() :])[0]


@cache
def decorators(file: str) -> dict[str, list[str]]:
    """The decorators of each test and class of a file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = [node for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, kinds)]
    return {node.name: [ast.unparse(decorator) for decorator in node.decorator_list] for node in nodes}


@pytest.mark.parametrize(("page", "least"), [("reliability", 80), ("kernels", 9)])
def test_every_row_names_tests_that_are_there(page: str, least: int) -> None:
    missing, unproven = [], []
    for row in rows(page):
        found = list(named_in(row))
        if not found and not row.startswith(("| fault", "| missing")):
            unproven.append(row)
        for file, name, _ in found:
            if not (ROOT / file).is_file() or (name and name not in decorators(file)):
                missing.append((file, name))
    assert len(rows(page)) > least
    assert (missing, unproven) == ([], [])


def test_slow_tests_are_marked() -> None:
    """A test that is only in part slow is not marked so; the page may say which of its cases are."""
    wrong = [
        (file, name)
        for row in rows()
        for file, name, after in named_in(row)
        if name and (SLOW in decorators(file)[name]) != ("(slow)" in after)
    ]
    assert wrong == []
