"""nopfsfs: a FUSE file system that knows the order in which a training job will read its files."""

from __future__ import annotations

import os
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "register"]


def register(mount: str | os.PathLike[str], sampler: Any = None, **said: Any) -> bool:
    """Tell the mount at (or above) the path `mount` what will be read, by a torch sampler or DataLoader, a sampler's
    name, or the order itself: see `nopfsfs.registration.api.register`, which says the keywords, and docs/python.md.
    """
    from nopfsfs.registration import api  # with numpy and all samplers

    return api.register(mount, sampler, **said)
