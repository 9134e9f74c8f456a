#!/bin/sh
# Installs a wheel or a source distribution by pip into a virtual environment of a clean Debian tree, mounts, reads,
# unmounts. Debian 12 (bookworm) has Python 3.11, Debian 13 (trixie) 3.13. As root; pip's settings of this machine are used.
#
#   check_install.sh SUITE PACKAGE
set -eu
suite=$1 package=$2
[ -n "${CHECK_INSTALL_INSIDE-}" ] || CHECK_INSTALL_INSIDE=yes exec unshare --mount --pid --fork --kill-child --mount-proc sh "$0" "$@"
tree=$(mktemp -d)
trap 'umount -R "$tree"; rmdir "$tree"' EXIT
mount -t tmpfs -o mode=755 tmpfs "$tree"
mmdebstrap -q --variant=minbase --include=python3-venv,python3-dev,gcc,pkg-config,libfuse3-dev,fuse3,ca-certificates "$suite" "$tree" </dev/null
mount -t proc proc "$tree/proc"
mount -t tmpfs tmpfs "$tree/run"
mkdir "$tree/source"
[ -e "$tree/dev/fuse" ] || mknod -m 666 "$tree/dev/fuse" c 10 229
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do [ ! -e "$file" ] || cp -L "$file" "$tree$file"; done
for number in 1 2 3 4 5 6 7 8; do head -c 100000 /dev/urandom >"$tree/source/$number.jpg"; done
mkdir "$tree/package"
cp "$package" "$tree/package/"
cat >"$tree/check.sh" <<'CHECK'
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
python3 -m venv /venv
/venv/bin/pip --disable-pip-version-check --no-input install /package/*
/venv/bin/python --version
/venv/bin/nopfs-mount /source /mnt --ram 64M
for file in /source/*; do cmp "$file" "/mnt/${file##*/}"; done
/venv/bin/nopfs-umount /mnt
[ -z "$(ls -A /mnt)" ]
echo "installed, mounted, read, unmounted"
CHECK
chroot "$tree" sh /check.sh
