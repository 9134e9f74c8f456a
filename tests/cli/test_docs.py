"""docs/commands.md says what the commands do."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import options_table
import pytest

from nopfsfs.cli.mount import PROGRAM
from nopfsfs.cli.mount_config import mount_parser, parse_mount
from nopfsfs.cli.nopfs import nopfs_parser
from nopfsfs.cli.option_list import SETTINGS
from nopfsfs.errors import Exit
from nopfsfs.performance.cluster_file import write_cluster
from nopfsfs.sim.shipped import find_cluster
from nopfsfs.supervisor.process import Supervisor

TEXT = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()


def test_every_exit_code_is_in_the_table() -> None:
    rows = {int(code): name for code, name in re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", TEXT, re.MULTILINE)}

    assert rows == {code.value: code.name for code in Exit}


def test_the_options_are_as_declared() -> None:
    assert options_table.written(TEXT) == TEXT, "run scripts/options_table.py"


def test_the_options_are_written_anew() -> None:
    assert options_table.written(TEXT.replace("| `--seed N` |", "| `--sead N` |")) == TEXT
    for title in "running", options_table.EXAMPLE:
        with pytest.raises(ValueError, match="the page has blocks for"):
            options_table.written(TEXT.replace(f"options_table.py, {title} -->", "-->"))


def test_every_option_is_described() -> None:
    for action in mount_parser(PROGRAM)._actions:
        for word in action.option_strings:
            hidden = word in ("-n", "-s", "-v", "-t", "-N", "-h")
            assert hidden or f"`{word}" in TEXT, word


def commands() -> dict[str, Any]:
    """The parser of each command of `nopfs`, by name."""
    subparsers = nopfs_parser()._subparsers
    assert subparsers is not None
    [action] = [action for action in subparsers._actions if isinstance(action.choices, dict)]
    return dict(action.choices)


@pytest.mark.parametrize("command", sorted(commands()))
def test_every_command_has_a_section_that_describes_its_options(command: str) -> None:
    section = TEXT.partition(f"\n## nopfs {command}\n")[2].partition("\n## ")[0]
    assert section
    assert f"(#nopfs-{command})" in TEXT
    for word in commands()[command]._option_string_actions:
        assert word in ("-h", "--help") or f"`{word}" in section, word


@pytest.mark.parametrize("command", sorted(commands()))
def test_every_command_has_an_example_and_its_exit_codes(command: str) -> None:
    section = TEXT.partition(f"\n## nopfs {command}\n")[2].partition("\n## ")[0]
    assert "**Exit codes.**" in section
    assert "**Example" in section


def test_the_page_of_the_control_socket_names_its_commands() -> None:
    """Those of `Supervisor._answer`, and no others."""
    page = (Path(__file__).parents[2] / "docs" / "control-socket.md").read_text()
    table = page.partition("\n## Commands\n")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    source = textwrap.dedent(inspect.getsource(Supervisor._answer))
    cases = [case.pattern for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Match) for case in node.cases]
    values = [value for case in cases for value in ast.walk(case) if isinstance(value, ast.MatchValue)]
    assert sorted(named) == sorted(ast.literal_eval(value.value) for value in values)


def test_the_example_file_is_right_and_complete(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    assert example is not None
    file = tmp_path / "c.toml"
    file.write_text(example[1].replace("alice", "daemon"))
    write_cluster(find_cluster("thesis"), str(tmp_path / "calibration.toml"))
    (tmp_path / "plan.toml").write_text('[[plan]]\nsampler = "distributed"\nseed = 42\n')

    config = parse_mount(["/src", "/mnt/fast", "--config", str(file)], {}, 0).config

    assert config.worlds[0].size == 16
    assert all(re.search(rf"^{name} = ", example[1], re.MULTILINE) for name in SETTINGS)
