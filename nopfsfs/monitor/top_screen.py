"""The screen of `nopfs top`, with textual (the extra `top`). Only that command imports this module.

The screen draws what `WatchedMount` has seen; it asks no mount, and waits for none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Sparkline, Static

from nopfsfs.monitor import top_text
from nopfsfs.monitor.watched_mount import CURVES, KEPT_S, Moment, WatchedMount

DRAW_S = 0.5  # between two drawings
MOUNTS_MOST = 64  # that are looked at
# The colours of Okabe and Ito that stand out from a dark ground, as in the pages of `nopfs report`.
COLOURS = {"page_cache": "#4b9fd8", "ram": "#8accf0", "disk": "#35b98f", "peer": "#d283b3", "source": "#f0a33c"}
_CURVE_COLOURS = {"waiting": ("#b87a26", COLOURS["source"])}  # of small and large values
WAITS = 0.1  # readers that wait at a time: from here on the figure stands out
HELP = """\
[b]q[/b]        quit
[b]s[/b]        sort by the next of: mount, opens, waiting, source, memory
[b]n[/b] [b]↓[/b]      next mount          [b]p[/b] [b]↑[/b]  the one before
[b]?[/b]        this help

[b]opens/s[/b]  files opened a second; ~: an estimate, by tripwires
[b]ready[/b]    share of them that did not come from the source
[b]waiting[/b]  readers that waited, on average of the last second
[b]p99[/b]      99 % of the READs that waited took no longer
[b]MB/s[/b]     read from the source
[b]limit[/b]    requests that may be under way at the source
[b]slow[/b]     how much longer they take than at an idle source
[b]lead[/b]     how long the reader has enough to read

Curves show the last two minutes."""


class HelpScreen(ModalScreen[None]):
    """Keys and columns; any key closes it."""

    BINDINGS: ClassVar[list[Any]] = [Binding("q", "app.quit", show=False)]
    DEFAULT_CSS = """
    HelpScreen { align: center middle; }
    HelpScreen Static { width: 74; height: auto; padding: 0 2; border: round $primary; background: $surface; }
    """

    def compose(self) -> ComposeResult:
        """Make the text."""
        yield Static(HELP)

    def on_key(self) -> None:
        """Close."""
        self.dismiss()


class TopScreen(App[None]):
    """Mounts in a table, and more of the one that is selected. `find`: the mountpoints that are to be shown now."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 1; background: $primary-darken-2; color: $text; }
    #mounts { height: auto; max-height: 7; min-height: 2; scrollbar-size-vertical: 1; }
    #detail { height: 5; padding: 0 1; margin-top: 1; }
    #curves { layout: grid; grid-size: 2; grid-gutter: 0 2; grid-rows: 4; height: auto; padding: 0 1; }
    .curve { height: 4; }
    .curve Static { height: 1; color: $text-muted; }
    .curve Sparkline { height: 3; }
    """
    BINDINGS: ClassVar[list[Any]] = [
        Binding("q", "quit", "Quit"),
        Binding("s", "sort", "Sort"),
        Binding("n", "move(1)", "Next mount"),
        Binding("p", "move(-1)", "Previous"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, find: Callable[[], Sequence[str]], watch: Callable[[str], WatchedMount] = WatchedMount) -> None:
        super().__init__()
        self._find, self._watch = find, watch
        self._watches: dict[str, WatchedMount] = {}
        self._sort = next(iter(top_text.SORTS))
        self.selected: str | None = None

    def compose(self) -> ComposeResult:
        """Make the parts of the screen."""
        yield Static(id="head")
        table: DataTable[Text] = DataTable(id="mounts", cursor_type="row", cell_padding=0, zebra_stripes=False)
        yield table
        yield Static(id="detail")
        with Container(id="curves"):
            for name in CURVES:
                with Vertical(classes="curve"):
                    yield Static(id=f"title-{name}")
                    low, high = _CURVE_COLOURS.get(name, (COLOURS["page_cache"], COLOURS["ram"]))
                    yield Sparkline([0.0], id=f"curve-{name}", min_color=low, max_color=high)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to look and to draw."""
        table = self._table
        for number, (name, width) in enumerate(top_text.COLUMNS):
            table.add_column(Text(name, justify="left" if number == 0 else "right"), width=width)
        self.draw()
        self.set_interval(DRAW_S, self.draw)

    def on_unmount(self) -> None:
        """Wait for no thread."""
        for watch in self._watches.values():
            watch.stop()

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#mounts", DataTable)

    # ---- drawing ------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw what is known now."""
        if not self.is_running or len(self.screen_stack) > 1:
            return  # the screen ends, and its parts are gone; or the help stands above
        wanted = list(self._find())[:MOUNTS_MOST]
        for path in [path for path in self._watches if path not in wanted]:
            self._watches.pop(path).stop()
        for path in wanted:
            if path not in self._watches:
                self._watches[path] = self._watch(path)
                self._watches[path].start()
        shown = top_text.in_order([watch.moment for watch in self._watches.values()], self._sort)
        paths = [one.mountpoint for one in shown]
        if self.selected not in paths:
            self.selected = paths[0] if paths else None
        self._draw_head(len(shown))
        self._draw_table(shown)
        self._draw_detail(next((one for one in shown if one.mountpoint == self.selected), None))

    def _draw_head(self, count: int) -> None:
        left = f" nopfs top   {count} {'mount' if count == 1 else 'mounts'}   by {self._sort}"
        right = time.strftime("%H:%M:%S ")
        self.query_one("#head", Static).update(Text(left + right.rjust(max(1, self.size.width - len(left)))))

    def _draw_table(self, shown: Sequence[Moment]) -> None:
        table = self._table
        with table.prevent(DataTable.RowHighlighted):
            table.clear()
            for one in shown:
                table.add_row(*_row(one), key=one.mountpoint)
            if shown:
                table.move_cursor(row=[one.mountpoint for one in shown].index(self.selected or ""))

    def _draw_detail(self, one: Moment | None) -> None:
        self.query_one("#detail", Static).update(_detail(one, self.size.width - 2))
        for name in CURVES:
            values = one.curves.get(name, ()) if one is not None else ()
            self.query_one(f"#title-{name}", Static).update(Text(top_text.curve_title(name, values)))
            # a curve begins at 0, whatever its least value is
            self.query_one(f"#curve-{name}", Sparkline).data = [0.0, *values[1 - KEPT_S :]]

    # ---- keys ---------------------------------------------------------------------------------------------

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the mount on which the cursor is."""
        if event.row_key.value is not None and event.row_key.value != self.selected:
            self.selected = event.row_key.value
            self.draw()

    def action_sort(self) -> None:
        """Sort by the next of the orders."""
        names = list(top_text.SORTS)
        self._sort = names[(names.index(self._sort) + 1) % len(names)]
        self.draw()

    def action_move(self, by: int) -> None:
        """Select another mount; after the last comes the first."""
        table = self._table
        if table.row_count:
            table.move_cursor(row=(table.cursor_row + by) % table.row_count)

    def action_help(self) -> None:
        """Show keys and columns."""
        self.push_screen(HelpScreen())


def _row(one: Moment) -> list[Text]:
    """The cells of a mount, with what needs a look in colour."""
    made = []
    for number, (cell, (_, width)) in enumerate(zip(top_text.cells(one), top_text.COLUMNS, strict=True)):
        style = "bold red" if one.trouble else ""
        if number == 3 and one.waiting >= WAITS:
            style = f"bold {COLOURS['source']}"
        made.append(Text(cell[:width], style, justify="left" if number == 0 else "right"))
    return made


def _detail(one: Moment | None, width: int) -> Text:
    """The lines below the table, of the mount that is selected."""
    if one is None:
        return Text("No mount of yours is here. They appear by themselves.", "dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(top_text.shortened(one.mountpoint, width // 2), "bold")
    if one.trouble:
        text.append(f"\n{one.trouble}", "bold red")
        return text
    if one.source:
        text.append(f"  of {top_text.shortened(one.source, width // 2 - 8)}", "dim")
    text.append(f"\n{top_text.plan_text(one)}\n{top_text.figures_text(one)}\n")
    parts = top_text.served_parts(one.line, width)
    for tier, _, count in parts:
        text.append("█" * count, COLOURS[tier])
    text.append("nothing was opened in the last second" if one.line is not None and not parts else "\n", "dim")
    for tier, said, _ in parts:
        text.append("■ ", COLOURS[tier])
        text.append(f"{said}  ")
    return text
