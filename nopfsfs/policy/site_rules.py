"""The rules of a site: how much of a source which mounts may take, and when. Pure.

A TOML file with version 1, a table `default` and tables [[rule]] (docs/operations.md has an example). All rules that
match apply, later ones over earlier.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import TypeGuard

from nopfsfs.config import MAX_CONCURRENCY
from nopfsfs.text import toml_table
from nopfsfs.text.toml_table import TomlTable, whole
from nopfsfs.text.units import format_rate

VERSION = 1
RULES_MOST = 1000
WEIGHT_LEAST, WEIGHT_MOST = 0.01, 100.0
DAY = 24 * 60  # minutes
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]|24):([0-5]\d)", re.ASCII)
_KEYS = ("weight", "concurrency", "bandwidth", "share")


class SiteShare(str, Enum):
    """The share that a job of n nodes has: of n nodes, of their root, or of one."""

    NODE = "node"
    ROOT = "root"
    JOB = "job"

    def ranks(self, nodes: int) -> int:
        """The number of ranks by whose root each mount of the job takes less."""
        return {SiteShare.NODE: 1, SiteShare.ROOT: nodes, SiteShare.JOB: nodes * nodes}[self]


@dataclass(frozen=True, slots=True)
class SiteLimits:
    """Limits of a mount. `weight`: its claim; `concurrency`: the most requests under way at the source; `bandwidth`:
    bytes a second of the whole job, None: no bound."""

    weight: float = 1.0
    concurrency: int = MAX_CONCURRENCY
    bandwidth: int | None = None
    share: SiteShare = SiteShare.ROOT

    def text(self) -> str:
        """The limits in words."""
        words = [f"weight {self.weight:g}", f"at most {self.concurrency} requests under way"]
        words.append(f"share {self.share.value}")
        return ", ".join([*words, f"{format_rate(self.bandwidth)} of the whole job"] if self.bandwidth else words)


@dataclass(frozen=True, slots=True)
class MountIdentity:
    """A mount as rules see it: names of its user and its job, the path of its source."""

    user: str
    job: str
    source: str


@dataclass(frozen=True, slots=True)
class SiteRule:
    """A rule: which mounts, when (minutes of the day, from and to), and what it sets. An empty tuple matches all."""

    user: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    hours: tuple[int, int] | None = None
    weight: float | None = None
    concurrency: int | None = None
    bandwidth: int | None = None
    share: SiteShare | None = None

    def matches(self, mount: MountIdentity, minute: int) -> bool:
        """Return whether the rule is for that mount at that minute of the day."""
        for patterns, value in (self.user, mount.user), (self.job, mount.job), (self.source, mount.source):
            if patterns and not any(fnmatchcase(value, pattern) for pattern in patterns):
                return False
        if self.hours is None:
            return True
        begin, end = self.hours
        return begin <= minute < end if begin < end else minute >= begin or minute < end

    def applied_to(self, limits: SiteLimits) -> SiteLimits:
        """Return the limits with what this rule sets."""
        said = {key: value for key in _KEYS if (value := getattr(self, key)) is not None}
        return replace(limits, **said)


@dataclass(frozen=True, slots=True)
class SiteRules:
    """All rules of a file."""

    default: SiteRule = SiteRule()
    rules: tuple[SiteRule, ...] = ()

    def limits_of_nobody(self) -> SiteLimits:
        """Return the limits of a mount to which no rule applies."""
        return self.default.applied_to(SiteLimits())

    def limits(self, mount: MountIdentity, minute: int) -> tuple[SiteLimits, tuple[int, ...]]:
        """Return the limits of a mount at a minute of the day, and the numbers of the rules that apply, from 1."""
        limits, applied = self.limits_of_nobody(), []
        for number, rule in enumerate(self.rules, 1):
            if rule.matches(mount, minute):
                limits = rule.applied_to(limits)
                applied.append(number)
        return limits, tuple(applied)


def strictest(found: Iterable[SiteLimits]) -> SiteLimits:
    """Return limits that keep to all of these."""
    every = list(found) or [SiteLimits()]
    rates = [one.bandwidth for one in every if one.bandwidth is not None]
    order = list(SiteShare)
    return SiteLimits(
        min(one.weight for one in every), min(one.concurrency for one in every), min(rates, default=None),
        max((one.share for one in every), key=order.index),
    )  # fmt: skip


def parse_rules(text: str, origin: str) -> SiteRules:
    """Return the rules of a text; `origin` is for messages. Raises NopfsError with Exit.USAGE."""
    top = TomlTable.parse(text, origin)
    top.only(("version", "default", "rule"))
    top.need("version", whole(VERSION, VERSION), str(VERSION))
    default = SiteRule()
    if "default" in top.values:
        table = top.table("default")
        table.only(_KEYS)
        default = _set_by(table)
    tables = top.tables("rule")
    if len(tables) > RULES_MOST:
        raise top.error("rule", f"{len(tables)} rules are given; write at most {RULES_MOST}")
    return SiteRules(default, tuple(_rule(table) for table in tables))


def _rule(table: TomlTable) -> SiteRule:
    table.only(("match", "hours", *_KEYS))
    rule = _set_by(table)
    if all(getattr(rule, key) is None for key in _KEYS):
        raise table.error("weight", f"the rule sets nothing; write one of {', '.join(_KEYS)}")
    if "match" in table.values:
        match = table.table("match")
        match.only([one.name for one in fields(MountIdentity)])
        user, job, source = (match.may(key, _patterns, ()) for key in ("user", "job", "source"))
        rule = replace(rule, user=user, job=job, source=source)
    return replace(rule, hours=table.may("hours", _hours, None))


def _set_by(table: TomlTable) -> SiteRule:
    return SiteRule(
        weight=table.may("weight", _weight, None), bandwidth=table.may("bandwidth", _rate, None),
        concurrency=table.may("concurrency", whole(1, MAX_CONCURRENCY), None), share=table.may("share", _share, None),
    )  # fmt: skip


def _rate(value: object) -> int:
    return int(toml_table.rate(value))


def is_weight(value: object) -> TypeGuard[float]:
    """Return whether a value is a weight that a mount may have."""
    return not isinstance(value, bool) and isinstance(value, int | float) and WEIGHT_LEAST <= value <= WEIGHT_MOST


def _weight(value: object) -> float:
    if not is_weight(value):
        raise ValueError(f"{toml_table.shown(value)} is not a weight: write {WEIGHT_LEAST:g} to {WEIGHT_MOST:g}")
    return float(value)


def _share(value: object) -> SiteShare:
    for one in SiteShare:
        if value == one.value:
            return one
    raise ValueError(f'{toml_table.shown(value)} is not a share: write "node", "root" or "job"')


def _hours(value: object) -> tuple[int, int]:
    found = _HOURS.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f'{toml_table.shown(value)} are not hours: write a text such as "08:00-20:00"')
    begin, end = int(found[1]) * 60 + int(found[2]), int(found[3]) * 60 + int(found[4])
    if end > DAY or begin == end % DAY:
        raise ValueError(f"{toml_table.shown(value)} are not hours of a day: leave `hours` out for the whole day")
    return begin, end


def _patterns(value: object) -> tuple[str, ...]:
    """A reader of one glob, or a list of some."""
    found = value if isinstance(value, list) else [value]
    if not found or not all(isinstance(one, str) and 0 < len(one) <= 4096 for one in found):
        raise ValueError(f'{toml_table.shown(value)} is no pattern: write a text such as "/pfs/*", or a list of them')
    return tuple(found)
