#!/bin/sh
# Slurm's Prolog: mounts the source that a job asks for, on each of its nodes, as root. Prolog=/opt/nopfsfs/site/slurm/prolog.sh
#
#   sbatch --comment "nopfs=/pfs/imagenet seed=42" job.sh       the job reads /run/nopfs-jobs/$SLURM_JOB_ID/data
#
# The source is read with the rights of the job's user. Nothing that goes wrong here costs the job more than speed: the
# status is always 0 (any other drains the node), and JOBS/ID/failed says why there is no mount.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
cd / || exit 0
umask 022
BIN=/opt/nopfsfs/bin JOBS=/run/nopfs-jobs SOURCE='' OPTIONS='' AS_USER='' IO_TIMEOUT=45s MOUNT_S=60
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

job=$JOBS/$SLURM_JOB_ID
case ${SLURM_JOB_ID:-x} in *[!0-9]*) exit 0 ;; esac
mkdir -p "$JOBS" && mkdir "$job" "$job/data" "$job/user" || exit 0
# For mounts of the job's own (job_without_root.sh): the Epilog ends what is mounted below.
chmod 700 "$job/user" && chown "$SLURM_JOB_UID:$SLURM_JOB_GID" "$job/user"

asked=${SLURM_JOB_COMMENT-}
case $asked in
*nopfs=*) source=${asked#*nopfs=} source=${source%%[ ,;]*} ;;
*) source=$SOURCE ;;
esac
# Also for a job that asks for nothing: the site's SOURCE is not known then, nor how much memory a mount may take.
[ -z "$wrong" ] || { echo "$wrong" >"$job/failed"; logger -t nopfs -f "$job/failed" 2>/dev/null; }
[ -n "$source" ] || exit 0
case $source in
/*) ;;
*) echo "nopfs=$source in the job's comment is no absolute path" >"$job/failed"; exit 0 ;;
esac
echo "$source" >"$job/source" # for the TaskProlog, which does not see the comment
[ -z "$wrong" ] || exit 0
# Only these words: what else the user writes there reaches no command of root's.
set -- --io-timeout "$IO_TIMEOUT"
case $asked in *seed=[0-9]*) seed=${asked#*seed=} && set -- "$@" --seed "${seed%%[!0-9]*}" ;; esac
# Newer Slurms say it; where Slurm keeps no configuration on its nodes, scontrol may have to ask for that.
nodes=${SLURM_JOB_NUM_NODES:-$(timeout 5 scontrol show hostnames "${SLURM_JOB_NODELIST:-${SLURM_NODELIST-}}" 2>/dev/null | wc -l)}
case $nodes in '' | 0* | *[!0-9]*) ;; *) set -- "$@" --job-nodes "$nodes" ;; esac
case ${SLURM_JOB_WORK_DIR-} in
/*)
	again=''
	[ "${SLURM_JOB_RESTART_COUNT:-0}" = 0 ] || again=-restart$SLURM_JOB_RESTART_COUNT
	set -- "$@" --job-report "$SLURM_JOB_WORK_DIR/nopfs-$SLURM_JOB_ID-$SLURMD_NODENAME$again.json"
	;;
esac
if [ "$AS_USER" = yes ]; then
	chown "$SLURM_JOB_UID:$SLURM_JOB_GID" "$job/data"
	HOME=$(timeout 5 getent passwd "$SLURM_JOB_UID" | cut -d: -f6)
	export HOME
	unset XDG_CACHE_HOME XDG_RUNTIME_DIR # of slurmd
	as="setpriv --reuid $SLURM_JOB_UID --regid $SLURM_JOB_GID --init-groups"
else
	as='' && set -- "$@" --user "$SLURM_JOB_UID"
fi
# Without the terminal of slurmd: it waits until nobody holds its pipes any more.
# shellcheck disable=SC2086 # lists of words
timeout -k 5 "$MOUNT_S" $as "$BIN/nopfs-mount" "$source" "$job/data" "$@" $OPTIONS \
	</dev/null >"$job/log" 2>&1 || { tail -n 1 "$job/log" >"$job/failed"; logger -t nopfs -f "$job/failed" 2>/dev/null; }
exit 0
