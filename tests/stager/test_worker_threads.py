"""The thread that looks at what takes too long also gives back memory, now and then."""

from __future__ import annotations

import threading

import pytest

from nopfsfs.stager import worker_threads
from nopfsfs.stager.worker_threads import Watch

LOOKS = 40


@pytest.mark.parametrize(("pause_s", "least", "most"), [(0.0, LOOKS - 1, LOOKS), (60.0, 0, 0)])
def test_memory_is_given_back_now_and_then(
    pause_s: float, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, looks, awake = list[None](), list[None](), threading.Event()
    monkeypatch.setattr(worker_threads, "give_back", lambda: given.append(None))
    monkeypatch.setattr(worker_threads, "GIVE_BACK_S", pause_s)
    monkeypatch.setattr(worker_threads, "LOOK_S", 0.001)

    def look() -> bool:
        looks.append(None)
        if len(looks) == LOOKS:
            watch.stop()
        return True

    watch = Watch(look, awake)
    awake.set()
    watch.run()
    assert len(looks) == LOOKS
    assert least <= len(given) <= most
