"""Copies that a node has read, and that live on another node, go to their home: the source is read once.

That happens while no placement is known yet, or when the home does not answer. A node that has such a copy offers it.
The home fetches the copy from that node, and answers when it has the copy, or does not want it.
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

Send = Callable[[int, Message], Awaitable[None]]  # to a node, or to ALL_OTHERS

HELD_S = 5.0  # for the home to take what is offered
PULLING_S = 30.0  # for what another node has to arrive
PULLING_MOST = 4 * ROWS_MOST
SENDING_S = 10.0  # what the peer process does not take by then is not sent
EARLY_MOST = 64  # messages of a placement that is not computed here yet
LOOK_S, IDLE_S = 0.05, 0.25  # between looks, while anything is under way and else


class CopyHandover:
    """Copies that this node offers, and those that it takes. `holder` u16[n]: the column. While a row that lives here
    is taken from another node, the column names that node, where the stager asks for the row then. `send` may take its
    time: a task of its own waits for it."""

    def __init__(self, policy: NodePolicy, holder: NDArray[np.uint16], send: Send) -> None:
        self._policy, self._holder, self._send = policy, holder, send
        self._offers: dict[int, None] = {}  # staged here, to be offered
        self._given: dict[int, tuple[int, float]] = {}  # offered: to which node, and held until when
        self._taking: dict[int, tuple[int, float]] = {}  # from which node, and until when
        self._unsent: dict[tuple[type[CopiesOffered | CopiesTaken], int], list[int]] = defaultdict(list)  # and node
        self._early: list[tuple[int, CopiesOffered]] = []
        self._number = 0  # of the last placement
        self._over = False

    # ---- what is given ------------------------------------------------------------------------------------

    def offer(self, rows: Iterable[int]) -> None:
        """Offer rows that are staged here and live elsewhere: soon, as many at a time as can be held."""
        if not self._over:
            self._offers.update(dict.fromkeys(rows))
            self._hold()

    def _hold(self) -> None:
        until = trio.current_time() + HELD_S
        for row in list(islice(self._offers, ROWS_MOST)):
            home = self._home(row)
            if home >= 0 and self._policy.residency.is_staged(row):
                if self._policy.offer(row):
                    self._given[row] = home, until
                    self._unsent[CopiesOffered, home].append(row)
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
                self._policy.end_offer(row)

    # ---- what others send ---------------------------------------------------------------------------------

    def receive(self, node: int, message: CopiesOffered | CopiesTaken) -> None:
        """Take a message of another node. Raises ValueError."""
        rows = message.rows
        if max(rows, default=0) >= len(self._holder):
            raise ValueError("rows: there are no such rows")
        if isinstance(message, CopiesTaken):
            self._end([row for row in rows if row in self._given and self._given[row][0] == node])
        elif message.number > self._number:
            if len(self._early) < EARLY_MOST:
                self._early.append((node, message))
        else:
            for row in rows:
                self._take(row, node)

    def _take(self, row: int, node: int) -> None:
        policy = self._policy
        if row in self._taking and self._taking[row][0] == node:
            return  # it is answered when it has come
        here = self._holder[row] == HOME_HERE and not policy.residency.has(row) and not policy.fetches.is_coming(row)
        if here and policy.residency.keeps(row) and len(self._taking) < PULLING_MOST:
            self._taking[row] = node, trio.current_time() + PULLING_S
            self._holder[row] = 1 + node
            policy.pull(row)
        else:
            self._unsent[CopiesTaken, node].append(row)

    def _check_taken(self) -> None:
        """End the taking of what has come, and of what will not come."""
        now, policy = trio.current_time(), self._policy
        for row, (node, until) in list(self._taking.items()):
            if policy.residency.has(row) or now >= until or not policy.residency.keeps(row):
                self._taken(row)
                self._unsent[CopiesTaken, node].append(row)
            elif not policy.fetches.is_coming(row):
                policy.pull(row)  # it was cancelled, or failed

    def _taken(self, row: int) -> None:
        del self._taking[row]
        self._policy.cancel_pull(row)
        self._holder[row] = HOME_HERE

    # ---- life ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self.step()
            await trio.sleep(LOOK_S if self._given or self._taking or self._offers else IDLE_S)

    async def step(self) -> None:
        """See to all that is under way, and send what is to be sent."""
        now = trio.current_time()
        self._end([row for row, (_, until) in self._given.items() if now >= until])
        self._check_taken()
        self._hold()
        unsaid, self._unsent = self._unsent, defaultdict(list)
        for (message, node), rows in unsaid.items():
            for first in range(0, len(rows), ROWS_MOST):
                with trio.move_on_after(SENDING_S):  # what is not sent is read from the source once more
                    await self._send(node, message(rows[first : first + ROWS_MOST], self._number))

    def left(self, node: int) -> None:
        """Forget what was offered to a node that has left, or taken from it."""
        for row in [row for row, (other, _) in self._taking.items() if other == node]:
            self._taken(row)
        self._end([row for row, (other, _) in self._given.items() if other == node])

    def lost(self) -> None:
        """All other nodes have left, or nobody sees to this any more."""
        self._over = True
        for row in list(self._taking):
            self._taken(row)
        self._end(list(self._given))
        self._offers.clear()

    def written(self, number: int) -> None:
        """Note that the column was written anew, by that placement."""
        self._number = number
        for row, (node, _) in self._taking.items():
            self._holder[row] = 1 + node
        early, self._early = self._early, []
        for node, message in early:
            self.receive(node, message)
