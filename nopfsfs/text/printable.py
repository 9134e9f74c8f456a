"""Text from elsewhere, made safe to print. Pure."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return `text`, of one or more lines, with unprintable characters written as `\\x1b`, so that no terminal acts
    upon them. File names, and answers of the daemon of another user's mount, may hold any."""
    shown = (c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown).encode("utf-8", "backslashreplace").decode()
