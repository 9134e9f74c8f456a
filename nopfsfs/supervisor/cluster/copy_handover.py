"""Copies that a node has read and that have their home on another are handed over to it: the source is read once.

A node has such copies while no placement is known yet, or when the home does not answer. The node offers the copies.
The home fetches them from there, and says when it has them, or does not want them.

{"kind": "have", "rows": [...], "number": 1}    these are staged here; by that placement their home is with you
{"kind": "took", "rows": [...], "number": 1}    you may release these
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.protocol.columns import HOME_HERE

SayTo = Callable[[int, dict[str, Any]], Awaitable[None]]

ROWS_MOST = 4000  # of a message
HELD_S = 5.0  # for the home to take what is offered
PULLING_S = 30.0  # for what another node has to arrive
PULLING_MOST = 4 * ROWS_MOST
EARLY_MOST = 64  # messages of a placement that is not computed here yet
LOOK_S, IDLE_S = 0.05, 0.25  # between looks, while anything is under way and else


class CopyHandover:
    """Offers under way, given and taken. `holder` u16[n]: the column; while a row with its home here is taken from
    another node, the column names that node, and the stager asks there. `say_to` may take its time: a task of its own
    waits for it."""

    def __init__(self, conductor: NodePolicy, holder: NDArray[np.uint16], say_to: SayTo) -> None:
        self._conductor, self._holder, self._say_to = conductor, holder, say_to
        self._offers: dict[int, None] = {}  # staged here, to be offered
        self._given: dict[int, tuple[int, float]] = {}  # offered: to which node, and held until when
        self._taking: dict[int, tuple[int, float]] = {}  # from which node, and until when
        self._unsaid: dict[tuple[str, int], list[int]] = defaultdict(list)  # by kind and node
        self._early: list[tuple[int, dict[str, Any]]] = []
        self._number = 0  # of the last placement
        self._over = False
        self.given = self.taken = 0

    # ---- what is given ------------------------------------------------------------------------------------

    def offer(self, rows: Iterable[int]) -> None:
        """Offer these rows soon, staged here and at home elsewhere: as many at a time as can be held."""
        if not self._over:
            self._offers.update(dict.fromkeys(rows))
            self._hold()

    def _hold(self) -> None:
        until = trio.current_time() + HELD_S
        for row in list(islice(self._offers, ROWS_MOST)):
            home = self._home(row)
            if home >= 0 and self._conductor.residency.is_staged(row):
                if self._conductor.offer(row):
                    self._given[row] = home, until
                    self._unsaid["have", home].append(row)
                elif self._given:
                    break  # until there is room again
            del self._offers[row]

    def _home(self, row: int) -> int:
        """The other node with the home of the row, or -1."""
        holder = int(self._holder[row])
        under_way = row in self._taking or row in self._given
        return holder - 1 if 0 < holder < HOME_HERE and not under_way else -1

    def _end(self, rows: list[int]) -> None:
        for row in rows:
            if self._given.pop(row, None) is not None:
                self._conductor.end_offer(row)

    # ---- what others say ----------------------------------------------------------------------------------

    def hear(self, node: int, body: dict[str, Any]) -> None:
        """Take a message of another node. Raises ValueError."""
        rows = body.get("rows")
        n = len(self._holder)
        if not isinstance(rows, list) or len(rows) > ROWS_MOST:
            raise ValueError(f"rows: a list of at most {ROWS_MOST} is expected")
        if any(type(row) is not int or not 0 <= row < n for row in rows):
            raise ValueError("rows: there are no such rows")
        number = body.get("number")
        if type(number) is not int:
            raise ValueError("number: a whole number is expected")
        if body["kind"] == "have" and number > self._number:
            if len(self._early) < EARLY_MOST:
                self._early.append((node, body))
        elif body["kind"] == "took":
            taken = [row for row in rows if row in self._given and self._given[row][0] == node]
            self.given += len(taken)
            self._end(taken)
        else:
            for row in rows:
                self._take(row, node)

    def _take(self, row: int, node: int) -> None:
        residency, fetches = self._conductor.residency, self._conductor.fetches
        if row in self._taking and self._taking[row][0] == node:
            return  # said when it has come
        here = self._holder[row] == HOME_HERE and not residency.has(row) and not fetches.is_coming(row)
        if here and residency.keeps(row) and len(self._taking) < PULLING_MOST:
            self._taking[row] = node, trio.current_time() + PULLING_S
            self._holder[row] = 1 + node
            self._conductor.pull(row)
        else:
            self._unsaid["took", node].append(row)

    def _look(self) -> None:
        """End the takings that have come, or will not; pull those again that were cancelled."""
        now, residency = trio.current_time(), self._conductor.residency
        for row, (node, until) in list(self._taking.items()):
            if residency.has(row) or now >= until or not residency.keeps(row):
                self.taken += residency.has(row)
                self._taken(row)
                self._unsaid["took", node].append(row)
            elif not self._conductor.fetches.is_coming(row):
                self._conductor.pull(row)  # it was cancelled, or failed

    def _taken(self, row: int) -> None:
        del self._taking[row]
        self._conductor.cancel_pull(row)
        self._holder[row] = HOME_HERE

    # ---- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.step()
            await trio.sleep(LOOK_S if self._given or self._taking or self._offers else IDLE_S)

    async def step(self) -> None:
        """End offers whose time is over, check what is taken, offer more, and send the messages."""
        now = trio.current_time()
        self._end([row for row, (_, until) in self._given.items() if now >= until])
        self._look()
        self._hold()
        unsaid, self._unsaid = self._unsaid, defaultdict(list)
        for (kind, node), rows in unsaid.items():
            for first in range(0, len(rows), ROWS_MOST):
                some = rows[first : first + ROWS_MOST]
                await self._say_to(node, {"kind": kind, "rows": some, "number": self._number})

    def left(self, node: int) -> None:
        """End what is taken from a node that has left, and what was offered to it."""
        for row in [row for row, (other, _) in self._taking.items() if other == node]:
            self._taken(row)
        self._end([row for row, (other, _) in self._given.items() if other == node])

    def lost(self) -> None:
        """End all: all other nodes have left, or no task sends the messages any more."""
        self._over = True
        for row in list(self._taking):
            self._taken(row)
        self._end(list(self._given))
        self._offers.clear()

    def written(self, number: int) -> None:
        """Record that the column was written anew, by the placement of that number."""
        self._number = number
        for row, (node, _) in self._taking.items():
            self._holder[row] = 1 + node
        early, self._early = self._early, []
        for node, body in early:
            self.hear(node, body)
