"""Plan files: what they say, and where what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from nopfsfs.cli.mount import MountSteps, main
from nopfsfs.cli.mount_config import parse_mount
from nopfsfs.config import MountConfig, PlanSpec
from nopfsfs.dataset.file_orders import ORDERS
from nopfsfs.dataset.tree_scan import scan
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.registration.plan_file import check_against, read_plan_file
from nopfsfs.registration.plan_tables import KEYS

DOCS = (Path(__file__).parents[2] / "docs" / "plan-files.md").read_text()


def write(tmp_path: Path, text: str) -> str:
    (tmp_path / "plan.toml").write_text(text)
    return str(tmp_path / "plan.toml")


def test_orders_lie_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "0.npy").touch()
    path = write(tmp_path, '[[plan]]\norder = "0.npy"\n[[plan]]\norder = ["./0.npy"]\nroot = "val"\n')

    read = read_plan_file(path)

    assert [plan.order for plan in read.plans] == [(f"{tmp_path}/0.npy",), (f"{tmp_path}/./0.npy",)]
    assert read.tables[0]["order"] == [f"{tmp_path}/0.npy"]


GOOD = '[[plan]]  # first\nsampler = "distributed"\nseed = 3\n\n'
BAD = [
    (GOOD + '[[plan]]\nsampler = "sequential" # seed = 4\n\n# seed = 4\nseed = 4', "9: seed: sequential takes none"),
    ('[[plan]]\nseed = 1\nsampler="magic"', "3: sampler: unknown sampler 'magic'"),
    (GOOD + "[[ plan ]]\nseed = 3", "5: sampler: is missing"),
    (GOOD + "epok = 3", "5: epok: no such key of a plan"),
    (GOOD + "world_size = 2\nranks = [0, 2]", "6: ranks: 2 outside the world of 2"),
    (GOOD + "options = { drop_last = 1 }", "5: options.drop_last: 1 is not true or false"),
    (GOOD + "[plan.options]\n# x\ndrop_last = 1", "7: options.drop_last: 1 is not true or false"),
    (GOOD + "options.drop_first = true", "5: options.drop_first: distributed has no such option"),
    (GOOD + "root = '''\nx'''\nfiles = 'y'", "7: files: unknown file order 'y'"),
    (GOOD + 'files = "a#b"  # files', "5: files: unknown file order 'a#b'"),
    ('[[plan]]\norder = "nowhere.npy"', "2: order: .*nowhere.npy is no file"),
    ("[plan]\nsampler = 'random'", "1: plan: write tables that begin with \\[\\[plan\\]\\]"),
    ("plan = [{sampler = 'x'}]", "1: sampler: unknown sampler"),
    ("# x\nseed = 3", "2: seed: no such key; plans are tables"),
    ("seed = ", "1: not valid TOML"),
    ("[[plan]]\nseed = 1\nseed = 2", "3: not valid TOML"),
    ("", " plans: 0 are given"),
    ("x" * (2 << 20), " larger than 1.0 MiB"),
    (GOOD * 17, " plans: 17 are given"),
    ("a=" + "[" * 20000, " not valid TOML"),
    ("a = " + "9" * 5000, " not valid TOML"),
    (f"[[plan]]\norder = '{'x' * 3000}'", "2: order: /.{100,200}xxx .* is no file that can be read$"),
    ("\n" + "a." * 4000 + "a = 1", "2: a key of more than 64 parts"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_file_names_file_line_and_key(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(NopfsError) as raised:
        read_plan_file(path)
    assert raised.value.exit_code is Exit.USAGE
    assert re.match(re.escape(path) + ":" + message, raised.value.message), raised.value.message
    assert "\n" not in raised.value.message


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"[[plan]]\n# \xe4")
    for name, message in (("nowhere", "No such file"), ("", "not a regular file"), ("latin", "latin:2: not UTF-8")):
        with pytest.raises(NopfsError, match=message):
            read_plan_file(str(tmp_path / name))


def test_a_bad_plan_mounts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def parts() -> MountSteps:
        raise AssertionError("must not get so far")

    path = write(tmp_path, "[[plan]]\nsampler = 3")

    for words in ["--plan", path], ["-o", f"plan={path}"]:
        assert main([str(tmp_path), "/mnt/fast", *words], parts) == Exit.USAGE
        assert capsys.readouterr().err.startswith(f"nopfs-mount: {path}:2: sampler: ")


def test_the_mount_has_the_plans(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    (tmp_path / "c.toml").write_text('plan = "plan.toml"')

    for words in ["--plan", path], ["-o", f"plan={path}"], ["--config", str(tmp_path / "c.toml")]:
        config = parse_mount(["/src", "/mnt/fast", *words], {}, 0).config
        assert config.plans == (PlanSpec(sampler="distributed", seed=3),)


def plans(*words: str) -> tuple[PlanSpec, ...]:
    return parse_mount(["/src", "/mnt/fast", *words], {}, 0).config.plans


def test_options_in_words() -> None:
    said = plans("--sampler", "distributed", "--seed", "4", "--sampler-option", "drop_last=yes", "--world-size", "2")
    options = (("drop_last", True),)
    assert said == (PlanSpec(sampler="distributed", seed=4, options=options, world_size=2, ranks=(0, 1)),)
    assert plans("--sampler", "distributed", "--seed", "4") == ()
    (said_so,) = plans("-o", "sampler=random,seed=1,sampler_option=base_seed=once")
    assert said_so.options == (("base_seed", "once"),)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sampler-option", "drop_last=1"], "of which sampler"),
        (["--sampler", "random", "--sampler-option", "drop_last=1"], "--sampler-option drop_last: random has no such"),
        (["--sampler", "random", "--sampler-option", "left_early=x"], "left_early: 'x' is not a whole number"),
        (["--sampler", "distributed", "--sampler-option", "drop_last=x"], "drop_last: 'x' is not true or false"),
        (["--sampler", "distributed", "--sampler-option", "drop_last"], "is not an option of a sampler"),
    ],
)
def test_options_that_are_none(words: list[str], message: str) -> None:
    with pytest.raises(NopfsError, match=message) as raised:
        plans(*words)
    assert raised.value.exit_code is Exit.USAGE


def test_what_a_plan_names_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "source/a").mkdir(parents=True)
    (tmp_path / "source/a/0.jpg").touch()
    index = scan(str(tmp_path / "source")).index
    config = MountConfig(source=str(tmp_path / "source"), mountpoint="/mnt/fast")
    np.save(tmp_path / "good.npy", [0])
    np.save(tmp_path / "bad.npy", [1])

    check_against([PlanSpec(sampler="explicit", order=(str(tmp_path / "good.npy"),))], index, config)
    for plan, message in (
        (PlanSpec(sampler="random", root="b"), "plan 1: root: b is not there"),
        (
            PlanSpec(sampler="explicit", order=(str(tmp_path / "bad.npy"),)),
            "order: .*bad.npy, position 0: 1 is no index",
        ),
    ):
        with pytest.raises(NopfsError, match=message):
            check_against([plan], index, config)


def test_the_examples_are_right(tmp_path: Path) -> None:
    for file in "epoch0.npy", "epoch1.npy":
        (tmp_path / file).touch()
    examples = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    assert len(examples) >= 8
    for example in examples:
        samplers = re.findall(r'^sampler = "(\w+)"', example, re.MULTILINE)
        tables = example.count("[[plan]]")
        read = read_plan_file(write(tmp_path, example))
        assert len(read.plans) == tables >= 1
        assert [plan.sampler for plan in read.plans if not plan.order] == samplers


def test_every_key_and_file_order_is_described() -> None:
    assert all(f"| `{name}` |" in DOCS for name in (*KEYS, *ORDERS))
