#!/bin/sh
# Sees to it that the operating system provides what pip cannot: FUSE, its headers, a compiler, venv, Python's headers.
#
#   system_deps.sh                      what the project needs; fails when something stays missing
#   system_deps.sh --site               what make test-site needs beside it
#   system_deps.sh --optional COMMAND   a command that a benchmark compares with; only says when it stays missing
#
# Installs with apt-get as root where there is one; otherwise names all that is missing at once. Silent when nothing is.
set -eu

python=${PYTHON:-python3}
optional='' site=''
[ "${1-}" = --optional ] && optional=$2
[ "${1-}" = --site ] && site=yes

has() { command -v "$1" >/dev/null 2>&1; }

# Prints the Debian packages that are missing.
missing() {
    if [ -n "$optional" ]; then
        has "$optional" || echo "$optional"
        return
    fi
    if [ -n "$site" ]; then
        has slurmd || echo slurm-wlm slurm-wlm-plugins
        has munged || echo munge
        has mmdebstrap || echo mmdebstrap
        [ -e "/usr/lib/$(uname -m)-linux-gnu/libpmix.so" ] || echo libpmix-dev
        has ip || echo iproute2
        return
    fi
    has fusermount3 || echo fuse3
    has pkg-config || echo pkg-config
    has cc && has make || echo build-essential
    { has pkg-config && pkg-config --exists fuse3; } || echo libfuse3-dev
    if has "$python"; then
        "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
        include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
        [ -e "$include/Python.h" ] || echo python3-dev
    else
        printf '%s\n' python3 python3-venv python3-dev
    fi
}

install() {
    echo "Installing with apt-get:" "$@"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"
}

packages=$(missing)
if [ -n "$packages" ] && [ "$(id -u)" = 0 ] && has apt-get; then
    log=$(mktemp)
    # shellcheck disable=SC2086 # a list of words
    install $packages >"$log" 2>&1 || cat "$log" >&2
    rm -f "$log"
    packages=$(missing)
fi

if [ -n "$packages" ]; then
    # shellcheck disable=SC2086 # a list of words
    set -- $packages
    echo "The system lacks: $*" >&2
    echo "On Debian or Ubuntu: sudo apt-get update && sudo apt-get install $*" >&2
    echo "Elsewhere: the packages of your distribution with these programs, headers and modules." >&2
    [ -n "$optional" ] || exit 1
fi

if [ -z "$optional" ] && ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "$python is older than 3.10; name a newer one: make PYTHON=python3.11 ..." >&2
    exit 1
fi
if [ -z "$optional" ] && ! [ -e /dev/fuse ]; then
    echo "There is no /dev/fuse: mounts will fail (load the fuse module, or give the container the device)" >&2
fi
