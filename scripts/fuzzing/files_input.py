"""Files that people write: plan files, cluster files (as `nopfs calibrate` writes them), data sets, orders."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fuzzing.core import Input, Wrong, shape
from fuzzing.mutate import garbage, mutated, signed
from fuzzing.trees import make_tree
from nopfsfs.dataset import order_files
from nopfsfs.dataset.file_orders import image_folder
from nopfsfs.errors import NopfsError
from nopfsfs.performance.cluster_file import format_cluster, parse_cluster, read_cluster
from nopfsfs.registration.plan_file import read_plan_file
from nopfsfs.sim.dataset_file import read_dataset

A_CASE = 6  # files
LINE_MOST = 2000  # characters of an error
PLANS = (
    '[[plan]]\nsampler = "distributed"\nroot = "train"\nseed = 42\nworld_size = 4\nranks = "0-1,3"\n'
    "options = { drop_last = true, shuffle = true }\nloader = { workers = 8, prefetch = 4, batch = 32 }\n",
    '[[plan]]\nsampler = "random"\nseed = 3\nepoch = 2\n[plan.options]\nreplacement = true\nnum_samples = 12\n'
    '[[plan]]\nsampler = "sequential"\nfiles = "image_folder"\n[plan.subset]\nname = "random_split"\nseed = 1\n',
    '[[plan]]\norder = ["0.npy", "1.npy"]\nrepeats = true\n',
)
CLUSTER = """name = "thesis"
note = "where"
nodes = 4
ranks = 2
compute = "100 MB/s"
preprocess = "200 MB/s"
network = "10000 MB/s"
[source]
rate = { 1 = "66 MB/s", 2 = "86 MB/s", "3.5" = "90 MB/s" }
link = "2000 MB/s"
latency = "5ms"
at_once = 64
[staging]
capacity = ["1024 MB", "2 GiB"]
threads = 2
read = { 2 = "21164 MB/s" }
write = "21164 MB/s"
[[class]]
name = "ram"
capacity = "100 GB"
threads = 4
read = "50 GB/s"
"""
DATASET = """name = "S1"
samples = 10000
mean = "0.027 MB"
sigma = "0.01 MB"
[training]
epochs = 10
batch = 25
drop_last = true
seed = 42
"""
WORDS = tuple(
    word.encode() for word in (
        "[[plan]]", "[plan]", "plan = 3", "= ", "\n", '"""', "'''", "{", "}", "[", "]", "[[[[[[", "nan", "inf", "1e999",
        "-1", "0x7fffffffffffffff", "9" * 5000, "a." * 70, "a." * 4000 + "a = 1", "[" * 3000, "{a=" * 500, "\\u0000",
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"), "1979-05-27T07:32:00Z", "true", "#",
        "order = \"/dev/zero\"", "order = [\"\"]", "\r", "\0", "ranks = \"0-1048575\"", "world_size = 1048576",
        "seed = -9223372036854775808", "epoch = 2147483648", "rate = {}", "1 = \"1 B/s\"", "capacity = []",
        "nodes = 1048576", "name = \"" + "x" * 100 + "\"", "\"1000 PB\"", "\"1e308 MB/s\"", "\"0 B/s\"", "\"-1ms\"",
    )
)  # fmt: skip
HEADERS = (
    "{'descr': '<i8', 'fortran_order': False, 'shape': (4,), }",
    "{'descr': '<i8', 'fortran_order': True, 'shape': (2, 2), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (4,), }",
    "{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (4,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (9223372036854775807, 3), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (1 << 70,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (1180591620717411303424,), }",
    "(" * 9000, "[" * 60 + "]" * 60, "{'descr': ", "", "0" * 5000, "{'descr': '<i8', 'fortran_order': False}",
    "{'descr': 5, 'fortran_order': 'x', 'shape': 4}", "{" + "'a':" * 300, "-" * 4000 + "1", "lambda: 0",
    "{'descr': '<U9999999999', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (0,), }",
    "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': ('<i8', (1000000, 1000000)), 'fortran_order': False, 'shape': (4,), }",
)  # fmt: skip


class FilesInput(Input):
    """Each file is read as the commands read it: a value, or the one documented error, of one line."""

    name = "files"

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        self.root = work / "source"
        self.root.mkdir()
        self.index = make_tree(self.root)
        for number in range(2):
            np.save(work / f"{number}.npy", np.arange(20)[:: 1 - 2 * number])
        self.path = work / "file"
        saved = io.BytesIO()
        np.save(saved, np.arange(12).reshape(2, 6))
        self.array = saved.getvalue()
        names = [b"train/class%d/%04d.jpg" % (n % 3, n) for n in range(20)]
        self.lists = b"\n".join([*names, b"link.jpg", b"/mnt/fast/train/link.jpg", b"../x", b"train//./class0/../x"])
        self.where = order_files.Places(order_files.directory(self.index, "train"), str(self.root), "/mnt/fast")

    def play(self, rng: Random) -> None:
        for _ in range(A_CASE):
            rng.choice((self._plan, self._cluster, self._dataset, self._array, self._list))(rng)

    def _text(self, rng: Random, valid: str) -> bytes:
        if rng.random() < 0.1:
            return garbage(rng, 4096)
        return mutated(rng, valid.encode(), WORDS)

    def _read(self, kind: str, data: bytes, read: Callable[[], Any], refused: type[Exception]) -> Any:
        """What was read; None where it was refused."""
        self.path.write_bytes(data)
        try:
            found = read()
        except refused as e:
            said = e.message if isinstance(e, NopfsError) else str(e)
            if "\n" in said or len(said) > LINE_MOST or not said:
                raise Wrong(f"{kind}: the error is no line: {said[:300]!r}") from e
            self.tell(f"{kind} refused: {shape(said.partition(': ')[2])[:24]}")
            return None
        self.tell(f"{kind} accepted")
        return found

    def _plan(self, rng: Random) -> None:
        data = self._text(rng, rng.choice(PLANS))
        self._read("plan", data, lambda: read_plan_file(str(self.path)), NopfsError)

    def _cluster(self, rng: Random) -> None:
        data = self._text(rng, CLUSTER)
        cluster = self._read("cluster", data, lambda: read_cluster(str(self.path)), NopfsError)
        if cluster is not None and parse_cluster(format_cluster(cluster), "again") != cluster:
            raise Wrong("a cluster that was written is another one")

    def _dataset(self, rng: Random) -> None:
        self._read("dataset", self._text(rng, DATASET), lambda: read_dataset(str(self.path)), NopfsError)

    def _order(self, kind: str, data: bytes, rng: Random) -> None:
        again = rng.random() < 0.5

        def read() -> order_files.ExplicitOrder:
            rows = image_folder(self.index, self.where.root)
            return order_files.read_order([str(self.path)], self.index, self.where, lambda: rows, repeats=again)

        found = self._read(kind, data, read, ValueError)
        if found is not None and any(len(e) and not 0 <= e.min() <= e.max() < len(found.rows) for e in found.epochs):
            raise Wrong("an order that leads nowhere")

    def _array(self, rng: Random) -> None:
        if rng.random() < 0.4:
            data = mutated(rng, self.array)
        elif rng.random() < 0.5:
            values = np.array([signed(rng) for _ in range(rng.randrange(1, 9))], rng.choice(("<i8", ">i8")))
            saved = io.BytesIO()
            np.save(saved, values)
            data = saved.getvalue()
        else:
            header = mutated(rng, rng.choice(HEADERS).encode()) if rng.random() < 0.5 else rng.choice(HEADERS).encode()
            version = rng.choice((b"\1\0", b"\2\0", b"\3\0", b"\4\0", b"\0\0"))
            size = len(header).to_bytes(8, "little")[: 2 if version == b"\1\0" else 4]
            data = b"\x93NUMPY" + version + size + header + rng.randbytes(64)
        self._order("array", data, rng)

    def _list(self, rng: Random) -> None:
        words = (
            b"\0", b"\n\n", b"/" * 5000, b"../" * 100, b"a/" * 2040, b"\xff\xfe", b"fifo", b"out", b"empty", b"\r\n"
        )  # fmt: skip
        self._order("list", mutated(rng, self.lists, words) if rng.random() < 0.9 else garbage(rng, 9000), rng)
