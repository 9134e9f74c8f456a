"""Run a command, and all that it starts, without some system calls, as on an older kernel or in a strict container.

    without_calls.py NAME ... [--errno EPERM] -- COMMAND ...

NAME: one of `nopfsfs/system/abilities.py`. The calls fail with ENOSYS, unless another errno is said. Takes root.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable

from nopfsfs.system.abilities import CALLS

NUMBERS = {call.name: call.number for call in CALLS}
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # what a filter returns; the errno is added to the second
_X86_64 = 0xC000003E
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # instructions of classic BPF
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4  # in struct seccomp_data
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):  # struct sock_fprog
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def forbid(names: Iterable[str], number: int = errno.ENOSYS) -> None:
    """Make these calls of this process, and of all that it starts, fail with errno `number`, for good. Raises
    OSError."""
    calls = [NUMBERS[name] for name in names]
    code = [(_LOAD, 0, 0, _ARCHITECTURE_AT), (_IF_EQUAL, 1, 0, _X86_64), (_RETURN, 0, 0, _ALLOW)]
    code += [(_LOAD, 0, 0, _NUMBER_AT)]
    code += [(_IF_EQUAL, len(calls) - place, 0, call) for place, call in enumerate(calls)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | number)]
    text = b"".join(struct.pack("<HBBI", *instruction) for instruction in code)
    program = _Program(len(code), text)
    if _libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "a filter of system calls takes CAP_SYS_ADMIN")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="+", choices=sorted(NUMBERS), metavar="NAME")
    parser.add_argument("--errno", default="ENOSYS")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    asked, command = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    if not command:
        parser.error("no command")
    forbid(asked.names, getattr(errno, asked.errno))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
