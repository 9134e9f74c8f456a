"""The state of the wall clock, as the kernel knows it (adjtimex(2)): whether it agrees with the clocks of other nodes.
"""

from __future__ import annotations

import ctypes

ERROR_MOST_S = 0.1
_UNSYNCHRONISED = 0x0040  # STA_UNSYNC of linux/timex.h; the kernel also sets it 16,000 s after the last correction
_TIME_ERROR = 5


class _Timex(ctypes.Structure):
    """The begin of struct timex, with room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_byte * 256),
    )  # fmt: skip


def disciplined() -> bool:
    """True for a wall clock that is kept synchronous, with an estimated error of at most ERROR_MOST_S. False where the
    kernel does not say."""
    found = _Timex()  # modes 0: nothing is set
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(found))
    except (OSError, AttributeError):
        return False
    return trusted(state, found.status, found.esterror)


def trusted(state: int, status: int, error_us: int) -> bool:
    """True for a clock in this state; arguments as adjtimex(2) returns them. The greatest possible error, which the
    kernel knows too, says nothing. Between corrections, which may be half an hour apart, that error grows by 0.5 ms a
    second."""
    return 0 <= state < _TIME_ERROR and not status & _UNSYNCHRONISED and error_us <= ERROR_MOST_S * 1e6
