"""What the words of the command line, -o and the configuration file make of a mount."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from nopfsfs.cli.mount import main
from nopfsfs.cli.mount_config import parse_mount
from nopfsfs.cli.option_list import SETTINGS, Setting
from nopfsfs.cli.settings import split_options
from nopfsfs.config import DiskSpec, MountConfig, World
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.system.process_setup import Handoff
from nopfsfs.text.toml_lines import tomllib

USER = 1000  # for what depends on who asks
G = 1 << 30


def parse(*words: str, env: dict[str, str] | None = None, uid: int = 0) -> MountConfig:
    return parse_mount(["/src", "/mnt/fast", *words], env or {}, uid).config


def test_three_words_are_enough() -> None:
    config = parse("--seed", "42")

    assert config.seed == 42
    assert (config.source, config.mountpoint) == ("/src", "/mnt/fast")
    assert config.sampler == "auto"
    assert config.worlds == (World(1, (0,)),)
    assert config.ram is None
    assert config.disks == ()
    assert config.allow_other
    assert config.index_dir == "/var/cache/nopfsfs"
    assert config.run_dir == "/run/nopfs"


def test_what_bounds_a_job_is_divided_by_its_nodes() -> None:
    step = {"SLURM_STEP_NUM_NODES": "16", "SLURM_NNODES": "20"}
    bounded = ("--source-bandwidth", "1600")

    assert (parse(*bounded).job_nodes, parse(*bounded).bandwidth_here) == (1, 1600)
    assert (parse(*bounded, env=step).job_nodes, parse(*bounded, env=step).bandwidth_here) == (16, 100)
    assert parse(*bounded, "--job-nodes", "8", env=step).bandwidth_here == 200
    assert parse(env={"SLURM_STEP_NUM_NODES": "x"}).job_nodes == 1


def test_without_a_seed_it_is_a_plain_cache() -> None:
    assert parse().seed is None


@pytest.mark.parametrize(
    ("env", "index_dir"),
    [
        ({"XDG_CACHE_HOME": "/x"}, "/x/nopfsfs"),
        ({"HOME": "/home/u"}, "/home/u/.cache/nopfsfs"),
        ({}, f"/tmp/nopfs-{USER}/index"),
        ({"HOME": "relative"}, f"/tmp/nopfs-{USER}/index"),
    ],
)
def test_a_user_needs_no_home(env: dict[str, str], index_dir: str) -> None:
    if os.path.isdir(f"/run/user/{USER}"):
        pytest.skip("this machine has a run directory for that user")
    config = parse(env=env, uid=USER)

    assert config.index_dir == index_dir
    assert not config.allow_other
    assert config.run_dir == f"/tmp/nopfs-{USER}"


LONG = [
    "--sampler",
    "distributed",
    "--world-size",
    "8",
    "--ranks",
    "0-3,6",
    "--ram",
    "4G",
    "--disk",
    "/x:10G",
]
LONG += [
    "--disk",
    "/y",
    "--index-dir",
    "/i",
    "--io-timeout",
    "5m",
    "--log-file",
    "/l",
    "--source-concurrency",
    "9",
]
LONG += ["--follow-symlinks", "--rescan", "--no-remember", "--no-allow-other", "-f", "--seed", "-7"]
FSTAB = 'seed=-7,sampler=distributed,world_size=8,ranks="0-3,6",ram=4G,disk=/x:10G,disk=/y,index-dir=/i,'
FSTAB += "io_timeout=5m,log_file=/l,source_concurrency=9,follow_symlinks,rescan,noexec,no_remember,no_allow_other,"
FSTAB += "foreground=yes"
TOML = """
seed = -7
sampler = "distributed"
world-size = 8
ranks = [0, 1, 2, 3, 6]
ram = 4294967296
disk = ["/x:10G", "/y"]
index_dir = "/i"
io_timeout = 300
log_file = "/l"
source_concurrency = 9
follow_symlinks = true
rescan = true
remember = false
allow_other = false
foreground = true
"""


@pytest.mark.parametrize("way", ["words", "fstab", "config", "config in fstab"])
def test_every_way_says_the_same(way: str, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(TOML)
    words = {
        "words": LONG,
        "fstab": ["-o", FSTAB],
        "config": ["--config", str(file)],
        "config in fstab": ["-o", f"config={file}"],
    }[way]

    config = parse(*words)

    assert config.seed == -7
    assert config.sampler == "distributed"
    assert config.worlds == (World(8, (0, 1, 2, 3, 6)),)
    assert config.ram == 4 * G
    assert config.disks == (DiskSpec("/x", 10 * G), DiskSpec("/y", None))
    assert (config.index_dir, config.log_file) == ("/i", "/l")
    assert (config.io_timeout, config.source_concurrency) == (300.0, 9)
    assert config.follow_symlinks
    assert config.rescan
    assert config.foreground
    assert not config.remember
    assert not config.allow_other
    assert config.mount_options == (("noexec",) if way == "fstab" else ())
    assert Handoff.decode(Handoff("super", config, {}, {}).encode()).config == config


def test_precedence(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('seed = 1\nram = "1G"\nsampler = "random"\ndisk = "/a"\nworld_size = 2\n')

    config = parse("--seed", "3", "-o", "seed=2,ram=2G,disk=/b", "--config", str(file), env={"WORLD_SIZE": "4"})

    assert (config.seed, config.ram, config.sampler) == (3, 2 * G, "random")
    assert config.disks == (DiskSpec("/b"),)
    assert config.worlds == (World(2, (0, 1)),)


def test_a_relative_path_in_a_file_is_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('disk = "tier:1G"\nlog-file = "log"\n')

    config = parse("--config", str(tmp_path / "c.toml"))

    assert config.disks == (DiskSpec(str(tmp_path / "tier"), G),)
    assert config.log_file == str(tmp_path / "log")


def test_generic_mount_options_are_ignored() -> None:
    said = "rw,ro,nosuid,nodev,dev,suid,_netdev,nofail,noauto,user,defaults,x-systemd.a,comment=a,,relatime"

    assert parse("-o", said, "-n", "-s", "-v", "-t", "fuse.nopfs") == parse()


def test_as_a_helper_of_mount_f_means_do_not_mount() -> None:
    call = parse_mount(["/src", "/mnt/fast", "-f", "-o", "rw"], {}, 0, "mount.fuse.nopfs")

    assert call.check_only
    assert not call.config.foreground


def test_user(tmp_path: Path) -> None:
    daemon = pwd.getpwnam("daemon")

    for config in parse("--user", "daemon"), parse("-o", f"user={daemon.pw_uid}"):
        assert (config.uid, config.gid) == (daemon.pw_uid, daemon.pw_gid)
        assert daemon.pw_gid in config.groups


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a,b=c", ["a", "b=c"]),
        ('a="1,2",b', ["a=1,2", "b"]),
        ("a=1\\,2,b", ["a=1,2", "b"]),
        (",,", []),
        ("a=x\\\\y", ["a=x\\y"]),
    ],
)
def test_split_options(text: str, options: list[str]) -> None:
    assert list(split_options(text)) == options


BAD = [
    (["--seed", "x"], "--seed: 'x' is not a seed"),
    (["--seed", "1.5"], "--seed: '1.5' is not a seed"),
    (["--seed", str(2**64)], "is not a seed"),
    (["--seed"], "--seed: expected one argument; see nopfs-mount --help"),
    (["--sampler", "magic"], "'magic' is not a sampler: choose one of auto, distributed,"),
    (["--ram", "4X"], "--ram: '4X' is not a size"),
    (["--ram", "0"], "--ram: '0' leaves no room"),
    (["--ram", "5"], "--ram: '5' is 5 B, and less than 16K is of no use: did you mean 5G?"),
    (["--ram", "15K"], "--ram: '15K' is 15.0 KiB, and less than 16K is of no use: did you mean 15M?"),
    (["--ram", "1.5"], "--ram: '1.5' is 1 B, and less than 16K is of no use: did you mean 1.5G?"),
    (["--ram", "5B"], "--ram: '5B' is 5 B, and less than 16K is of no use: did you mean 5G?"),
    (["--ram", "0.5K"], "--ram: '0.5K' is 512 B, and less than 16K is of no use: did you mean 0.5M?"),
    (["--ram", "15 kib"], "did you mean 15M?"),
    (["--ram", "10000"], "--ram: '10000' is 9.8 KiB, and less than 16K is of no use: did you mean 16K?"),
    (["--page-cache", "8"], "--page-cache: '8' is 8 B, and less than 16K is of no use: did you mean 8G?"),
    (["--disk", "/d:200"], "--disk: '200' is 200 B, and less than 16K is of no use: did you mean 200G?"),
    (["--page-cache", "0"], "--page-cache: '0' leaves no room"),
    (["--ram", "1G", "--page-cache", "2G"], "--page-cache: the page cache cannot take more than the memory of ram"),
    (["-o", "ram=1G,page_cache=1025M"], "-o page_cache: the page cache cannot take more"),
    (["--disk", "/x:10Q"], "--disk: '10Q' is not a size"),
    (["--disk", ":10G"], "names no directory"),
    (["--ranks", "3-1"], "runs backwards"),
    (["--ranks", "0-4", "--world-size", "4"], "--ranks 0-4: 4 outside the world of 4 (0-3)"),
    (["--world-size", "0"], "--world-size: '0' is not a whole number from 1"),
    (["--io-timeout", "0"], "leaves no time"),
    (["--frobnicate"], "unrecognized arguments: --frobnicate"),
    (["extra"], "unrecognized arguments: extra"),
    (["-o", "seed=x"], "-o seed: 'x' is not a seed"),
    (["-o", "seed"], "-o seed: needs a value"),
    (["-o", "sead=4"], "-o sead=4: no such option"),
    (["-o", "ranks=0-3,6"], "-o 6: no such option; quote a value that has commas"),
    (["-o", 'a="b'], "a quote is not closed"),
    (["-o", "rescan=perhaps"], "neither yes nor no"),
    (["--config", "/nonexistent"], "/nonexistent: No such file or directory; name a configuration file"),
    (["--config", "/"], "/: not a regular file; name a configuration file"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_words_are_one_line_and_exit_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["/src", "/mnt/fast", *words])

    said = capsys.readouterr().err
    assert code == Exit.USAGE
    assert said.startswith("nopfs-mount: ")
    assert said.count("\n") == 1
    assert message in said


def test_a_missing_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/src"]) == Exit.USAGE
    assert "the following arguments are required: MOUNTPOINT" in capsys.readouterr().err


def test_unknown_user() -> None:
    for name in "nobody-by-that-name", "4123456789":
        with pytest.raises(NopfsError, match="there is no such user") as raised:
            parse("--user", name)
        assert raised.value.exit_code is Exit.USER


def test_only_root_reads_as_someone_else() -> None:
    with pytest.raises(NopfsError, match="only root can") as raised:
        parse("--user", "daemon", uid=USER)

    assert raised.value.exit_code is Exit.USER


BAD_TOML = [
    ("seed = 1\nsead = 42", ":2: sead: no such key; did you mean seed?; known are seed, sampler, "),
    ("# x\n\nseed = true", ":3: seed: true or false is given, a string or a whole number is expected"),
    ("seed = 1.5", ":1: seed: a number is given"),
    ("ram = '4X'", ":1: ram: '4X' is not a size"),
    ("seed = 1\nram = '1G'\npage-cache = '2G'", ":3: page-cache: the page cache cannot take more than"),
    ("rescan = 1", ":1: rescan: a whole number is given, a string or true or false is expected"),
    ("log_file = \"\"\"a\nb\"\"\"\nrescan = 1", ":3: rescan: a whole number is given"),
    ("ranks = ['a']", ":1: ranks: a list of whole numbers is expected"),
    ("ranks = [-1]", ":1: ranks: '-1' is not a list of ranks"),
    ("disk = [1]", ":1: disk: a list of strings is expected"),
    ("disk = [\n'/a',\n'/b:1Q']", ":1: disk: '1Q' is not a size"),
    ("x = 1\n[seed]\ny = 2", ":1: x: no such key; known are seed, sampler, "),
    ("\n[seed]\ny = 2", ":2: seed: a table is given"),
    ("seed = ", ":1: not valid TOML"),
    ("seed = 1\nseed = 2", ":2: not valid TOML"),
    ("# \0", ":1: not valid TOML"),
]


@pytest.mark.parametrize(("text", "message"), BAD_TOML)
def test_a_bad_file_names_file_line_and_key(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)

    with pytest.raises(NopfsError) as raised:
        parse("--config", str(file))

    assert raised.value.exit_code is Exit.USAGE
    assert raised.value.message.startswith(f"{file}{message}")


def test_all_settings_are_named_where_one_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("bogus = 1")

    with pytest.raises(NopfsError, match=", ".join(SETTINGS)):
        parse("--config", str(tmp_path / "c.toml"))


HEAVY = """
import sys
from nopfsfs.cli.{} import main
try:
    main(["--help"])
finally:
    heavy = set("numpy trio pyfuse3 xxhash tqdm mpi4py msgspec".split()) & set(sys.modules)
    assert not heavy, heavy
"""


@pytest.mark.parametrize("command", ["mount", "umount", "nopfs"])
def test_help_is_quick(command: str) -> None:
    subprocess.run([sys.executable, "-c", HEAVY.format(command)], check=True, stdout=subprocess.DEVNULL, timeout=60)


@pytest.mark.parametrize("option", SETTINGS.values(), ids=SETTINGS)
def test_each_setting_is_taken_everywhere(
    option: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text('[[plan]]\nsampler = "random"\nseed = 1\n')
    toml = option.toml.replace("alice", "daemon") if option.metavar else "true"
    Path("c.toml").write_text(f"{option.name} = {toml}")
    value = tomllib.loads(Path("c.toml").read_text())[option.name]
    texts = value if isinstance(value, list) else [str(value)]
    word = option.flags[-1]
    words = [one for text in texts for one in (word, text)] if option.metavar else [word]
    fstab = ",".join(f'{option.name}="{text}"' for text in texts) if option.metavar else option.name
    more = ["--sampler", "distributed"] if option.name == "sampler_option" else []

    configs = [parse(*more, *way) for way in (words, ["-o", fstab], ["--config", "c.toml"])]

    assert configs[0] == configs[1] == configs[2]


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for word in "--help", "--version":
        with pytest.raises(SystemExit) as raised:
            main([word])
        assert raised.value.code == 0
    assert "nopfs-mount /pfs/imagenet /mnt/fast --seed 42" in capsys.readouterr().out
