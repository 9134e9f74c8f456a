"""The place in the stream of torch's global generator, of one seed, at which a loader has drawn its order.

A loader that shuffles takes its seed from that generator, of which a model has drawn its weights before. Looks, a part
at a time, for the place that explains what readers opened first, and turns it into suspects. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from nopfsfs.plan.samplers.sampler import Spec
from nopfsfs.plan.samplers.torch_stateful import Stateful
from nopfsfs.plan.search.candidates import WHOLE, Candidate, FileList, OrderHeads
from nopfsfs.plan.search.prepared_opens import MIN_OPENS, PreparedOpens
from nopfsfs.plan.search.suspects import SURE, Suspect, Table, leading
from nopfsfs.plan.search.torch_stream_search import GlobalSearch, Words
from nopfsfs.plan.search.torch_stream_search import SearchedFiles as FirstOpened

# Words of a seed's global generator in which the place of a loader's draw is looked for here (0.1 s); the further ones
# are looked at in a process apart. What readers opened first, of so many.
_WORDS = 1 << 20
_READERS_FIRST = 8
# Of data sets with fewer files than this for each reader fewer words are looked at.
_COSTLY = 100


class PlaceInStream:
    """The place in the stream of one seed at which what readers opened first was drawn. Raises no error: a seed that
    torch would not take has no stream."""

    def __init__(self, seed: int, among: Sequence[FileList], opens: PreparedOpens, which: Words) -> None:
        self._seed = seed
        self._whose: list[FileList] = []
        firsts: list[FirstOpened] = []
        for target in among:
            for rows in opens.view.firsts[:_READERS_FIRST]:
                samples = leading(opens.samples(target, rows))
                if len(samples) >= MIN_OPENS:
                    self._whose.append(target)
                    firsts.append(FirstOpened(target.n, samples))
        self._search: GlobalSearch | None = None
        # in few files any word may be the right one, and takes long to compare
        self._words = min(_WORDS, int(_WORDS * sum(target.n for target in firsts) / (_COSTLY * len(firsts) ** 2 + 1)))
        with suppress(ValueError):
            self._search = GlobalSearch(seed, firsts, self._words, which=which)
        self.done = self._search is None or self._search.done

    def step(self, opens: PreparedOpens, heads: OrderHeads, largest: int) -> list[Suspect]:
        """Looks at some more words. `largest`: the largest world that readers may belong to."""
        if self.done or self._search is None:
            return []
        for found in self._search.step():
            self.done = True
            target = self._whose[found.target]
            candidate = Candidate(target.dataset, target.order, self._search.spec(found), 0)
            whole = target.n <= WHOLE
            order = heads.whole(candidate, target.n) if whole else heads.full(candidate, target.n, largest)
            table = Table(opens.files(target)[order], target.n)
            names = [candidate]
            if not found.direct:  # the same first epoch; the later ones differ
                loader = Spec(Stateful.name, self._seed).with_option("offset", found.word)
                names.append(replace(candidate, spec=loader))
            cost = math.log2(self._words * len(self._whose))
            suspects = [Suspect(name, table, cost + nth, part=SURE) for nth, name in enumerate(names)]
            for suspect in suspects:
                suspect.weigh(opens.view)
            return suspects
        self.done = self._search.done
        return []
