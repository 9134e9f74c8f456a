"""`nopfsfs.register`: a training script registers the order in which it will read (docs/python.md).

Reads the attributes of live samplers; imports no framework. An order that the registry can compute is sent as a name
with options (a generator as its state). Other orders, over a part of a data set or of the user's own, are sent as
arrays in a private directory. The directory is removed when the mount has answered.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.control.client import Refused
from nopfsfs.control.find_mount import Located, find_mount_above
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.registration.plan_tables import KEYS, PlanError, parse_plans
from nopfsfs.registration.torch_objects import SAMPLES_MOST, Samples, Table, live

ANSWER_S = 120.0  # the mount reads and computes orders of millions of files before it answers
EPOCHS = 8  # of a part of a data set, which are sent as arrays, where the caller gives no number


def register(
    mount: str | os.PathLike[str],
    sampler: Any = None,
    *,
    root: str | os.PathLike[str] | None = None,
    files: str | None = None,
    seed: int | None = None,
    epochs: int | None = None,
    repeats: bool = False,
    missing_ok: bool = False,
    **options: Any,
) -> bool:
    """Register with the mount at (or above) `mount` what will be read. Return True when the mount has taken the plan.

    `sampler`: a torch DataLoader or sampler in its present state: call this before the first epoch's iterator is made.
    Or a sampler's name, with `seed` and `options` (and keys of a plan file, such as `epoch`, `ranks`, `loader`). Or
    indices of an epoch, or paths, or a list of several epochs of these. `root`: the data set's directory, relative to
    the mount or absolute. `files`: the file order. `epochs`: the number of epochs to send of a part of a data set.
    `repeats`: an order of indices or paths may name a file twice. `missing_ok`: return False where nothing is mounted.

    Raises ValueError for a sampler that cannot be described, NopfsError where there is no mount or the mount refuses.
    """
    try:
        located, below = find_mount_above(os.fspath(mount))
    except NopfsError as error:
        if missing_ok and error.exit_code is Exit.NOT_MOUNTED:
            return False
        raise
    table, arrays = describe(sampler, seed=seed, epochs=epochs, repeats=repeats, options=options)
    dataset = table.pop("dataset", None)
    directory = _below(os.fspath(root) if root is not None else below or dataset, located.path, root is not None)
    if directory is not None:
        table["root"] = directory
    if files is not None:
        table["files"] = files
    with _written(arrays) as paths:
        _send(located, {**table, "order": paths} if paths else table)
    return True


def _send(located: Located, table: Table) -> None:
    """Send a plan to the mount. Raises ValueError for a plan that is wrong, NopfsError for one that the mount refuses,
    or for a mount that does not answer."""
    try:
        parse_plans([table])
    except PlanError as error:
        raise ValueError(f"{error.key}: {error.reason}") from None
    try:
        located.call("register", ANSWER_S, plans=[table])
    except Refused as error:
        raise NopfsError(Exit.USAGE, f"the mount at {located.path} takes no such plan: {error.reason}") from None


def _below(path: str | None, mountpoint: str, said: bool) -> str | None:
    """A directory relative to the mount; None where it lies outside. Raises ValueError for a directory outside that the
    user named (`said`)."""
    if path is None or not os.path.isabs(path):
        return path
    relative = os.path.relpath(path, mountpoint)
    if relative == ".." or relative.startswith("../"):
        if said:
            raise ValueError(f"root: {path} is not below {mountpoint}")
        return None
    return "" if relative == "." else relative


# ---- the table of a sampler ---------------------------------------------------------------------------------------


def describe(
    sampler: Any,
    *,
    seed: int | None = None,
    epochs: int | None = None,
    repeats: bool = False,
    options: Mapping[str, Any],
) -> tuple[Table, list[Samples] | list[list[str]]]:
    """The table of a plan without its order, and the epochs of that order, if any: indices or paths. The key `dataset`
    has the root that a live data set names. Raises ValueError."""
    if sampler is None:
        raise ValueError("sampler: name one, or give a torch sampler, an array of indices or a list of paths")
    if isinstance(sampler, str):
        return _named(sampler, seed, options), []
    if seed is not None:
        raise ValueError("seed: goes with a sampler's name; what was given has its own")
    found_live = live(sampler, EPOCHS if epochs is None else epochs)
    if found_live is not None:
        table, arrays = found_live
        return {**table, **_keys_only(options)}, arrays
    found = _given(sampler)
    said = {"repeats": True} if repeats else {}
    return {**said, **_keys_only(options)}, found


def _named(name: str, seed: int | None, options: Mapping[str, Any]) -> Table:
    table: Table = {"sampler": name}
    if seed is not None:
        table["seed"] = int(seed)
    own = {}
    for key, value in options.items():
        if key in KEYS and not (key == "subset" and isinstance(value, str)):  # Keras' option has that name
            table[key] = list(value) if isinstance(value, (tuple, range)) else value
        else:
            own[key] = value.item() if isinstance(value, np.generic) else value
    if own:
        table["options"] = {**table.get("options", {}), **own}
    return table


def _keys_only(options: Mapping[str, Any]) -> Table:
    for key in options:
        if key not in KEYS:
            raise ValueError(f"{key}: options go with a sampler's name; what was given has its own")
    return {key: value for key, value in _named("", None, options).items() if key != "sampler"}


# ---- orders of the user's own -------------------------------------------------------------------------------------


def _given(given: Any) -> list[Samples] | list[list[str]]:
    """The epochs of indices or paths in any of their usual forms. Raises ValueError."""
    if hasattr(given, "__array__") and not isinstance(given, np.generic):
        return _rows(np.asarray(given))
    order: Sequence[Any] = given if isinstance(given, (list, tuple, range)) else ()
    if not order:
        raise ValueError(f"sampler: {type(given).__name__} is no sampler, and no order that is not empty")
    first = order[0]
    if isinstance(first, (str, os.PathLike)):
        return [_paths(order)]
    if isinstance(first, (list, tuple)) and first and isinstance(first[0], (str, os.PathLike)):
        return [_paths(epoch) for epoch in order]
    if isinstance(first, (int, np.integer)):
        return _rows(_whole_numbers(order))
    return [row for epoch in order for row in _rows(_whole_numbers(epoch))]


def _whole_numbers(values: Any) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError("sampler: the order is neither indices nor paths") from error


def _rows(array: NDArray[Any]) -> list[Samples]:
    if array.ndim not in (1, 2) or array.dtype.kind not in "iu" or not array.size:
        what = f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"sampler: {what}; whole numbers in 1 or 2 dimensions are needed")
    if array.size > SAMPLES_MOST:
        raise ValueError(f"sampler: {array.size} samples are more than {SAMPLES_MOST}")
    return list(np.atleast_2d(array))


def _paths(order: Sequence[Any]) -> list[str]:
    paths = []
    for place, path in enumerate(order):
        text = os.fsdecode(path) if isinstance(path, (str, os.PathLike)) else ""
        if not text or "\n" in text or "\0" in text:
            raise ValueError(f"sampler: position {place}: {path!r} is not a path")
        paths.append(text)
    return paths


@contextmanager
def _written(epochs: Sequence[Samples | list[str]]) -> Iterator[list[str]]:
    """Yield the paths of files with the epochs, in a directory that only this user and root can enter."""
    if not epochs:
        yield []
        return
    directory = tempfile.mkdtemp(prefix="nopfs-")
    try:
        paths = []
        for number, epoch in enumerate(epochs):
            path = os.path.join(directory, f"{number}.{'npy' if isinstance(epoch, np.ndarray) else 'txt'}")
            if isinstance(epoch, np.ndarray):
                np.save(path, epoch)
            else:
                with open(path, "wb") as file:
                    file.write(b"".join(os.fsencode(line) + b"\n" for line in epoch))
            paths.append(path)
        yield paths
    finally:
        shutil.rmtree(directory, ignore_errors=True)
