"""From the index to a follower: which data sets there are, what users say of them, and the work that the plan does
besides.

Enumerating and permuting millions of files holds the interpreter for seconds: it is done in a thread of the supervisor,
which answers no FUSE request.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import trio

from nopfsfs.config import MountConfig, PlanSpec
from nopfsfs.dataset import file_orders, order_files
from nopfsfs.dataset.index import Index
from nopfsfs.dataset.index_walk import IndexWalk
from nopfsfs.plan.epoch_order import DataSet, EpochOrder, FileOrder, Hypothesis, build
from nopfsfs.plan.following.follower import Follower
from nopfsfs.plan.following.recorded import RecordedPlan
from nopfsfs.plan.following.wording import paragraph
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Dealt, GivenOrders, Sampler
from nopfsfs.registration import plan_tables
from nopfsfs.supervisor.event_loop import EventLoop
from nopfsfs.supervisor.last_job import LastJob
from nopfsfs.supervisor.plan_jobs import PlanJobs
from nopfsfs.system.outages import Backoff, reason

log = logging.getLogger(__name__)
ROOTS_MOST = 16  # directories that are looked at as data sets of their own
FAILED_PAUSE_S = 1.0  # after the first fault; twice as long after the next, up to a minute
SOUND_S = 60.0  # a plan that worked so long did not fail of how it was made
WHAT = "plan"
ANSWER_LIMIT_S = 110.0  # for orders of millions of files; the client waits a little longer
NEXT_BYTES = 8 << 20  # characters of paths in an answer
PATHS_AT_ONCE = 500  # that the event loop waits for: some milliseconds
SAMPLES_MOST = 100  # times the files of a data set, in one epoch
COMPUTING_MOST = 2  # orders of users under way; one that takes too long is given up, and goes on in its thread
# Enumerations that take over ten seconds for as many files as this; then only when a sampler asks for them.
SLOW_ORDERS, SLOW_FROM = ("timm", "hf_imagefolder"), 4_000_000


def data_sets(index: Index, wanted: Sequence[str] = ()) -> list[DataSet]:
    """Data sets that a job may read, likeliest first; in each, the file orders that loaders enumerate. `wanted`: orders
    that are computed however long that takes."""
    found: list[DataSet] = []
    view = IndexWalk(index)
    roots = file_orders.candidate_roots(index)[:ROOTS_MOST].tolist()
    for root in roots if 0 in roots else [*roots[:-1], 0]:
        files: list[FileOrder] = []
        for name, enumerate_files in file_orders.ORDERS.items():
            if name in SLOW_ORDERS and index.n > SLOW_FROM and name not in wanted:
                continue
            rows = enumerate_files(index, root, view)
            same = next((at for at, one in enumerate(files) if np.array_equal(one.rows, rows)), None)
            if same is not None:
                files[same] = dataclasses.replace(files[same], names=(*files[same].names, name))
            elif len(rows):
                files.append(FileOrder((name,), rows, _classes(index, root, name, view)))
        if files:
            found.append(DataSet(key=root, name=_name(index, root), orders=tuple(files)))
    return found


def _classes(index: Index, root: int, name: str, view: IndexWalk | None = None) -> str:
    """The classes of a file order, as `FileOrder` has them."""
    return ",".join(map(str, file_orders.class_sizes(index, root, view))) if name == "image_folder" else ""


def _name(index: Index, root: int) -> str:
    return index.path(root).decode(errors="backslashreplace") or "."


def make_follower(index: Index, config: MountConfig, record: Sequence[RecordedPlan] = ()) -> Follower:
    """`record`: what the last job on this source read. May take seconds for millions of files."""
    worlds = [(w.size, w.ranks) for w in config.worlds]
    wanted = [name for plan in config.plans for name in _usual(plan)]
    return Follower(data_sets(index, wanted), config.seed, config.sampler, worlds, record=record)


def _usual(plan: PlanSpec) -> tuple[str, ...]:
    return (plan.files,) if plan.files is not None else registry.sampler(plan.sampler).files


class PlanWorker:
    """Owns the follower's making and its jobs, and what users say while the mount runs."""

    def __init__(self, loop: EventLoop, index: Index, config: MountConfig) -> None:
        self._loop, self._index, self._config = loop, index, config
        self._last_job = LastJob(config)
        self._made = trio.Event()
        self._said: list[PlanSpec] = []  # registered while the mount runs
        self._one_at_a_time = trio.Lock()
        self._computing = trio.CapacityLimiter(COMPUTING_MOST)  # those given up must not take all threads there are

    async def run(self) -> None:
        """Gives the loop its follower, then does the follower's work. One that fails is made anew, after a pause."""
        backoff = Backoff(FAILED_PAUSE_S)
        while True:
            began = trio.current_time()
            try:
                await self._follow_one()
                continue  # the loop has lost it, and pauses by itself
            except Exception as e:
                # A plan only ever makes reads faster: without one the mount is a plain cache.
                log.exception("the plan fails; going on as a plain cache for a while")
                self._loop.outages.began(WHAT, f"failed: {reason(e)}")
            self._loop.follow(None)
            self._made.set()  # who waits for it gets to know
            if trio.current_time() - began > SOUND_S:
                backoff.succeeded()
            await trio.sleep(backoff.failed())

    async def _follow_one(self) -> None:
        """Until the loop loses this follower. Raises whatever it raises."""
        self._loop.await_plan()
        follower = await self._make()
        self._loop.follow(follower)
        self._made.set()
        self._loop.outages.ended(WHAT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(PlanJobs(follower, self._loop.looked, self._loop.outages).run)
            nursery.start_soon(self._last_job.keep, follower)
            await self._loop.follower_lost.wait()
            nursery.cancel_scope.cancel()

    async def _make(self) -> Follower:
        """A follower that knows what was said when the mount was made, and since."""
        record = await self._last_job.read()
        follower = await trio.to_thread.run_sync(
            make_follower, self._index, self._config, record, abandon_on_cancel=True
        )
        for number, plan in enumerate(self._config.plans, 1):
            try:
                follower.register(await self._tables(follower, [plan]), replace_said=False)
            except ValueError as e:
                log.error("plan %d: %s; going on without it", number, e)
        if self._said:
            follower.register(await self._tables(follower, self._said))
        return follower

    async def remember(self) -> None:
        """Record what is followed for the next mount, where it stands now."""
        if self._loop.follower is not None:
            await self._last_job.write(self._loop.follower.to_record())

    # ---- what users say -----------------------------------------------------------------------------------

    async def register(self, request: dict[str, Any]) -> dict[str, Any]:
        """Follow the plans of a request. Raises ValueError with one line; then nothing has changed."""
        specs = plan_tables.parse(request)
        follower = await self._follower()
        async with self._one_at_a_time:
            with trio.move_on_after(ANSWER_LIMIT_S) as limit:
                follower.register(await self._tables(follower, specs))
            if limit.cancelled_caught:
                raise ValueError("the order could not be computed in time")
            self._said = list(specs)
        for spec in specs:
            log.info("plan registered: %s, seed %s, epoch %d", spec.sampler, spec.seed, spec.epoch)
        return {"registered": len(specs)}

    async def forget(self) -> dict[str, Any]:
        """Drop what was registered."""
        (await self._follower()).forget()
        self._said = []
        return {}

    async def describe(self, request: dict[str, Any]) -> dict[str, Any]:
        """Describe the plans: what they are known by, and their next files."""
        count = plan_tables.parse_next(request)
        follower = await self._follower()
        plans, room = [], NEXT_BYTES
        for status, rows in follower.plans(count):
            known = dataclasses.asdict(status)
            known["options"] = dict(status.options)
            known["next"] = await self._paths([row for row in rows.tolist() if row >= 0][:count])
            room -= sum(map(len, known["next"]))
            if room < 0:
                raise ValueError(f"next: the paths of {count} files have too many bytes; ask for less")
            plans.append(known)
        found = follower.explain()
        why = {"text": paragraph(found), **dataclasses.asdict(found)}
        return {"state": found.state, "plans": plans, "explanation": why}

    def explained(self) -> dict[str, Any] | None:
        """The explanation of the plans in a few sentences, for the final report; None where nothing was planned."""
        follower = self._loop.follower
        return None if follower is None else {"text": paragraph(follower.explain())}

    async def _paths(self, rows: list[int]) -> list[str]:
        paths = []
        for at, row in enumerate(rows):
            paths.append(os.fsdecode(self._index.path(row)))
            if at % PATHS_AT_ONCE == PATHS_AT_ONCE - 1:
                await trio.lowlevel.checkpoint()  # the rings are to be looked at meanwhile
        return paths

    async def _follower(self) -> Follower:
        with trio.move_on_after(ANSWER_LIMIT_S):
            await self._made.wait()
        if self._loop.follower is None:
            raise ValueError("this mount could make no plan; see its log")
        return self._loop.follower

    async def _tables(self, follower: Follower, specs: Sequence[PlanSpec]) -> list[tuple[EpochOrder, int | None]]:
        made = []
        for spec in specs:
            dataset, order, hypothesis = await trio.to_thread.run_sync(
                self._resolve, spec, follower.datasets, abandon_on_cancel=True, limiter=self._computing
            )
            at = follower.add_order(dataset, order)
            hypothesis = dataclasses.replace(hypothesis, order=at)
            tables = await trio.to_thread.run_sync(
                build, hypothesis, follower.datasets, abandon_on_cancel=True, limiter=self._computing
            )
            made.append((tables, spec.inflight))
        return made

    def _resolve(self, plan: PlanSpec, datasets: Sequence[DataSet]) -> tuple[int, FileOrder, Hypothesis]:
        """(data set, its enumeration, what is said of it but for the enumeration's place). Raises ValueError."""
        if not datasets:
            raise ValueError("there are no files in this mount")
        root = datasets[0].key if plan.root is None else order_files.directory(self._index, plan.root)
        at = next((i for i, one in enumerate(datasets) if one.key == root), None)
        if at is None:  # the data set that holds all
            at = next(i for i, one in enumerate(datasets) if one.key == 0)
        family = registry.sampler(plan.sampler)
        data = None
        if plan.order:
            places = order_files.Places(root, self._config.source, self._config.mountpoint)
            said = order_files.read_order(
                plan.order, self._index, places, lambda: self._enumerate(plan, root).rows, repeats=plan.repeats
            )
            order, data = FileOrder(("explicit",), said.rows.astype(np.uint32)), GivenOrders(said.epochs)
        else:
            order = self._enumerate(plan, root)
        size, ranks = self._world(plan, family)
        spec = dataclasses.replace(plan_tables.spec_of(plan, self._config.seed), data=data)
        subset = plan_tables.subset_of(plan, self._config.seed)
        if family.by_class and not spec.get("classes", ""):
            spec = spec.with_option("classes", order.classes)
        if (asked := spec.number("num_samples")) > SAMPLES_MOST * len(order.rows):
            most = f"{SAMPLES_MOST} times the {len(order.rows)} files"
            raise ValueError(f"options.num_samples: {asked} samples an epoch are more than {most}")
        return at, order, Hypothesis(at, 0, spec, plan.epoch, size, ranks, subset)

    def _enumerate(self, plan: PlanSpec, root: int) -> FileOrder:
        """The list that a plan names, or the first of its sampler's usual ones that has files."""
        name, rows = file_orders.first_list(_usual(plan), self._index, root)
        return FileOrder((name,), rows, _classes(self._index, root, name))

    def _world(self, plan: PlanSpec, family: Sampler) -> tuple[int, tuple[int, ...]]:
        if plan.world_size is None and plan.ranks is None:
            first = self._config.worlds[0]
            return (1, (0,)) if family.dealt is Dealt.ALL else (first.size, first.ranks)
        size = plan.world_size if plan.world_size is not None else max(w.size for w in self._config.worlds)
        ranks = plan.ranks if plan.ranks is not None else tuple(range(size))
        if max(ranks) >= size:
            raise ValueError(f"world_size: rank {max(ranks)} does not fit a world of {size}; say world_size")
        return size, ranks
