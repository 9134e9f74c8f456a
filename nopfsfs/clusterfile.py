"""A cluster as a TOML file. TO BE REPLACED by the module of this name that is written elsewhere: the same functions, of
the same signatures, and the same format; this one checks nothing and knows only what it writes itself."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from typing import Any

from nopfsfs.policy.model import Cluster, Curve, Source, StorageClass

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def write_cluster(cluster: Cluster, path: str, note: str = "") -> None:
    """Write the file, whole or not at all. Raises OSError."""
    source = cluster.source
    lines = [f"name = {json.dumps(cluster.name)}", f"note = {json.dumps(note)}"]
    lines += [f"nodes = {cluster.nodes}", f"ranks = {cluster.ranks}", f"compute = {_rate(cluster.compute)}"]
    for name, rate in (("preprocess", cluster.preprocess), ("network", cluster.network)):
        lines += [f"{name} = {_rate(rate)}"] if rate < math.inf else []
    lines += ["", "[source]", f'latency = "{source.latency * 1000:.6g}ms"', f"at_once = {source.at_once}"]
    lines += [f"link = {_rate(source.link)}"] if source.link < math.inf else []
    lines += [f"rate = {_curve(source.rate)}", "", "[staging]", *_storage(cluster.staging)]
    for one in cluster.classes:
        lines += ["", "[[class]]", f"name = {json.dumps(one.name)}", *_storage(one)]
    fd, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".", prefix=".cluster-", suffix=".tmp")
    try:
        with os.fdopen(fd, "w") as file:
            file.write("\n".join(lines) + "\n")
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_cluster(path: str) -> Cluster:
    """Read what `write_cluster` wrote."""
    with open(path, "rb") as file:
        table = tomllib.load(file)
    source = table["source"]
    return Cluster(
        table["name"],
        table["nodes"],
        _number(table["compute"]),
        _number(table.get("network", "inf")),
        Source(
            _points(source["rate"]),
            _number(source.get("link", "inf")),
            float(source["latency"].removesuffix("ms")) / 1000,
            source["at_once"],
        ),
        _class({**table["staging"], "name": "staging"}),
        tuple(_class(one) for one in table.get("class", ())),
        _number(table.get("preprocess", "inf")),
        table["ranks"],
    )


def _rate(rate: float) -> str:
    return f'"{rate / 1e6:.6g} MB/s"'


def _number(text: str) -> float:
    return math.inf if text == "inf" else float(text.removesuffix(" MB/s")) * 1e6


def _curve(curve: Curve) -> str:
    return "{ " + ", ".join(f"{x:g} = {_rate(rate)}" for x, rate in curve.points) + " }"


def _points(table: dict[str, str]) -> Curve:
    return Curve(tuple(sorted((float(x), _number(rate)) for x, rate in table.items())))


def _storage(one: StorageClass) -> list[str]:
    capacity = ", ".join(str(size) for size in one.capacity)
    return [
        f"capacity = [{capacity}]",
        f"threads = {one.threads}",
        f"read = {_curve(one.read)}",
        f"write = {_curve(one.write)}",
    ]


def _class(table: dict[str, Any]) -> StorageClass:
    return StorageClass(
        table["name"], tuple(table["capacity"]), table["threads"], _points(table["read"]), _points(table["write"])
    )
