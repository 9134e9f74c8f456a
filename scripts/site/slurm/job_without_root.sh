#!/bin/bash
#SBATCH --nodes=2
# A job that mounts by itself, on a cluster without the Prolog or for a source of its own: needs fuse3 on the nodes, no root.
# The mounts are a step beside the training. When the job is cancelled or at its time limit, Slurm ends the step, and the
# mounts unmount at its SIGTERM.
#
#   sbatch job_without_root.sh /pfs/imagenet python train.py                   the command finds the mount in NOPFS_DATA
#   NOPFS_MPI=pmix sbatch job_without_root.sh /pfs/imagenet python train.py    the same, with one cache for all nodes
#
# NOPFS_OPTIONS in the environment are further options of nopfs-mount, such as "--seed 42 --disk /local/scratch:500G".
# NOPFS_MPI, as `srun --mpi=list` has it, connects the mounts: a node then fetches from another what that one keeps.
BIN=${NOPFS_BIN:-/opt/nopfsfs/bin}
source=$1
shift
# The state of a mount must not go with a login session; and the Prolog, where there is one, has made a directory that
# the Epilog looks below.
export XDG_RUNTIME_DIR=
mount=/run/nopfs-jobs/$SLURM_JOB_ID/user
[ -d "$mount" ] || mount=/tmp/nopfs-job-$SLURM_JOB_ID
export BIN source mount NOPFS_OPTIONS="${NOPFS_OPTIONS-}"

on_each_node() { srun --overlap --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --kill-on-bad-exit=1 "$@"; }

# shellcheck disable=SC2016 # each node has a name of its own
on_each_node --mpi="${NOPFS_MPI:-none}" sh -c 'mkdir -p "$mount" && exec "$BIN/nopfs-mount" -f "$source" "$mount" $NOPFS_OPTIONS \
	--job-report "$SLURM_SUBMIT_DIR/nopfs-$SLURM_JOB_ID-$SLURMD_NODENAME.json"' &
mounts=$!
on_each_node --mpi=none "$BIN/nopfs" wait "$mount" --timeout 10m 2>/dev/null &
waiting=$!
# Whichever ends first: the mounts answer, or have failed.
export NOPFS_DATA=$mount
if ! wait -n || ! kill -0 "$mounts" 2>/dev/null; then
	echo "nopfs: no mount, reading $source" >&2
	NOPFS_DATA=$source
	kill "$waiting" "$mounts" 2>/dev/null
fi

srun --overlap --mpi=none "$@"
status=$?

on_each_node --mpi=none "$BIN/nopfs-umount" --below "$mount" --timeout 5s
case $mount in /tmp/*) on_each_node --mpi=none rmdir "$mount" ;; esac
wait "$mounts"
exit "$status"
