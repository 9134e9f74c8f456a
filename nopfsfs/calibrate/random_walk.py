"""Random files of a tree, without listing all of it: directories are visited at random for a limited time.

No file is looked at: a stat would warm the caches that the measurement is to find cold. Links are not followed, neither
in the last place of a path nor on the way.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from nopfsfs.system.beneath import open_absolute
from nopfsfs.system.descriptors import closing_fd

MOST_FILES = 30_000  # kept: about 5 MB of paths, and more than can be read in the time
MOST_SEEN = 200_000  # after so many files, more make the choice no better
_LOOK_EVERY = 256  # entries of one directory between two checks of the time


@dataclass(slots=True)
class Walk:
    """Result of a walk. `paths`: files, shuffled; `seen`: the number of files seen; `whole`: these are all files of the
    tree. `skipped`: the number of directories that could not be listed; `why`: one of them and the reason."""

    paths: list[bytes] = field(default_factory=list)
    seen: int = 0
    whole: bool = False
    skipped: int = 0
    why: str = ""

    def keep(self, path: bytes, rng: random.Random) -> None:
        """Count a file, and keep each of those seen with equal chances (reservoir sampling)."""
        self.seen += 1
        if len(self.paths) < MOST_FILES:
            self.paths.append(path)
        elif (at := rng.randrange(self.seen)) < MOST_FILES:
            self.paths[at] = path


def walk(
    root: bytes,
    late: Callable[[], bool],
    rng: random.Random,
    skip: Collection[bytes] = (),
    entering: Callable[[bytes], None] = lambda path: None,
) -> Walk:
    """Choose files below `root` until `late`, at least one if there is any. `skip`: directories left out; `entering` is
    called with each directory before it is listed. Raises OSError where `root` itself cannot be listed."""
    found = Walk()
    waiting = [root]
    while waiting and found.seen < MOST_SEEN and not (late() and found.seen):
        at = rng.randrange(len(waiting))
        waiting[at], waiting[-1] = waiting[-1], waiting[at]
        folder = waiting.pop()
        entering(folder)
        try:
            done = _list(folder, found, waiting, late, rng, skip)
        except OSError as error:
            if folder == root:
                raise
            found.skipped += 1
            found.why = f"{os.fsdecode(folder)}: {error.strerror}"
            continue
        if not done:
            break
    else:
        found.whole = not waiting
    rng.shuffle(found.paths)
    return found


def _list(
    folder: bytes,
    found: Walk,
    waiting: list[bytes],
    late: Callable[[], bool],
    rng: random.Random,
    skip: Collection[bytes],
) -> bool:
    """Take in one directory; False where time or count ended that."""
    with closing_fd(open_absolute(folder, os.O_RDONLY | os.O_DIRECTORY)) as fd, os.scandir(fd) as entries:
        for number, entry in enumerate(entries, 1):
            path = folder.rstrip(b"/") + b"/" + os.fsencode(entry.name)
            if entry.is_file(follow_symlinks=False):
                found.keep(path, rng)
            elif entry.is_dir(follow_symlinks=False) and path not in skip:
                waiting.append(path)
            if number % _LOOK_EVERY == 0 and found.seen and (found.seen >= MOST_SEEN or late()):
                return False
    return True
