#!/bin/sh
# Runs a command, as root, in mount, network and process namespaces of its own: when it ends, every process that it left
# is killed, and every mount that it made is gone. Nothing outside is reached, and 127.0.0.1 is a network of its own.
#
#   apart.sh COMMAND [ARGUMENT ...]
set -eu
[ "$(id -u)" = 0 ] || { echo "apart.sh: needs root" >&2; exit 1; }
# FUSE mounts of others go from here: a copy would keep them after their unmount outside. mountinfo writes a space as \040.
# A second address: with loopback's alone, getaddrinfo finds no network at all. The shell stays, to reap orphans.
# shellcheck disable=SC2016 # for the inner shell
exec unshare --mount --propagation slave --net --pid --fork --kill-child --mount-proc sh -c '
	sed -n "s/^[^ ]* [^ ]* [^ ]* [^ ]* \([^ ]*\) .* - fuse[. ].*/\1/p" /proc/self/mountinfo | tac |
		while read -r path; do
			umount --lazy --no-canonicalize --internal-only "$(printf "%b" "$path")" || exit
		done || exit
	ip link set lo up && ip address add 10.255.255.1/32 dev lo || exit
	"$@" || exit' apart.sh "$@"
