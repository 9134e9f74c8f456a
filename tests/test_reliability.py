"""The page that says what is promised names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"(tests/[\w/]+\.py)?(?:::(\w+))?(?:::(\w+))?")


def test_every_fault_names_tests_that_are_there() -> None:
    rows = [line for line in (ROOT / "docs/reliability.md").read_text().splitlines() if line.startswith("| ")]
    missing, unproven, file = [], [], ""
    for row in rows:
        names = [match for match in NAME.finditer(row.rpartition(" | ")[2]) if match[0]]
        if not names and not row.startswith("| fault"):
            unproven.append(row)
        for match in names:
            file = match[1] or file
            name = match[3] or match[2]
            text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
            if not text or (name and not re.search(rf"(def|class) {name}\b", text)):
                missing.append((file, name))
    assert len(rows) > 80
    assert (missing, unproven) == ([], [])
