"""What real loaders give, for tests that compare."""

from __future__ import annotations

from typing import Any


def read(loader: Any, batches: int | None = None) -> list[int]:
    """The samples of a torch DataLoader's batches, of the first so many or of all."""
    taken: list[int] = []
    for k, batch in enumerate(loader):
        taken += batch.tolist()
        if batches is not None and k + 1 == batches:
            break
    return taken
