"""`nopfs simulate`: what it prints, draws and refuses."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import sys
import xml.etree.ElementTree as ET
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from nopfsfs.cli import mount, simulate
from nopfsfs.cli.nopfs import main, nopfs_parser
from nopfsfs.errors import Exit
from nopfsfs.sim.policy_table import POLICIES
from nopfsfs.sim.run import Simulation
from tests.sim.clusters import FEW_TOML, TINY_TOML

TEXT = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """A cluster file and a data set file: the words that name them."""
    (tmp_path / "tiny.toml").write_text(TINY_TOML)
    (tmp_path / "few.toml").write_text(FEW_TOML)
    return [str(tmp_path / "tiny.toml"), str(tmp_path / "few.toml")]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a simulation prints."""
    code = main(["simulate", *words])
    out, err = capsys.readouterr()
    assert (code, err) == (Exit.OK, "")
    return out


def records(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(printed(capsys, *words, "--json"))
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of an error."""
    assert main(["simulate", *words]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("nopfs: ")
    [line] = err.splitlines()
    return line


# ---- tables and records -----------------------------------------------------------------------------------


def test_the_usual_policies(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    head, columns, *rows = printed(capsys, *files).splitlines()

    # 100 samples of 1 MB at 20 MB/s in epoch 1; then both nodes compute 50 MB at 100 MB/s
    assert head == (
        "tiny, 2 nodes x 1 rank; few, 100 samples, 95.4 MiB; 3 epochs, batch 5; physical mode; bound 6.0 s"
    )
    assert columns.split()[:4] == ["policy", "time", "stall", "over"]
    assert [row.split()[0] for row in rows] == ["perfect", "naive", "staging", "nopfs", "homes", "belady"]
    perfect, naive = rows[0].split(), rows[1].split()
    assert perfect[1:3] == ["1.5", "s"]
    assert naive[1:3] == ["16.5", "s"]  # reads and computes in turn: 5.5 s an epoch
    assert naive[-3:] == ["100", "100", "-"]


def test_records_have_what_the_table_has(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    naive, homes = records(capsys, *files, "--policy", "naive", "--policy", "homes")

    assert naive["seconds"] == pytest.approx(16.5)
    assert naive["stall_seconds"] == pytest.approx(15.0)
    assert naive["bound_seconds"] == pytest.approx(6.0)
    assert naive["served"] == {"ram": 0.0, "ssd": 0.0, "peer": 0.0, "source": 1.0}
    assert homes["source_reads_per_epoch"] == [100, 0, 0]  # 2 x 50 MB is just enough for one copy
    assert homes["distinct_share"] == 1.0
    assert homes["served"]["source"] == pytest.approx(1 / 3)
    assert sum(homes["served"].values()) == pytest.approx(1.0)
    assert sum(homes["epoch_seconds"]) == pytest.approx(homes["seconds"])
    said = {"policy": "homes", "dataset": "few", "cluster": "tiny", "nodes": 2, "mode": "physical", "epochs": 3}
    assert said.items() <= homes.items()
    assert homes.keys() == naive.keys()


def test_all_policies_and_those_that_do_not_work_there(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys, *files, "--policy", "all").splitlines()[2:]

    assert [row.split()[0] for row in rows] == list(POLICIES)
    assert "lbann-preloading      -: the data set does not fit the RAM of all nodes together" in rows


def test_options_replace_what_the_files_say(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--nodes", "4", "--epochs", "1", "--batch", "30", "--no-drop-last", "--compute", "10 MB/s"]
    [found] = records(capsys, *files, "--policy", "perfect", *words)

    assert (found["nodes"], found["epochs"], found["batch"]) == (4, 1, 30)
    assert found["seconds"] == pytest.approx(2.5)  # 25 samples on each of four nodes at 10 a second
    assert records(capsys, *files, "--policy", "perfect", *words, "--drop-last")[0]["seconds"] == pytest.approx(2.5)


def test_each_number_of_nodes_has_a_table(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    one, two = printed(capsys, *files, "--policy", "naive", "--nodes", "1,5,1").split("\n\n")

    assert one.startswith("tiny, 1 node x 1 rank; ")
    assert two.startswith("tiny, 5 nodes x 1 rank; ")


def test_the_seed_decides(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def served(seed: int) -> Any:
        return records(capsys, *files, "--policy", "nopfs", "--seed", str(seed))[0]["served"]

    assert served(1) == served(1) != served(2)
    assert served(-1) == served(2**64 - 1)  # as torch has it


def test_the_order_of_a_framework(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    [shuffled] = records(capsys, *files, "--policy", "belady", "--order", "distributed")
    [same] = records(capsys, *files, "--policy", "belady", "--order", "sequential")

    assert shuffled["source_reads_per_epoch"][1] > 0
    assert same["source_reads_per_epoch"] == [100, 0, 0]  # each node reads the same in every epoch


def test_a_slice_for_belady(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    [without] = records(capsys, *files, "--policy", "homes")
    [half] = records(capsys, *files, "--policy", "homes", "--slice", "0.5")

    assert half["distinct_share"] == pytest.approx(0.8)
    assert without["distinct_share"] == 1.0


def test_files_at_once(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(files[0]).read_text().replace('rate = "20 MB/s"', 'rate = "2000 MB/s"\nlatency = "100ms"')
    Path(files[0]).write_text(text)
    [one] = records(capsys, *files, "--policy", "staging")
    [many] = records(capsys, *files, "--policy", "staging", "--source-concurrency", "10")

    assert one["seconds"] == pytest.approx(15.0, rel=0.1)  # 150 files a node, 100 ms each
    assert many["seconds"] < 3.0  # a tenth, and what the staging buffer of one step cannot hide


def test_the_thesis(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "thesis", "thesis-s1", "--thesis", "--policy", "perfect,naive,nopfs")

    head, _, perfect, naive, nopfs = text.splitlines()
    assert "; thesis mode; bound 7.3 s" in head
    assert [row.split()[1] for row in (perfect, naive, nopfs)] == ["7.3", "27.7", "7.7"]


def test_the_thesis_does_not_know_everything(capsys: pytest.CaptureFixture[str]) -> None:
    found = records(capsys, "lassen", "thesis-s1", "--thesis")

    assert [one["policy"] for one in found] == ["perfect", "naive", "staging", "nopfs"]
    assert {one["seconds"] for one in found} == {None}
    assert all("one rank on each node" in one["reason"] for one in found)


# ---- defined answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--drop-last", "--no-drop-last"])
def test_more_nodes_than_samples(files: list[str], flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = records(capsys, *files, "--nodes", "160", "--policy", "all", flag)

    assert all((one["seconds"] is None) == bool(one["reason"]) for one in found)
    assert any(one["seconds"] for one in found)
    [naive] = [one for one in found if one["policy"] == "naive"]
    assert naive["source_reads_per_epoch"] == [160] * 3  # filled up


def test_no_room_and_samples_larger_than_any(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    none = TINY_TOML.replace('capacity = "20 MB"', "capacity = 0").replace('capacity = "30 MB"', "capacity = 0")
    Path(files[0]).write_text(none)
    without = records(capsys, *files, "--policy", "all")
    Path(files[0]).write_text(TINY_TOML)
    Path(files[1]).write_text(FEW_TOML.replace("1 MB", "60 MB"))
    large = records(capsys, *files, "--policy", "all")

    for found in (without, large):
        assert {one["policy"] for one in found if one["seconds"] is None} == {"lbann-dynamic", "lbann-preloading"}
        assert all(one["served"]["source"] == 1.0 for one in found if one["policy"] in ("nopfs", "homes", "belady"))


# ---- what should I buy ------------------------------------------------------------------------------------


def test_a_sweep_finds_the_least_that_holds_everything(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sweep-ram", "0,25MB,50MB", "--sweep-disk", "0, 30 MB"]
    found = records(capsys, *files, *words)
    text = printed(capsys, *files, *words).splitlines()

    assert [(one["ram_bytes"], one["disk_bytes"]) for one in found] == [
        (0, 0), (0, 30_000_000), (25_000_000, 0), (25_000_000, 30_000_000), (50_000_000, 0), (50_000_000, 30_000_000)
    ]  # fmt: skip
    assert {one["policy"] for one in found} == {"homes"}
    assert [one["cheapest"] for one in found] == [False, False, False, False, True, False]
    assert text[1].split() == ["homes", "ssd", "0", "B", "ssd", "28.6", "MiB"]
    assert text[4] == "ram 47.7 MiB   6.0 s*        6.0 s"
    assert text[5] == "* cheapest within 1% of the best: ram 47.7 MiB, ssd 0 B on each node, 6.0 s"


def test_a_sweep_of_the_thesis(capsys: pytest.CaptureFixture[str]) -> None:
    found = records(capsys, "thesis", "thesis-s1", "--thesis", "--sweep-ram", "0,1G")

    assert [one["policy"] for one in found] == ["nopfs", "nopfs"]
    assert [one["cheapest"] for one in found] == [True, False], "within 1 % without memory"
    assert found[1]["seconds"] < found[0]["seconds"] < 1.01 * found[1]["seconds"]


# ---- pictures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--nodes", "1,2,4"], ["--sweep-ram", "0,50M", "--sweep-disk", "0,1M"]])
def test_pictures(files: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.svg", "b.svg", "c.png"):
        printed(capsys, *files, *words, "--plot", str(tmp_path / name))

    assert ET.fromstring((tmp_path / "a.svg").read_text()).tag.endswith("svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob(".nopfs-*"))


def test_a_picture_needs_matplotlib(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert refused(capsys, *files, "--plot", str(tmp_path / "a.png")) == (
        "nopfs: --plot: needs matplotlib; install it: pip install 'nopfsfs[plot]'"
    )


# ---- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "homs"], "'homs' is not a policy: .*did you mean homes"),
        (["--policy", "naive,"], "'' is not a policy"),
        (["--nodes", "0"], "--nodes: '0' is not a whole number from 1 to 65534"),
        (["--nodes", "2,65535"], "--nodes: '65535' is not"),
        (["--nodes", "-1"], "--nodes: '-1' is not"),
        (["--epochs", "0"], "--epochs: '0' is not"),
        (["--batch", "1.5"], "--batch: '1.5' is not"),
        (["--seed", "x"], "--seed: 'x' is not a seed"),
        (["--compute", "5"], "--compute: '5' is not a rate"),
        (["--source-concurrency", "0"], "--source-concurrency: '0' is not"),
        (["--slice", "1.01"], "--slice: '1.01' is not a share"),
        (["--slice", "-0.1"], "--slice: '-0.1' is not a share"),
        (["--slice", "nan"], "--slice: 'nan' is not a share"),
        (["--order", "auto"], "--order: 'auto' is not a sampler: choose among distributed"),
        (["--order", "webdataset"], "--order: webdataset: each rank has an order of its own"),
        (["--plot", "x.pdf"], r"--plot: 'x.pdf' ends neither in .png nor in .svg"),
        (["--plot", "/nowhere/x.png"], "--plot: /nowhere/x.png cannot be written"),
        (["--thesis", "--order", "random"], "--order: is not in the thesis's simulator"),
        (["--thesis", "--slice", "0"], "--slice: is not in the thesis's simulator"),
        (["--thesis", "--policy", "homes"], "'homes' is not a policy of the thesis's simulator"),
        (["--sweep-ram", "-5"], "--sweep-ram: '-5' is not a size"),
        (["--sweep-disk", "1G,x"], "--sweep-disk: 'x' is not a size"),
        (["--sweep-ram", "1G", "--policy", "all"], "--policy: 13 policies are too many for a sweep"),
        (["--sweep-ram", "1G", "--nodes", "1,2"], "--nodes: several numbers are too many for a sweep"),
        (["--epochs", "300", "--policy", "belady"], "belady: 300 epochs are more than the 254 .*; leave it out"),
        (["--epochs", "300", "--policy", "homes", "--slice", "0.5"], "homes: 300 epochs are more .*; --slice 0"),
        (["--index-dir", "x"], "--index-dir: goes with --from-mount"),
        (["--calibration", "x"], "--calibration: goes with --from-mount"),
        (["--from-mount", "/mnt"], "--from-mount: takes the place of CLUSTER"),
        (["more"], "unrecognized arguments: more"),
    ],
)
def test_what_cannot_be(
    files: list[str], words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)

    assert re.match(f"nopfs: {said}", refused(capsys, *files, *words))


def test_words_that_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert "name CLUSTER and DATASET" in refused(capsys)
    assert "name CLUSTER and DATASET" in refused(capsys, "sc21")
    assert "--from-mount: the path is empty" in refused(capsys, "--from-mount", "")
    assert refused(capsys, "--from-mount", "/mnt", "--index-dir", "").startswith("nopfs: --index-dir: ")


def test_files_that_are_wrong(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean sc21?" in refused(capsys, "sc12", files[1])
    assert "did you mean imagenet-1k?" in refused(capsys, "sc21", "imagenet1k")
    text = Path(files[0]).read_text()
    Path(files[0]).write_text(text.replace("20 MB/s", "-20 MB/s", 1))
    assert refused(capsys, *files).startswith(f"nopfs: {files[0]}:7: source.rate: ")
    Path(files[0]).write_text(text.replace("nodes = 2", "nodes = 65535"))
    assert "65,535 nodes are more than the 65,534" in refused(capsys, *files)
    Path(files[0]).write_text(text.replace("nodes = 2", "nodes = 1").replace('network = "1000 MB/s"', ""))
    assert "--nodes 2: cluster tiny does not say how fast its network is" in refused(capsys, *files, "--nodes", "2")
    Path(files[1]).write_text(FEW_TOML.replace("100", "2147483648").replace("1 MB", "1 B"))
    assert "2,147,483,648 samples are more than" in refused(capsys, *files)


def test_a_sweep_of_a_class_that_there_is_not(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(files[0]).read_text()
    Path(files[0]).write_text(text[: text.rindex("[[class]]")])

    assert "--sweep-disk: tiny has no second storage class" in refused(capsys, *files, "--sweep-disk", "1G")


def test_ctrl_c(files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Simulation, "run", interrupted)

    assert main(["simulate", *files]) == Exit.INTERRUPTED
    assert capsys.readouterr().err == "nopfs: interrupted\n"


def test_too_little_memory(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Simulation, "run", full)

    assert "100 samples do not fit the memory here" in refused(capsys, *files)


# ---- the bar ----------------------------------------------------------------------------------------------


def test_a_terminal_sees_how_far_it_is(
    files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(mount, "BAR_AFTER_S", 0.0)
    monkeypatch.setattr(sys, "stderr", screen)

    assert main(["simulate", *files]) == Exit.OK

    assert "simulating:   0%" in screen.getvalue()


def test_progress_ends_at_all_of_it(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[float] = []
    monkeypatch.setattr(simulate, "_bar", lambda total: nullcontext(shown.append))

    assert main(["simulate", *files, "--nodes", "1,2,3", "--policy", "naive,homes"]) == Exit.OK
    assert shown == sorted(shown)
    assert shown[-1] == 3.0


# ---- documentation ----------------------------------------------------------------------------------------


def test_every_option_is_described() -> None:
    section = TEXT.partition("\n## nopfs simulate\n")[2].partition("\n## ")[0]
    commands = nopfs_parser()._subparsers
    assert commands is not None
    [action] = [action for action in commands._actions if isinstance(action.choices, dict)]
    for word in action.choices["simulate"]._option_string_actions:
        assert word in ("-h", "--help") or f"`{word}" in section, word


def test_the_example_files_are_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    cluster, dataset = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "c.toml").write_text(cluster)
    (tmp_path / "d.toml").write_text(dataset.replace("1000000", "10000"))

    [found] = records(capsys, str(tmp_path / "c.toml"), str(tmp_path / "d.toml"), "--policy", "homes", "--epochs", "2")

    assert found["seconds"] > 0


def test_each_policy_is_described() -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()

    assert all(f"`{name}`" in text.partition("## Policies")[2] for name in POLICIES)


def test_the_examples_print_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    examples = re.findall(r"^\$ nopfs simulate ([^\n]*)\n(.*?)```", text, re.DOTALL | re.MULTILINE)

    assert len(examples) == 3
    for words, shown in examples:
        assert printed(capsys, *words.split()) == shown


def test_the_tuner_beside_its_rivals(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--tuner", "small", "--policy", "fixed-4,fixed-64", "--seed", "1")
    few, many = records(capsys, *words)
    assert (few["policy"], few["source"], few["mounts"], few["seed"]) == ("fixed-4", "small", 1, 1)
    assert few["demand_p99"] < many["demand_p99"], "64 are far too many for a small source"
    two = records(capsys, *words, "--mounts", "2")
    assert all(0.9 < one["jain"] <= 1 for one in two)
    assert printed(capsys, *words).splitlines()[2].startswith("fixed-4 ")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--tuner", "lustre"), "--tuner: 'lustre' is no source: choose among wide, small, smooth"),
        (("--tuner", "wide", "--policy", "homes"), "--policy: 'homes' tunes no limit"),
        (("--tuner", "wide", "--epochs", "3"), "--epochs: does not go with --tuner"),
        (("sc21", "mnist", "--tuner", "wide"), "CLUSTER: does not go with --tuner"),
        (("--tuner", "wide", "--mounts", "0"), "--mounts: '0' is not a whole number from 1 to 64"),
        (("sc21", "mnist", "--mounts", "2"), "--mounts: goes with --tuner"),
    ],
)
def test_what_does_not_go_with_the_tuner(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    assert why in refused(capsys, *words)
