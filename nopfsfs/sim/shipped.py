"""The clusters and data sets that come with the package, by name, and files of the same formats by path."""

from __future__ import annotations

import difflib
import os
from importlib import resources

from nopfsfs.errors import Exit, NopfsError
from nopfsfs.performance.cluster_file import parse_cluster, read_cluster
from nopfsfs.performance.model import Cluster
from nopfsfs.sim.dataset_file import parse_dataset, read_dataset
from nopfsfs.sim.training import SimDataSet, Training

CLUSTERS, DATASETS = "clusters", "datasets"
_SUFFIX = ".toml"


def shipped_clusters() -> list[str]:
    """The names of the clusters, in order."""
    return _names(CLUSTERS)


def shipped_datasets() -> list[str]:
    """The names of the data sets, in order."""
    return _names(DATASETS)


def find_cluster(name_or_path: str) -> Cluster:
    """The shipped cluster of that name, or else the cluster of the file. Raises NopfsError with Exit.USAGE."""
    if name_or_path in shipped_clusters():
        return parse_cluster(*_shipped(CLUSTERS, name_or_path))
    _check_path(name_or_path, shipped_clusters(), "cluster")
    return read_cluster(name_or_path)


def find_dataset(name_or_path: str) -> tuple[SimDataSet, Training]:
    """The shipped data set of that name, or else the data set of the file. Raises NopfsError with Exit.USAGE."""
    if name_or_path in shipped_datasets():
        return parse_dataset(*_shipped(DATASETS, name_or_path))
    _check_path(name_or_path, shipped_datasets(), "data set")
    return read_dataset(name_or_path)


def _names(folder: str) -> list[str]:
    entries = (resources.files("nopfsfs.sim") / folder).iterdir()
    return sorted(entry.name[: -len(_SUFFIX)] for entry in entries if entry.name.endswith(_SUFFIX))


def _shipped(folder: str, name: str) -> tuple[str, str]:
    """The text of a shipped file, and its path."""
    entry = resources.files("nopfsfs.sim") / folder / (name + _SUFFIX)
    return entry.read_text(encoding="utf-8"), str(entry)


def _check_path(given: str, names: list[str], what: str) -> None:
    """Refuse a word that is neither a file nor written as the path of one."""
    if os.path.isfile(given) or os.sep in given or given.endswith(_SUFFIX):
        return
    near = difflib.get_close_matches(given[:80].lower(), names, 1, 0.5)
    meant = f"did you mean {near[0]}? " if near else ""
    known = f"there are {', '.join(names)}, or name a file"
    raise NopfsError(Exit.USAGE, f"{given[:80]!r} is neither a {what} nor a file; {meant}{known}")
