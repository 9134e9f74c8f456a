"""The directories above a source that all users may reach through a mount: they may be closed later.

While a directory above keeps out whom the source lets in, the root of the mount is shown with fewer rights. Only the
root's owner may enter, and not even the owner where that directory is another's. Root may always.
"""

from __future__ import annotations

import logging

from nopfsfs.config import MountConfig
from nopfsfs.system.closed_above import Gate, gates_above, keeps_out
from nopfsfs.tiers.rights import Rights

log = logging.getLogger(__name__)
_OWNER, _PERMISSIONS = 0o700, 0o777


class Guarded:
    """The directories above `source` and those above `mountpoint`, absolute paths without links."""

    def __init__(self, source: str, mountpoint: str) -> None:
        self._source, self._mountpoint = source, mountpoint
        self.shut = False  # at the last look

    @staticmethod
    def of(config: MountConfig) -> Guarded | None:
        """None where nobody else can come in, or it was said that all may (--expose)."""
        return Guarded(config.source, config.mountpoint) if config.allow_other and not config.expose else None

    def restricted(self, rights: Rights) -> Rights:
        """The rights that the root of the mount is to have, where the source's has `rights`. Raises OSError."""
        root = Gate(self._source, rights.mode, rights.uid, rights.gid, rights.acl != b"", (0, 0))
        above = gates_above(self._source)
        closed = keeps_out(root, above, gates_above(self._mountpoint))
        if (closed is not None) != self.shut:
            self.shut = closed is not None
            if closed is not None:
                log.error("%s keeps out some who could come in by the mount: here they are, too", closed.path)
            else:
                log.warning("the directories above the source are open again")
        if closed is None:
            return rights
        own = _OWNER if all((one.mode & 0o100 and one.uid == rights.uid) or one.mode & 0o001 for one in above) else 0
        return Rights(rights.mode & ~_PERMISSIONS | rights.mode & own, rights.uid, rights.gid)
