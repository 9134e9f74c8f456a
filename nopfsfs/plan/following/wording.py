"""The facts about a plan in one paragraph, for a person who trains. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from nopfsfs.plan.following.explaining import (
    Explanation,
    Group,
    Known,
    Lead,
    Missing,
    PlanOrigin,
    Said,
    Verdict,
    order_text,
    ranks_text,
)
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.tracking.agreement import PlanState
from nopfsfs.text.units import format_duration

# Opens without a plan that are told of although another plan is certain: fewer are strays.
_STRAYS = 16
# Opens in vain after which it is told what would help.
_IN_VAIN = 32
_THINGS = {"seed": "seed", "sampler": "sampler", "world": "", "plan": "plan:"}


def paragraph(found: Explanation) -> str:
    """All that is known, in a few sentences."""
    if found.state == PlanState.NONE.value:
        return "There are no files in this mount."
    return " ".join(_sentences(found))


def _sentences(found: Explanation) -> Iterator[str]:
    certain = [one for one in found.plans if one.plan.state == PlanState.LOCKED.value]
    if not found.opens:
        yield "Nothing was read yet."
    for one in found.plans:
        yield from _plan(one, found)
    for group in found.groups:
        if not certain or group.opens >= _STRAYS:
            yield from _group(group, found)
    if found.opens and not found.plans and not found.groups:
        yield "What was opened belongs to no data set."
    for said in found.said:
        yield _said(said)
    if certain and any(one.dealt is PlanOrigin.OPENS for one in certain):
        yield "World size and ranks were read off the opens."
    if any(_in_vain(group) for group in found.groups):
        yield _help(found)


def _plan(one: Known, found: Explanation) -> Iterator[str]:
    files, order = _files(one.plan.dataset), _order(one)
    if one.plan.state == PlanState.LOCKED.value:
        yield f"The files {files} are read {order}."
        if one.after is not None and one.bits is not None:
            least = f", where {found.needed:.0f} are needed" if one.bits >= found.needed else ""
            yield f"Known after {_count(one.after, 'open')}, by {one.bits:.0f} bits of evidence{least}."
    elif one.was_locked:
        yield f"The files {files} were read {order}, until their readers opened others; it goes on if they come back."
    elif one.plan.state == PlanState.MISMATCH.value:
        yield f"What is opened {files} is not what was expected: files {order}."
    elif one.origin is PlanOrigin.SAID:
        yield f"The files {files} are expected {order}, as was registered."
    else:
        yield f"The files {files} are expected {order}: the mount goes by that until the opens show what is read."


def _files(dataset: str | None) -> str:
    return f"in {dataset}/" if dataset and dataset != "." else "of this mount"


def _order(one: Known) -> str:
    plan = one.plan
    if plan.sampler is None or plan.sampler == "sequential":
        words = "in order, as they are listed"
    else:
        family = registry.sampler(plan.sampler)
        seed = plan.seed if family.seeds is not None else None
        text = order_text(plan.sampler, seed, plan.epoch, plan.options, family.summary)
        words = f"in the order of {text}"
    if plan.subset is not None:
        words += f", a part of them ({plan.subset[0]})"
    if one.dealt is not PlanOrigin.ALONE:
        words += f": {ranks_text(plan.world, plan.ranks)} read here"
        words = words.replace(" read here", " reads here") if len(plan.ranks) == 1 else words
    return words


def _group(group: Group, found: Explanation) -> Iterator[str]:
    who = f"{_count(group.readers, 'reader')} " if group.readers else ""
    have = "has" if group.readers == 1 else "have"
    opens = _count(group.opens, "open")
    where = _files(group.dataset)
    if who:
        yield f"{who}{have} made {opens} {where} that no plan explains yet."
    else:
        yield f"No plan explains {opens} {where} yet."
    yield from _evidence(group, found.needed)
    yield from _search(group, found)
    if group.unread:
        yield "Meanwhile what was not read yet is staged, in the order of the listing."


def _evidence(group: Group, needed: float) -> Iterator[str]:
    first, *others = [_lead(one) for one in group.leads] or [""]
    if group.missing is Missing.OPENS:
        lead = group.leads[0]
        yield (
            f"{first} fits best, by {lead.bits:.0f} bits of evidence of the {needed:.0f} that are needed: "
            f"that takes about {_count(group.more or 1, 'more open')}."
        )
        if others:
            yield f"Next comes {others[0]}, by {group.leads[1].bits:.0f}."
    elif group.missing is Missing.TOLD_APART and others:
        yield f"{first} and {others[0]} fit about equally well; opens in which they differ will tell."
    elif group.missing is Missing.TOLD_APART:
        yield f"{first} fits, but its readers do not go forward in it; more opens will tell."
    elif group.missing is Missing.DEAL:
        yield f"They follow {first}; the next opens will show which ranks read it, or that something fits better."
    elif group.missing is Missing.FILES:
        yield f"{_count(group.files, 'file')} are too few to tell an order from chance in one epoch."
    else:
        yield "Nothing that was tried so far fits them."
        if first:
            yield f"Least unlikely is {first}, by {group.leads[0].bits:.0f} bits of evidence of {needed:.0f}."


def _search(group: Group, found: Explanation) -> Iterator[str]:
    if group.missing in (Missing.DEAL, Missing.TOLD_APART):
        return
    if group.share is not None:
        rests = f", and rests for {format_duration(found.rests_s)} to leave the processor to others"
        yield f"The search has tried about {group.share:.0%} of what is known{rests if found.rests_s else ''}."
    elif group.again_at > group.opens:
        begins = "All that is known was tried; that begins again" if group.tried_all else "All that is known is tried"
        yield f"{begins} from {_count(group.again_at, 'open')} on."
    else:
        yield "A search waits for its turn."
    if found.long_search:
        yield "One that takes minutes runs besides."


def _lead(one: Lead) -> str:
    epoch = None if one.sampler == "sequential" else one.epoch
    text = order_text(one.sampler, one.seed, epoch, one.options)
    return f"{text} over a part of the files ({one.subset})" if one.subset is not None else text


def _said(one: Said) -> str:
    what = f"{_THINGS[one.what]} {one.value}".strip()
    if one.what == "plan":
        begin = f"You registered {one.value}"
    elif one.origin is PlanOrigin.ENVIRONMENT:
        begin = f"The environment of the mount speaks of {what}"
    else:
        begin = f"You said {what}"
    if one.verdict is Verdict.CONFIRMED:
        return f"{begin}: the opens confirm it."
    if one.verdict is Verdict.OPEN:
        return f"{begin}: the opens have not judged it yet."
    kind = "" if one.what in ("world", "plan") else f"{one.what} "
    return f"{begin}: the opens contradict it{f', they show {kind}{one.shows}' if one.shows else ''}."


def _in_vain(group: Group) -> bool:
    return group.missing is Missing.FILES or (
        group.missing is Missing.CANDIDATE and (group.tried_all or group.opens >= _IN_VAIN)
    )


def _help(found: Explanation) -> str:
    seed = "" if any(one.what == "seed" for one in found.said) else "mount with --seed, if the job has a seed, or "
    return (
        f"What helps: {seed}register the job's plan (nopfs plan MOUNTPOINT --register FILE, or nopfsfs.register in its "
        "script). The mount goes on searching by itself; a shuffle without a seed cannot be found."
    )


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
