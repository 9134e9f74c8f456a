"""Orders and states of generators in short, to compare."""

from __future__ import annotations

import base64
import hashlib

import numpy as np
from numpy.typing import NDArray


def digest_of(order: NDArray[np.int64]) -> str:
    """16 digits for an order."""
    return hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()[:16]


def state_text(state: np.random.RandomState) -> str:
    """A generator's state as the samplers' option `state` has it: base64 of 624 words and the index of the next one,
    little-endian uint32."""
    _, key, position, *_ = state.get_state(legacy=True)
    return base64.b64encode(np.append(key, position).astype("<u4").tobytes()).decode()
