"""Nodes with network namespaces of their own, on one machine: their links can be cut."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from tests.waiting import wait_until

# MPICH takes each rank for a node of its own (else it uses shared memory), and their interfaces.
ENVIRONMENT: Mapping[str, str] = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0"}
_TIMEOUT_S = 10.0


class _Namespace:
    """A network namespace without a name: it is gone with the processes in it, of which one waits for the test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
        self.pid = self._process.pid
        self.path = f"/proc/{self.pid}/ns/net"

    def __enter__(self) -> _Namespace:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    @property
    def is_made(self) -> bool:
        with suppress(OSError):  # it has ended
            return os.readlink(self.path) != os.readlink("/proc/self/ns/net")
        return False

    @property
    def enter(self) -> list[str]:
        """The words that run the words after them in it."""
        return ["nsenter", f"--net={self.path}"]

    def ip(self, *commands: str) -> None:
        """Let ip(8) do so in it. Raises CalledProcessError, FileNotFoundError."""
        subprocess.run(
            [*self.enter, "ip", "-batch", "-"], input="\n".join(commands), text=True, check=True,
            capture_output=True, timeout=_TIMEOUT_S,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wires:
    """A switch with a port for each node. `enter`: by node, the words that run the words after them there."""

    switch: _Namespace
    enter: Sequence[Sequence[str]]

    def cut(self, node: int) -> None:
        """Let nothing come to this node and nothing from it, as when its cable is pulled; nobody is told."""
        self.switch.ip(f"link set port{node} down")

    def mend(self, node: int) -> None:
        self.switch.ip(f"link set port{node} up")


@contextmanager
def wires(nodes: int) -> Iterator[Wires]:
    """So many nodes with a switch between them. Nothing of them is left when the processes in them have ended, come
    what may. Raises CalledProcessError, FileNotFoundError where the system allows or has none."""
    with ExitStack() as stack:
        made = [stack.enter_context(_Namespace()) for _ in range(nodes + 1)]
        wait_until(lambda: all(one.is_made for one in made))
        switch, *own = made
        switch.ip("link add bridge type bridge", "link set bridge up")
        for node, one in enumerate(own):
            switch.ip(
                f"link add port{node} type veth peer name eth0 netns {one.pid}",
                f"link set port{node} master bridge",
                f"link set port{node} up",
            )
            one.ip("link set lo up", f"address add 10.0.0.{node + 1}/24 dev eth0", "link set eth0 up")
        yield Wires(switch, [one.enter for one in own])


def why_no_wires() -> str | None:
    """The reason why there can be none here; None where there can."""
    if os.geteuid() != 0:
        return "needs the right to make network namespaces"
    try:
        with wires(1):
            return None
    except (subprocess.SubprocessError, FileNotFoundError) as error:
        return f"needs network namespaces, veth, a bridge and ip(8): {error}"
