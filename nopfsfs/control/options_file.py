"""The options of a mount, kept in its state directory: for whoever examines a mount whose processes do not answer."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nopfsfs.config import MountConfig
from nopfsfs.system.atomic_file import whole_file
from nopfsfs.system.trusted_path import read_own

OPTIONS_FILE = "options.json"
_BYTES_MOST = 1 << 18


def write_options(state_dir: str, config: MountConfig) -> None:
    """Write the options of a mount. Raises OSError."""
    with whole_file(os.path.join(state_dir, OPTIONS_FILE), 0o600) as file:
        file.write(json.dumps(dataclasses.asdict(config)).encode())


def read_options_of(state_dir: str) -> Mapping[str, Any] | None:
    """Return the options of a mount of this user, as they were written; None where they cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_own(os.path.join(state_dir, OPTIONS_FILE), _BYTES_MOST))
        return found if isinstance(found, dict) else None
    return None
