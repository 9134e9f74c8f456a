#!/usr/bin/env bash
# Runs a script under an older Linux, to see what the mount does there: Debian 11's 5.10 (no FUSE_NOTIFY_RESEND, no cachestat, no FUSE
# passthrough; near RHEL 9's 5.14), or Debian 12's 6.1. The guest sees this machine's files by 9p, read-only, under a tmpfs.
#
#   old_kernel.sh 5.10|6.1 SCRIPT [ARGUMENT ...]    as root; SCRIPT's path must not lie in a tmpfs
#
# SCRIPT starts as root, with /proc, /sys, /dev, and a tmpfs each at /dev/shm, /run and /mnt. There is no network, and no cgroup. The last
# line says which kernel it was. Exit status: that of SCRIPT; 77 where QEMU or the kernel cannot be had; 124 past the limit.
#
#   OLD_KERNEL_LIMIT    seconds for the guest (900)
#   OLD_KERNEL_MEMORY   MiB of memory for it (3000)
#   OLD_KERNEL_ACCEL    kvm, or tcg: emulated, some ten times slower. Without it: kvm where a guest boots with it
#
# QEMU, busybox and cpio are installed by apt-get, once. Kernels are kept in ~/.cache/old_kernel.
set -euo pipefail

want=${1:?5.10 or 6.1} script=$(readlink -f "${2:?a script}")
shift 2
case $want in
    5.10) suite=bullseye ;;
    6.1) suite=bookworm ;;
    *) echo "old_kernel.sh: 5.10 or 6.1, not $want" >&2; exit 2 ;;
esac
cache=${XDG_CACHE_HOME:-$HOME/.cache}/old_kernel/$want
modules="virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci netfs fscache 9pnet 9pnet_virtio 9p fuse overlay"
probe_limit=20

not_to_be_had() {
    echo "old_kernel.sh: $1" >&2
    exit 77
}

install_tools() {
    local missing=
    for tool in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio; do
        command -v "${tool%%:*}" >/dev/null || missing+=" ${tool##*:}"
    done
    [ -n "$missing" ] || return 0
    { apt-get update -q && apt-get install -y -q --no-install-recommends $missing; } >/dev/null 2>&1 || not_to_be_had "cannot install:$missing"
}

# Fetches the newest package of that kernel, by apt with a list of its own, and unpacks it.
fetch_kernel() {
    [ ! -e "$cache/root" ] || return 0
    mkdir -p "$cache"
    local at name mirror
    at=$(mktemp -d)
    mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1) || true
    [ -n "$mirror" ] || not_to_be_had "no Debian mirror is known to apt"
    mkdir -p "$at/lists/partial" "$at/archives/partial"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror% } $suite main" >"$at/list"
    local apt=(-q -o "Dir::Etc::SourceList=$at/list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$at/lists" -o "Dir::Cache=$at"
        -o APT::Sandbox::User=root)
    apt-get "${apt[@]}" update >"$at/log" 2>&1 || { tail -n 3 "$at/log" >&2; not_to_be_had "cannot read the list of $suite"; }
    name=$(apt-cache "${apt[@]}" pkgnames "linux-image-$want" | grep -xE "linux-image-${want//./\\.}\.0-[0-9]+-amd64" | sort -V | tail -n 1) || true
    [ -n "$name" ] || not_to_be_had "$suite has no kernel $want"
    (cd "$at" && apt-get "${apt[@]}" download "$name" >>"$at/log" 2>&1) || not_to_be_had "cannot fetch $name"
    dpkg -x "$at/$name"_*.deb "$cache/root.new"
    mv -T "$cache/root.new" "$cache/root"
    rm -rf "$at"
}

# Makes the guest's first file system: busybox, the modules, and an init that runs SCRIPT over this machine's files.
make_initrd() {
    mkdir -p "$work/ir/bin" "$work/ir/m"
    cp "$(command -v busybox)" "$work/ir/bin/"
    for m in $modules; do
        find "$cache/root/lib/modules" -name "$m.ko" -exec cp {} "$work/ir/m/" \; -quit
    done
    cat >"$work/ir/init" <<I
#!/bin/busybox sh
B=/bin/busybox
\$B mkdir -p /proc /sys /dev /r /o /n
\$B mount -t proc p /proc
\$B mount -t sysfs s /sys
\$B mount -t devtmpfs d /dev
for m in $modules; do [ ! -e /m/\$m.ko ] || \$B insmod /m/\$m.ko 2>/dev/null; done
\$B mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 root /r
if \$B grep -q old_kernel_probe /proc/cmdline; then echo OLD_KERNEL_BOOTS; \$B poweroff -f; fi
\$B mount -t tmpfs t /o
\$B mkdir /o/u /o/w
\$B mount -t overlay -o lowerdir=/r,upperdir=/o/u,workdir=/o/w ov /n
for x in proc sys dev; do \$B mount --move /\$x /n/\$x; done
\$B mkdir -p /n/dev/shm
for x in dev/shm run mnt; do \$B mount -t tmpfs t /n/\$x; done
\$B mount -t fusectl f /n/sys/fs/fuse/connections
export PATH=$(printf %q "$PATH") HOME=$(printf %q "$HOME") PYTHONDONTWRITEBYTECODE=1
\$B chroot /n /bin/bash $(printf '%q ' "$script" "$@")
echo "OLD_KERNEL_STATUS \$? \$(\$B uname -r)"
\$B poweroff -f
I
    chmod +x "$work/ir/init"
    (cd "$work/ir" && find . | cpio -o -H newc 2>/dev/null | gzip -1) >"$work/ir.gz"
}

# boot ACCEL SECONDS [WORD]: WORD goes to the guest's kernel.
boot() {
    local accel=tcg,thread=multi cpu=max
    [ "$1" != kvm ] || accel=kvm cpu=host,arch-capabilities=off
    timeout "$2" qemu-system-x86_64 -accel "$accel" -cpu "$cpu" -smp 2 -m "${OLD_KERNEL_MEMORY:-3000}" \
        -kernel "$(ls "$cache"/root/boot/vmlinuz-*)" -initrd "$work/ir.gz" -append "console=ttyS0 quiet panic=-1 ${3:-}" -nographic -no-reboot \
        -virtfs local,path=/,security_model=none,mount_tag=root,readonly=on,multidevs=remap </dev/null | sed -u 's|\r||g'
}

install_tools
fetch_kernel
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make_initrd "$@"
accel=${OLD_KERNEL_ACCEL:-}
if [ -z "$accel" ]; then
    accel=tcg
    [ ! -w /dev/kvm ] || { boot kvm "$probe_limit" old_kernel_probe || true; } >"$work/probe" 2>&1
    ! grep -q OLD_KERNEL_BOOTS "$work/probe" 2>/dev/null || accel=kvm
fi
boot "$accel" "${OLD_KERNEL_LIMIT:-900}" | tee "$work/out" || true
read -r status release <<<"$(sed -n 's/^OLD_KERNEL_STATUS //p' "$work/out" | tail -n 1)"
echo "old_kernel.sh: ${release:-$want, not known to the end} ($accel)"
exit "${status:-124}"
