"""A run in words: what its readers waited for, how its plan was found, what else is worth a look. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nopfsfs.monitor.mount_view import EpochRecord, HistoryTable
from nopfsfs.monitor.run_record import RunRecord
from nopfsfs.text.units import format_duration, format_ranks

# Where a READ that waited got its bytes from, in words.
CAUSES = {"source": "the source", "peer": "other nodes", "disk": "a local disk", "ram": "memory"}
HARDLY = 0.01  # of an epoch: readers that waited for less did not wait
_ALONE = 0.9  # of the waiting: then one cause is named
_ALIKE = 0.05  # epochs whose shares differ by less are told of together


@dataclass(frozen=True, slots=True)
class EpochWait:
    """Waiting in an epoch. `share`: seconds waited, all readers together, in a second of the epoch: more than 1 where
    several waited. `causes`: names of CAUSES with their parts of the waiting, largest first, sum 1."""

    epoch: EpochRecord
    share: float
    causes: tuple[tuple[str, float], ...]

    @property
    def named(self) -> str:
        """The cause, or the causes with their parts."""
        if not self.causes or self.causes[0][1] >= _ALONE:
            return CAUSES[self.causes[0][0] if self.causes else "ram"]
        parts = [f"{CAUSES[name]} ({_percent(part)})" for name, part in self.causes if part >= 1 - _ALONE]
        return " and ".join(parts)


def waits(run: RunRecord) -> list[EpochWait]:
    """The waiting in each epoch."""
    return [
        EpochWait(one, one.stall_seconds / max(one.seconds, 1e-3), _causes(one, run.histories)) for one in run.epochs
    ]


def _causes(one: EpochRecord, histories: Sequence[HistoryTable]) -> tuple[tuple[str, float], ...]:
    """The parts of the waiting: of each second by what served files in it. Where the history is gone, or too coarse for
    the epoch, by what served the files of the epoch."""
    for history in histories:
        within = (history.time >= one.begin - history.step) & (history.time < one.begin + one.seconds)
        if within.sum() >= 3 and history.time[0] <= one.begin:
            waited = np.nan_to_num(history["wait_share"][within])
            files = np.array([np.nan_to_num(history[name][within]) for name in CAUSES if name != "ram"])
            total = files.sum(axis=0)
            # a row in which nothing but memory served had a READ that waited for a file on its way into it
            parts = (files * waited / np.where(total > 0, total, 1)).sum(axis=1)
            if parts.sum() > 0:
                return _ranked(dict(zip((name for name in CAUSES if name != "ram"), parts.tolist(), strict=True)))
            break
    return _ranked({name: one.served.get(name, 0.0) for name in CAUSES if name != "ram"})


def _ranked(parts: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    total = sum(parts.values())
    known = [(name, part / total) for name, part in parts.items() if part > 0] if total > 0 else []
    return tuple(sorted(known, key=lambda one: -one[1]))


def _much(share: float) -> str:
    """Say for how much of an epoch readers waited."""
    if share < HARDLY:
        return "for nothing" if share == 0 else "hardly at all"
    return f"for {_percent(share)}" if share <= 1 else f"{share:.1f} readers at a time"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _many(share: float, epoch: str) -> str:
    return f"{share:.1f} of them at a time in {epoch}"


def headline(run: RunRecord) -> str:
    """Say in one sentence what readers waited for."""
    found = waits(run)
    if not found:
        return "Nothing was read through this mount."
    stall, worst = sum(one.epoch.stall_seconds for one in found), max(found, key=lambda one: one.share)
    if worst.share < HARDLY:
        return "Readers hardly waited." if stall else "Readers waited for nothing."
    epoch = _name(worst.epoch, "epoch")
    where = f"for {_percent(worst.share)} of {epoch}" if worst.share <= 1 else _many(worst.share, epoch)
    return f"Readers waited for {worst.named}, {where}{_rest(found, worst)}."


def _rest(found: Sequence[EpochWait], worst: EpochWait) -> str:
    others = [one.share for one in found if one is not worst]
    if not others:
        return ""
    if max(others) < HARDLY:
        return ", and hardly at all " + ("later" if worst is found[0] else "in the others")
    if max(others) <= 1:
        return f", and at most {_percent(max(others))} of any other"
    return f", and at most {max(others):.1f} at a time in any other"


def wait_lines(run: RunRecord) -> Iterator[str]:
    """A sentence for each group of epochs, one after the other, that waited alike."""
    for group in _alike(waits(run)):
        first, which = group[0], name_epochs([one.epoch for one in group])
        share = sum(one.epoch.stall_seconds for one in group) / max(sum(one.epoch.seconds for one in group), 1e-3)
        if share < HARDLY:
            yield f"{which}: readers waited {_much(share)}."
        elif share <= 1:
            yield f"{which}: readers waited for {first.named}, {_much(share)} of the time."
        else:
            yield f"{which}: readers waited for {first.named}, {_much(share)}."


def name_epochs(group: Sequence[EpochRecord]) -> str:
    """The name of one epoch, or of several, one after the other, at the begin of a sentence."""
    first, last = group[0], group[-1]
    if first is last:
        return _name(first, "Epoch")
    if first.epoch is None:
        return f"{len(group)} epochs of unknown order"
    return f"Epochs {first.epoch:,} {'and' if len(group) == 2 else 'to'} {last.epoch:,}"


def _alike(found: Sequence[EpochWait]) -> Iterator[list[EpochWait]]:
    group: list[EpochWait] = []
    for one in found:
        if group and not _same(group[0], one):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _same(one: EpochWait, other: EpochWait) -> bool:
    if one.epoch.dataset != other.epoch.dataset or (one.epoch.epoch is None) != (other.epoch.epoch is None):
        return False
    if max(one.share, other.share) < HARDLY:
        return True
    close = abs(one.share - other.share) < max(_ALIKE, 0.2 * one.share)
    return close and min(one.share, other.share) >= HARDLY and one.named == other.named


def _name(one: EpochRecord, word: str) -> str:
    if one.epoch is None:
        return f"{'an' if word[0] == 'e' else 'An'} epoch of unknown order"
    return f"{word} {one.epoch:,}"


def plan_line(run: RunRecord) -> str:
    """The plan, and how it was found, in one line."""
    plan = run.plan
    last = next((one for one in reversed(run.epochs) if one.sampler is not None), None)
    sampler = plan.get("sampler") or (last.sampler if last else None)
    if run.explained:
        return " ".join(run.explained.split())
    if sampler is None:
        return "No plan was found: the mount kept what was read, and could not know what comes next."
    seed = plan.get("seed") if plan.get("sampler") else last.seed if last else None
    words = [f"sampler {sampler}", "" if seed is None else f"seed {seed}", _ranks(plan)]
    state = {"locked": "certain", "watching": "not certain", "mismatch": "contradicted by what was read"}
    words.append(state.get(str(plan.get("state")), ""))
    line = ", ".join(word for word in words if word)
    return f"{line[0].upper()}{line[1:]}."


def _ranks(plan: Mapping[str, object]) -> str:
    world, ranks = plan.get("world"), plan.get("ranks")
    if not isinstance(world, int) or world <= 1 or not isinstance(ranks, list):
        return ""
    if not all(type(one) is int and 0 <= one < world for one in ranks):
        return ""
    return f"ranks {format_ranks(ranks)} of {world}"


def remarks(run: RunRecord) -> Iterator[str]:
    """Say what else is worth a look, a sentence each; nothing where all went well."""
    epochs = run.epochs
    second, reads = (sum(getattr(one, name) for one in epochs) for name in ("second_reads", "source_reads"))
    if second:
        yield (
            f"{second:,.0f} of {reads:,.0f} reads of the source read a file again: memory and disks do not hold all "
            "that is read. nopfs simulate --from-mount says how much would do."
        )
    failed = sum(one.read_errors for one in epochs)
    if failed:
        yield f"{failed:,.0f} reads failed, so that readers got errors."
    errors = sum(one.source_errors for one in epochs)
    if errors:
        yield f"The source failed {errors:,.0f} times."
    unknown = [one for one in epochs if one.epoch is None]
    if unknown and len(unknown) < len(epochs):
        yield f"In {len(unknown)} of {len(epochs)} epochs no plan was certain."
    elif unknown:
        yield "No plan was ever certain. nopfs plan says what was tried; a plan file or nopfsfs.register helps."
    if any(one.counts == "estimated" for one in epochs):
        yield "Files are estimates where the kernel opened files by itself: at most 5 % of an epoch off."


def totals(run: RunRecord) -> list[tuple[str, str]]:
    """The figures of the whole run: each a value and its name."""
    epochs = run.epochs
    files, size = sum(one.files for one in epochs), sum(one.bytes for one in epochs)
    seconds, stall = sum(one.seconds for one in epochs), sum(one.stall_seconds for one in epochs)
    hits = sum(one.files * (1 - one.served.get("source", 0.0)) for one in epochs)
    return [
        (f"{len(epochs):,}", "epoch" if len(epochs) == 1 else "epochs"),
        (f"{files:,.0f}", "files read"),
        (f"{files / seconds:,.0f}/s" if seconds else "–", "files, on average"),
        (f"{size / 1e9:,.3g} GB" if size < 1e12 else f"{size / 1e12:,.3g} TB", "read"),
        (f"{100 * hits / files:.1f} %" if files else "–", "ready before their reader"),
        (format_duration(stall), "waited, all readers"),
        (f"{sum(one.source_bytes for one in epochs) / max(size, 1):.2f} ×", "read from the source"),
    ]
