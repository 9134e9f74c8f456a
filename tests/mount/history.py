"""What the files of a source have been since it was mounted, and what of it a mount may show: the rules of
docs/semantics.md, as an oracle.

A path of the mount stands for what the source had there when it was indexed. Names stay; of each file all versions are
kept that the source has had in its place. The mount may show any of them whole, but no other; and nothing to whom none
of them, nor any state of the directories above, gave the right. `looked` says that the mount has compared all: then
only what is there now counts for rights.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from tests.mount.rights import READ, SEARCH, Granted, granted, may

Attributes = tuple[int, ...]  # mode, uid, gid, size, mtime_ns, ctime_ns
LABEL = "user.label"


@dataclass(frozen=True)
class Version:
    """What a path was at one time. `content` of files alone."""

    attributes: Attributes
    ino: int
    rights: Granted
    content: bytes | None = None
    label: bytes | None = None

    @property
    def kind(self) -> int:
        return stat.S_IFMT(self.attributes[0])


@dataclass
class Entry:
    """A path of the mount. `seen`: all that was there, None for nothing, oldest first; `since`: from where on rights
    count."""

    path: str
    kind: int
    target: str = ""
    seen: list[Version | None] = field(default_factory=list)
    since: int = 0

    @property
    def now(self) -> Version | None:
        return self.seen[-1]

    @property
    def versions(self) -> list[Version]:
        """Those that are of the kind that was indexed."""
        return [one for one in self.seen if one is not None and one.kind == self.kind]

    @property
    def rights(self) -> list[Granted]:
        """Those that the mount may go by."""
        return [one.rights for one in self.seen[self.since :] if one is not None and one.kind == self.kind]

    @property
    def has_changed(self) -> bool:
        return len(self.seen) > 1

    @property
    def contents(self) -> list[bytes]:
        return [one.content for one in self.versions if one.content is not None]


class History:
    """Of all paths of a source that is mounted at `mountpoint`. `look` is to be called after every change."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.entries: dict[str, Entry] = {}
        self._index()
        self.look()

    def _index(self) -> None:
        """Take the paths that are there now."""
        first: dict[tuple[int, int], str] = {}
        found: list[tuple[str, str, os.stat_result]] = []
        for at, directories, files in os.walk(self.source):
            above = os.path.relpath(at, self.source)
            above = "" if above == "." else above
            found += [(above, name, os.lstat(os.path.join(at, name))) for name in (*directories, *files)]
        self.entries[""] = Entry("", stat.S_IFDIR)
        # The order of the index: hard links are what the first of their names is.
        for above, name, st in sorted(found, key=lambda one: (f"{one[0]}/" if one[0] else "", one[1])):
            path = os.path.join(above, name)
            kind = stat.S_IFMT(st.st_mode)
            same = first.setdefault((st.st_dev, st.st_ino), path) if kind != stat.S_IFDIR else path
            if same != path:
                self.entries[path] = self.entries[same]
            else:
                target = os.readlink(self.source / path) if stat.S_ISLNK(st.st_mode) else ""
                self.entries[path] = Entry(path, kind, target)

    # ---- the source ---------------------------------------------------------------------------------------

    def look(self) -> None:
        """See what has changed at the source."""
        reachable: dict[str, bool] = {}
        for path, entry in self.entries.items():
            if entry.path != path:
                continue
            now = self._version(path, reachable, entry.now if entry.seen else None)
            if not entry.seen or now != entry.now:
                entry.seen.append(now)

    def _version(self, path: str, reachable: dict[str, bool], before: Version | None) -> Version | None:
        if not self._is_reachable(os.path.dirname(path), reachable):
            return None
        full = os.path.join(self.source, path)
        try:
            st = os.lstat(full)
        except OSError:
            return None
        attributes = st.st_mode, st.st_uid, st.st_gid, st.st_size, st.st_mtime_ns, st.st_ctime_ns
        if before is not None and (before.attributes, before.ino) == (attributes, st.st_ino):
            return before
        content = Path(full).read_bytes() if stat.S_ISREG(st.st_mode) else None
        try:
            label = os.getxattr(full, LABEL, follow_symlinks=False)
        except OSError:
            label = None
        return Version(attributes, st.st_ino, granted(full, st), content, label)

    def _is_reachable(self, directory: str, known: dict[str, bool]) -> bool:
        """Whether a directory is there, by no link."""
        if directory not in known:
            above = not directory or self._is_reachable(os.path.dirname(directory), known)
            full = os.path.join(self.source, directory)
            known[directory] = above and os.path.isdir(full) and (not directory or not os.path.islink(full))
        return known[directory]

    def looked(self) -> None:
        """The mount has compared everything with the source. Of what is gone it may have any rights that there were:
        what vanished is no withdrawn right."""
        for entry in self.entries.values():
            if entry.now is not None and entry.now.kind == entry.kind:
                entry.since = len(entry.seen) - 1

    def present(self, kind: int) -> list[str]:
        """Paths of a kind that are there now as they were indexed; of hard links the first."""
        found = [(p, e.now) for p, e in self.entries.items() if p and e.path == p and e.kind == kind]
        return [path for path, now in found if now is not None and now.kind == kind]

    # ---- rights -------------------------------------------------------------------------------------------

    def _chain(self, path: str) -> list[Entry]:
        """The directories on the way."""
        above, chain = path, []
        while above:
            above = os.path.dirname(above)
            chain.append(self.entries[above])
        return chain

    def could(self, path: str, uid: int, groups: tuple[int, ...], right: int | None) -> bool:
        """Whether what the mount may go by can grant this; `right` None: to get there is all that is asked."""
        own = right is None or any(may(uid, groups, one, right) for one in self.entries[path].rights)
        return own and all(any(may(uid, groups, one, SEARCH) for one in e.rights) for e in self._chain(path))

    def must(self, path: str, uid: int, groups: tuple[int, ...], right: int | None) -> bool:
        """Whether all that it may go by grants it."""
        own = right is None or all(may(uid, groups, one, right) for one in self.entries[path].rights)
        return own and all(all(may(uid, groups, one, SEARCH) for one in e.rights) for e in self._chain(path))


__all__ = ["READ", "SEARCH", "Attributes", "Entry", "History", "Version"]
