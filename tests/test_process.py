"""How a process is begun, and at what priority its threads work."""

from __future__ import annotations

import os
import threading

import pytest

from nopfsfs import process


def _nice(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to raise a priority")
@pytest.mark.parametrize("fails", [False, True])
def test_what_is_done_promptly_has_the_priority_of_readers(fails: bool) -> None:
    seen: list[int] = []

    def work() -> None:
        seen.append(_nice(threading.get_native_id()))
        if fails:
            raise LookupError

    def thread() -> None:
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, 5)
        try:
            process.promptly(work)
        except LookupError:
            seen.append(-99)
        seen.append(_nice(own))

    one = threading.Thread(target=thread)
    one.start()
    one.join()
    assert seen == ([0, -99, 5] if fails else [0, 5])
