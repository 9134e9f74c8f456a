"""Conversion of the errors of all commands into one line on stderr and an exit code, of wrong arguments too."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, TypeAlias

from nopfsfs.errors import AlreadyReported, Exit, NopfsError
from nopfsfs.system.child_statuses import keep_child_statuses
from nopfsfs.text.printable import printable as printable  # for the commands

NOPFS = "nopfs"  # the program of all commands but nopfs-mount and nopfs-umount


class Parser(argparse.ArgumentParser):
    """An argument parser that raises NopfsError, with one line that says what to do."""

    def error(self, message: str) -> NoReturn:
        """Raise NopfsError with Exit.USAGE."""
        raise NopfsError(Exit.USAGE, f"{message}; see {self.prog} --help")


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # of `nopfs`


def add_command(
    commands: Commands, name: str, handler: Callable[[argparse.Namespace], int], help: str, description: str
) -> Parser:
    """Add `nopfs NAME MOUNTPOINT`, which `handler` carries out; return its parser."""
    parser = commands.add_parser(name, help=help, description=description)
    parser.add_argument("mountpoint", metavar="MOUNTPOINT")
    parser.set_defaults(handler=handler)
    return parser


def run(program: str, body: Callable[[], int], debug: bool = False) -> int:
    """Return what `body` returns; turn an exception of `body` into one line on stderr and an exit code.

    With `debug`, a traceback comes first.
    """
    keep_child_statuses()
    try:
        return int(body())
    except AlreadyReported as error:
        _trace(debug)
        return error.exit_code
    except NopfsError as error:
        _trace(debug)
        return fail(program, error.message, error.exit_code)
    except KeyboardInterrupt:
        return fail(program, "interrupted", Exit.INTERRUPTED)
    except BrokenPipeError:
        _forget_stdout()
        return Exit.OK  # the reader of a pipe, such as head(1), has seen enough
    except Exception as error:
        _trace(debug)
        return fail(program, f"{_describe(error)}; this is a bug: run again with --debug to see where", Exit.INTERNAL)


def fail(program: str, message: str, code: Exit) -> Exit:
    """Print `program: message` as one line on stderr; return `code`."""
    say(program, message)
    return code


def say(program: str, message: str) -> None:
    """Print one line for people on stderr, even where file names put other bytes than text into the message."""
    print(printable(" ".join(f"{program}: {message}".split("\n"))), file=sys.stderr, flush=True)


def _describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def _trace(debug: bool) -> None:
    if debug:
        traceback.print_exc()


def _forget_stdout() -> None:
    """Point stdout to /dev/null; else the interpreter reports the broken pipe once more when it ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
