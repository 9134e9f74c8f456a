"""Facts that the rules of a diagnosis work on, and their findings. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from nopfsfs.doctor.bounded_parts import failed

LOOK_AT_THE_LOG = "Look at the log: the one in the archive, or journalctl -t nopfs."


class Weight(IntEnum):
    """The weight of a finding; what readers notice most comes first."""

    BROKEN = 0  # readers wait, or get errors
    DEGRADED = 1  # a part of the mount does not work; readers are as slow as the source
    SLOW = 2  # readers wait more than they need to
    NOTE = 3  # worth knowing


class Finding(NamedTuple):
    """Fault that is likely, and what to do about it: plain sentences."""

    weight: Weight
    says: str
    do: str


class Facts:
    """The parts of a diagnosis. A part that could not be collected is empty here."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts

    def get(self, part: str, *keys: str, default: Any = None) -> Any:
        """The value at these keys of a part, or `default`."""
        found = self._parts.get(part)
        if failed(found) is not None:
            return default
        for key in keys:
            if not isinstance(found, Mapping):
                return default
            found = found.get(key)
        return default if found is None else found

    def number(self, part: str, *keys: str) -> float:
        """The number at these keys; 0 where there is none."""
        found = self.get(part, *keys)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else 0

    def rows(self, part: str, *keys: str) -> Sequence[Mapping[str, Any]]:
        """The objects in the list at these keys."""
        found = self.get(part, *keys)
        return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []

    def failure(self, part: str) -> str | None:
        """The reason why a part could not be collected; None where it was, or was not asked for."""
        return failed(self._parts.get(part))

    @property
    def path(self) -> str:
        """The mountpoint; "" without a mount."""
        return str(self.get("mount", "path", default=""))

    @property
    def adopt(self) -> str:
        """The command that starts another supervisor, which only the user who mounted may do."""
        owner = self.get("mount", "owner")
        other = owner is not None and owner != self.get("node", "user", default=owner)
        as_owner = f"runuser -u {self.get('mount', 'owner_name', default=owner)} -- " if other else ""
        return f"{as_owner}nopfs adopt {self.path}"

    @property
    def failures(self) -> dict[str, str]:
        """The parts that could not be collected, and why."""
        return {name: why for name, part in self._parts.items() if (why := failed(part)) is not None}

    # ---- processes ----------------------------------------------------------------------------------------

    def processes(self, role: str = "") -> Sequence[Mapping[str, Any]]:
        """The processes of the mount that live, of one role (`supervisor`, `server`, `stager`) or of all."""
        living = [one for one in self.rows("processes") if one.get("alive")]
        return [one for one in living if str(one.get("role", "")).partition("-")[0] == role or not role]

    @property
    def is_dead(self) -> bool:
        """True when the mount had processes, and all are gone."""
        known = not self.failure("mount") and not self.is_unseen
        return known and bool(self.rows("processes")) and not self.processes()

    @property
    def is_unseen(self) -> bool:
        """True when processes of the mount live, and none can be seen by its id."""
        return bool(self.get("mount", "held")) and not self.failure("processes") and not self.processes()


Rule = Callable[[Facts], Finding | None]
