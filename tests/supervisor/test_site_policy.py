"""A site's policy: where files are looked for, from whom they are trusted, what a broken one changes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from nopfsfs.config import MountConfig
from nopfsfs.control import policy_look
from nopfsfs.control.policy_look import Found, read_trusted
from nopfsfs.policy.site_rules import SiteLimits
from nopfsfs.supervisor.policy_files import LIMIT_S, find_policies
from nopfsfs.supervisor.site_policy import SitePolicy
from tests.asynchronous import without_threads

ACTS_S = 75.0  # after which a new file acts, at most (docs/operations.md); a look takes `LIMIT_S` of them at most
GOOD, OTHER, BROKEN = "version = 1\ndefault = { weight = 0.5 }", "version = 1\ndefault = { weight = 0.1 }", "version ="


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    without_threads(monkeypatch)


class Site:
    """A site whose files are what `found` says; `applied`: what the mount was told, in turn."""

    def __init__(self) -> None:
        self.found: Found | Exception | None = []
        self.applied: list[float] = []
        config = MountConfig(source="/pfs/data", mountpoint="/mnt", policy="own.toml")
        self.policy = SitePolicy(
            config, lambda limits: self.applied.append(limits.weight), find=self._find,
            environment={"SLURM_JOB_NAME": "train"}, clock=lambda: time.gmtime(0),
        )  # fmt: skip

    def _find(self, source: str, file: str | None) -> Found | None:
        assert (source, file) == ("/pfs/data", "own.toml")
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def played(steps: list[Found | Exception | None]) -> Site:
    site = Site()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number, step in enumerate(steps):
                site.found = step
                if not number:
                    nursery.start_soon(site.policy.run)
                await trio.sleep(ACTS_S - LIMIT_S)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.0))
    return site


def test_a_file_acts_and_a_new_one_does() -> None:
    site = played([[("p", GOOD, None)], [("p", OTHER, None)], [("p", GOOD, None), ("own.toml", OTHER, None)]])
    assert site.applied == [0.5, 0.1]
    status = site.policy.status()
    assert [one["path"] for one in status["files"]] == ["p", "own.toml"]
    assert (status["weight"], status["errors"], status["job"]) == (0.1, [], "train")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([("p", BROKEN, None)], "not valid TOML"), ([("p", None, "others can write it")], "p: others can write it"),
        ([], "has vanished; its rules stay"), (None, "no answer within 10 s"),
        (OSError(11, "no process"), "cannot be looked for"), (RuntimeError("can't start new thread"), "looked for"),
    ],
)  # fmt: skip
def test_one_that_cannot_be_taken_leaves_the_last_good_one_and_is_said_once(
    bad: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    good: Found = [("p", GOOD, None)]
    site = played([good, bad, bad, bad])
    assert site.applied == [0.5]
    assert [said in error for error in site.policy.status()["errors"]] == [True]
    assert sum(said in record.message for record in caplog.records) == 1
    site = played([good, bad, [("p", OTHER, None)]])
    assert (site.applied, site.policy.status()["errors"]) == ([0.5, 0.1], [])


def test_without_files_there_are_no_limits() -> None:
    site = played([[]])
    assert site.applied == []
    assert site.policy.status()["text"] == SiteLimits().text()


# ---- the files ---------------------------------------------------------------------------------------------


def test_a_file_that_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(GOOD)
    file.chmod(0o644)
    assert read_trusted(str(file)) == GOOD
    file.chmod(0o664)
    with pytest.raises(ValueError, match="chmod go-w"):
        read_trusted(str(file))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_it_belongs_to_root_or_to_the_owner_of_its_directory(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(GOOD)
    file.chmod(0o644)
    os.chown(file, 12345, -1)
    with pytest.raises(ValueError, match="of user 12345"):
        read_trusted(str(file))
    os.chown(tmp_path, 12345, -1)
    assert read_trusted(str(file)) == GOOD


def test_neither_links_nor_pipes_nor_large_files(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(GOOD)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(OSError, match="symbolic links"):
        read_trusted(str(tmp_path / "link"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        read_trusted(str(tmp_path / "pipe"))
    (tmp_path / "large").write_bytes(b"#" * (policy_look.BYTES_MOST + 1))
    with pytest.raises(ValueError, match="larger than"):
        read_trusted(str(tmp_path / "large"))


def test_a_process_of_its_own_finds_them(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(GOOD)
    found = find_policies(str(tmp_path), str(own))
    assert found is not None
    assert found[-1] == (str(own), GOOD, None)
    missing = find_policies(str(tmp_path), str(tmp_path / "missing"))
    assert missing is not None
    assert missing[-1] == (str(tmp_path / "missing"), None, "there is no such file")
    nowhere = find_policies(str(tmp_path / "nowhere"), None)
    assert nowhere is not None
    assert [error for _, text, error in nowhere if text is None] in ([], ["No such file or directory"])


def test_a_file_system_that_hangs_holds_up_for_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = tmp_path / "hangs.py"
    hangs.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(policy_look, "__file__", str(hangs))
    assert find_policies(str(tmp_path), None, limit_s=0.2) is None
