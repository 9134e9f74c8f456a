"""`nopfs report`: what is written, and what is refused in one line with nothing written."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from nopfsfs.cli import nopfs
from nopfsfs.errors import Exit
from tests.conftest import FakeMounts
from tests.monitor.runs import epoch, report, waited

Output = pytest.CaptureFixture[str]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report(waited(0, 0, 10, 9, source=1.0), epoch(1, 10, 10))))
    return file


def test_to_a_file(record: Path, tmp_path: Path, capsys: Output) -> None:
    page = tmp_path / "run.html"
    page.write_text("an earlier one")
    assert nopfs.main(["report", str(record), "--output", str(page)]) == Exit.OK
    assert capsys.readouterr() == ("", "")
    assert page.read_text().startswith("<!doctype html>")
    assert "for 90\xa0% of epoch 0" in page.read_text()


def test_to_standard_output(record: Path) -> None:
    argv = [sys.executable, "-m", "nopfsfs.cli.nopfs", "report", str(record), "--output", "-"]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().rstrip().endswith("</html>")
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{record}"], "the following arguments are required: --output"),
        (["{dir}/none", "--output", "{page}"], "no nopfs mount, and no report: No such file or directory"),
        (["{dir}", "--output", "{page}"], "is neither a nopfs mount nor a report of nopfs-umount --report"),
        (["{dir}/pipe", "--output", "{page}"], "is neither a nopfs mount nor a report of nopfs-umount --report"),
        (["{dir}/foreign", "--output", "{page}"], "is no report that this release of nopfs understands (no plan)"),
        (["{dir}/half", "--output", "{page}"], "is damaged, or no report: it is not JSON"),
        (["{record}", "--output", "{dir}/none/run.html"], "none/run.html: No such file or directory"),
    ],
)
def test_what_is_refused(words: list[str], said: str, record: Path, tmp_path: Path, capsys: Output) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "foreign").write_text('{"packages": {}}')
    (tmp_path / "half").write_text(record.read_text()[:500])
    before = sorted(os.listdir(tmp_path))
    places = {"record": record, "dir": tmp_path, "page": tmp_path / "run.html"}
    assert nopfs.main(["report", *(word.format(**places) for word in words)]) == Exit.USAGE
    err = capsys.readouterr().err
    assert (said in err, err.count("\n")) == (True, 1), err
    assert sorted(os.listdir(tmp_path)) == before


def test_without_matplotlib(record: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert nopfs.main(["report", str(record), "--output", "-"]) == Exit.USAGE
    said = "nopfs: nopfs report needs matplotlib; install it: pip install 'nopfsfs[plot]'\n"
    assert capsys.readouterr() == ("", said)


@pytest.mark.mount
def test_a_daemon_of_another_release(fake_mount: FakeMounts, tmp_path: Path, capsys: Output) -> None:
    fake = fake_mount()
    page = tmp_path / "run.html"
    assert nopfs.main(["report", fake.mountpoint, "--output", str(page)]) == Exit.INTERNAL
    err = capsys.readouterr().err
    assert ("it may be of another release" in err, err.count("\n"), page.exists()) == (True, 1, False), err


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.mark.long
@pytest.mark.skipif(
    not any(map(shutil.which, BROWSERS)) and "NOPFSFS_SITE" not in os.environ,
    reason="no browser is installed; make test-site has one",
)
def test_a_browser_shows_it(record: Path, tmp_path: Path) -> None:
    """A real browser opens the page from a file, and draws it."""
    page, picture = tmp_path / "run.html", tmp_path / "run.png"
    assert nopfs.main(["report", str(record), "--output", str(page)]) == Exit.OK
    browser = next(found for found in map(shutil.which, BROWSERS) if found)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [browser, *flags, f"--screenshot={picture}", "--window-size=1000,1600", page.as_uri()],
        capture_output=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    image = matplotlib.image.imread(picture)[..., :3]
    assert image.shape[:2] == (1600, 1000)
    assert len(np.unique(image[700:].reshape(-1, 3), axis=0)) > 20, "there are no curves"
