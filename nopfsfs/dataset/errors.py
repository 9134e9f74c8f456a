"""What can be wrong with an index file. The cache answers it with a new scan."""

from __future__ import annotations


class IndexDamaged(Exception):
    """The file is no index of this layout: foreign, cut short, of another version, or with a wrong
    checksum."""
