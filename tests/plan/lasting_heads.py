"""Beginnings of orders that are computed once for many tests."""

from __future__ import annotations

from nopfsfs.plan.search.candidates import OrderHeads


class LastingHeads(OrderHeads):
    """Beginnings of orders that are kept over the tests, which have data sets of the same sizes: no epoch ends them."""

    def epoch_began(self) -> None:
        pass
