"""The report of a mount in a file of the job: with the user's rights, through no link of others, in bounded time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nopfsfs.config import MountConfig
from nopfsfs.control.job_report import asked_report, why_not_written, write_job_report
from nopfsfs.control.options_file import write_options
from tests.mount.users import NOBODY, OTHER

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be several users")
RECORD = {"state": "ended", "opens": 7}


@pytest.fixture
def job(open_to_all: Path) -> Path:
    """A directory of user NOBODY; of this user, where this is not root."""
    path = open_to_all / "job"
    path.mkdir()
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    return path


def test_it_is_written_whole_in_place_of_an_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("an earlier one, which is longer" * 50)

    assert write_job_report(str(file), None, RECORD) is None

    assert json.loads(file.read_text()) == RECORD
    assert (file.stat().st_mode & 0o777, os.listdir(tmp_path)) == (0o644, ["report.json"])


@root_only
def test_it_belongs_to_the_user(job: Path) -> None:
    job.chmod(0o700)

    assert write_job_report(str(job / "r"), NOBODY, RECORD) is None

    assert ((job / "r").stat().st_uid, json.loads((job / "r").read_text())) == (NOBODY, RECORD)


@root_only
def test_no_link_of_another_user_is_followed(job: Path, open_to_all: Path) -> None:
    elsewhere = open_to_all / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    (job / "foreign").symlink_to(elsewhere)
    os.lchown(job / "foreign", OTHER, OTHER)
    (job / "file").symlink_to(elsewhere / "file")

    assert "link of user" in str(write_job_report(str(job / "foreign/r"), NOBODY, RECORD))
    assert "link of user" in str(why_not_written(str(job / "foreign/r"), NOBODY))
    assert write_job_report(str(job / "file"), NOBODY, RECORD) is None  # the link itself is replaced

    assert os.listdir(elsewhere) == []
    assert not (job / "file").is_symlink()


@root_only
def test_a_user_gets_no_rights_by_it(open_to_all: Path) -> None:
    assert write_job_report(str(open_to_all / "r"), NOBODY, RECORD) == "Permission denied"
    assert why_not_written(str(open_to_all / "r"), NOBODY) == "Permission denied"
    assert not (open_to_all / "r").exists()


def test_a_directory_that_is_missing_is_named_before(tmp_path: Path) -> None:
    assert why_not_written(str(tmp_path / "r"), None) is None
    assert why_not_written(str(tmp_path / "none/r"), None) == "No such file or directory"
    assert write_job_report(str(tmp_path / "none/r"), None, RECORD) == "No such file or directory"


def test_the_wait_has_a_limit(tmp_path: Path) -> None:
    assert write_job_report(str(tmp_path / "r"), None, RECORD, 0.0) == "its directory did not answer within 0 s"


def test_the_report_of_a_mount_that_was_killed(tmp_path: Path) -> None:
    config = MountConfig(source="/pfs", mountpoint="/mnt", seed=4, job_report=str(tmp_path / "r"))
    (tmp_path / "state").mkdir()
    write_options(str(tmp_path / "state"), config)
    asked = asked_report(str(tmp_path / "state"), os.geteuid())
    assert asked is not None

    assert asked.write(None) is None
    killed = json.loads((tmp_path / "r").read_text())
    assert asked.write({"opens": 3}) is None

    assert (killed["state"], killed["final"], killed["source"], killed["seed"]) == ("killed", False, "/pfs", 4)
    assert json.loads((tmp_path / "r").read_text()) == {"opens": 3, "final": False}


@root_only
def test_options_of_a_user_lead_root_nowhere(job: Path, open_to_all: Path) -> None:
    """They may name any file and any user: it is written as their owner."""
    config = MountConfig(source="/pfs", mountpoint="/mnt", uid=0, job_report=str(open_to_all / "r"))
    write_options(str(job), config)
    os.chown(job / "options.json", NOBODY, NOBODY)
    asked = asked_report(str(job), NOBODY)
    assert asked is not None

    assert asked.write(None) == "Permission denied"
    assert asked_report(str(job), OTHER) is None


@pytest.mark.parametrize("report", [None, "relative", 5])
def test_a_mount_that_was_to_write_none(report: object, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text(json.dumps({"job_report": report}))
    assert asked_report(str(tmp_path), os.geteuid()) is None
    assert asked_report(str(tmp_path / "none"), os.geteuid()) is None
