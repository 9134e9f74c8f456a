"""nopfsfs: a FUSE file system that knows the order in which a training job will read its files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nopfsfs.monitor.mount_view import MountView as Mount

__version__ = "0.1.0"
__all__ = ["Mount", "__version__", "register"]


def register(mount: str | os.PathLike[str], sampler: Any = None, **said: Any) -> bool:
    """Register with the mount at (or above) the path `mount` what will be read. A torch sampler or DataLoader, a
    sampler's name, or the order itself describes the reads. `nopfsfs.registration.api.register` and docs/python.md
    describe the keywords.
    """
    from nopfsfs.registration import api  # with numpy and all samplers

    return api.register(mount, sampler, **said)


def __getattr__(name: str) -> Any:
    if name == "Mount":
        from nopfsfs.monitor.mount_view import MountView as Mount  # with numpy

        return Mount
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
