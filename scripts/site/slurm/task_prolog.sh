#!/bin/sh
# Slurm's TaskProlog: tells a job where to read. NOPFS_DATA is the mount where there is one, else the source itself, so
# that a job needs no case for a mount that failed. TaskProlog=/opt/nopfsfs/site/slurm/task_prolog.sh
JOBS=/run/nopfs-jobs SOURCE=''
site=/etc/nopfs/slurm.conf
# A fault in the site's file would end this shell as well, with a status of its own: it is tried in another shell first.
# shellcheck source=/dev/null
[ ! -r "$site" ] || (. "$site"; exit 42) >/dev/null 2>&1
[ $? != 42 ] || . "$site"
job=$JOBS/$SLURM_JOB_ID
data=$job/data source=$(cat "$job/source" 2>/dev/null) || source=$SOURCE
if grep -q " $data .* - fuse\.nopfs " /proc/self/mountinfo; then
	echo "export NOPFS_DATA=$data"
else
	[ -z "$source" ] || echo "export NOPFS_DATA=$source"
	[ ! -r "$job/failed" ] || echo "print nopfs: no mount${source:+, reading $source}: $(cat "$job/failed")"
fi
exit 0
