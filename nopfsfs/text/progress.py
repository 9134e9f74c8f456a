"""The bar by which a command shows how far it has come. Pure."""

from __future__ import annotations

from nopfsfs.text.units import format_duration, format_size

WIDTH = 24  # of the bar
SILENT_S = 2.0  # a command that takes longer shows a bar


def bar(done: int, total: int, seconds: float, note: str = "") -> str:
    """Return a line for `done` of `total` bytes after so many seconds: bar, share, bytes, rate, time that is left."""
    share = min(1.0, done / total) if total else 1.0
    filled = int(WIDTH * share)
    words = [f"{100 * share:3.0f} %", f"{format_size(done)} of {format_size(total)}"]
    if done and seconds > 0:
        words.append(f"{format_size(int(done / seconds))}/s")
        if total > done:
            words.append(f"{format_duration((total - done) * seconds / done)} left")
    return f"[{'#' * filled}{'.' * (WIDTH - filled)}] {', '.join(words)}{note}"
