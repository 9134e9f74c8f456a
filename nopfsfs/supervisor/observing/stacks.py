"""Python stacks of the supervisor: where its threads and tasks are now. Taken under the interpreter's lock, so that no
process is stopped, and none gets a signal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from types import FrameType
from typing import Any

import trio

TASKS_MOST, THREADS_MOST, FRAMES_MOST = 256, 64, 40


def python_stacks() -> dict[str, Any]:
    """Return `threads` and `tasks`: of each its `name` and `frames`, the innermost last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    threads = [
        {"name": names.get(ident, str(ident)), "frames": _described(_outward(frame))[::-1]}
        for ident, frame in islice(sys._current_frames().items(), THREADS_MOST)
    ]
    root = trio.lowlevel.current_root_task()
    tasks = [
        {"name": task.name, "frames": _described(task.iter_await_frames())}
        for task in islice(_tasks(root) if root is not None else (), TASKS_MOST)
    ]
    return {"threads": threads, "tasks": tasks}


def _tasks(root: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    waiting = [root]
    while waiting:
        task = waiting.pop()
        yield task
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def _outward(frame: FrameType | None) -> Iterator[tuple[FrameType, int]]:
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _described(frames: Iterable[tuple[FrameType, int]]) -> list[str]:
    return [
        f"{_short(frame.f_code.co_filename)}:{line} {frame.f_code.co_name}"
        for frame, line in islice(frames, FRAMES_MOST)
    ]


def _short(filename: str) -> str:
    """The file relative to the place where Python has found it."""
    places = [place for place in sys.path if place and filename.startswith(f"{place}/")]
    return filename[len(max(places, key=len)) + 1 :] if places else filename
