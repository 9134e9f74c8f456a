"""Lines on the control socket, to a real supervisor that has no mount: its shared memory, plans and answers are there,
and it runs in a thread as it does in its process."""

from __future__ import annotations

import contextlib
import json
import math
import select
import socket
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import trio

from fuzzing.core import Input, Wrong, shape
from fuzzing.mutate import garbage, mutated, number, signed
from fuzzing.trees import make_tree
from nopfsfs.config import MountConfig
from nopfsfs.control.client import call, socket_address
from nopfsfs.dataset.index_file import to_memfd
from nopfsfs.errors import NopfsError
from nopfsfs.supervisor import caller_budget
from nopfsfs.supervisor import control_socket as control
from nopfsfs.supervisor.process import Supervisor
from nopfsfs.system.process_setup import Handoff

ANSWER_S = 5.0  # for one answer of what takes no long computation; `nopfs` waits that long
LINES = 12  # of a case
AT_ONCE = 6  # connections
BUDGET = 16 << 20
COMMANDS = ("status", "plan", "register", "register", "register", "forget", "prepare-unmount", "hand-over", "stop",
            "wait-final", "recheck", "metrics", "history", "history",
            "warm", "warm", "drop", "check", "tune", "tune", "", 5, None)  # fmt: skip
WORDS = tuple(
    word.encode() for word in (
        '"command"', '"register"', '"plans"', "null", "true", "NaN", "-Infinity", "1e999", "1" * 400, "1" * 5000,
        '{"a":' * 3000, "]", "}", '"\\ud800"', '"\\u0000"', "\\", '"', "\n", "\n\n", "\0", ",", ":", "{}", "[]", '""',
        "1.5", "-1", '"order": ["/dev/null"]', '"order": ["/"]', '"root": "train"', '"ranks": "0-9999999"',
        '"paths": [""]', '"follow": true',
        " " * 70_000, "[" * 3000,
    )
)  # fmt: skip
SAMPLERS = ("distributed", "random", "sequential", "explicit", "magic", "webdataset", "grain", "dali", "tensorflow")


class _Alone(Supervisor):
    """One that has nothing to unmount."""

    async def stop(self) -> None:
        """Nothing: the directory that is said to be the mountpoint is none."""


class ControlInput(Input):
    """See the module. Whatever was sent, `status` is answered at once on a new connection."""

    name = "control"
    limit_s = 60.0

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        caller_budget.STORE_S = math.inf  # or each case would wait for what those before it took
        self.root, self.state = work / "source", work / "state"
        self.root.mkdir()
        self.state.mkdir()
        index = make_tree(self.root)
        config = MountConfig(
            source=str(self.root), mountpoint=str(work / "nowhere"), state_dir=str(self.state), ram=BUDGET, seed=42
        )
        self.handoff = Handoff("super", config, {"index": to_memfd(index)}, {})
        self.failure: list[BaseException] = []
        self.started = threading.Event()
        self.cancel: Any = None
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        if not self.started.wait(30):
            raise RuntimeError(f"no supervisor: {self.failure}")

    def _serve(self) -> None:
        async def main() -> None:
            with contextlib.ExitStack() as resources:
                supervisor = _Alone(self.handoff, resources)
                async with trio.open_nursery() as nursery:
                    await nursery.start(control.serve, str(self.state), supervisor._answer)
                    nursery.start_soon(supervisor._plans.run)
                    token = trio.lowlevel.current_trio_token()
                    self.cancel = lambda: token.run_sync_soon(nursery.cancel_scope.cancel)
                    self.started.set()

        try:
            trio.run(main)
        except BaseException as e:
            self.failure.append(e)

    def close(self) -> None:
        if self.thread.is_alive():
            self.cancel()
            self.thread.join(30)

    def play(self, rng: Random) -> None:
        with contextlib.ExitStack() as stack:
            connections = [stack.enter_context(self._connect()) for _ in range(rng.randint(1, AT_ONCE))]
            for _ in range(LINES):
                self._say(rng, rng.choice(connections), self._line(rng))
            if rng.random() < 0.5:
                self._hear(connections)
        self._ask()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(ANSWER_S)
        with socket_address(str(self.state)) as address:
            connection.connect(address)
        return connection

    def _say(self, rng: Random, connection: socket.socket, line: bytes) -> None:
        parts = [line]
        if rng.random() < 0.2 and line:
            at = rng.randrange(len(line))
            parts = [line[:at], line[at:]]
        try:
            for part in parts:
                connection.sendall(part)
        except TimeoutError:
            self.tell("it takes no more lines of who takes no answers")
        except OSError:
            self.tell("it hung up")
        else:
            self.tell("sent")

    def _hear(self, connections: list[socket.socket]) -> None:
        """Take what has been answered by now: each line is an object of the documented form."""
        for connection in connections:
            data = b""
            with contextlib.suppress(OSError):
                while select.select([connection], [], [], 0.02)[0] and (part := connection.recv(1 << 16)):
                    data += part
            for line in data.split(b"\n")[:-1]:
                answer = json.loads(line)
                if answer.get("ok") is True and isinstance(answer.get("record"), dict):
                    self.tell("answered")
                elif answer.get("ok") is False and isinstance(answer.get("error"), str):
                    self.tell(f"refused: {shape(answer['error'])[:40]}")
                else:
                    raise Wrong(f"an answer of no known form: {line[:200]!r}")

    def _ask(self) -> None:
        """The supervisor is well."""
        if not self.thread.is_alive():
            raise Wrong(f"the supervisor has ended: {self.failure!r}") from next(iter(self.failure), None)
        began = time.monotonic()
        try:
            record = call(str(self.state), "status", ANSWER_S)
        except NopfsError as e:
            raise Wrong(f"no status after {time.monotonic() - began:.1f} s: {e.message}") from e
        if record["state"] != "starting" or record["mountpoint"] != self.handoff.config.mountpoint:
            raise Wrong(f"a wrong status: {record}")

    # ---- what is said -------------------------------------------------------------------------------------

    def _line(self, rng: Random) -> bytes:
        chosen = rng.random()
        if chosen < 0.1:
            return garbage(rng, 9000) + b"\n" * rng.randrange(2)
        line = json.dumps(self._request(rng)).encode() + b"\n"
        return mutated(rng, line, WORDS) if chosen < 0.6 else line

    def _request(self, rng: Random) -> dict[str, Any]:
        request: dict[str, Any] = {"command": rng.choice(COMMANDS)}
        if request["command"] == "plan":
            request["next"] = rng.choice((0, 1, 5, 100_000, signed(rng), 1.5, "x", None))
        elif request["command"] == "register":
            request["plans"] = [self._plan(rng) for _ in range(rng.choice((0, 1, 1, 2, 17)))]
        elif request["command"] == "history":
            request |= {"step": rng.choice((1, 10, 60, signed(rng), [1], None)), "since": rng.choice((0, signed(rng)))}
        elif request["command"] == "hand-over":
            request["layout"] = signed(rng, 32)
        elif request["command"] == "tune":
            keys = rng.sample(("concurrency", "hold", "bandwidth", "weight"), rng.randrange(4))
            request |= {key: rng.choice((1, 0.5, True, "auto", "none", signed(rng), self._value(rng))) for key in keys}
        elif request["command"] in ("warm", "drop", "check"):
            some = ([""], ["train"], ["train/class0", "no", "../x", "\0"], [""] * 500, self._value(rng))
            request["paths"] = rng.choice(some)
            if rng.random() < 0.3:
                request["follow"] = rng.choice((True, False, self._value(rng)))
        if rng.random() < 0.1:
            request[rng.choice(("next", "plans", "step", "since", "version", "x"))] = self._value(rng)
        return request

    def _plan(self, rng: Random) -> dict[str, Any]:
        plan: dict[str, Any] = {"sampler": rng.choice(SAMPLERS), "seed": rng.choice((42, signed(rng)))}
        for key in ("root", "files", "epoch", "world_size", "ranks", "options", "subset", "order", "repeats", "loader"):
            if rng.random() < 0.15:
                plan[key] = self._known(rng, key) if rng.random() < 0.7 else self._value(rng)
        return plan

    def _known(self, rng: Random, key: str) -> Any:
        some: dict[str, tuple[Any, ...]] = {
            "root": ("train", "", "train/class0", "nowhere"), "files": ("image_folder", "timm", "x"),
            "epoch": (0, 3, 50, 1 << 40), "world_size": (1, 4, 1 << 20),
            "ranks": ("0", "0-3", "0-1048575", "1-4000", [0, 1]),
            "options": ({"drop_last": True}, {"base_seed": "once"}, {"num_samples": number(rng, 40)}, {"buffer": 1}),
            "subset": ({"name": "random_split", "seed": 1}, {"name": "x"}, {"name": "random_split", "options": {}}),
            "order": (["/dev/null"], "/etc/passwd", [str(self.root)], ["/nowhere"]), "repeats": (True, False),
            "loader": ({"workers": 8}, {"workers": 1 << 20, "batch": 1 << 20}, {}),
        }  # fmt: skip
        return rng.choice(some[key])

    def _value(self, rng: Random) -> Any:
        values: tuple[Any, ...] = (None, True, -1, 0, 1.5, 1e300, "", "x" * 5000, [], {}, [[]], {"a": {"b": []}})
        return rng.choice((*values, 1 << 200))
