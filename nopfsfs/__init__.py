"""nopfsfs: a FUSE file system that knows the order in which a training job will read its files."""

from __future__ import annotations

import os
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "register"]


def register(mount: str | os.PathLike[str], sampler: Any = None, **said: Any) -> bool:
    """Register with the mount at (or above) the path `mount` what will be read: by a torch sampler or DataLoader, a
    sampler's name, or the order itself. `nopfsfs.registration.api.register` and docs/python.md describe the keywords.
    """
    from nopfsfs.registration import api  # with numpy and all samplers

    return api.register(mount, sampler, **said)
