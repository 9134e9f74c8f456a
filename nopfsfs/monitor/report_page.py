"""The report of a run as one HTML page: it holds all that it shows, runs nothing, and asks no other place for anything.

Names of the run may be any bytes: each is escaped here, and nowhere else.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files

from nopfsfs import __version__
from nopfsfs.monitor import run_curves, run_words, source_words
from nopfsfs.monitor.mount_view import EpochRecord
from nopfsfs.monitor.run_curves import TIER_NAMES, TIERS
from nopfsfs.monitor.run_record import RunRecord
from nopfsfs.text.printable import printable
from nopfsfs.text.units import format_duration

_NAME_MOST = 400  # characters of a path or a name
_TOGETHER = "Waiting is summed over all readers: 100 % is one reader that always waits."


def page(run: RunRecord, now: float) -> str:
    """The page. `now`: when it is made, seconds since 1970."""
    body = "\n".join([*_head(run), *_totals(run), *_words(run), *_pictures(run), *_table(run), *_foot(now)])
    style = files("nopfsfs.monitor").joinpath("report.css").read_text()
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>nopfs report of {_shown(run.mountpoint)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _shown(name: object) -> str:
    """A text from elsewhere, for the page."""
    text = printable(str(name)).replace("\n", "\\n")
    return escape(text if len(text) <= _NAME_MOST else f"{text[: _NAME_MOST - 1]}…")


def _clock(seconds: float, pattern: str = "%Y-%m-%d %H:%M:%S %Z") -> str:
    try:
        return time.strftime(pattern, time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "?"


def _head(run: RunRecord) -> Iterator[str]:
    kind = "a mount that runs" if run.live else "a mount that has ended"
    yield f'<header>\n<p class="kicker">nopfs report of {kind}</p>\n<h1>{_sentence(run_words.headline(run))}</h1>'
    yield f'<p class="where"><b>{_shown(run.source)}</b> mounted on <b>{_shown(run.mountpoint)}</b></p>'
    if run.epochs:
        first, last = run.epochs[0], run.epochs[-1]
        took = format_duration(max(0.0, last.begin + last.seconds - first.begin))
        yield f'<p class="where">{took} from the first open, {_clock(first.begin)}, to the last</p>'
    yield "</header>"


def _totals(run: RunRecord) -> Iterator[str]:
    if run.epochs:
        tiles = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in
                        run_words.totals(run))  # fmt: skip
        yield f'<div class="totals">{tiles}</div>'


def _words(run: RunRecord) -> Iterator[str]:
    lines = list(run_words.wait_lines(run))
    if lines:
        items = "".join(f"<li>{_sentence(line)}</li>" for line in lines)
        yield f'<section class="short"><h2>What readers waited for</h2><ul>{items}</ul>'
        yield f'<p class="note">{_TOGETHER}</p></section>'
    yield from _listed("What limited the reading of the source", source_words.source_lines(run))
    yield f'<section class="short"><h2>The plan</h2><p>{_sentence(run_words.plan_line(run))}</p></section>'
    yield from _listed("Worth a look", run_words.remarks(run))


def _listed(title: str, lines: Iterable[str]) -> Iterator[str]:
    """A section of sentences, where there are any."""
    items = "".join(f"<li>{_sentence(line)}</li>" for line in lines)
    if items:
        yield f'<section class="short"><h2>{escape(title)}</h2><ul>{items}</ul></section>'


def _sentence(text: str) -> str:
    """A sentence, whose numbers stay with their per cent signs."""
    return escape(printable(text).replace("\n", " ")[: 4 * _NAME_MOST]).replace(" %", "\N{NO-BREAK SPACE}%")


def _pictures(run: RunRecord) -> Iterator[str]:
    found = run_curves.curves(run)
    if found is None:
        if run.epochs:
            text = "The history has too few seconds of this run for curves."
            yield f'<section class="short"><p class="note">{text}</p></section>'
    else:
        for title, text, svg in run_curves.pictures(run, found):
            yield _figure(title, text, svg)
    waits = run_curves.epoch_waits(run.epochs)
    if waits is not None:
        text = "READs that waited, read off counters whose bounds double. READs that did not wait are not among them."
        yield _figure("Waits by epoch", text, waits)


def _figure(title: str, text: str, svg: str) -> str:
    return f"<figure><figcaption><h2>{escape(title)}</h2><p>{escape(text)}</p></figcaption>\n{svg}\n</figure>"


_HEADINGS = (
    "epoch", "files", "time", "files/s", "waited", "share", "median", "99 %", "source reads", "again", "errors",
)  # fmt: skip


def _table(run: RunRecord) -> Iterator[str]:
    if not run.epochs:
        return
    several = len({one.dataset for one in run.epochs}) > 1
    head = "".join(f"<th>{name}</th>" for name in _HEADINGS)
    yield '<section><h2>Epochs</h2><div class="scroll"><table>'
    yield f'<thead><tr>{head}<th class="wide">served by</th></tr></thead><tbody>'
    for waited in run_words.waits(run):
        cells = "".join(f"<td>{cell}</td>" for cell in _cells(waited.epoch, waited.share, several=several))
        yield f'<tr>{cells}<td class="wide">{_bar(waited.epoch)}</td></tr>'
    keys = "".join(
        f'<span><i style="background:var(--hue{number})"></i>{name}</span>' for number, name in enumerate(TIER_NAMES)
    )
    yield f'</tbody></table></div><div class="key">{keys}</div></section>'


def _cells(one: EpochRecord, share: float, *, several: bool) -> Sequence[str]:
    name = "?" if one.epoch is None else f"{one.epoch:,}"
    where = f" <small>{_shown(one.dataset)}</small>" if several and one.dataset else ""
    errors = one.read_errors + one.source_errors
    about = "~" if one.counts == "estimated" else ""
    return (
        f"{name}{'' if one.ended else ' …'}{where}",
        f"{about}{one.files:,.0f}",
        format_duration(one.seconds),
        f"{one.files / one.seconds:,.0f}" if one.seconds else "–",
        format_duration(one.stall_seconds),
        f"{100 * share:.0f} %",
        _wait(one.wait_p50_seconds),
        _wait(one.wait_p99_seconds),
        f"{one.source_reads:,.0f}",
        f"{one.second_reads:,.0f}",
        f'<span class="warn">{errors:,.0f}</span>' if errors else "0",
    )


def _wait(seconds: float | None) -> str:
    return "–" if seconds is None else format_duration(seconds)


def _bar(one: EpochRecord) -> str:
    """A bar of what served the files, which also says so in words."""
    shares = [min(1.0, max(0.0, one.served.get(tier, 0.0))) for tier in TIERS]
    said = ", ".join(
        f"{name} {100 * share:.1f} %" for name, share in zip(TIER_NAMES, shares, strict=True) if share > 0
    )
    parts = "".join(
        f'<i style="width:{100 * share:.2f}%;background:var(--hue{number})"></i>'
        for number, share in enumerate(shares) if share > 0
    )  # fmt: skip
    return f'<div class="bar" role="img" aria-label="{said or "nothing"}" title="{said or "nothing"}">{parts}</div>'


def _foot(now: float) -> Iterator[str]:
    yield f"<footer>Made by nopfs {escape(__version__)} on {_clock(now)}. Times are those of this node.</footer>"
