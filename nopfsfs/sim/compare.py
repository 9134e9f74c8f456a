"""Several policies on one cluster, in the physical mode or that of the thesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from nopfsfs.errors import Exit, NopfsError
from nopfsfs.performance.model import Cluster
from nopfsfs.placement.access_counts import AHEAD, NOBODY
from nopfsfs.sim import thesis
from nopfsfs.sim.policy_table import POLICIES
from nopfsfs.sim.run import Outcome, Progress, Simulation, find_policy
from nopfsfs.sim.training import SimDataSet, Training
from nopfsfs.text.units import MAX_RANKS

ALL = "all"
USUAL = ("perfect", "naive", "staging", "nopfs", "homes", "belady")
MOST_NODES = NOBODY - 1  # nodes are numbered in 16 bits, and one number means no node
MOST_SAMPLES = 2**31 - 1  # samples in 32
HINTS = {
    "homes": "--slice 0 does without that",
    "belady": "leave it out: --policy perfect,naive,staging,nopfs,homes --slice 0",
}


@dataclass(frozen=True, slots=True)
class Experiment:
    """The settings that policies and clusters share. `order`: a sampler's name; `as_thesis`: the thesis's simulator."""

    dataset: SimDataSet
    training: Training
    order: str | None = None
    slice_share: float | None = None
    as_thesis: bool = False

    def outcomes(
        self, cluster: Cluster, policies: Sequence[str], progress: Progress = lambda share: None
    ) -> list[Outcome]:
        """Simulate each policy, in their order; `progress` gets the share that is done. Raises NopfsError with
        Exit.USAGE for input that cannot be simulated."""
        check(cluster, self.dataset)
        try:
            one = self._thesis(cluster) if self.as_thesis else self._physical(cluster)
            return [one(name, _part(progress, at, len(policies))) for at, name in enumerate(policies)]
        except MemoryError as error:
            raise _usage(
                f"{self.dataset.samples:,} samples do not fit the memory here; write fewer, with as much less capacity"
            ) from error

    def _physical(self, cluster: Cluster) -> Callable[[str, Progress], Outcome]:
        try:
            simulation = Simulation(
                cluster, self.dataset, self.training, order=self.order, slice_share=self.slice_share
            )  # fmt: skip
        except ValueError as error:
            if self.order is None:
                raise
            raise _usage(f"--order: {error}") from error

        def run(name: str, progress: Progress) -> Outcome:
            try:
                return simulation.run(name, progress)
            except ValueError as error:
                if self.order is None and self.training.epochs <= AHEAD:
                    raise
                hint = f"; {HINTS[name]}" if name in HINTS else ""
                raise _usage(f"{name}: {error}{hint}") from error

        return run

    def _thesis(self, cluster: Cluster) -> Callable[[str, Progress], Outcome]:
        bounds: list[float] = []  # computed once, where that is possible

        def run(name: str, progress: Progress) -> Outcome:
            outcome = partial(
                Outcome, policy=name, dataset=self.dataset.name, cluster=cluster.name, nodes=cluster.nodes
            )  # fmt: skip
            try:
                if not bounds:
                    bounds.append(thesis.run(thesis.PERFECT, cluster, self.dataset, self.training).seconds)
                found = thesis.run(name, cluster, self.dataset, self.training, progress)
            except thesis.NotSupported as why:
                return outcome(reason=str(why))
            return outcome(seconds=found.seconds, bound_seconds=bounds[0], stall_seconds=found.stall_seconds)

        return run


def check(cluster: Cluster, dataset: SimDataSet) -> None:
    """Refuse what the simulator cannot count. Raises NopfsError with Exit.USAGE."""
    if cluster.nodes > MOST_NODES:
        raise _usage(f"{cluster.nodes:,} nodes are more than the {MOST_NODES:,} that can be simulated; write fewer")
    if cluster.nodes * cluster.ranks > MAX_RANKS:
        raise _usage(f"{cluster.nodes:,} nodes of {cluster.ranks} ranks are more than {MAX_RANKS:,} ranks; write fewer")
    if dataset.samples > MOST_SAMPLES:
        raise _usage(f"{dataset.samples:,} samples are more than the {MOST_SAMPLES:,} that can be simulated")


def names(given: Sequence[str], *, as_thesis: bool, usual: Sequence[str] = USUAL) -> list[str]:
    """The policies that lists such as `naive,homes` name, each once; `usual` without any list. Raises NopfsError."""
    known = list(thesis.NAMES if as_thesis else POLICIES)
    what = "a policy of the thesis's simulator" if as_thesis else "a policy"
    if not given:
        return [name for name in usual if name in known]
    found: dict[str, None] = {}
    for name in (word.strip() for text in given for word in text.split(",")):
        if name == ALL:
            found.update(dict.fromkeys(known))
        else:
            found[find_policy(name, known, what)] = None
    return list(found)


def _part(progress: Progress, at: int, count: int) -> Progress:
    return lambda share: progress((at + share) / count)


def _usage(message: str) -> NopfsError:
    return NopfsError(Exit.USAGE, message)
