#!/bin/sh
# Builds a Debian package: the program with its libraries in a virtual environment of its own, /opt/nopfsfs; links in
# /usr/bin and /sbin, man pages, completions, the unit of systemd, and the scripts of scripts/site in /opt/nopfsfs/site.
#
#   make_deb.sh WHEEL SITE_FILES OUTPUT_DIRECTORY          needs dpkg-deb, Debian's python3-venv, libfuse3-dev, a compiler
#
# It runs on the Debian it was built on: the libraries are those of one Python, /usr/bin/python3 at the build.
set -eu
wheel=$1 site=$2 output=$3
python=/usr/bin/python3
version=$(basename "$wheel" | cut -d- -f2)
minor=$("$python" -c 'import sys; print(sys.version_info[1])')
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
umask 022
opt=$root/opt/nopfsfs

mkdir -p "$root/opt"
"$python" -m venv "$opt"
echo "  pip install, into the package"
"$opt/bin/python" -m pip --disable-pip-version-check --no-input install -q --no-compile "$wheel[metrics,top,plot]" >"$root/log" 2>&1 ||
	{ cat "$root/log" >&2; exit 1; }
rm "$root/log"
# The environment moves to /opt: what names the place where it was made is written anew, and pip is not needed there.
"$opt/bin/python" -m pip --disable-pip-version-check --no-input uninstall -q -y pip setuptools 2>/dev/null || :
find "$opt" -name __pycache__ -prune -exec rm -rf {} +
rm -f "$opt"/bin/[Aa]ctivate* "$opt"/bin/pip*
printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.%s\n' "$minor" >"$opt/pyvenv.cfg"
ln -sf /usr/bin/python3."$minor" "$opt/bin/python3"
for name in "$opt"/bin/*; do
	[ -L "$name" ] || sed -i '1s|^#!.*|#!/opt/nopfsfs/bin/python3 -P|' "$name"
done

cp -R scripts/site "$opt/site"
install -d "$root/usr/bin" "$root/usr/sbin" "$root/usr/share/man/man1" "$root/usr/lib/systemd/system" \
	"$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions" \
	"$root/usr/share/doc/nopfsfs" "$root/etc/nopfs/mounts" "$root/DEBIAN"
for name in nopfs nopfs-mount nopfs-umount; do ln -s "/opt/nopfsfs/bin/$name" "$root/usr/bin/$name"; done
for name in mount.fuse.nopfs mount.nopfs; do ln -s /opt/nopfsfs/bin/nopfs-mount "$root/usr/sbin/$name"; done
cp "$site"/man1/* "$root/usr/share/man/man1/"
gzip -9n "$root"/usr/share/man/man1/*
cp "$site"/bash/* "$root/usr/share/bash-completion/completions/"
cp "$site"/zsh/* "$root/usr/share/zsh/vendor-completions/"
cp scripts/site/systemd/nopfs@.service "$root/usr/lib/systemd/system/"
cp scripts/site/slurm/nopfs-slurm.conf "$root/etc/nopfs/slurm.conf"
cp LICENSE "$root/usr/share/doc/nopfsfs/copyright"

cat >"$root/DEBIAN/control" <<CONTROL
Package: nopfsfs
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: nopfsfs <nopfsfs@localhost>
Depends: python3 (>= 3.$minor), python3 (<< 3.$((minor + 1))), fuse3, libfuse3-3
Section: admin
Priority: optional
Installed-Size: $(du -sk "$root" | cut -f1)
Description: FUSE file system that prefetches training data
 A read-only mount that computes in which order a training job reads its
 samples, and brings each file into local memory before the job opens it.
CONTROL
echo /etc/nopfs/slurm.conf >"$root/DEBIAN/conffiles"
# Mounts go on while their program is replaced; without a program nobody could look after them.
cat >"$root/DEBIAN/prerm" <<'PRERM'
#!/bin/sh
set -e
if [ "$1" = remove ]; then
	# Else systemd goes on starting what is not there any more.
	[ ! -d /run/systemd/system ] || systemctl stop 'nopfs@*.service' || :
	/opt/nopfsfs/bin/nopfs-umount --below / --timeout 10s || :
fi
find /opt/nopfsfs -name __pycache__ -prune -exec rm -rf {} +
PRERM
cat >"$root/DEBIAN/postrm" <<'POSTRM'
#!/bin/sh
set -e
mkdir -p /opt # dpkg takes it away with the last package below, and base-files' is then missing
if [ "$1" = purge ]; then
	rm -rf /var/cache/nopfsfs
	rmdir /run/nopfs-jobs /run/nopfs /etc/nopfs/mounts /etc/nopfs 2>/dev/null || :
	rm -f /etc/systemd/system/*.wants/nopfs@*.service # of systemctl enable
fi
[ ! -d /run/systemd/system ] || systemctl daemon-reload || :
POSTRM
# systemd reads a unit that has changed when it is told to.
cat >"$root/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload || :
POSTINST
chmod 755 "$root/DEBIAN/prerm" "$root/DEBIAN/postrm" "$root/DEBIAN/postinst"
dpkg-deb --root-owner-group -Zxz --build "$root" "$output/nopfsfs_${version}_$(dpkg --print-architecture).deb"
