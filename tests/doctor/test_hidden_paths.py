"""Names of files do not leave the node where the user asks for that; what experts need does."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.doctor.hidden_paths import PathHider, all_hidden

PARTS = {
    "mount": {
        "path": "/mnt/my fast mount",
        "mountinfo": ["57 29 0:57 / /mnt/my\\040fast\\040mount ro - fuse.nopfs /pfs/secret rw"],
    },
    "options": {"source": "/pfs/secret data", "disks": [{"path": "/scratch/alice", "size": 5}], "seed": 42},
    "disk_paths": {"disk-0": "/scratch/alice"},
    "status": {"plan": {"state": "locked", "dataset": "patients 2024", "sampler": "random"}, "opens": {"total": 5}},
    "log": {"lines": [
        "2026-01-01 stager[7] ERROR: b'patients 2024/scan one.png' cannot be read: Input/output error",
        "/pfs/secret data/patients 2024/x.png: Permission denied",
        "what is read of patients 2024 does not match the plan; 12 MB/s, no I/O",
    ]},
    "stacks": {"tasks": [{"name": "main", "frames": ["nopfsfs/supervisor/process.py:12 run"]}]},
}  # fmt: skip
SECRET = ("secret", "patients", "alice", "scan", "x.png", "my fast", "my\\\\040fast")
REPORT = "/mnt/my fast mount: 1 finding\n    -> nopfs-umount /mnt/my fast mount\nsee /dev/fuse and --io-timeout"


def test_no_name_is_left_and_the_rest_is() -> None:
    parts, report = all_hidden(PARTS, REPORT)
    text = json.dumps(parts) + report
    assert not [name for name in SECRET if name in text]
    kept = (
        "Input/output error", "Permission denied", "12 MB/s", "no I/O", "locked", "random", "fuse.nopfs",
        "nopfsfs/supervisor/process.py:12 run", "-> nopfs-umount /#", "/dev/fuse", "--io-timeout",
    )  # fmt: skip
    assert not [words for words in kept if words not in text]
    assert parts["options"]["seed"] == 42
    assert parts["status"]["opens"] == {"total": 5}


def test_a_name_has_one_hash_in_an_archive_and_another_in_the_next() -> None:
    first, second = PathHider(PARTS), PathHider(PARTS)
    assert first.path("/a/b/a") == first.path("/a/b/a")
    assert first.path("/a/b").count("/") == 2
    assert first.path("/a/b") != second.path("/a/b")


@given(st.lists(st.text("ab /'é\udcff\n", min_size=1, max_size=9), max_size=4))
def test_paths_that_are_stated_are_hidden_wherever_they_stand(paths: list[str]) -> None:
    stated = [f"/Q{path}Q" for path in paths]
    lines = [f"look at {path}" for path in stated]
    parts = {"options": {"disks": [{"path": path} for path in stated]}, "log": {"lines": lines}}
    hidden, _ = all_hidden(parts, "")
    assert "Q" not in json.dumps(hidden)


def test_nothing_is_known() -> None:
    hidden, report = all_hidden({"log": {"error": "nothing within 5 s"}}, "this node: 1 finding")
    assert (hidden, report) == ({"log": {"error": "nothing within 5 s"}}, "this node: 1 finding")
