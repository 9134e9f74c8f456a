"""Mounting and unmounting: mount(2) with CAP_SYS_ADMIN, else fusermount3. Answers no request.

Every mount is `ro,nosuid,nodev,default_permissions`: the kernel checks permissions. So nobody reads through the mount
what the source would refuse, whatever user the daemon runs as.
"""

from __future__ import annotations

import array
import ctypes
import errno
import os
import shutil
import socket
from contextlib import ExitStack, suppress

from nopfsfs.config import MountConfig
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.fuse.mount_table import FSTYPE, Mount, find_mount, is_in_place
from nopfsfs.system.bounded_run import run_bounded
from nopfsfs.system.descriptors import closing_fd
from nopfsfs.system.trusted_path import open_trusted

DEV_FUSE = "/dev/fuse"
HELPER_S = 20.0  # fusermount3 only mounts or unmounts; it waits for the lock of other mounts at most

# linux/mount.h
_MS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "nosymfollow": 256}
_ALWAYS = ("ro", "nosuid", "nodev")
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_CAP_SYS_ADMIN = 21  # linux/capability.h

_AS_ROOT = "run as root, or install fusermount3 (apt-get install fuse3)"


class Busy(NopfsError):
    """The mount is in use: open files, mappings, working directories."""

    def __init__(self, mountpoint: str) -> None:
        super().__init__(Exit.BUSY_MOUNTPOINT, f"{mountpoint} is in use")


class NotMounted(NopfsError):
    """Nothing is mounted there (any more)."""

    def __init__(self, mountpoint: str) -> None:
        super().__init__(Exit.NOT_MOUNTED, f"nothing is mounted at {mountpoint}")


def may_mount() -> bool:
    """Return whether this process has CAP_SYS_ADMIN and can call mount(2) itself."""
    with open("/proc/self/status") as status:
        effective = next(line for line in status if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> _CAP_SYS_ADMIN & 1)


def helper() -> str | None:
    """Return the path of fusermount3, or None."""
    return shutil.which("fusermount3", path=os.environ.get("PATH", "") + ":/usr/bin:/bin:/usr/local/bin")


def user_allow_other(conf: str = "/etc/fuse.conf") -> bool:
    """Return whether the system lets users mount with allow_other."""
    with suppress(OSError), open(conf) as file:
        return any(line.strip() == "user_allow_other" for line in file)
    return False


def open_dev_fuse(path: str = DEV_FUSE) -> int:
    """Return a new descriptor of the FUSE device. Raises NopfsError with Exit.NO_FUSE."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NopfsError(
            Exit.NO_FUSE, f"{path} is missing: load the module (modprobe fuse), or pass it to the container"
        ) from error
    except OSError as error:
        raise NopfsError(
            Exit.NO_FUSE, f"{path} cannot be opened ({error.strerror}): allow it for this user or container"
        ) from error


def mount_fuse(config: MountConfig) -> tuple[int, Mount]:
    """Mount at `config.mountpoint`; return the FUSE descriptor (close-on-exec), which nobody serves yet, and the mount.

    Raises NopfsError: NO_FUSE, NO_RIGHT, or MOUNTPOINT.
    """
    if may_mount():
        return _mount_directly(config)
    with ExitStack() as undo:
        undo.callback(_clear, config)
        fd = _mount_by_helper(config)
        undo.callback(os.close, fd)
        mount = _mount_made(config)
        undo.pop_all()
    return fd, mount


def _clear(config: MountConfig) -> None:
    """Unmount what fusermount3 has mounted, though it then failed, or hung."""
    with suppress(NopfsError):
        unmount(_mount_made(config), lazy=True)


def _mount_made(config: MountConfig) -> Mount:
    """Return the mount that has just been made. Raises NopfsError where it is not at its mountpoint."""
    mount = find_mount(config.mountpoint)
    if mount is None or not mount.is_nopfs or mount.owner != os.getuid():
        raise NopfsError(Exit.MOUNTPOINT, f"{config.mountpoint} was replaced or unmounted while it was being mounted")
    return mount


def _mount_directly(config: MountConfig) -> tuple[int, Mount]:
    fd = open_dev_fuse()
    try:  # a real path has no links; one that has come since leads to a place of someone else's choice
        with closing_fd(open_trusted(config.mountpoint, links=False)) as directory:
            return fd, _mount_on(directory, fd, config)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            raise _mount_error(config.mountpoint, error) from error
        raise


def _mount_on(directory: int, fd: int, config: MountConfig) -> Mount:
    """Mount on an open directory, which must still be at the mountpoint. Raises OSError and NopfsError."""
    data = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},default_permissions"
    if config.allow_other:
        data += ",allow_other"
    flags = sum(_MS[name] for name in dict.fromkeys((*_ALWAYS, *config.mount_options)))
    target = f"/proc/self/fd/{directory}"
    _mount(config.source, target, FSTYPE, flags, data)
    try:
        return _mount_made(config)
    except BaseException:
        ctypes.CDLL(None).umount2(os.fsencode(target), _MNT_DETACH)
        raise


def _mount_error(mountpoint: str, error: OSError) -> NopfsError:
    if error.errno in (errno.EPERM, errno.EACCES):
        return NopfsError(Exit.NO_RIGHT, f"no right to mount at {mountpoint} ({error.strerror}): {_AS_ROOT}")
    if error.errno == errno.ENODEV:
        return NopfsError(Exit.NO_FUSE, "the kernel has no FUSE: load the module (modprobe fuse)")
    return NopfsError(Exit.MOUNTPOINT, f"cannot mount at {mountpoint}: {error.strerror}")


def _mount(source: str, target: str, fstype: str, flags: int, data: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (os.fsencode(source), os.fsencode(target), os.fsencode(fstype))
    if libc.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(data)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def _mount_by_helper(config: MountConfig) -> int:
    """Let fusermount3, which is setuid root, mount; it sends the descriptor back over a socket."""
    program = helper()
    if program is None:
        raise NopfsError(Exit.NO_RIGHT, f"no right to mount: {_AS_ROOT}")
    names = dict.fromkeys((*_ALWAYS, "default_permissions", *config.mount_options))
    options = [*names, f"fsname={_escape(config.source)}", "subtype=nopfs"]
    if config.allow_other:
        options.append("allow_other")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        done = run_bounded(
            [program, "-o", ",".join(options), "--", config.mountpoint],
            HELPER_S,
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno()), "LC_ALL": "C"},
        )
        if done is None:
            raise NopfsError(Exit.NO_RIGHT, f"fusermount3 did not answer within {HELPER_S:.0f} s")
        if done.code != 0:
            raise _helper_error(done.err)
        theirs.close()  # else a descriptor that was not sent would be waited for
        return _receive_descriptor(ours)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace(",", "\\,")


def _helper_error(stderr: str) -> NopfsError:
    said = " ".join(stderr.split()) or "it said nothing"
    if "/dev/fuse" in said or "device not found" in said:
        return NopfsError(Exit.NO_FUSE, f"{said}; load the module (modprobe fuse), or allow {DEV_FUSE}")
    return NopfsError(Exit.NO_RIGHT, f"{said}; see fusermount3(1), or run as root")


def _receive_descriptor(sock: socket.socket) -> int:
    descriptors = array.array("i")
    _, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(descriptors.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: descriptors.itemsize])
            return descriptors[0]
    raise NopfsError(Exit.NO_RIGHT, "fusermount3 mounted, but sent no descriptor")


def unmount(mount: Mount, lazy: bool = False) -> None:
    """Unmount `mount` and no other; `lazy`: out of sight now, ended when its last user closes.

    Does not wait for the daemon. Raises Busy, NotMounted, also where another mount is at its mountpoint by now, or
    NopfsError with Exit.NO_RIGHT.
    """
    if not is_in_place(mount):  # the kernel takes a path alone, and unmounts what that shows
        raise NotMounted(mount.mountpoint)
    if may_mount():
        _unmount_directly(mount.mountpoint, lazy)
    else:
        _unmount_by_helper(mount, lazy)


def _unmount_directly(mountpoint: str, lazy: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)
    parent, name = os.path.split(mountpoint)
    try:  # a real path has no links; one that has come since leads to a mount of someone else's choice
        directory = open_trusted(parent, links=False)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise NotMounted(mountpoint) from error
        raise NopfsError(Exit.NO_RIGHT, f"cannot unmount {mountpoint}: {error.strerror}") from error
    with closing_fd(directory):
        done = libc.umount2(os.fsencode(f"/proc/self/fd/{directory}/{name}"), flags) == 0
        number = ctypes.get_errno()
    if done:
        return
    if number == errno.EBUSY:
        raise Busy(mountpoint)
    if number in (errno.EINVAL, errno.ENOENT):
        raise NotMounted(mountpoint)
    raise NopfsError(Exit.NO_RIGHT, f"cannot unmount {mountpoint}: {os.strerror(number)}")


def _unmount_by_helper(mount: Mount, lazy: bool) -> None:
    program, mountpoint = helper(), mount.mountpoint
    if program is None:
        raise NopfsError(Exit.NO_RIGHT, f"no right to unmount {mountpoint}: {_AS_ROOT}")
    argv = [program, "-u", *(["-z"] if lazy else []), "--", mountpoint]
    done = run_bounded(argv, HELPER_S, env={**os.environ, "LC_ALL": "C"})
    if done is None:
        raise NopfsError(Exit.STUCK, f"fusermount3 did not answer within {HELPER_S:.0f} s")
    if done.code == 0:
        return
    if not is_in_place(mount):
        raise NotMounted(mountpoint)
    if "busy" in done.err:
        raise Busy(mountpoint)
    raise NopfsError(Exit.NO_RIGHT, f"cannot unmount {mountpoint}: {' '.join(done.err.split())}")
