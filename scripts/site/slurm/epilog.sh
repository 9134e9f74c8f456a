#!/bin/sh
# Slurm's Epilog: ends all nopfs mounts of a job on this node, whatever state they are in. Epilog=/opt/nopfsfs/site/slurm/epilog.sh
#
# It may run twice, and where no Prolog ran. It reads mountinfo and never the mounts, so that none can hold it up.
# Its status is always 0: any other drains the node.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
cd / || exit 0
BIN=/opt/nopfsfs/bin JOBS=/run/nopfs-jobs UMOUNT_S=60
site=/etc/nopfs/slurm.conf wrong=''
# A fault in the site's file would end this shell as well, with a status of its own: it is tried in another shell first.
# shellcheck source=/dev/null
if [ -r "$site" ]; then
	wrong=$({ . "$site"; exit 42; } 2>&1 >/dev/null)
	if [ $? = 42 ]; then
		. "$site"
		wrong=''
	else
		wrong="$site is not taken: $(echo "${wrong:-it ends the shell}" | tr '\n' ' ')"
	fi
fi
[ -z "$wrong" ] || logger -t nopfs "$wrong" 2>/dev/null
job=$JOBS/$SLURM_JOB_ID
case ${SLURM_JOB_ID:-x} in *[!0-9]*) exit 0 ;; esac

mounted() { grep -o " $job/[^ ]* " /proc/self/mountinfo; }

if mounted >/dev/null; then
	timeout -k 5 "$UMOUNT_S" "$BIN/nopfs-umount" --below "$job" --timeout 5s </dev/null 2>&1 | logger -t nopfs 2>/dev/null
	# What is left was not nopfs, or could not be ended: out of sight, at least.
	mounted | tac | while read -r path; do
		timeout -k 1 5 umount --lazy --no-canonicalize --internal-only "$path" </dev/null >/dev/null 2>&1
	done
fi
# Never into a mount: rm would ask it.
mounted >/dev/null || timeout -k 1 10 rm -rf --one-file-system "$job"
exit 0
