"""Sizes, rates, durations and rank lists as people write them, and back. Pure.

Sizes: `K`, `M`, `G`, `T`, `P` and `KiB`, `MiB`, ... are powers of 1024. `KB`, `MB`, ... are powers of 1000, as in
dd(1). A number alone, or with `B`, is bytes. Case does not matter and fractions are allowed: `1.5T`.
Rates: a size and `/s`, from 1 B/s to 1000 PB/s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

_PREFIXES = "kmgtp"
_A_SIZE = r"(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgtp])(i?b)?|b)?"
_SIZE = re.compile(_A_SIZE, re.ASCII | re.IGNORECASE)
_RATE = re.compile(_A_SIZE + r"\s*/\s*s", re.ASCII | re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|min|h|d)?", re.ASCII | re.IGNORECASE)
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_RANKS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)

MAX_SIZE = 2**63 - 1  # bytes: what a file offset holds
MAX_RATE = 1e18  # bytes per second: far above the memory of any node
MAX_RANKS = 1 << 20  # of one mount; a longer list is a typing error, and would fill the memory
MAX_DURATION_S = 366 * 86400.0  # timers of the kernel and of trio are not made for longer times


def parse_size(text: str) -> int:
    """Return the bytes that `text` names; a fraction of a byte is dropped. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size: write bytes or a number with K, M, G or T, such as 512M")
    size = int(_bytes(match))
    if size > MAX_SIZE:
        raise ValueError(f"{text!r} is more than any file system holds")
    return size


def _bytes(match: re.Match[str]) -> Decimal:
    prefix, tail = match[2] or "", match[3] or ""
    base = 1000 if tail.lower() == "b" else 1024
    power = _PREFIXES.index(prefix.lower()) + 1 if prefix else 0
    unit: int = base**power
    return Decimal(match[1]) * unit


def format_size(size: int) -> str:
    """Return `size` bytes for people: `0 B`, `512 B`, `1.5 GiB`; three digits, rounded."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if value < 1023.5 or unit == "PiB":
            break
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def exact_size(size: int) -> str:
    """Return the shortest text that `parse_size` turns back into `size`: `4G`, `1536M`, `1001`."""
    power = 0
    while size and size % 1024 == 0 and power < len(_PREFIXES):
        size //= 1024
        power += 1
    return f"{size}{_PREFIXES[power - 1].upper() if power else ''}"


def parse_rate(text: str) -> float:
    """Return the bytes per second that `text` names: `146 MB/s`, `1.5G/s`. Raises ValueError."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a rate: write a size and /s, such as 146 MB/s")
    return check_rate(float(_bytes(match)))


def check_rate(rate: float) -> float:
    """Return `rate`, bytes per second. Raises ValueError for a rate below 1, above MAX_RATE or not a number."""
    if not 1 <= rate <= MAX_RATE:
        raise ValueError(f"{rate:g} B/s is not a rate: write one from 1 B/s to 1000 PB/s, such as 146 MB/s")
    return rate


def format_rate(rate: float) -> str:
    """Return the text that `parse_rate` turns back into exactly `rate` bytes per second: `146 MB/s`. Raises
    ValueError as `check_rate` does."""
    exact = Decimal(repr(check_rate(float(rate))))
    for power, unit in ((6, "MB/s"), (3, "KB/s")):
        if exact >= 10**power:
            return f"{_plain(exact.scaleb(-power))} {unit}"
    return f"{_plain(exact)} B/s"


def _plain(number: Decimal) -> str:
    return format(number.normalize(), "f")


def parse_duration(text: str) -> float:
    """Return seconds for `300`, `5s`, `1.5m`, `2h`, `500ms`, `1d`. Raises ValueError, naming the text."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a time: write seconds, or a number with s, m, h or d, such as 5m")
    number, unit = match.groups()
    seconds = float(Decimal(number) * _MILLISECONDS[(unit or "s").lower()] / 1000)
    if seconds > MAX_DURATION_S:
        raise ValueError(f"{text!r} is more than a year")
    return seconds


def exact_duration(seconds: float) -> str:
    """Return the text that `parse_duration` turns back into exactly `seconds`: `5ms`, `0.25ms`."""
    return f"{_plain(Decimal(repr(float(seconds))) * 1000)}ms"


def format_duration(seconds: float) -> str:
    """Return `seconds` for people: `12 ms`, `3.4 s`, `2 min 5 s`, `1 h 1 min`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def parse_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a list such as `0-3,6`, ascending, each once. Raises ValueError."""
    ranks: set[int] = set()
    said = 0  # ranks named, repeated ones counted again: a short text can name a million in every few letters
    for part in text.split(","):
        match = _RANKS.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a list of ranks: write numbers and ranges, such as 0-3,6")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first:
            raise ValueError(f"{text!r} is not a list of ranks: {part.strip()} runs backwards")
        said += last - first + 1
        if said > MAX_RANKS:
            raise ValueError(f"{text!r} has more than {MAX_RANKS} ranks")
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


def format_ranks(ranks: Iterable[int]) -> str:
    """Return the shortest list that `parse_ranks` turns back into `ranks`: `0-3,6`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
