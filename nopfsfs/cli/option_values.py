"""Names and values of options as people write them. Each parser of a value raises ValueError with a text that says what
to write.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress

from nopfsfs.config import DiskSpec
from nopfsfs.text.units import check_rate, format_size, parse_duration, parse_rate, parse_size

_INTEGER = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_TRUE = ("yes", "true", "on", "1")
_FALSE = ("no", "false", "off", "0")

_COUNTED_IN_G = 4  # digits of a number without a unit that may mean GiB; a longer number means bytes
LEAST_SIZE = 1 << 14  # bytes, of memory or of a disk tier: less holds next to nothing, so its unit is missing or wrong
MIN_RECHECK_S = 60.0  # less would only load the source: directories are checked once a minute anyhow
MAX_RECHECK_S = 7 * 86_400.0


def long_option(name: str) -> str:
    """Return the word of the command line for an option: `--page-cache` for `page_cache`."""
    return f"--{name.replace('_', '-')}"


def parse_seed(text: str) -> int:
    """Return a seed that torch.manual_seed takes: -2**63 to 2**64 - 1."""
    if not _INTEGER.fullmatch(text) or not -(2**63) <= int(text) < 2**64:
        raise ValueError(f"{text!r} is not a seed: write a whole number of at most 64 bits, such as 42")
    return int(text)


def parse_sampler(text: str) -> str:
    """Return the name of a known sampler."""
    from nopfsfs.plan.samplers import registry  # with numpy: plain mounts need none of it

    if text not in (registry.AUTO, *registry.SAMPLERS):
        raise ValueError(f"{text!r} is not a sampler: choose one of {', '.join((registry.AUTO, *registry.SAMPLERS))}")
    return text


def parse_option(text: str) -> str:
    """Return `text`, of the form NAME=VALUE."""
    if not text.partition("=")[0].strip() or "=" not in text:
        raise ValueError(f"{text!r} is not an option of a sampler: write NAME=VALUE, such as drop_last=true")
    return text


def parse_flag(text: str) -> bool:
    """Return True for yes, False for no."""
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(f"{text!r} is neither yes nor no")
    return text.lower() in _TRUE


def parse_disk(text: str) -> DiskSpec:
    """Return the disk tier of `PATH[:SIZE]`. The part after the last colon is a size unless it holds a slash."""
    path, colon, size = text.rpartition(":")
    if not colon or "/" in size:
        path, size = text, ""
    if not path:
        raise ValueError(f"{text!r} names no directory: write PATH or PATH:SIZE, such as /local/scratch:200G")
    return DiskSpec(os.path.abspath(path), parse_memory(size) if size else None)


def parse_path(text: str) -> str:
    """Return an absolute path."""
    if not text:
        raise ValueError("the path is empty")
    return os.path.abspath(text)


def parse_name(text: str) -> str:
    """Return a name that is not empty."""
    if not text:
        raise ValueError("the name is empty")
    return text


def parse_bandwidth(text: str) -> int:
    """Return whole bytes per second: a rate, or a number of bytes. Raises ValueError."""
    return int(check_rate(int(text)) if text.isascii() and text.isdigit() else parse_rate(text))


def parse_weight(text: str) -> float:
    """Return the claim of a mount beside others. Raises ValueError."""
    from nopfsfs.policy.site_rules import WEIGHT_LEAST, WEIGHT_MOST, is_weight  # plain mounts need none of it

    with suppress(ValueError):
        if is_weight(weight := float(text)):
            return weight
    raise ValueError(f"{text!r} is not a weight: write {WEIGHT_LEAST:g} to {WEIGHT_MOST:g}, or none")


def parse_memory(text: str) -> int:
    """Return bytes, of memory or of a disk tier: a size that is large enough to be meant."""
    size = parse_size(text)
    if size == 0:
        raise ValueError(f"{text!r} leaves no room: write a size above zero, or leave it out")
    if size < LEAST_SIZE:
        small = f"{text!r} is {format_size(size)}, and less than 16K is of no use"
        raise ValueError(f"{small}: did you mean {_meant(text)}?")
    return size


def _meant(text: str) -> str:
    """The size that the user probably meant by a far too small one: `5G` for `5`, `8M` for `8K`; else the least."""
    number = re.match(r"[\d.]+", text.strip())
    if number is not None:
        said = text.strip()[number.end() :].strip().lower()
        for unit in "MG" if said[:1] not in ("", "b") else "G" if len(number[0]) <= _COUNTED_IN_G else "":
            if parse_size(number[0] + unit) >= LEAST_SIZE:
                return number[0] + unit
    return "16K"


def parse_time(text: str) -> float:
    """Return seconds, more than none."""
    seconds = parse_duration(text)
    if seconds == 0:
        raise ValueError(f"{text!r} leaves no time: write one above zero")
    return seconds


def parse_recheck(text: str) -> float:
    """Return seconds, 0 for `no`."""
    if text.lower() in _FALSE:
        return 0.0
    seconds = parse_duration(text)
    if not MIN_RECHECK_S <= seconds <= MAX_RECHECK_S:
        raise ValueError(f"{text!r} is not from 1m to 7d: write a time within that, such as 15m, or no")
    return seconds


def time_from(least: str, most: str) -> Callable[[str], float]:
    """Return a parser of times of that range, whose bounds are written as in `parse_duration`."""

    def parse(text: str) -> float:
        seconds = parse_duration(text)
        if not parse_duration(least) <= seconds <= parse_duration(most):
            raise ValueError(f"{text!r} is not from {least} to {most}")
        return seconds

    return parse


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers of that range."""

    def parse(text: str) -> int:
        if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise ValueError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return parse


def whole_or(word: str, least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers of that range, and of `word`, which is 0."""

    def parse(text: str) -> int:
        if text == word:
            return 0
        if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise ValueError(f"{text!r} is neither {word} nor a whole number from {least} to {most}")
        return int(text)

    return parse


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser that takes only these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text

    return parse
