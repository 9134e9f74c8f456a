"""What a node has read and lives on another is handed over to its home: so that it is read from the source once.

That happens while no placement is known yet, or when the home does not answer. Who has such a copy offers it; the home
fetches it from there, and says when it has it, or does not want it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice

import numpy as np
import trio
from numpy.typing import NDArray

from nopfsfs.policy.node_policy import NodePolicy
from nopfsfs.protocol.between_supervisors import ROWS_MOST, CopiesOffered, CopiesTaken
from nopfsfs.protocol.codec import Message
from nopfsfs.protocol.columns import HOME_HERE

SayTo = Callable[[int, Message], Awaitable[None]]

HELD_S = 5.0  # for the home to take what is offered
PULLING_S = 30.0  # for what another node has to arrive
PULLING_MOST = 4 * ROWS_MOST
EARLY_MOST = 64  # messages of a placement that is not computed here yet
LOOK_S, IDLE_S = 0.05, 0.25  # between looks, while anything is under way and else


class CopyHandover:
    """See the module. `holder` u16[n]: the column; while a row that lives here is taken from another node, it names
    that node, where the stager asks for it then. `say_to` may take its time: a task of its own waits for it."""

    def __init__(self, conductor: NodePolicy, holder: NDArray[np.uint16], say_to: SayTo) -> None:
        self._conductor, self._holder, self._say_to = conductor, holder, say_to
        self._offers: dict[int, None] = {}  # staged here, to be offered
        self._given: dict[int, tuple[int, float]] = {}  # offered: to which node, and held until when
        self._taking: dict[int, tuple[int, float]] = {}  # from which node, and until when
        self._unsaid: dict[tuple[type[CopiesOffered | CopiesTaken], int], list[int]] = defaultdict(list)  # and node
        self._early: list[tuple[int, CopiesOffered]] = []
        self._number = 0  # of the last placement
        self._over = False
        self.given = self.taken = 0

    # ---- what is given ------------------------------------------------------------------------------------

    def offer(self, rows: Iterable[int]) -> None:
        """These are staged here and live elsewhere: offered soon, as many at a time as can be held."""
        if not self._over:
            self._offers.update(dict.fromkeys(rows))
            self._hold()

    def _hold(self) -> None:
        until = trio.current_time() + HELD_S
        for row in list(islice(self._offers, ROWS_MOST)):
            home = self._home(row)
            if home >= 0 and self._conductor.is_staged(row):
                if self._conductor.passing.hold(row):
                    self._given[row] = home, until
                    self._unsaid[CopiesOffered, home].append(row)
                elif self._given:
                    break  # until there is room again
            del self._offers[row]

    def _home(self, row: int) -> int:
        """The other node where it lives, or -1."""
        holder = int(self._holder[row])
        under_way = row in self._taking or row in self._given
        return holder - 1 if 0 < holder < HOME_HERE and not under_way else -1

    def _end(self, rows: list[int]) -> None:
        for row in rows:
            if self._given.pop(row, None) is not None:
                self._conductor.passing.end(row)

    # ---- what others say ----------------------------------------------------------------------------------

    def hear(self, node: int, message: CopiesOffered | CopiesTaken) -> None:
        """Take a message of another node. Raises ValueError."""
        rows = message.rows
        if max(rows, default=0) >= len(self._holder):
            raise ValueError("rows: there are no such rows")
        if isinstance(message, CopiesTaken):
            taken = [row for row in rows if row in self._given and self._given[row][0] == node]
            self.given += len(taken)
            self._end(taken)
        elif message.number > self._number:
            if len(self._early) < EARLY_MOST:
                self._early.append((node, message))
        else:
            for row in rows:
                self._take(row, node)

    def _take(self, row: int, node: int) -> None:
        conductor = self._conductor
        if row in self._taking and self._taking[row][0] == node:
            return  # said when it has come
        here = self._holder[row] == HOME_HERE and not conductor.has(row) and not conductor.is_coming(row)
        if here and conductor.keeps(row) and len(self._taking) < PULLING_MOST:
            self._taking[row] = node, trio.current_time() + PULLING_S
            self._holder[row] = 1 + node
            conductor.passing.pull(row)
        else:
            self._unsaid[CopiesTaken, node].append(row)

    def _look(self) -> None:
        """What of it has come?"""
        now, conductor = trio.current_time(), self._conductor
        for row, (node, until) in list(self._taking.items()):
            if conductor.has(row) or now >= until or not conductor.keeps(row):
                self.taken += conductor.has(row)
                self._taken(row)
                self._unsaid[CopiesTaken, node].append(row)
            elif not conductor.is_coming(row):
                conductor.passing.pull(row)  # it was cancelled, or failed

    def _taken(self, row: int) -> None:
        del self._taking[row]
        self._conductor.passing.pull_no_more(row)
        self._holder[row] = HOME_HERE

    # ---- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.step()
            await trio.sleep(LOOK_S if self._given or self._taking or self._offers else IDLE_S)

    async def step(self) -> None:
        """See to all that is under way, and say what is to be said."""
        now = trio.current_time()
        self._end([row for row, (_, until) in self._given.items() if now >= until])
        self._look()
        self._hold()
        unsaid, self._unsaid = self._unsaid, defaultdict(list)
        for (message, node), rows in unsaid.items():
            for first in range(0, len(rows), ROWS_MOST):
                await self._say_to(node, message(rows[first : first + ROWS_MOST], self._number))

    def left(self, node: int) -> None:
        """That node has left."""
        for row in [row for row, (other, _) in self._taking.items() if other == node]:
            self._taken(row)
        self._end([row for row, (other, _) in self._given.items() if other == node])

    def lost(self) -> None:
        """All have, or nobody sees to this any more."""
        self._over = True
        for row in list(self._taking):
            self._taken(row)
        self._end(list(self._given))
        self._offers.clear()

    def written(self, number: int) -> None:
        """The column was written anew, by that placement."""
        self._number = number
        for row, (node, _) in self._taking.items():
            self._holder[row] = 1 + node
        early, self._early = self._early, []
        for node, message in early:
            self.hear(node, message)
