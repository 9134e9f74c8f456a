"""The structure of the code: who imports whom, how long files and functions are, which names mean one thing only.

docs/architecture.md describes the structure.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent / "nopfsfs"
# A folder imports only from folders of lower numbers.
LEVELS = {
    "errors": 0,
    **dict.fromkeys(("config", "text"), 1),
    **dict.fromkeys(("plan", "placement", "system"), 2),
    "dataset": 3,
    **dict.fromkeys(("vfs", "protocol", "fuse", "performance"), 4),
    **dict.fromkeys(("control", "policy", "tiers"), 5),
    **dict.fromkeys(("server", "stager", "registration", "sim", "calibrate", "monitor", "doctor"), 6),
    **dict.fromkeys(("supervisor", "peer"), 7),
    "cli": 8,
}
# The same within `plan/`.
LEVELS_OF_PLAN = {
    "generators": 1, "samplers": 2, "epoch_order": 3, "visible_opens": 3, "search": 4, "tracking": 4, "following": 5,
}  # fmt: skip
# What computes and does nothing else, and what it may import beside the product: of `os` and `mmap` names of errors and
# sizes of pages, of `time` the processor time that a step of a search has taken, and a clock that a caller may replace.
PURE_FOLDERS = {"plan", "placement", "policy", "vfs"}
PURE = {
    "__future__", "abc", "array", "base64", "bisect", "collections", "contextlib", "dataclasses", "enum", "errno",
    "fnmatch", "functools", "itertools", "math", "mmap", "numpy", "os", "random", "re", "stat", "statistics", "time",
    "types", "typing",
}  # fmt: skip
USED_OF = {
    "os": {"strerror", "fspath", "fsencode", "fsdecode", "PathLike"}, "mmap": {"PAGESIZE"},
    "time": {"thread_time", "monotonic"},
}  # fmt: skip
LONGEST_FILE, LONGEST_FUNCTION, MOST_FILES = 400, 45, 30  # lines; lines; files in a folder
SHARED_FILE_NAMES = {"process.py", "errors.py", "__init__.py"}
# A docstring that begins so names no subject.
VAGUE = (
    "What", "Whether", "Who", "It", "One", "Those", "Of", "The same", "See the module",
    "How", "As", "Where", "Which", "This", "These", "When", "Why", "Its", "Whose", "There", "Everybody", "Their", "So",
    "That",
)  # fmt: skip


def modules() -> dict[str, Path]:
    """By dotted name below `nopfsfs`, the files of the product."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@functools.cache
def trees() -> dict[str, ast.Module]:
    """By name, the modules as syntax trees. The first test that asks makes them: several processes collect the tests,
    and one of them runs these."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules of the product that a module imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and f"{node.module}.".startswith("nopfsfs."):
            inside = node.module.removeprefix("nopfsfs").lstrip(".")
            for alias in node.names:
                full = f"{inside}.{alias.name}".lstrip(".")
                yield full if full in MODULES else inside
        elif isinstance(node, ast.Import):
            yield from (one.name.removeprefix("nopfsfs.") for one in node.names if one.name.startswith("nopfsfs."))


@functools.cache
def imported() -> dict[str, list[str]]:
    """By name of a module, the modules of the product that it imports."""
    return {name: sorted(set(imports(tree)) - {"", name}) for name, tree in trees().items() if name}


def level(importer: str, other: str) -> tuple[int, int]:
    """The levels of both, within `plan/` those of its folders; equal numbers where both are in one folder."""
    (here, *below), (there, *below_there) = importer.split("."), other.split(".")
    if here != there:
        return LEVELS[here], LEVELS[there]
    if here != "plan" or not below or not below_there or below[0] == below_there[0]:
        return 2, 1
    return LEVELS_OF_PLAN[below[0]], LEVELS_OF_PLAN[below_there[0]]


def circles() -> Iterator[frozenset[str]]:
    """The sets of modules that import each other (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[frozenset[str]]:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in imported()[name]:
            if other not in number:
                yield from visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == number[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                yield frozenset(stack[at:])
            del stack[at:]

    for name in imported():
        if name not in number:
            yield from visit(name)


def twice(names: Iterable[str]) -> set[str]:
    """The names that occur more than once."""
    return {name for name, count in Counter(names).items() if count > 1}


def test_every_folder_has_a_level() -> None:
    assert {name.split(".")[0] for name in MODULES if name} == set(LEVELS)


def test_folders_import_from_lower_levels_only() -> None:
    upward = set()
    for importer, other in ((name, other) for name, others in imported().items() for other in others):
        here, there = level(importer, other)
        if there >= here:
            upward.add(f"{importer} > {other}")
    assert not upward


def test_no_modules_import_each_other() -> None:
    assert not list(circles())


def test_processes_import_nothing_of_each_other() -> None:
    processes = {"supervisor", "server", "stager", "peer"}
    found = {
        f"{name} > {other}"
        for name, others in imported().items()
        for other in others
        if len({name.split(".")[0], other.split(".")[0]} & processes) == 2
    }
    assert not found


def test_only_a_command_imports_what_a_process_is_made_of() -> None:
    processes = {"supervisor", "server", "stager", "peer"}
    found = {
        (name, other)
        for name, others in imported().items()
        for other in others
        if name.split(".")[0] not in processes and other.split(".")[0] in processes
    }
    assert found == {("cli.mount", "peer.mpi_mount")}


def outside(tree: ast.AST) -> Iterator[str]:
    """The modules beside the product that a module imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


def test_pure_folders_do_nothing_but_compute() -> None:
    found = set()
    for name, tree in trees().items():
        if name.split(".")[0] not in PURE_FOLDERS:
            continue
        found |= {f"{name} > {other}" for other in outside(tree) if other.split(".")[0] not in {*PURE, "nopfsfs"}}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in USED_OF:
                if node.attr not in USED_OF[node.value.id]:
                    found.add(f"{name} > {node.value.id}.{node.attr}")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "print"}:
                found.add(f"{name} > {node.func.id}")
    assert not found


def test_few_modules_import_mpi4py() -> None:
    found = {name for name, tree in trees().items() for other in outside(tree) if other.split(".")[0] == "mpi4py"}
    assert found == {"peer.mpi", "peer.mpi_transport", "peer.process"}


def test_files_are_short() -> None:
    assert not [name for name, path in MODULES.items() if len(path.read_text().splitlines()) > LONGEST_FILE]


def test_functions_are_short() -> None:
    found = {
        f"{name}.{node.name}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= LONGEST_FUNCTION
    }
    assert not found


def test_folders_are_small() -> None:
    folders = defaultdict(list)
    for path in MODULES.values():
        folders[path.parent].append(path.name)
    assert not [folder for folder, files in folders.items() if len(files) > MOST_FILES]
    assert set(folders[ROOT]) == {"__init__.py", "errors.py", "config.py"}


def test_a_file_name_means_one_thing() -> None:
    assert twice(path.name for path in MODULES.values()) <= SHARED_FILE_NAMES


def test_a_class_name_means_one_thing() -> None:
    classes = [node.name for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert not twice(classes)


def test_docstrings_name_their_subject() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for name, tree in trees().items():
        for node in (node for node in ast.walk(tree) if isinstance(node, documented)):
            text = ast.get_docstring(node) or ""
            if any(text == word or text.startswith((f"{word} ", f"{word},", f"{word}.")) for word in VAGUE):
                found.append(f"{name}: {text.splitlines()[0]}")
    assert not found


def test_no_test_imports_another_test() -> None:
    of_a_test = re.compile(r"^\s*from (?:\S*\.)?test_\w+ import", re.MULTILINE)
    assert not [path.relative_to(TESTS) for path in sorted(TESTS.rglob("*.py")) if of_a_test.search(path.read_text())]


def test_the_table_of_where_to_look_names_what_there_is() -> None:
    """Each file of docs/architecture.md's table, and each name in brackets behind a file."""
    page = (TESTS.parent / "docs/architecture.md").read_text()
    rows = page.partition("## Where to look")[2].partition("\n## ")[0]
    paths = [path for folder in ("nopfsfs", "scripts", "tests") for path in (TESTS.parent / folder).rglob("*.py")]
    texts = {f"/{path.relative_to(TESTS.parent).as_posix()}": path.read_text() for path in paths}
    wrong, seen = list[str](), 0
    for name, said in re.findall(r"`([a-z_/]+\.py)`(?: \(([^)]*)\))?", rows):
        found = [text for path, text in texts.items() if path.endswith(f"/{name}")]
        lacking = [one for one in re.findall(r"`([A-Za-z_]+)`", said) if not any(one in text for text in found)]
        wrong += [name] * (not found) + [f"{name}: {one}" for one in lacking]
        seen += 1
    assert seen > 100
    assert not wrong
