"""A cluster (`performance.model.Cluster`) as TOML. A file has

    name = "thesis"
    note = "where the figures come from"    # optional
    nodes = 4
    ranks = 1                   # on each node; optional: 1
    compute = "100 MB/s"        # of one rank
    preprocess = "200 MB/s"     # of one staging thread; optional: no limit
    network = "10000 MB/s"      # between two nodes; only a single node can do without
    [source]
    rate = { 1 = "66 MB/s", 2 = "86 MB/s" }     # of so many nodes together; or one rate for any number
    link = "2000 MB/s"          # of one node; optional: no limit
    latency = "5ms"             # of a file; optional: 0
    at_once = 64                # files that one node has under way; optional: 1
    [staging]
    capacity = "1024 MB"        # or a list: node i has the entry i modulo its length
    threads = 2
    read = { 2 = "21164 MB/s" } # of so many threads together; or one rate
    write = "21164 MB/s"        # optional: as read
    [[class]]                   # 1, 2, ...: fastest first; with the keys of [staging], and a name
    name = "ram"

Sizes and rates as in `units`, or in bytes and bytes per second. Two cases are no errors: a class of capacity 0
holds nothing, and there may be more nodes than samples.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Collection
from contextlib import suppress

from nopfsfs.errors import NopfsError
from nopfsfs.performance.model import MOST_CLASSES, Cluster, Curve, SourceModel, StorageClass
from nopfsfs.system.atomic_file import whole_file
from nopfsfs.text import toml_table
from nopfsfs.text.toml_table import TomlTable, rate, whole
from nopfsfs.text.units import MAX_RANKS, MAX_SIZE, exact_duration, exact_size, format_rate

KEYS = ("name", "note", "nodes", "ranks", "compute", "preprocess", "network", "source", "staging", "class")
SOURCE_KEYS = ("rate", "link", "latency", "at_once")
STAGING_KEYS = ("capacity", "threads", "read", "write")
STAGING = "staging"  # the name of storage class 0
MAX_THREADS = 1 << 16  # of a class, and files under way: each is a thread of a node
_POINT = re.compile(r"\d{1,9}(?:\.\d{1,18})?", re.ASCII)
_A_RATE = '"146 MB/s"'


def read_cluster(path: str, users: Collection[int] | None = None) -> Cluster:
    """Read the cluster of a file. `users`: ids of the users who may own the file, which then may not be a link. Raises
    NopfsError with Exit.USAGE, which names file, line and key; ForeignFile."""
    return parse_cluster(toml_table.read_text(path, "a cluster file", users), path)


def parse_cluster(text: str, origin: str) -> Cluster:
    """The cluster of a text; `origin` is for messages. Raises NopfsError with Exit.USAGE."""
    top = TomlTable.parse(text, origin)
    top.only(KEYS)
    top.may("note", toml_table.text, "")
    nodes = top.need("nodes", whole(1, MAX_RANKS), "4")
    if nodes > 1 and "network" not in top.values:
        raise top.error("network", f'missing; write what two of the {nodes} nodes exchange: network = "10000 MB/s"')
    cluster = Cluster(
        name=top.need("name", toml_table.name, '"thesis"'),
        nodes=nodes,
        compute=top.need("compute", rate, _A_RATE),
        network=top.may("network", rate, math.inf),
        source=_source(top.table("source")),
        staging=_staging(top.table(STAGING)),
        classes=_classes(top.tables("class")),
        preprocess=top.may("preprocess", rate, math.inf),
        ranks=top.may("ranks", whole(1, MAX_RANKS), 1),
    )
    if cluster.ranks * nodes > MAX_RANKS:
        raise top.error("ranks", f"{nodes} nodes of {cluster.ranks} are more than {MAX_RANKS} ranks; write fewer")
    if nodes * sum(max(one.capacity) for one in (cluster.staging, *cluster.classes)) > MAX_SIZE:
        raise top.error("nodes", "all nodes together have more room than any file system; write fewer or less capacity")
    return cluster


def _source(table: TomlTable) -> SourceModel:
    table.only(SOURCE_KEYS)
    return SourceModel(
        rate=_curve(table, "rate"),
        link=table.may("link", rate, math.inf),
        latency=table.may("latency", toml_table.seconds, 0.0),
        at_once=table.may("at_once", whole(1, MAX_THREADS), 1),
    )


def _staging(table: TomlTable) -> StorageClass:
    table.only(STAGING_KEYS)
    return _storage(table, STAGING)


def _classes(tables: list[TomlTable]) -> tuple[StorageClass, ...]:
    if len(tables) > MOST_CLASSES:
        raise tables[MOST_CLASSES].error(
            "name", f"{len(tables)} storage classes are given; write at most {MOST_CLASSES}"
        )  # fmt: skip
    classes: list[StorageClass] = []
    for table in tables:
        table.only(("name", *STAGING_KEYS))
        name = table.need("name", toml_table.name, '"ram"')
        if name in (STAGING, *(one.name for one in classes)):
            raise table.error("name", f"{name!r} is the name of another class; write one of its own")
        classes.append(_storage(table, name))
    return tuple(classes)


def _storage(table: TomlTable, name: str) -> StorageClass:
    read = _curve(table, "read")
    return StorageClass(
        name=name,
        capacity=table.need("capacity", _capacity, '"1024 MB"'),
        threads=table.need("threads", whole(1, MAX_THREADS), "2"),
        read=read,
        write=_curve(table, "write") if "write" in table.values else read,
    )


def _capacity(value: object) -> tuple[int, ...]:
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise ValueError('the list is empty: write a size for each node, such as ["50 GB", "100 GB"]')
    return tuple(map(toml_table.size(), entries))


def _curve(table: TomlTable, key: str) -> Curve:
    if not isinstance(table.values.get(key), dict):
        return Curve.flat(table.need(key, rate, _A_RATE))
    points = table.table(key)
    curve: dict[float, float] = {}
    for point, value in points.values.items():
        x = float(point) if _POINT.fullmatch(point) else 0.0
        if not 1 <= x <= MAX_RANKS:
            raise points.error(point, f"{point!r} is no number from 1 to {MAX_RANKS}; write how many share the rate")
        if isinstance(value, dict):
            raise points.error(point, 'a table is given; write a number with a point in quotes: "1.5" = "66 MB/s"')
        if x in curve:
            raise points.error(point, f"{x:g} is given twice; leave one out")
        curve[x] = points.need(point, rate, _A_RATE)
    if not curve:
        raise table.error(key, 'no point is given; write a rate, or the rate of 1, 2, ... of them: { 1 = "66 MB/s" }')
    return Curve(tuple(sorted(curve.items())))


def class_name(path: str) -> str:
    """The name of the class of the disk tier in directory `path`: the path itself. Where the path is no valid name, as
    one that is too long, the name is its end and a digest."""
    text = os.fsencode(path).decode(errors="backslashreplace")
    with suppress(ValueError):
        return toml_table.name(text)
    end = "".join(one if one.isprintable() else "?" for one in text[-60:])
    return f"...{end} {hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def write_cluster(cluster: Cluster, path: str, note: str = "") -> None:
    """Write a file that `read_cluster` turns back into exactly this cluster, whole or not at all. Raises ValueError for
    a cluster that no file describes, and NopfsError with Exit.USAGE where the file cannot be written."""
    text = format_cluster(cluster, note)
    try:
        with whole_file(path, 0o600) as file:
            file.write(text.encode())
    except OSError as error:
        raise toml_table.usage(path, None, f"{error.strerror or error}; name a file in a directory of yours") from error


def format_cluster(cluster: Cluster, note: str = "") -> str:
    """The text of a file that describes this cluster. Raises ValueError for one that no file describes, as with a rate
    of 0."""
    lines = [f"name = {_quoted(cluster.name)}"]
    if note:
        lines.append(f"note = {_quoted(note)}")
    lines += [f"nodes = {cluster.nodes}", f"ranks = {cluster.ranks}"]
    for key, value in (("compute", cluster.compute), ("preprocess", cluster.preprocess), ("network", cluster.network)):
        lines += _limit(key, value)
    source = cluster.source
    lines += ["", "[source]", f"rate = {_curve_text(source.rate)}", *_limit("link", source.link)]
    lines += [f'latency = "{exact_duration(source.latency)}"', f"at_once = {source.at_once}"]
    lines += ["", f"[{STAGING}]", *_storage_lines(cluster.staging)]
    for one in cluster.classes:
        lines += ["", "[[class]]", f"name = {_quoted(one.name)}", *_storage_lines(one)]
    text = "\n".join([*lines, ""])
    try:
        if parse_cluster(text, cluster.name) != cluster:
            raise ValueError(f"no file describes {cluster}")
    except NopfsError as error:
        raise ValueError(f"no file describes {cluster}: {error.message}") from error
    return text


def _limit(key: str, value: float) -> list[str]:
    return [f'{key} = "{format_rate(value)}"'] if value != math.inf else []


def _storage_lines(one: StorageClass) -> list[str]:
    sizes = [f'"{_size_text(size)}"' for size in one.capacity]
    capacity = sizes[0] if len(sizes) == 1 else f"[{', '.join(sizes)}]"
    lines = [f"capacity = {capacity}", f"threads = {one.threads}", f"read = {_curve_text(one.read)}"]
    return lines if one.write == one.read else [*lines, f"write = {_curve_text(one.write)}"]


def _size_text(size: int) -> str:
    return f"{size // 10**6} MB" if size and size % 10**6 == 0 else exact_size(size)


def _curve_text(curve: Curve) -> str:
    if len(curve.points) == 1 and curve.points[0][0] == 1:  # Curve.flat
        return f'"{format_rate(curve.points[0][1])}"'
    points = [f'{_point(x)} = "{format_rate(y)}"' for x, y in curve.points]
    return f"{{ {', '.join(points)} }}"


def _point(x: float) -> str:
    return f"{x:.0f}" if float(x).is_integer() else f'"{float(x)!r}"'


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes as JSON does, and DEL
    quoted.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
    return quoted
