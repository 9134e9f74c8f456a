"""Bits by which an order tells better than chance what readers opened.

Owns the evidence of the places of a reader's opens, for many orders at once: readers make equal steps, or at least
small ones. In bits of a test martingale: a wrong order shows b of them with a probability below 2^-b.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# Instead of a place: beyond the places that were looked at; and no open at all.
OUTSIDE, ABSENT = -1, -2
# An open is a step from the reader's last place; or, where a stray open lay between, from the one before.
_FROM_LAST, _FROM_BEFORE = 0.9, 0.1
# Equal steps are looked for among so many opens of a reader.
_EQUAL = 16
# Whatever stands nearer than this to an epoch's beginning is worth looking at, and what chance shows so seldom.
_BEGINNING, _SELDOM = 64, 0.01
# Unlike any step.
_NO_STEP = -(1 << 30)


def interesting(places: NDArray[np.int32], n: int, reach: int) -> NDArray[np.bool_]:
    """True where a reader shows two equal steps in its first opens, or more opens at an epoch's beginning than chance
    would; bool[readers, orders]. `places` int32[readers, opens, orders]: below `reach` of n. Much faster than
    `reader_bits`."""
    readers, opens, orders = places.shape
    result = np.zeros((readers, orders), dtype=np.bool_)
    last = np.full((readers, orders), OUTSIDE, dtype=np.int32)
    steps: list[NDArray[np.int32]] = []
    for i in range(min(opens, _EQUAL)):
        inside = places[:, i] >= 0
        step = np.where(inside & (last >= 0), places[:, i] - last, np.int32(_NO_STEP - i))
        for other in steps:
            result |= step == other
        steps.append(step)
        np.copyto(last, places[:, i], where=inside)
    of = (places[:, :, :1] != ABSENT).sum(axis=1)
    for near in (min(_BEGINNING, reach), reach):
        enough = np.array([_more_than_chance(each, near / n) for each in range(opens + 1)])
        result |= ((places >= 0) & (places < near)).sum(axis=1) >= enough[of]
    return result


def reader_bits(places: NDArray[np.int32], n: int, reach: int) -> NDArray[np.float64]:
    """The bits by which each order tells the places of one reader's opens better than chance, float64[orders]. `places`
    int32[opens, orders]: below `reach` of n, or `OUTSIDE`, or `ABSENT`.

    A step that was seen is likely again (a Pitman-Yor process); a new one is as large as others were, or small and
    forward.
    """
    orders = places.shape[1]
    bits, within, beyond = np.zeros((3, orders))
    last = before = np.full(orders, OUTSIDE, dtype=np.int32)
    steps = _Steps(len(places), orders, reach)
    for place in places:
        inside, outside = place >= 0, place == OUTSIDE
        known = inside & (last >= 0)
        step, over = place - last, place - before
        chance, seen = steps.chance(step)
        chance_over, seen_over = steps.chance(over)
        chance = np.where(before >= 0, _FROM_LAST * chance + _FROM_BEFORE * chance_over, chance)
        chance = np.where(known, chance, 0.5 / reach + 0.5 * _code(place + 1))
        bits += np.where(inside, np.log2(chance * n), 0.0)
        if reach < n:
            of = within + beyond + 1
            bits += np.where(inside, np.log2((within + 0.5) / of), 0.0)
            bits += np.where(outside, np.log2((beyond + 0.5) / of / (1 - reach / n)), 0.0)
        within += inside
        beyond += outside
        steps.add(np.where((before >= 0) & (seen_over > seen), over, step), known)
        before, last = np.where(inside, last, before), np.where(inside, place, last)
    return bits


def together(bits: NDArray[np.float64]) -> NDArray[np.float64]:
    """The bits of an order from those of several readers, float64[orders] of float64[readers, orders]: any of them may
    follow it, or many. `-inf` tells nothing for it."""
    one = np.logaddexp2.reduce(bits, axis=0) - math.log2(len(bits))
    many = np.logaddexp2(-1, bits - 1).sum(axis=0)
    result: NDArray[np.float64] = np.logaddexp2(one, many) - 1
    return result


def _more_than_chance(opens: int, share: float) -> int:
    """The least number of a reader's `opens` that seldom lie in that share of all places by chance."""
    below = 0.0
    for count in range(opens + 1):
        if 1 - below <= _SELDOM:
            return count
        below += math.comb(opens, count) * share**count * (1 - share) ** (opens - count)
    return opens + 1


class _Steps:
    """The steps of a reader in many orders, and how likely others are after them."""

    def __init__(self, most: int, orders: int, reach: int) -> None:
        self._reach = reach
        self._each = np.arange(orders)
        self._steps = np.empty((most, orders), dtype=np.int32)
        self._count = 0
        self._sizes = np.zeros((32, orders), dtype=np.int32)  # how many steps have so many binary digits
        self._told, self._distinct = np.zeros((2, orders))

    def chance(self, step: NDArray[np.int32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The probability of the next step, and how often it was seen, float64[orders] each."""
        seen = self._seen(step)
        size = np.abs(step)
        digits = _digits(size)
        new = self._sizes[digits, self._each] / np.exp2(digits)
        new += 0.5 / self._reach + np.where(step > 0, 0.45, 0.05) * _code(size)
        new /= self._told + 1
        return (np.maximum(seen - 0.5, 0) + (1 + self._distinct / 2) * new) / (self._told + 1), seen

    def add(self, step: NDArray[np.int32], known: NDArray[np.bool_]) -> None:
        """Notes the step of those orders where there was one."""
        self._distinct += known & (self._seen(step) == 0)
        self._told += known
        self._sizes[_digits(np.abs(step)), self._each] += known
        self._steps[self._count] = np.where(known, step, np.int32(_NO_STEP))
        self._count += 1

    def _seen(self, step: NDArray[np.int32]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = (self._steps[: self._count] == step).sum(axis=0, dtype=np.float64)
        return found


def _digits(size: NDArray[np.int32]) -> NDArray[np.int32]:
    """The number of binary digits; there are 2^digits steps of such a size, forward or back."""
    return np.frexp(size)[1]


def _code(size: NDArray[np.int32]) -> NDArray[np.float64]:
    """A probability of every whole number from 1 on: the larger, the less."""
    size = np.maximum(size, 1)
    result: NDArray[np.float64] = 1 / np.log2(size + 1.0) - 1 / np.log2(size + 2.0)
    return result
