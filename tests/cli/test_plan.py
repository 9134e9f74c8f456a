"""`nopfs plan`: what it asks a mount, and the orders that it prints without one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nopfsfs.cli import plan as command
from nopfsfs.cli.nopfs import main
from nopfsfs.control.find_mount import Located
from nopfsfs.errors import Exit
from nopfsfs.fuse.mount_table import Mount
from nopfsfs.plan.samplers import registry
from nopfsfs.registration import plan_tables
from tests.answering import answering

BELIEVED = {
    "state": "locked",
    "plans": [
        {
            "dataset": "train", "sampler": "distributed", "seed": 42, "epoch": 1, "options": {"drop_last": 1},
            "world": 16, "ranks": [0, 1, 2, 3], "state": "locked", "position": 1005, "length": 20000,
            "next": ["train/b/1.jpg", "train/a/ü.jpg"],
        },
        {"dataset": "val", "sampler": "sequential", "seed": None, "epoch": 0, "world": 1, "ranks": [0]},
    ],
    "explanation": {"text": "The files in train/ are read. " * 5 + "Known after 9 opens.", "needed": 40.0},
}  # fmt: skip


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the daemon of /mnt/fast, which is always found, has its socket."""
    state = tmp_path / "state"
    state.mkdir()
    mount = Mount(1, 0, 1, "/", "/mnt/fast", (), "fuse.nopfs", "s", (f"user_id={os.geteuid()}",))
    located = Located("/mnt/fast", mount, str(state))
    monkeypatch.setattr(command, "locate_living", lambda path, env: located)
    return state


def test_what_a_mount_believes(mounted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(mounted, lambda request: BELIEVED) as requests:
        assert main(["plan", "/mnt/fast"]) == Exit.OK
        text = capsys.readouterr().out
        assert main(["plan", "/mnt/fast", "--next", "2", "--json"]) == Exit.OK

    assert text.splitlines() == [
        "/mnt/fast: locked",
        "The files in train/ are read. The files in train/ are read. The files in train/ are read. The files",
        "in train/ are read. The files in train/ are read. Known after 9 opens.",
        "",
        "train: locked, distributed, seed 42, epoch 1, drop_last = 1, ranks 0-3 of 16, at 1,005 of 20,000",
        "  train/b/1.jpg",
        "  train/a/ü.jpg",
        "val: sequential, epoch 0",
    ]
    assert json.loads(capsys.readouterr().out) == BELIEVED
    assert requests == [{"command": "plan", "next": 0}, {"command": "plan", "next": 2}]
    assert plan_tables.parse_next(requests[1]) == 2


def test_register_and_forget(mounted: Path, tmp_path: Path) -> None:
    (tmp_path / "0.npy").touch()
    (tmp_path / "plan.toml").write_text(
        '[[plan]]\nsampler = "random"\nseed = 3\n[[plan]]\nroot = "x"\norder = "0.npy"\n'
    )

    with answering(mounted, lambda request: {}) as requests:
        assert main(["plan", "/mnt/fast", "--register", str(tmp_path / "plan.toml")]) == Exit.OK
        assert main(["plan", "/mnt/fast", "--forget"]) == Exit.OK

    random, explicit = plan_tables.parse(requests[0])
    assert (random.sampler, random.seed) == ("random", 3)
    assert (explicit.order, explicit.root) == ((str(tmp_path / "0.npy"),), "x")
    assert requests[1] == {"command": "forget"}


def test_what_the_mount_refuses(mounted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(request: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("plan 1: root: nowhere is not there")

    path = tmp_path / "plan.toml"
    path.write_text('[[plan]]\nsampler = "random"\nroot = "nowhere"')
    with answering(mounted, refuse):
        assert main(["plan", "/mnt/fast", "--register", str(path)]) == Exit.USAGE

    assert capsys.readouterr().err == f"nopfs: {path}: plan 1: root: nowhere is not there\n"


def test_not_a_mount(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.toml").write_text('[[plan]]\nsampler = "random"')
    for words in [], ["--forget"], ["--register", str(tmp_path / "plan.toml")]:
        assert main(["plan", str(tmp_path), *words]) == Exit.NOT_MOUNTED
        assert "nothing is mounted at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name MOUNTPOINT"),
        (["--dry-run"], "name SOURCE"),
        (["/m", "--seed", "3"], "--seed: goes with --dry-run SOURCE"),
        (["/m", "--dry-run", "--next", "3"], "--next: is for a mount"),
        (["/m", "--register", "x", "--forget"], "--forget: goes without --register"),
        (["/m", "--next", "x"], "--next: 'x' is not a whole number from 0 to 100000"),
    ],
)
def test_words_that_do_not_go_together(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == Exit.USAGE
    assert message in capsys.readouterr().err


def test_samplers_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--samplers"]) == Exit.OK
    text = capsys.readouterr().out
    assert all(f"  {name}: " in text for name in registry.SAMPLERS)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Training and validation sets of image files."""
    for split, count in ("train", 40), ("val", 6):
        for i in range(count):
            path = tmp_path / "source" / split / f"c{i % 4}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return tmp_path / "source"


Run = Any


@pytest.fixture
def dry(source: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run `nopfs plan --dry-run` and return the lines that it prints."""

    def run(*words: str, code: int = Exit.OK) -> list[str]:
        given = main(["plan", "--dry-run", str(source), "--index-dir", str(tmp_path / "index"), *words])
        printed = capfdbinary.readouterr()
        assert given == code, printed.err
        return (printed.err if code else printed.out).decode().splitlines()

    return run


def files(source: Path, split: str) -> list[str]:
    """As ImageFolder lists them."""
    found = (source / split).glob("*/*.jpg")
    return sorted((str(p.relative_to(source)) for p in found), key=lambda p: (os.path.dirname(p), os.path.basename(p)))


def test_an_order_without_a_mount(source: Path, dry: Run) -> None:
    spec = registry.make_spec(registry.sampler("distributed"), 7)
    listed = files(source, "train")
    expected = [listed[s] for s in registry.order(spec, 40, epoch=3)]
    words = ["--sampler", "distributed", "--seed", "7", "--epoch", "3", "--root", "train"]

    assert dry(*words, "--all") == expected
    assert dry(*words) == expected[:20]
    assert dry(*words, "--head", "3") == expected[:3]
    second = [listed[s] for s in registry.order(spec, 40, 3, 4, 1)]
    assert dry(*words, "--world-size", "4", "--ranks", "1", "--all") == second
    assert sorted(dry(*words, "--world-size", "4", "--all")) == sorted(expected)


def test_the_root_is_guessed_and_may_be_absolute(source: Path, dry: Run) -> None:
    words = ["--sampler", "sequential", "--all"]
    assert dry(*words) == files(source, "train")
    assert dry(*words, "--root", f"{source}/val") == files(source, "val")
    assert dry(*words, "--root", "", "--files", "listed") == files(source, "train") + files(source, "val")


def test_a_plan_file_without_a_mount(source: Path, tmp_path: Path, dry: Run) -> None:
    shuffled = random.Random(1).sample(files(source, "train"), 40)
    (tmp_path / "order.txt").write_text("\n".join(shuffled))
    (tmp_path / "plan.toml").write_text(
        '[[plan]]\nroot = "train"\norder = "order.txt"\n[[plan]]\nsampler = "sequential"\nroot = "val"\n'
    )
    assert dry("--plan", str(tmp_path / "plan.toml"), "--head", "3") == shuffled[:3] + files(source, "val")[:3]


def test_an_order_written_is_an_order_read(source: Path, tmp_path: Path, dry: Run) -> None:
    out = tmp_path / "order.npy"
    words = ["--root", "train", "--all"]
    assert dry("--sampler", "random", "--seed", "3", "--root", "train", "--order-out", str(out)) == []
    assert sorted(np.load(out).tolist()) == list(range(40))
    (tmp_path / "plan.toml").write_text('[[plan]]\norder = "order.npy"\n')

    assert dry("--plan", str(tmp_path / "plan.toml"), *words) == dry("--sampler", "random", "--seed", "3", *words)
    assert [path.name for path in tmp_path.glob(".nopfs*")] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--sampler: name it, or a plan file"),
        (["--sampler", "magic"], "--sampler: unknown sampler 'magic'"),
        (["--sampler", "distributed"], "seed: distributed has one"),
        (["--sampler", "distributed", "--seed", "x"], "--seed: 'x' is not a seed"),
        (["--sampler", "distributed", "--epoch", "-1"], "--epoch: '-1' is not a whole number from 0"),
        (["--sampler", "sequential", "--head", "-3"], "--head: '-3' is not a whole number from 0"),
        (["--sampler", "distributed", "--seed", "1", "--ranks", "3"], "world_size: how many ranks"),
        (["--sampler", "distributed", "--seed", "1", "--ranks", "3", "--world-size", "2"], "--ranks: 3 outside"),
        (["--sampler", "distributed", "--seed", "1", "--sampler-option", "x=1"], "--sampler-option x: distributed has"),
        (["--sampler", "sequential", "--root", "nowhere"], "root: nowhere is not there"),
        (["--sampler", "sequential", "--root", "/etc"], "--root: "),
        (["--sampler", "sequential", "--root", "train/c0"], "files: image_folder or sorted_files"),
        (["--sampler", "sequential", "--files", "x"], "--files: unknown file order"),
        (["--sampler", "sequential", "--head", "3", "--all"], "--all: goes without --head"),
        (["--plan", "/nowhere"], "nowhere: No such file"),
        (["--sampler", "sequential", "--order-out", "/nowhere/x.npy"], "--order-out /nowhere/x.npy: No such file"),
    ],
)
def test_a_dry_run_that_cannot_be(words: list[str], message: str, dry: Run) -> None:
    if "train/c0" in words:
        words = [*words, "--files", "keras_images"]
        message = "files: keras_images finds none in train/c0"
    (line,) = dry(*words, code=Exit.USAGE)
    assert message in line


def test_a_source_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--dry-run", str(tmp_path / "nowhere"), "--sampler", "sequential", "--index-dir", str(tmp_path)]
    assert main(words) == Exit.SOURCE
    assert "does not exist" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough(source: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as head(1) does
    words = ["plan", "--dry-run", str(source), "--sampler", "sequential", "--index-dir", str(tmp_path / "i"), "--all"]
    done = subprocess.run(
        [sys.executable, "-m", "nopfsfs.cli.nopfs", *words], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (Exit.OK, b"")
