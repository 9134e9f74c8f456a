"""What readers do, each in a process of its own: run by `harness.Reader`. Standard library only.

compare MOUNT SOURCE SEED ROUNDS [PAUSE]    read every file of both, in an order of its own; what differs. PAUSE:
                                    seconds of work after each file; ROUNDS "all": until a line on stdin
read PATH [PATH...]                 [length, sha256] or the errno of each
follow MOUNT SOURCE FILE PAUSE [STOP...]  read and compare what FILE lists, JSON {"names": [], "epochs": [[index, ...],
                                    ...]}; after each epoch of STOP say its number and wait for a line
timed MOUNT SOURCE FILE PAUSE       as follow, until a line on stdin; what differs, and of each file its index, when it
                                    was opened (monotonic clock), and the seconds until all of it was read
until MOUNT SOURCE SEED             read and compare for ever; at the first error say what was done, differed, the errno
hold PATH                           open, read 4096 bytes, say so; at a line on stdin read the rest
loop MOUNT                          read all files for ever; at a line on stdin say how many, and errors
wait PATH                           open, say so, read
signals PATH                        the same; SIGUSR1 has a handler, and calls are not repeated after it
as UID GROUP,... ANY OF THE ABOVE   as that user
many DIRECTORY                      every file of it in a thread of its own: what `read` says of each
may PATH...                         which of them this user may read (files) or list (directories)
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import random
import select
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


def files(root: str) -> list[str]:
    found = [os.path.join(at, name) for at, _, names in os.walk(root) for name in names]
    return sorted(os.path.relpath(path, root) for path in found)


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def digest(data: bytes) -> list[object]:
    return [len(data), hashlib.sha256(data).hexdigest()]


def outcome(path: str) -> object:
    try:
        data = read(path)
    except OSError as error:
        return error.errno
    return digest(data)


def compare(mount: str, source: str, seed: str, rounds: str, pause: str = "0") -> None:
    names = files(source)
    assert names == files(mount)
    wrong, errors = [], []
    for number in itertools.count() if rounds == "all" else range(int(rounds)):
        random.Random(f"{seed} {number}").shuffle(names)
        if rounds == "all" and select.select([0], [], [], 0)[0]:
            break
        for name in names:
            try:
                data, right = read(os.path.join(mount, name)), read(os.path.join(source, name))
                if data != right:
                    wrong.append([name, *difference(data, right)])
            except OSError as error:
                errors.append([name, error.errno])
            time.sleep(float(pause))
    say({"wrong": wrong, "errors": errors})


def follow(mount: str, source: str, orders: str, pause: str, *stops: str) -> None:
    with open(orders) as file:
        said = json.load(file)
    names, wrong = said["names"], []
    for number, order in enumerate(said["epochs"], 1):
        for at in order:
            if read(os.path.join(mount, names[at])) != read(os.path.join(source, names[at])):
                wrong.append(names[at])
            time.sleep(float(pause))
        if str(number) in stops:
            say(number)
            sys.stdin.readline()
    say({"wrong": wrong})


def timed(mount: str, source: str, orders: str, pause: str) -> None:
    with open(orders) as file:
        said = json.load(file)
    names, wrong, times = said["names"], [], []
    say("ready")
    for at in itertools.chain.from_iterable(said["epochs"]):
        began = time.monotonic()
        data = read(os.path.join(mount, names[at]))
        times.append([at, began, time.monotonic() - began])
        if data != read(os.path.join(source, names[at])):
            wrong.append(names[at])
        if select.select([0], [], [], float(pause))[0]:
            break
    say({"wrong": wrong, "times": times})


def until(mount: str, source: str, seed: str) -> None:
    names, done, wrong = files(source), 0, []
    say("ready")
    for number in itertools.count():
        random.Random(f"{seed} {number}").shuffle(names)
        for name in names:
            try:
                data = read(os.path.join(mount, name))
            except OSError as error:
                say({"done": done, "wrong": wrong, "errno": error.errno})
                return
            done += 1
            if data != read(os.path.join(source, name)):
                wrong.append(name)


def difference(data: bytes, right: bytes) -> tuple[object, ...]:
    """Lengths, the pages that differ, and where the bytes of the first such page are at the source instead."""
    pages = [at for at in range(0, len(right), 4096) if data[at : at + 4096] != right[at : at + 4096]]
    found = right.find(data[pages[0] : pages[0] + 64]) if pages else -1
    return len(data), len(right), len(pages), [at // 4096 for at in pages[:8] + pages[-2:]], found


def hold(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no readahead: the rest is still to be asked for
    data = os.pread(fd, 4096, 0)
    say(len(data))
    while (line := sys.stdin.readline().strip()) != "end":
        try:
            rest = data
            while part := os.pread(fd, 65536, len(rest)):
                rest += part
            say(digest(rest))
        except OSError as error:
            say(error.errno)
        if not line:
            break
    say("ended")


def loop(mount: str) -> None:
    names = files(mount)
    done, errors = 0, []
    say("ready")
    while True:
        random.shuffle(names)
        for name in names:
            try:
                read(os.path.join(mount, name))
                done += 1
            except OSError as error:
                errors.append([name, error.errno])
                if len(errors) > 1000:
                    say({"done": done, "errors": errors})
                    return
            if select.select([0], [], [], 0)[0]:
                if sys.stdin.readline().strip() != "more":
                    say({"done": done, "errors": errors})
                    return
                say(done)


def wait(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    say("open")
    try:
        say(len(os.read(fd, 1 << 20)))
    except OSError as error:
        say({"errno": error.errno})


def many(directory: str) -> None:
    with ThreadPoolExecutor(4096) as threads:
        say(list(threads.map(outcome, [os.path.join(directory, name) for name in files(directory)])))


def signals(path: str) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # for Python
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.siginterrupt(signal.SIGUSR1, 1)
    libc.signal(signal.SIGUSR1, handler)
    fd = os.open(path, os.O_RDONLY)
    say("open")
    buffer = ctypes.create_string_buffer(4096)
    count = libc.read(fd, buffer, 4096)  # os.read would try again
    say(count if count >= 0 else -ctypes.get_errno())


def may(*paths: str) -> None:
    def try_one(path: str) -> bool:
        try:
            if os.path.isdir(path):
                os.listdir(path)
            else:
                read(path)
        except OSError:
            return False
        return True

    say([try_one(path) for path in paths])


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "as":  # the interpreter itself may lie where that user cannot go
        uid, groups, what, *words = words
        os.setgroups([int(group) for group in groups.split(",") if group])
        os.setresgid(int(uid), int(uid), int(uid))
        os.setresuid(int(uid), int(uid), int(uid))
    if what == "read":
        say([outcome(path) for path in words])
    else:
        known = (compare, follow, timed, until, hold, loop, wait, many, signals, may)
        {function.__name__: function for function in known}[what](*words)
