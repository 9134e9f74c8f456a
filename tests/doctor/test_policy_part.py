"""A diagnosis says of a site's policy what the mount sees: whose a file is, why it is refused, what is in force."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.control import policy_look
from nopfsfs.doctor import policy_part
from nopfsfs.doctor.policy_part import in_force, look_at_policy

GOOD = 'version = 1\ndefault = { weight = 0.5 }\n[[rule]]\nmatch = { user = "alice" }\nhours = "08:00-20:00"\n' \
       'bandwidth = "2MB/s"\nshare = "job"\n'  # fmt: skip
LARGEST = 64 << 10  # bytes of the part, as JSON


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The site's file, which is not there yet; the source has no file at its root."""
    monkeypatch.setattr(policy_look, "SITE", str(tmp_path / "policy.toml"))
    monkeypatch.setattr(policy_look, "at_root", lambda source: str(tmp_path / "root.toml"))
    return tmp_path / "policy.toml"


def written(path: Path, text: str = GOOD, mode: int = 0o644) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def files(source: Path, file: Any = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = look_at_policy(str(source), file)["files"]
    return found


def test_a_file_that_is_trusted(site: Path, tmp_path: Path) -> None:
    written(site)
    (found,) = files(tmp_path)
    assert found.pop("modified") > 0
    assert found == {
        "path": str(site), "trusted": True, "kind": "file", "owner": os.geteuid(), "mode": "0644", "bytes": len(GOOD),
        "owner_of_directory": os.geteuid(), "default": "weight 0.5, at most 1024 requests under way, share root",
        "count_of_rules": 1,
        "rules": [{"number": 1, "hours": [480, 1200], "bandwidth": 2_000_000, "share": "job"}],
    }  # fmt: skip


def test_files_are_those_that_a_mount_looks_for(site: Path, tmp_path: Path) -> None:
    assert files(tmp_path) == []
    root, own = written(tmp_path / "root.toml"), written(tmp_path / "own.toml")
    assert [one["path"] for one in files(tmp_path, str(own))] == [str(root), str(own)]
    written(site)
    assert [one["path"] for one in files(tmp_path, str(own))] == [str(site), str(own)]
    own.unlink()
    assert files(tmp_path, str(own))[1] == {"path": str(own), "trusted": False, "why": "there is no such file"}
    assert len(files(tmp_path, {"no": "path"})) == len(files(tmp_path, "own.toml")) == 1


@pytest.mark.parametrize(
    ("mode", "text", "why"),
    [(0o664, GOOD, "chmod go-w"), (0o644, "version =", "not valid TOML"), (0o644, "version = 1\nx = 1", "x"),
     (0o644, "#" * (policy_look.BYTES_MOST + 1), "larger than")],
)  # fmt: skip
def test_a_file_that_is_refused_has_owner_and_mode_and_why(
    mode: int, text: str, why: str, site: Path, tmp_path: Path
) -> None:
    written(site, text, mode)
    (found,) = files(tmp_path)
    assert (found["trusted"], found["mode"], found["owner"]) == (False, f"{mode:04o}", os.geteuid())
    assert why in found["why"]
    assert "rules" not in found


def test_neither_a_link_nor_a_pipe_is_opened(site: Path, tmp_path: Path) -> None:
    site.symlink_to(written(tmp_path / "real.toml"))
    os.mkfifo(tmp_path / "pipe")
    link, pipe = files(tmp_path, str(tmp_path / "pipe"))
    assert (link["kind"], link["trusted"]) == ("link", False)
    assert (pipe["kind"], pipe["why"]) == ("pipe", "not a regular file")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
def test_files_and_links_of_strangers(site: Path, tmp_path: Path) -> None:
    os.chown(written(site), 12345, -1)
    (tmp_path / "real").mkdir()
    written(tmp_path / "real" / "p.toml", "version = 1\n# words of root")
    (tmp_path / "way").symlink_to("real")
    os.chown(tmp_path / "way", 12345, -1, follow_symlinks=False)
    foreign, behind = files(tmp_path, str(tmp_path / "way" / "p.toml"))
    assert (foreign["owner"], "of user 12345" in foreign["why"]) == (12345, True)
    assert behind["why"] == "a link of user 12345 is in the way"
    assert "owner" not in behind
    site.unlink()
    assert files(tmp_path / "way")[0]["why"] == "a link of user 12345 is in the way", "on the way to the source"


def test_the_largest_file_makes_a_small_part(site: Path, tmp_path: Path) -> None:
    written(site, "version = 1\n" + '[[rule]]\nweight = 1.0\nmatch = { user = "' + "x" * 200 + '" }\n' * 1 + "".join(
        f'[[rule]]\nbandwidth = "{n}MB/s"\n' for n in range(1, 999)))  # fmt: skip
    (found,) = files(tmp_path)
    assert (found["count_of_rules"], len(found["rules"])) == (999, policy_part.RULES_MOST)
    assert len(json.dumps(found)) < LARGEST


def test_what_is_in_force_is_what_the_supervisor_says() -> None:
    said = {"files": [{"path": "/p", "rules": [1, 2]}], "errors": ["/q: broken"], "weight": 0.5, "concurrency": 64,
            "bandwidth": None, "share": "root", "user": "alice", "job": "", "text": "weight 0.5"}  # fmt: skip
    assert in_force({"policy": said, "mode": "auto"}) == said
    assert in_force({"error": "no answer"}) is None
    assert in_force({"policy": 5}) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=2000),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner), max_leaves=20,
    )
)  # fmt: skip
def test_whatever_a_daemon_says_is_bounded(said: Any) -> None:
    found = in_force({"policy": {"files": [said] * 100, "text": "x" * 10**6, "errors": said, "more": said}})
    assert found is not None
    assert set(found) == set(policy_part._SAID)
    assert len(found["files"]) == policy_part.ITEMS_MOST
    assert len(found["text"]) == policy_part.TEXT_MOST
    json.dumps(found)
