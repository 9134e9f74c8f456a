"""A control socket that answers: what the commands and the library say to a daemon, without a mount."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nopfsfs.control.client import socket_address

Answer = Callable[[dict[str, Any]], dict[str, Any]]


@contextmanager
def answering(state_dir: Path, answer: Answer) -> Iterator[list[dict[str, Any]]]:
    """Answer requests with what `answer` makes of them, ValueErrors as refusals; yields the requests that came."""
    requests: list[dict[str, Any]] = []
    with socket.socket(socket.AF_UNIX) as listener:
        with socket_address(str(state_dir)) as address:
            listener.bind(address)
        listener.listen()

        def run() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                # a client may hang up before it has read all
                with suppress(ConnectionError), client, client.makefile("rwb") as lines:
                    line = lines.readline()
                    if not line:
                        continue
                    requests.append(json.loads(line))
                    try:
                        reply: dict[str, Any] = {"ok": True, "record": answer(requests[-1])}
                    except ValueError as error:
                        reply = {"ok": False, "error": str(error)}
                    lines.write(json.dumps(reply).encode() + b"\n")

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield requests
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
