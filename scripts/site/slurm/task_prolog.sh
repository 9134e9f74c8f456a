#!/bin/sh
# Slurm's TaskProlog: tells a job where to read. NOPFS_DATA is the mount where there is one, else the source itself, so
# that a job needs no case for a mount that failed. TaskProlog=/opt/nopfsfs/site/slurm/task_prolog.sh
JOBS=/run/nopfs-jobs SOURCE=''
# shellcheck source=/dev/null # a file of the site
[ ! -r /etc/nopfs/slurm.conf ] || . /etc/nopfs/slurm.conf
job=$JOBS/$SLURM_JOB_ID
data=$job/data source=$(cat "$job/source" 2>/dev/null) || source=$SOURCE
if grep -q " $data .* - fuse\.nopfs " /proc/self/mountinfo; then
	echo "export NOPFS_DATA=$data"
elif [ -n "$source" ]; then
	echo "export NOPFS_DATA=$source"
	[ ! -r "$job/failed" ] || echo "print nopfs: no mount, reading $source: $(cat "$job/failed")"
fi
exit 0
