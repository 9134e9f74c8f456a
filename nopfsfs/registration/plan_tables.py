"""Checks of the plans that users state: tables of a plan file and requests on the control socket have the same keys.

{"command": "register", "plans": [table, ...]}    adds plans; each replaces a registered one of the same root and subset
{"command": "plan", "next": N}                    returns the plans of the mount, and the next N paths
{"command": "forget"}                             drops the registered plans

Further keys of a request are ignored (docs/control-socket.md). docs/plan-files.md describes a table. In a plan file,
`order` may be relative to the file; here it is absolute. Does no I/O.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from nopfsfs.config import PlanSpec, SubsetSpec, Value
from nopfsfs.dataset.file_orders import ORDERS
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Sampler, Spec, Subset
from nopfsfs.text.toml_table import KINDS
from nopfsfs.text.units import format_ranks, parse_ranks

EXPLICIT = "explicit"  # the sampler of a plan with `order`
PLANS_MOST = 16  # of a mount: the supervisor follows each
WORLD_MOST = 1 << 20
RANKS_MOST = 4096  # of one node: the supervisor follows each, and a million of them would block it for seconds
EPOCH_MOST = 1 << 31
TEXT_MOST = 4096  # characters: a path, or a generator's state
ORDERS_MOST = 1024  # files of `order`, one for each epoch
NEXT_MOST = 100_000  # paths in an answer: some MiB
_LOADER_MOST = 1 << 20  # of workers, prefetch and batch each
_INFLIGHT_MOST = 1 << 24  # accesses

Table = Mapping[str, Any]


class PlanError(ValueError):
    """An error in a plan: the number of its table, from 0, the key ("options.drop_last"), and the reason."""

    def __init__(self, plan: int, key: str, reason: str) -> None:
        super().__init__(f"plan {plan + 1}: {key}: {reason}" if key else f"plan {plan + 1}: {reason}")
        self.plan, self.key, self.reason = plan, key, reason


class _Wrong(Exception):
    """An error in a table: the key, and the reason."""


def parse(request: Table) -> tuple[PlanSpec, ...]:
    """The plans of a `register` request. Raises ValueError with a text of one line."""
    plans = request.get("plans")
    if not isinstance(plans, list):
        raise ValueError("plans: a list of tables is expected")
    return parse_plans(plans)


def parse_next(request: Table) -> int:
    """The number of paths that a `plan` request asks for. Raises ValueError with a text of one line."""
    count = request.get("next", 0)
    if type(count) is not int or not 0 <= count <= NEXT_MOST:
        raise ValueError(f"next: {count!r} is not a whole number from 0 to {NEXT_MOST}")
    return count


def parse_plans(tables: list[Any]) -> tuple[PlanSpec, ...]:
    """The plans of some tables. Raises PlanError; ValueError for no table or more than `PLANS_MOST`."""
    if not 1 <= len(tables) <= PLANS_MOST:
        raise ValueError(f"plans: {len(tables)} are given, 1 to {PLANS_MOST} are possible")
    plans = []
    for number, table in enumerate(tables):
        try:
            plans.append(_plan(table))
        except _Wrong as error:
            raise PlanError(number, *error.args) from error
    return tuple(plans)


def spec_of(plan: PlanSpec, seed: int | None = None) -> Spec:
    """The sampler of a plan, without an order. `seed`: where the plan has none. Raises ValueError."""
    family = registry.sampler(plan.sampler)
    options = dict(plan.options)
    seed = plan.seed if plan.seed is not None else seed
    if seed is None and family.seeds is not None and "state" not in options:
        raise ValueError(f"seed: {family.name} has one; say which, such as 42")
    return registry.make_spec(family, seed or 0, options)


def subset_of(plan: PlanSpec, seed: int | None = None) -> Spec | None:
    """The part of the files that a plan reads; None: all. `seed`: where neither subset nor plan has one."""
    if plan.subset is None:
        return None
    found = next((one for one in (plan.subset.seed, plan.seed, seed) if one is not None), 0)
    return registry.make_spec(registry.subset(plan.subset.name), found, dict(plan.subset.options))


def _plan(table: Any) -> PlanSpec:
    if not isinstance(table, Mapping):
        raise _Wrong("", "a table is expected")
    for key in table:
        if key not in _KEYS:
            raise _Wrong(str(key), f"no such key of a plan; known are {', '.join(_KEYS)}")
    said = {key: check(key, table[key]) for key, check in _KEYS.items() if key in table}
    order = said.get("order", ())
    sampler = said.setdefault("sampler", EXPLICIT if order else None)
    if sampler is None:
        raise _Wrong("sampler", "is missing; name a sampler, or give an order")
    options, seed = said.get("options", ()), said.get("seed")
    if order and sampler != EXPLICIT:
        raise _Wrong("order", f"is not for {sampler}; leave out the sampler, or the order")
    if sampler == EXPLICIT:
        _check_explicit(said)
    else:
        if "repeats" in said:
            raise _Wrong("repeats", "is for a given order only")
        check_spec(_named("sampler", registry.sampler, sampler), seed, dict(options), "")
    _check_ranks(said.get("world_size"), said.get("ranks"))
    inflight = said.pop("loader", None)
    return PlanSpec(**said, inflight=inflight)


def _check_explicit(said: Mapping[str, Any]) -> None:
    if not said.get("order"):
        raise _Wrong("order", "is missing: name files that hold the order")
    for key in ("seed", "options", "subset"):
        if said.get(key):
            raise _Wrong(key, "a given order has none; leave it out")


def _check_ranks(size: int | None, ranks: tuple[int, ...] | None) -> None:
    if size is not None and ranks is not None and ranks[-1] >= size:
        outside = format_ranks(rank for rank in ranks if rank >= size)
        raise _Wrong("ranks", f"{outside} outside the world of {size} (0-{size - 1}); correct ranks or world_size")
    here = len(ranks) if ranks is not None else size or 1
    if here > RANKS_MOST:
        raise _Wrong("ranks", f"{here} on one node are more than {RANKS_MOST}; say those of this node")


def check_spec(of: Sampler | Subset, seed: int | None, options: Mapping[str, Value], above: str) -> None:
    """Raise _Wrong for options or a seed that the sampler does not take; the keys in errors begin with `above`."""
    known = seed if seed is not None or of.seeds is None else of.seeds[0]
    if seed is not None and of.seeds is None:
        raise _Wrong(f"{above}seed", f"{of.name} takes none; leave it out")
    try:
        registry.make_spec(of, known or 0, options)
    except ValueError as error:
        key, _, reason = str(error).partition(": ")
        place = "seed" if key == "seed" and key not in options else f"options.{key}"
        raise _Wrong(above + place, reason) from None


def _named(key: str, find: Callable[[str], Any], name: str) -> Any:
    try:
        return find(name)
    except ValueError as error:
        raise _Wrong(key, str(error)) from None


# ---- one check for each key: from (key, value) to the value in PlanSpec -----------------------------------------


def _typed(key: str, value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:  # exactly: in Python, True is an int
        wanted = " or ".join(KINDS[kind] for kind in kinds)
        raise _Wrong(key, f"{KINDS.get(type(value), 'something else')} is given, {wanted} is expected")
    return value


def _text(key: str, value: Any) -> str:
    text: str = _typed(key, value, str)
    if not text or len(text) > TEXT_MOST or "\0" in text:
        raise _Wrong(key, "is empty" if not text else f"is no text of at most {TEXT_MOST} characters")
    return text


def _number(least: int, most: int) -> Callable[[str, Any], int]:
    def check(key: str, value: Any) -> int:
        number: int = _typed(key, value, int)
        if not least <= number <= most:
            raise _Wrong(key, f"{number} is not from {least} to {most}")
        return number

    return check


def _sampler(key: str, value: Any) -> str:
    name = _text(key, value)
    if name == registry.AUTO:
        raise _Wrong(key, "a plan names its sampler; auto is for the command line")
    if name != EXPLICIT:
        _named(key, registry.sampler, name)
    return name


def _root(key: str, value: Any) -> str:
    """A path below the mount without dots; "" for the whole mount."""
    path: str = _typed(key, value, str)
    if path.startswith("/") or len(path) > TEXT_MOST or "\0" in path or ".." in path.split("/"):
        raise _Wrong(key, f"{path!r} is not below the mount; write a path relative to it, such as train")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return "/".join(parts)


def _files(key: str, value: Any) -> str:
    name = _text(key, value)
    if name not in ORDERS:
        raise _Wrong(key, f"unknown file order {name!r}: known are {', '.join(ORDERS)}")
    return name


def _ranks(key: str, value: Any) -> tuple[int, ...]:
    _typed(key, value, str, int, list)
    words = value if isinstance(value, list) else [value]
    if isinstance(value, list):
        for word in words:
            _typed(key, word, int)
    try:
        ranks = parse_ranks(",".join(map(str, words)))
    except ValueError as error:
        raise _Wrong(key, str(error)) from None
    if ranks[-1] >= WORLD_MOST:
        raise _Wrong(key, f"{ranks[-1]} is no rank of a world of at most {WORLD_MOST}")
    return ranks


def _options(key: str, value: Any) -> tuple[tuple[str, Value], ...]:
    _typed(key, value, dict)
    for name, option in value.items():
        place = f"{key}.{name}"
        _typed(place, option, bool, int, float, str)
        if isinstance(option, str) and len(option) > TEXT_MOST:
            raise _Wrong(place, f"is longer than {TEXT_MOST} characters")
        if isinstance(option, float) and not math.isfinite(option):
            raise _Wrong(place, f"{option} is not a number to count with")
        if isinstance(option, int) and abs(option) >= 1 << 64:
            raise _Wrong(place, f"{option} has more than 64 bits")
    return tuple(sorted(value.items()))


def _subset(key: str, value: Any) -> SubsetSpec:
    _typed(key, value, dict)
    checks: Mapping[str, Callable[[str, Any], Any]] = {"name": _text, "seed": _seed, "options": _options}
    for name in value:
        if name not in checks:
            raise _Wrong(f"{key}.{name}", f"no such key of a subset; known are {', '.join(checks)}")
    if "name" not in value:
        raise _Wrong(f"{key}.name", f"is missing; known subsets are {', '.join(registry.SUBSETS) or 'none'}")
    said = {name: check(f"{key}.{name}", value[name]) for name, check in checks.items() if name in value}
    rule = _named(f"{key}.name", registry.subset, said["name"])
    check_spec(rule, said.get("seed"), dict(said.get("options", ())), f"{key}.")
    return SubsetSpec(**said)


def _order(key: str, value: Any) -> tuple[str, ...]:
    _typed(key, value, str, list)
    paths = value if isinstance(value, list) else [value]
    if not 1 <= len(paths) <= ORDERS_MOST:
        raise _Wrong(key, f"{len(paths)} files are named, 1 to {ORDERS_MOST} are possible")
    for path in paths:
        if not os.path.isabs(_text(key, path)):
            raise _Wrong(key, f"{path!r} is not an absolute path")
    return tuple(paths)


def _loader(key: str, value: Any) -> int:
    """The most accesses that a loader has begun: those of torch's DataLoader (workers x prefetch_factor batches), and
    the batch in use."""
    _typed(key, value, dict)
    known = {"workers": 0, "prefetch": 2, "batch": 1}  # DataLoader's defaults
    for name in value:
        if name not in known:
            raise _Wrong(f"{key}.{name}", f"no such key of a loader; known are {', '.join(known)}")
    said = {
        name: _number(1 if name == "batch" else 0, _LOADER_MOST)(f"{key}.{name}", value.get(name, usual))
        for name, usual in known.items()
    }
    inflight = said["workers"] * said["prefetch"] * said["batch"] + said["batch"]
    if inflight > _INFLIGHT_MOST:
        raise _Wrong(key, f"{inflight} accesses at a time are more than {_INFLIGHT_MOST}")
    return inflight


def _flag(key: str, value: Any) -> bool:
    flag: bool = _typed(key, value, bool)
    return flag


_seed = _number(-(2**63), 2**64 - 1)

_KEYS: Mapping[str, Callable[[str, Any], Any]] = {
    "sampler": _sampler,
    "root": _root,
    "files": _files,
    "seed": _seed,
    "epoch": _number(0, EPOCH_MOST),
    "world_size": _number(1, WORLD_MOST),
    "ranks": _ranks,
    "options": _options,
    "subset": _subset,
    "order": _order,
    "repeats": _flag,
    "loader": _loader,
}
KEYS = tuple(_KEYS)
