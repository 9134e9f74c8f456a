"""A check that the columns of an index fit together: a checksum does not detect what a faulty program wrote.

After this check no access to the index leads out of a column, and each way up the tree ends at the root.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nopfsfs.dataset.index import HAS_ACL, NO_ENTRY

Columns = Mapping[str, NDArray[Any]]
_DIRECTORY, _LINK = 0o4, 0o12  # of mode >> 12


class IndexDamaged(Exception):
    """The file is no index of this layout: foreign, cut short, of another version, or with a wrong checksum."""


def check(columns: Columns) -> None:
    """Check all rules. Raises IndexDamaged for the first that does not hold. Takes some 30 ms for a million files."""
    for what, holds in _rules(columns):
        if not holds:
            raise IndexDamaged(f"{what} make no sense")


def _rules(c: Columns) -> Iterator[tuple[str, bool]]:
    n, m, d = len(c["mode"]), len(c["entry_row"]), len(c["first_entry"]) - 1
    yield "its counts", 0 < d <= n <= NO_ENTRY
    yield "its devices", bool((c["src_dev"] < len(c["devices"])).all())
    kinds = c["mode"] >> 12
    yield "kinds", bool((kinds[:d] == _DIRECTORY).all() and not (kinds[d:] == _DIRECTORY).any())
    yield "sizes", bool((c["size"] >= 0).all())
    yield "places of names", _spans(c["name_start"], len(c["names"])) and bool((np.diff(c["name_start"]) > 0).all())
    yield "names", not ((c["names"] == ord("/")) | (c["names"] == 0)).any() and not _has_dots(c)
    yield "places of entries", _spans(c["first_entry"], m)
    yield "rows of entries", bool((c["entry_row"] < n).all())
    parents = np.repeat(np.arange(d, dtype=np.uint32), np.diff(c["first_entry"]))
    yield "directories of entries", np.array_equal(c["entry_parent"], parents)
    primary = c["primary"]
    yield "ways to rows", primary[0] == NO_ENTRY and bool((primary[1:] < m).all())
    # A directory comes after the one that it is in, so each way up ends at the root.
    rows = np.arange(1, n)
    yield "ways up", bool((c["entry_row"][primary[1:]] == rows).all()) and bool(
        (c["entry_parent"][primary[1:d]] < rows[: d - 1]).all()
    )
    yield "links", np.array_equal(c["link_row"], np.flatnonzero(kinds == _LINK))
    yield "targets of links", _spans(c["link_start"], len(c["link_targets"]))
    yield "rows with an ACL", np.array_equal(c["acl_row"], np.flatnonzero(c["flags"] & HAS_ACL))
    yield "numbers of ACLs", bool((c["acl_number"] < len(c["acl_start"]) - 1).all())
    yield "ACLs", _spans(c["acl_start"], len(c["acls"]))


def _has_dots(c: Columns) -> bool:
    """True when an entry is named "." or "..": its path would lead elsewhere."""
    short = np.flatnonzero(np.diff(c["name_start"]) <= 2)
    starts, ends = c["name_start"][short], c["name_start"][short + 1]
    return bool(((c["names"][starts] == ord(".")) & (c["names"][ends - 1] == ord("."))).any())


def _spans(starts: NDArray[Any], end: int) -> bool:
    """True when `starts` are the beginnings of pieces that follow one another from 0 to `end`."""
    return bool(starts[0] == 0 and starts[-1] == end and (starts[1:] >= starts[:-1]).all())
