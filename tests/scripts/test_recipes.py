"""The recipes for other packagers agree with setup.cfg. They cannot be run here: nothing more is checked."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest

from nopfsfs import __version__

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "scripts/site/recipes"


def required() -> dict[str, str]:
    """The least version of each library that the program needs, by name."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"].split("\n")
    return dict(re.findall(r"^([\w-]+) >= ([\d.]+)", "\n".join(lines), re.MULTILINE))


def test_spack() -> None:
    text = (RECIPES / "package.py").read_text()
    ast.parse(text)
    found = dict(re.findall(r'depends_on\("py-([\w-]+)@([\d.]+):"', text))
    assert {name: found.get(name) for name in required()} == required()
    assert f'version("{__version__}")' in text


def test_conda() -> None:
    text = (RECIPES / "meta.yaml").read_text()
    run = text.partition("  run:\n")[2].partition("test:")[0]
    found = dict(re.findall(r"- (?:python-)?([\w-]+) >=([\d.]+)", run))
    assert {name: found.get(name) for name in required()} == required()
    assert f'version = "{__version__}"' in text


@pytest.mark.parametrize("name", ["nopfs", "nopfs-mount", "nopfs-umount"])
def test_conda_has_every_program(name: str) -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    entry = next(line for line in config["options.entry_points"]["console_scripts"].split("\n") if f"{name} =" in line)
    assert f"- {entry}" in (RECIPES / "meta.yaml").read_text()


def test_apptainer() -> None:
    text = (RECIPES / "nopfsfs.def").read_text()
    assert all(f"\n{part}" in text for part in ("Bootstrap:", "%files", "%post", "%environment", "%runscript"))
