"""Errors of an index file. The cache handles them by a new scan."""

from __future__ import annotations


class IndexDamaged(Exception):
    """The file is no index of this layout: foreign, cut short, of another version, or with a wrong
    checksum."""
