"""docs/commands.md says what the commands do."""

from __future__ import annotations

import re
from pathlib import Path

import options_table
import pytest

from nopfsfs.cli.mount import PROGRAM
from nopfsfs.cli.mount_options import mount_parser, parse_mount
from nopfsfs.cli.nopfs import nopfs_parser
from nopfsfs.cli.option_list import SETTINGS
from nopfsfs.errors import Exit
from nopfsfs.performance.cluster_file import write_cluster
from nopfsfs.sim.shipped import find_cluster

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


@pytest.mark.parametrize("command", ["accesslog", "calibrate", "doctor", "stats", "metrics", "exporter"])
def test_every_option_of_a_command_is_described(command: str) -> None:
    section = TEXT.partition(f"\n## nopfs {command}\n")[2].partition("\n## ")[0]
    commands = nopfs_parser()._subparsers
    assert commands is not None
    [action] = [action for action in commands._actions if isinstance(action.choices, dict)]
    for word in action.choices[command]._option_string_actions:
        assert word in ("-h", "--help") or f"`{word}" in section, word


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
