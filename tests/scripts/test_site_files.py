"""Man pages and completions are made from the parsers, and say all that --help says."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest
import site_files

PAGES = site_files.pages()


def plain(roff: str) -> str:
    return roff.replace(r"\-", "-").replace(r"\(aq", "'").replace(r"\fB", "").replace(r"\fI", "").replace(r"\fR", "")


def all_parsers() -> dict[str, argparse.ArgumentParser]:
    found = dict(site_files.parsers())
    for name, parser in site_files.parsers().items():
        found |= {f"{name}-{one}": sub for one, (_, sub) in site_files.commands_of(parser).items()}
    return found


@pytest.mark.parametrize("name", sorted(all_parsers()))
def test_a_page_has_every_option_of_its_command(name: str) -> None:
    text = plain(PAGES[name])
    for action in all_parsers()[name]._actions:
        if action.help != argparse.SUPPRESS:
            assert all(option in text for option in action.option_strings), action
    assert text.startswith(f'.TH "{name.upper()}" 1')


def test_the_page_of_all_commands_names_their_pages() -> None:
    assert all(f".BR {name} (1)" in plain(PAGES["nopfs"]) for name in PAGES if name.startswith("nopfs-") and name in
               {f"nopfs-{one}" for one in site_files.commands_of(site_files.parsers()["nopfs"])})  # fmt: skip


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
@pytest.mark.parametrize("name", ["nopfs", "nopfs-mount", "nopfs-umount", "nopfs-simulate"])
def test_groff_has_nothing_to_say(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z"], input=PAGES[name], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def completed(tmp_path: Path, program: str, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    pytest.importorskip("shtab")
    script = tmp_path / program
    script.write_text(site_files.completions()[f"bash/{program}"])
    code = f"""source {script}; COMP_WORDS=({" ".join((program, *(repr(word) for word in words)))})
    COMP_CWORD={len(words)}; COMP_LINE="${{COMP_WORDS[*]}}"; COMP_POINT=${{#COMP_LINE}}
    $(complete -p {program} | sed 's/.*-F \\([^ ]*\\) .*/\\1/') {program} "${{COMP_WORDS[COMP_CWORD]}}" ""
    printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=30, check=True, cwd=tmp_path)
    return done.stdout.split()


def test_bash_completes_options_commands_and_directories(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "source-file").write_text("")

    assert completed(tmp_path, "nopfs-mount", "--job-r") == ["--job-report"]
    assert "status" in completed(tmp_path, "nopfs", "sta")
    assert completed(tmp_path, "nopfs", "status", "--js") == ["--json"]
    assert completed(tmp_path, "nopfs-umount", "sou") == ["sources"]
    assert sorted(completed(tmp_path, "nopfs-mount", "--log-file", "sou")) == ["source-file", "sources"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_takes_the_completions(tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    for name, text in site_files.completions().items():
        if name.startswith("zsh/"):
            (tmp_path / "script").write_text(text)
            subprocess.run(["zsh", "-n", tmp_path / "script"], check=True)
