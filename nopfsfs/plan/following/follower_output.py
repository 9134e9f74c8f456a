"""The output of a follower beside the stream: its status, and computations for another thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nopfsfs.plan.epoch_order import DataSet
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Value
from nopfsfs.plan.tracking.track import Track


@dataclass(frozen=True)
class PlanStatus:
    """The plan of the data set that is read, as `nopfs status` shows it."""

    state: str
    sampler: str | None = None
    seed: int | None = None
    epoch: int = 0
    position: int = 0  # accesses of this epoch before the first that is still to come, all local ranks
    length: int = 0  # accesses of this epoch, all local ranks
    dataset: str | None = None
    k: int = 0  # window of one rank
    world: int = 1
    ranks: tuple[int, ...] = (0,)
    options: tuple[tuple[str, Value], ...] = ()
    files: str | None = None  # how the files are listed
    subset: tuple[str, int, tuple[tuple[str, Value], ...]] | None = None  # name, seed, options


def describe(track: Track, datasets: Sequence[DataSet], seed: int | None) -> PlanStatus:
    """The status of one track; `seed`: what a user has given, shown where the sampler has none."""
    here = track.hypothesis
    order = datasets[here.dataset].orders[here.order]
    return PlanStatus(
        state=track.agreement.state.value,
        sampler=here.spec.sampler,
        seed=here.spec.seed if registry.sampler(here.spec.sampler).seeds is not None else seed,
        epoch=here.epoch,
        position=min(track.position - track.places.base, track.places.now.length),
        length=track.places.now.length,
        dataset=datasets[here.dataset].name,
        k=track.places.k,
        world=here.world,
        ranks=here.ranks,
        options=here.spec.options,
        files=order.names[0],
        subset=None if here.subset is None else (here.subset.sampler, here.subset.seed, here.subset.options),
    )


class BackgroundJob:
    """A computation to run outside of the follower's thread: `run` there, then `Follower.finish`.

    A job of `Follower.work_apart` takes up to minutes, and is made of plain values: `compute` may run in another
    process, at low priority (`take` its result then). `wanted` says, in the follower's thread, whether anything still
    needs the result.
    """

    def __init__(
        self, compute: Callable[[], Any], deliver: Callable[[Any], None], *, wanted: Callable[[], bool] = lambda: True
    ) -> None:
        self.compute = compute
        self.wanted = wanted
        self._deliver = deliver
        self._result: Any = None
        self._ran = False

    def run(self) -> None:
        """Computes. Touches nothing of the follower; may take seconds for millions of files."""
        self.take(self.compute())

    def take(self, result: Any) -> None:
        """Take the result that `compute` has given elsewhere."""
        self._result = result
        self._ran = True

    def deliver(self) -> None:
        """Hands the result over; called by `Follower.finish`."""
        if self._ran:
            self._deliver(self._result)
