"""Flags of the copies of a file: what is so, and the reasons to keep a copy in memory. Pure."""

from __future__ import annotations

from enum import IntFlag


class Copy(IntFlag):
    """The state of a row's copies."""

    FETCHING = 1  # a fetch is commanded
    STAGED = 2  # whole in the arena
    EVICTING = 4  # an eviction is commanded
    STREAM = 8  # charged to the part of the arena for files that do not stay
    ON_DISK = 16
    KERNEL_READS = 32  # on disk, and read from there by the kernel itself
    MAY_PASS = 64  # the kernel will read the row so, soon after it is on disk


class Hold(IntFlag):
    """A reason to keep a copy in the arena. A row may have a hold before it is staged."""

    OPEN = 1  # a reader has the file open
    PENDING = 2  # the copy was fetched or found for a read to come
    WRITING = 4  # the copy is being written to disk
    PUSHING = 8  # the copy is being pushed
    UNDECIDED = 16  # the file was read, and Belady's rule is yet to decide
    OFFERED = 32  # another node will fetch the copy
    NEW = 64  # staged since the last `decide`, so that an open of the same moment counts
    HOME = 128  # the home of the file is in memory


# Bound once, as plain numbers: operations on members of an enumeration cost as much as the rest of a short call.
FETCHING, STAGED, EVICTING, STREAM, ON_DISK, KERNEL_READS, MAY_PASS = map(int, Copy)
OPEN, PENDING, WRITING, PUSHING, UNDECIDED, OFFERED, NEW, HOME = map(int, Hold)
PRESENT = STAGED | EVICTING  # of these, a copy that stays for now has only STAGED
