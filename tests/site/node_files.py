"""A machine of the test's own: run inside the namespaces of `scripts/apart.sh`, it changes nothing outside."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALICE = 12345  # a user of the test's own
STAGE = Path("/srv")  # a file system in memory, open to all

# As pip writes them, for the tree that is tested. What a mount starts imports that tree, too.
_COMMAND = """#!{python}
import os, sys
os.environ["PYTHONPATH"] = sys.path[0] = {root!r}
from nopfsfs.cli.{module} import main
sys.exit(main())
"""


def sh(script: str, limit_s: float = 30.0, **options: object) -> str:
    """Run a shell script; return what it printed. Raises CalledProcessError."""
    done = subprocess.run(
        ["sh", "-ec", script], check=False, capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL,
        **options,  # type: ignore[call-overload]
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"{script}\nended with {done.returncode}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def make_machine() -> Path:
    """Make /srv, /etc, /tmp, /run, /var/cache and /dev/fuse the test's own, with user alice, and the commands of this
    tree, which alice may run. Return the directory of the commands."""
    hidden = [place for place in (STAGE, Path("/run"), Path("/var/cache")) if ROOT.is_relative_to(place)]
    assert not hidden, f"these tests do not run in a clone below {hidden[0]}, which they cover"
    sh("mount --make-rshared /")  # what is mounted later, the nodes see too
    for place in (STAGE, "/run", "/var/cache"):
        sh(f"mount -t tmpfs -o mode=755 tmpfs {place}")
    for name in ("etc", "tmp", "usr/sbin"):
        upper, work = (f"{STAGE}/{name.replace('/', '-')}-{what}" for what in ("upper", "work"))
        sh(f"mkdir {upper} {work}; chmod $(stat -c %a /{name}) {upper}")
        sh(f"mount -t overlay overlay -o lowerdir=/{name},upperdir={upper},workdir={work} /{name}")
    sh(f"""cd /
    echo alice:x:{ALICE}:{ALICE}::/srv/home:/bin/sh >>/etc/passwd
    mkdir -p /srv/home /etc/nopfs; chown {ALICE} /srv/home
    mknod -m 666 {STAGE}/fuse c 10 229; mount --bind {STAGE}/fuse /dev/fuse""")
    _open_to_all([Path(sys.base_prefix), Path(sys.prefix), ROOT])
    commands = STAGE / "bin"
    commands.mkdir()
    for name, module in {"nopfs": "nopfs", "nopfs-mount": "mount", "nopfs-umount": "umount"}.items():
        (commands / name).write_text(_COMMAND.format(python=sys.executable, root=str(ROOT), module=module))
        (commands / name).chmod(0o755)
    return commands


def _open_to_all(paths: list[Path]) -> None:
    """Let all users reach these directories, also where one above them is closed to others."""
    closed = {path.resolve(): top for path in paths if (top := _closed_above(path.resolve())) is not None}
    for number, path in enumerate(closed):
        sh(f"mkdir {STAGE}/bound{number}; mount --bind {shlex.quote(str(path))} {STAGE}/bound{number}")
    for top in set(closed.values()):
        sh(f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(top))}")
    for number, path in enumerate(closed):
        sh(f"mkdir -p {shlex.quote(str(path))}; mount --bind {STAGE}/bound{number} {shlex.quote(str(path))}")


def _closed_above(path: Path) -> Path | None:
    """The topmost directory on the way to `path` that others may not enter."""
    return next((p for p in reversed((path, *path.parents)) if not p.stat().st_mode & stat.S_IXOTH), None)


def processes_of_mounts() -> list[str]:
    """The processes of mounts in this process namespace."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.startswith(b"nopfsfs.") for word in words):
                found.append(f"{entry}: {b' '.join(words).decode()}")
    return found
