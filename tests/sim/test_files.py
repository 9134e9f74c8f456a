"""Cluster and data set files: what they say, what comes back, and where what is wrong."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import nopfsfs
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.performance import cluster_file
from nopfsfs.performance.cluster_file import format_cluster, parse_cluster, read_cluster, write_cluster
from nopfsfs.performance.model import MOST_CLASSES, Cluster, Curve, SourceModel, StorageClass
from nopfsfs.sim import dataset_file
from nopfsfs.sim.dataset_file import parse_dataset, read_dataset
from nopfsfs.sim.shipped import CLUSTERS, DATASETS, find_cluster, find_dataset, shipped_clusters, shipped_datasets
from nopfsfs.sim.training import SimDataSet, Training
from nopfsfs.text.toml_table import SIZE_MOST
from tests.sim.example_files import CLUSTER, DATASET

MB = 10**6
SIM = Path(nopfsfs.__file__).parent / "sim"


def test_what_a_cluster_file_says() -> None:
    assert parse_cluster(CLUSTER, "two.toml") == Cluster(
        name="two",
        nodes=2,
        ranks=3,
        compute=100 * MB,
        preprocess=200 * MB,
        network=1000 * MB,
        source=SourceModel(Curve(((1, 66 * MB), (1.5, 70 * MB), (4, 146 * MB))), 2000 * MB, 0.005, 64),
        staging=StorageClass("staging", (1000,), 2, Curve.flat(21164 * MB), Curve.flat(21164 * MB)),
        classes=(
            StorageClass("ram", (1 << 30, 0), 4, Curve(((2, 10 * MB),)), Curve.flat(5 * MB)),
            StorageClass("ssd", (0,), 1, *(2 * [Curve(((1, 3 * MB), (8, 9 * MB)))])),
        ),
    )


def test_what_may_be_left_out_of_a_cluster() -> None:
    text = 'name="one"\nnodes=1\ncompute=1\nsource={rate=1}\nstaging={capacity=0,threads=1,read=1}\n'

    cluster = parse_cluster(text, "one.toml")

    assert (cluster.ranks, cluster.preprocess, cluster.network, cluster.classes) == (1, math.inf, math.inf, ())
    assert cluster.source == SourceModel(Curve.flat(1), math.inf, 0.0, 1)


def test_what_a_dataset_file_says() -> None:
    short = 'name="x"\nsamples=1\nmean=7\n[training]\nepochs=1\nbatch=2\n'

    assert parse_dataset(DATASET, "") == (SimDataSet("S1", 10000, 27000, 10000), Training(10, 25, False, -1))
    assert parse_dataset(short, "") == (SimDataSet("x", 1, 7), Training(1, 2))


@pytest.mark.parametrize("module", [cluster_file, dataset_file])
def test_the_description_is_a_file(module: object) -> None:
    text = re.sub(r"^(?!    ).*\n", "", (module.__doc__ or "") + "\n", flags=re.MULTILINE)
    text = re.sub(r"^    ", "", text, flags=re.MULTILINE)

    if module is dataset_file:
        assert parse_dataset(text, "")[0].samples == 10000
    else:
        assert parse_cluster(text + 'capacity = 0\nthreads = 1\nread = "1 MB/s"\n', "").classes[0].name == "ram"


def test_more_classes_than_can_be_numbered() -> None:
    def named(number: int) -> str:
        return f'[[class]]\nname = "c{number}"\ncapacity = 0\nthreads = 1\nread = 1\n'

    most = CLUSTER + "".join(map(named, range(MOST_CLASSES - 2)))

    assert len(parse_cluster(most, "").classes) == MOST_CLASSES
    with pytest.raises(NopfsError) as error:
        parse_cluster(most + named(99), "many.toml")
    line = most.count("\n") + 2
    expected = f"many.toml:{line}: class[64].name: 64 storage classes are given; write at most 63"
    assert error.value.message == expected
    assert error.value.exit_code == Exit.USAGE


STAGED = "source.rate = 1\nstaging = { capacity = 0, threads = 1, read = 1 }"
BAD_CLUSTERS = [
    ("nodes = 2", "nodes = 0", "two.toml:3: nodes: 0 is not allowed: write a whole number from 1 to"),
    ("nodes = 2", "nodes = 9_000_000", "two.toml:3: nodes: .* from 1 to 1048576"),
    ("nodes = 2", "nodes = true", "two.toml:3: nodes: true is not allowed: write a whole number"),
    ("nodes = 2", 'nodes = "2"', "two.toml:3: nodes: '2' is not allowed: write a whole number"),
    ("nodes = 2", "nodes = 0x" + "f" * 99, "two.toml:3: nodes: a number of that size is not allowed"),
    ("nodes = 2", "nodes = 1979-05-27", "two.toml:3: nodes: a date or time is not allowed"),
    ("nodes = 2\n", "", "two.toml: nodes: missing; write nodes = 4"),
    ('name = "two"', "name = 2", "two.toml:1: name: 2 is not a name: write"),
    ('name = "two"', 'name = "a\\nb"', "two.toml:1: name: .* is not a name"),
    ("note = ", "notes = ", "two.toml:2: notes: no such key; did you mean note"),
    ('note = "by hand"', "note = 1", "two.toml:2: note: 1 is not a text: write it in quotes"),
    ("ranks = 3", "ranks = 1_000_000", "two.toml:4: ranks: 2 nodes of 1000000 are more than 1048576 ranks"),
    ("100 MB/s", "100 MB", "two.toml:5: compute: '100 MB' is not a rate: write a size and /s"),
    ("100 MB/s", "0 MB/s", "two.toml:5: compute: 0 B/s is not a rate: write one from 1 B/s"),
    ("100 MB/s", "-1 MB/s", "two.toml:5: compute: '-1 MB/s' is not a rate"),
    ('"100 MB/s"', "nan", "two.toml:5: compute: nan is not a rate"),
    ('"100 MB/s"', "inf", "two.toml:5: compute: inf is not a rate"),
    ('"100 MB/s"', "-5", "two.toml:5: compute: -5 is not a rate"),
    ('"100 MB/s"', "true", "two.toml:5: compute: true is not a rate"),
    ('"100 MB/s"', "[1]", "two.toml:5: compute: a list is not a rate"),
    ("100 MB/s", "9" * 400 + " MB/s", "two.toml:5: compute: inf B/s is not a rate"),
    ('network = "1 GB/s"\n', "", "two.toml: network: missing; write what two of the 2 nodes exchange"),
    ('compute = "100 MB/s"\n', "", 'two.toml: compute: missing; write compute = "146 MB/s"'),
    ("[source]", "[sauce]", "two.toml:9: sauce: no such key; did you mean source"),
    ('latency = "5ms"', "latency = -1", "two.toml:11: source.latency: -1 is not a time"),
    ('latency = "5ms"', 'latency = "soon"', "two.toml:11: source.latency: 'soon' is not a time"),
    ("at_once = 64", "at_once = 0", "two.toml:12: source.at_once: 0 is not allowed"),
    ("at_once = 64", "atonce = 64", "two.toml:12: source.atonce: no such key; did you mean at_once"),
    ("rate = {", "rates = {", "two.toml:13: source.rates: no such key; did you mean rate"),
    ('1 = 66_000_000, "1.5"', '1.5 = 1, "3"', 'two.toml:13: source.rate.1: .* in quotes: "1.5"'),
    ("1 = 66_000_000", "0 = 66_000_000", "two.toml:13: source.rate.0: '0' is no number from 1 to"),
    ("1 = 66_000_000", "a = 66_000_000", "two.toml:13: source.rate.a: 'a' is no number from 1 to"),
    ("1 = 66_000_000", "-1 = 66_000_000", "two.toml:13: source.rate.-1: '-1' is no number from 1 to"),
    ("1 = 66_000_000", "01 = 1, 1 = 1", "two.toml:13: source.rate.1: 1 is given twice"),
    ("1 = 66_000_000", "1 = 0", "two.toml:13: source.rate.1: 0 is not a rate"),
    ("1 = 66_000_000", "1 = nan", "two.toml:13: source.rate.1: nan is not a rate"),
    ("{ 2 = ", "{ } #", "two.toml:24: class.1..read: no point is given; write a rate"),
    ("capacity = 1000", "capacity = -1", "two.toml:16: staging.capacity: -1 is not allowed: write a size of 0 to"),
    ("capacity = 1000", "capacity = 1.5", "two.toml:16: staging.capacity: 1.5 is not a size: write bytes"),
    ("capacity = 1000", "capacity = []", "two.toml:16: staging.capacity: the list is empty: write"),
    ("capacity = 1000", 'capacity = "8191P"', "two.toml:3: nodes: all nodes together have more room"),
    ("threads = 2", "threads = 0", "two.toml:17: staging.threads: 0 is not allowed"),
    ("threads = 2", 'threads = 2\nname = "s"', "two.toml:18: staging.name: no such key"),
    ('name = "ram"\n', "", r"two.toml:20: class\[1\].name: missing; write name = "),
    ('name = "ram"', 'name = "staging"', r"two.toml:21: class\[1\].name: 'staging' is the name of another class"),
    ('name = "ssd"', 'name = "ram"', r"two.toml:28: class\[2\].name: 'ram' is the name of another class"),
    ('["1 G", "0"]', '["1 G",\n "x"]', r"two.toml:22: class\[1\].capacity: 'x' is not a size"),
    ("capacity = 0\n", "", r'two.toml:27: class\[2\].capacity: missing; write capacity = "1024 MB"'),
    ("threads = 1\n", "threads = 1.0\n", r"two.toml:30: class\[2\].threads: 1.0 is not allowed"),
    ('8 = "9 MB/s"', '8 = "9 MB"', r"two.toml:33: class\[2\].read.8: '9 MB' is not a rate"),
    ('[[class]]\nname = "ram"', '[class]\nname = "ram"', "two.toml:.*not valid TOML"),
    ("[[class]]", "[[classes]]", "two.toml:20: classes: no such key; did you mean class"),
    ("ranks = 3", "ranks =", r"two.toml:4: not valid TOML: .*\(at line 4, column 8\)"),
    ("ranks = 3", 'ranks = "', "two.toml:4: not valid TOML"),
    ("ranks = 3", 'ranks = """', "two.toml:33: not valid TOML"),
    ("ranks = 3", "ranks = " + "[" * 9999, "two.toml: not valid TOML: nested too deeply|two.toml:.*not valid TOML"),
    ("ranks = 3", "ranks." + "a . 'b' . " * 9999 + "a = 3", "two.toml:4: a key of more than 64 parts"),
    ("ranks = 3", "ranks = " + "3" * 9999, "two.toml:.*(not valid TOML: Exceeds|not allowed)"),
]


@pytest.mark.parametrize(("good", "bad", "message"), BAD_CLUSTERS)
def test_a_bad_cluster_is_said_with_file_line_and_key(good: str, bad: str, message: str) -> None:
    assert good in CLUSTER

    with pytest.raises(NopfsError, match="^" + message) as error:
        parse_cluster(CLUSTER.replace(good, bad), "two.toml")

    assert error.value.exit_code == Exit.USAGE
    assert "\n" not in error.value.message
    assert len(error.value.message) < 400


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('source = "x"', r"x:4: source: a string is given; write a table that begins with \[source\]"),
        ("", r"x: source: missing; write a table that begins with \[source\]"),
        ("source.rate = []", "x:4: source.rate: a list is not a rate"),
        ("source.rate = {}", "x:4: source.rate: no point is given"),
        ("source.rate = 1\nstaging = []", "x:5: staging: a list is given"),
        (f"{STAGED}\nclass = [1]", r"x:6: class: write tables that begin with \[\[class\]\], with two brackets"),
        (f"{STAGED}\n[class]\nname = 'ram'", r"x:6: class: write tables that begin with"),
        (f"{STAGED}\nclass = [\n{{name = 1}}]", r"x:7: class\[1\].name: 1 is not a name"),
        (f"{STAGED}\n'\"' = 1", r"x:6: '\"': no such key"),
    ],
)
def test_a_table_may_be_written_in_other_ways(line: str, message: str) -> None:
    with pytest.raises(NopfsError, match="^" + message):
        parse_cluster(f"name = 'one'\nnodes = 1\ncompute = 1\n{line}\n", "x")


BAD_DATASETS = [
    ("samples = 10000", "samples = 0", "d.toml:2: samples: 0 is not allowed: write a whole number from 1 to"),
    ("samples = 10000", "samples = 99_999_999_999", "d.toml:2: samples: 99999999999 is not allowed"),
    ("samples = 10000\n", "", "d.toml: samples: missing; write samples = 10000"),
    ('"0.027 MB"', '"1000 TB"\n#', "d.toml:2: samples: all samples together are more than any file system holds"),
    ('"0.027 MB"', "0", "d.toml:3: mean: 0 is not allowed: write a size of 1 to"),
    ('"0.027 MB"', '"0.4"', "d.toml:3: mean: '0.4' is not allowed: write a size of 1 to"),
    ('"0.027 MB"', "-3", "d.toml:3: mean: -3 is not allowed"),
    ('"0.027 MB"', "nan", "d.toml:3: mean: nan is not a size"),
    ('"0.027 MB"', '"8000P"', "d.toml:3: mean: '8000P' is not allowed"),
    ('"0.01 MB"', "-1", "d.toml:4: sigma: -1 is not allowed"),
    ("[training]", "[trainings]", "d.toml:6: trainings: no such key; did you mean training"),
    ("epochs = 10", "epochs = 0", "d.toml:7: training.epochs: 0 is not allowed"),
    ("epochs = 10\n", "", "d.toml:6: training.epochs: missing; write epochs = 10"),
    ("batch = 25", "batch = 10_000_001", "d.toml:8: training.batch: 10000001 is not allowed"),
    ("drop_last = false", "drop_last = 0", "d.toml:9: training.drop_last: 0 is neither true nor false"),
    ("drop_last = false", "droplast = false", "d.toml:9: training.droplast: no such key; did you mean drop_last"),
    ("seed = -1", "seed = 0x1_0000_0000_0000_0000", "d.toml:10: training.seed: 18446744073709551616 is not allowed"),
    (DATASET, "", 'd.toml: name: missing; write name = "S1"'),
]


@pytest.mark.parametrize(("good", "bad", "message"), BAD_DATASETS)
def test_a_bad_dataset_is_said_with_file_line_and_key(good: str, bad: str, message: str) -> None:
    assert good in DATASET

    with pytest.raises(NopfsError, match="^" + message) as error:
        parse_dataset(DATASET.replace(good, bad), "d.toml")

    assert error.value.exit_code == Exit.USAGE


@pytest.mark.parametrize("read", [read_cluster, read_dataset])
def test_what_is_no_file_of_text(tmp_path: Path, read: Callable[[str], object]) -> None:
    (tmp_path / "latin").write_bytes(b"# one\n# \xe9\n")
    (tmp_path / "huge").write_bytes(b"#" * (SIZE_MOST + 1))
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "fifo")
    said = {
        "none": "none: No such file or directory; name a",
        "latin": "latin:2: not UTF-8 text; name a",
        "huge": "huge: larger than 256 KiB; name a",
        "empty": "empty: (name|nodes): missing; write",
        "fifo": "fifo: not a regular file; name a",
        ".": "not a regular file",
        "a\0b": "null",
        "\ud800": "surrogates",
    }

    for name, message in said.items():
        with pytest.raises(NopfsError, match=message) as error:
            read(f"{tmp_path}/{name}")
        assert error.value.exit_code == Exit.USAGE


def test_every_shipped_cluster_is_one() -> None:
    assert shipped_clusters() == ["lassen", "piz-daint", "sc21", "thesis"]
    for name in shipped_clusters():
        cluster = find_cluster(name)
        assert cluster.name == name
        assert parse_cluster(format_cluster(cluster), name) == cluster
        assert 'note = """' in (SIM / CLUSTERS / f"{name}.toml").read_text()
        curves = [curve for one in (cluster.staging, *cluster.classes) for curve in (one.read, one.write)]
        for curve in (*curves, cluster.source.rate):
            assert max(curve.at(max(1.0, x)) for x, _ in curve.points) >= cluster.compute


def test_every_shipped_dataset_is_one() -> None:
    assert len(shipped_datasets()) == 10
    for name in shipped_datasets():
        dataset, training = find_dataset(name)
        assert dataset.name == name
        assert training.seed == 42
        assert training.drop_last
        assert (SIM / DATASETS / f"{name}.toml").is_file()


def test_the_thesis_and_the_paper() -> None:
    thesis, sc21 = find_cluster("thesis"), find_cluster("sc21")

    assert [thesis.source.rate.at(x) / MB for x in (1, 2, 3, 4)] == [66, 86, 129, 146]
    assert [one.read_rate / MB for one in (thesis.staging, *thesis.classes)] == [21164, 21164, 86]
    assert [sc21.source.rate.at(x) / MB for x in (1, 2, 4, 8)] == [330, 730, 1540, 2870]
    assert [one.read_rate / MB for one in (sc21.staging, *sc21.classes)] == [111000, 85000, 4000]
    assert find_dataset("thesis-s2") == (SimDataSet("thesis-s2", 150000, MB, MB / 10), Training(10, 25))
    assert find_dataset("imagenet-1k") == (SimDataSet("imagenet-1k", 1281167, 107700, 100000), Training(5, 32))


def test_a_file_is_found_by_its_path_and_a_name_before_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("thesis", "mine", "sub.toml"):
        Path(file).write_text(CLUSTER)
    Path("S1").write_text(DATASET)

    assert find_cluster("thesis").name == "thesis"
    assert [find_cluster(path).name for path in ("./thesis", "mine", "sub.toml")] == 3 * ["two"]
    assert find_dataset("S1")[0].name == "S1"


@pytest.mark.parametrize(
    ("given_name", "message"),
    [
        ("lasen", "^'lasen' is neither a cluster nor a file; did you mean lassen[?] there are lassen, piz-daint, "),
        ("Thesis", "did you mean thesis[?]"),
        ("frontier9000", "^'frontier9000' is neither a cluster nor a file; there are lassen"),
        ("", "^'' is neither"),
        ("\0", "neither a cluster"),
        ("none.toml", "^none.toml: No such file"),
        ("../thesis", "^../thesis: No such file"),
    ],
)
def test_an_unknown_name_lists_the_names(
    given_name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(NopfsError, match=message) as error:
        find_cluster(given_name)

    assert error.value.exit_code == Exit.USAGE
    with pytest.raises(NopfsError, match="did you mean imagenet-1k"):
        find_dataset("imagenet1k")


def test_a_cluster_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    cluster = parse_cluster(CLUSTER, "")
    path = tmp_path / "calibrated.toml"

    write_cluster(cluster, str(path), note='measured by "nopfs"\non a \\ tuesday\x7f')

    assert read_cluster(str(path)) == cluster
    assert os.listdir(tmp_path) == ["calibrated.toml"]
    for bad in (tmp_path / "none" / "x.toml", tmp_path):
        with pytest.raises(NopfsError, match="; name a file in a directory of yours"):
            write_cluster(cluster, str(bad))
    assert os.listdir(tmp_path) == ["calibrated.toml"]
